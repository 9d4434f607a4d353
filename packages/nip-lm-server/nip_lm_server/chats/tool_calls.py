"""Tools: how a chat template describes them, and how its model writes a call.

ToolForm         how calls stand in a model's text; reads them from an answer
find_form        the form of a template, by rendering a call with it
read_parameters  the schema of a tool's arguments

The form is not looked up by the model's name. The template itself writes a call, and the text
around the name and the arguments is the form. It is read where a call is one JSON object with the
name and the arguments in it, bare or between two marks (Hermes, Qwen 2.5 and 3, Llama 3). A
template that writes calls otherwise, or with special tokens, has no form.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nip_lm_server.chats.chat_types import Tool

_NAME = "sentinel_tool"
_ARGUMENTS = {"sentinel_key": "sentinel value"}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "sentinel description",
        "parameters": {"type": "object", "properties": {"sentinel_key": {"type": "string"}}},
    },
}
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00000",
            "type": "function",
            "function": {"name": _NAME, "arguments": json.dumps(_ARGUMENTS)},
        }
    ],
}
_ARGUMENT_KEYS = ("arguments", "parameters")

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], bool], str]
"""(messages, tools, whether an answer is to follow) -> text. May raise ValueError."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool. `arguments` is JSON in the model's own words, and may be wrong."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ToolForm:
    """A call is `opening`, a JSON object with "name" and `key`, `closing`."""

    opening: str
    closing: str
    key: str  # arguments or parameters

    @property
    def marker(self) -> str:
        """The beginning of a call's text; empty: the call is the whole answer."""
        return self.opening.strip()

    def surround(self, name: str) -> tuple[str, str]:
        """Return the text before and after the arguments of a call of `name`."""
        head = f'{self.opening}{{"name": {json.dumps(name)}, "{self.key}": '
        return head, "}" + self.closing

    def read(self, text: str, names: Sequence[str]) -> tuple[str, tuple[ToolCall, ...]]:
        """An answer's text without its calls of `names`, and the calls."""
        if not self.marker:
            call, end = self._call_at(text, 0, names)
            return ("", (call,)) if call and not text[end:].strip() else (text, ())
        # A text that begins like a call and is none stays text.
        calls: list[ToolCall] = []
        words, position = "", 0
        while (start := text.find(self.marker, position)) >= 0:
            call, end = self._call_at(text, start + len(self.marker), names)
            words += text[position : start if call else end]
            position = end
            if call is not None:
                calls.append(call)
        words += text[position:]
        return words.strip() if calls else text, tuple(calls)

    def _call_at(self, text: str, start: int, names: Sequence[str]) -> tuple[ToolCall | None, int]:
        """Read the call from `start` on, and return it with its end; no call: None, and `start`."""
        begin = start + len(text[start:]) - len(text[start:].lstrip())
        try:
            value, end = json.JSONDecoder().raw_decode(text, begin)
        except (ValueError, RecursionError):
            return None, start
        if not isinstance(value, dict) or value.get("name") not in names:
            return None, start
        arguments = value.get(self.key, {})
        if not isinstance(arguments, dict):
            return None, start
        closing = self.closing.strip()
        ending = text[end:].lstrip()
        if closing and ending.startswith(closing):
            end = len(text) - len(ending) + len(closing)
        return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False)), end


def find_form(render: Render, special: Sequence[str]) -> ToolForm | None:
    """Find the form of a template's calls; None if it has no form known here.

    `special` are the texts of the tokenizer's special tokens, which no answer's text shows.
    """
    # 1. Let the template write a call, and a tool's answer.
    user = {"role": "user", "content": "sentinel question"}
    result = {"role": "tool", "tool_call_id": "call00000", "content": "sentinel result"}
    try:
        prompt = render([user], [_TOOL], True)
        conversation = render([user, _CALL], [_TOOL], False)
        if "sentinel result" not in render([user, _CALL, result], [_TOOL], True):
            return None
    except ValueError:
        return None
    # 2. The call follows the prompt, and must be one JSON object with our values.
    if _NAME not in prompt or not conversation.startswith(prompt):
        return None
    call_text = conversation[len(prompt) :]
    start = call_text.find("{")
    try:
        value, end = json.JSONDecoder().raw_decode(call_text, max(start, 0))
    except ValueError:
        return None
    key = next((k for k in _ARGUMENT_KEYS if isinstance(value, dict) and k in value), None)
    if key is None or value != {"name": _NAME, key: _ARGUMENTS}:
        return None
    # 3. The marks around it, as far as an answer's text shows them.
    closing = call_text[end:]
    for token in special:
        closing = closing.partition(token)[0] if token else closing
    opening = call_text[:start]
    # An answer may think before it calls: only the last mark belongs to the call.
    opening = opening[opening.rfind(opening.split()[-1]) :] if opening.strip() else ""
    if any(token and token in opening for token in special) or "[" in opening:
        return None
    return ToolForm(opening, closing.rstrip(), key)


def read_parameters(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments; a tool without one takes no arguments."""
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    return dict(tool["function"].get("parameters") or empty)
