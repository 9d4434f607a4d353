"""Calls of a tool by OpenAI's `tools`, and the lines of text that stand for them on record.

describe_tools  the tool as a request has it
show_call       a call on record with its result, as messages of a chat
spell_out       a message of a chat for people, a call as its line
write_call      the text of an answer that has calls

A call has one form on record, the line that `parse_response` reads. So rows, limits, prices and
readers don't depend on the way of calling.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nip_core.game.answers.answer_lines import without_thinking
from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.answers.parsing import AnswerForm, parse_response
from nip_core.tools import Tool, find_call

_ARGUMENT = "argument"
_CUT = 2_000
"""Characters of calls that can't be read, in the text on record."""

Calls = Sequence[tuple[str, str]]
"""Of an answer: the name of each, and its arguments, JSON in the model's own words."""


def describe_tools(tool: Tool) -> list[dict[str, Any]]:
    """Describe the tool as the field `tools` of a request has it."""
    argument = {"type": "string", "description": f"{tool.argument}, such as {tool.example!r}"}
    parameters = {
        "type": "object",
        "properties": {_ARGUMENT: argument},
        "required": [_ARGUMENT],
        "additionalProperties": False,
    }
    function = {"name": tool.name, "description": f"Shows {tool.result}.", "parameters": parameters}
    return [{"type": "function", "function": function}]


def show_call(text: str, result: str, tool: Tool, number: int) -> list[dict[str, Any]]:
    """Show a call with its result as the two messages of OpenAI's API.

    `number` is of no other call in the chat.
    """
    call = find_call(without_thinking(text), tool)
    assert call is not None  # a row with a result is a call
    identifier = f"call{number:05d}"  # Mistral takes nine letters and digits, and others any
    function = {"name": tool.name, "arguments": json.dumps({_ARGUMENT: call.argument})}
    calls = [{"id": identifier, "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": call.lead.strip(), "tool_calls": calls},
        {"role": "tool", "tool_call_id": identifier, "content": result},
    ]


def spell_out(message: Mapping[str, Any]) -> str:
    """Write the text of a message for people; a call is the line that stands for it on record."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    lines = [f"{f['name'].capitalize()}: {json.loads(f['arguments'])[_ARGUMENT]}" for f in calls]
    return "\n".join(filter(None, (message["content"], *lines)))


def write_call(text: str, calls: Calls, form: AnswerForm) -> str:
    """Write an answer with calls as a text; of several the last counts.

    Raises InvalidResponse for a call of another tool, and for arguments without a text that a
    line, or a listing, can have.
    """
    tool = form.tool
    assert tool is not None  # else nothing is called
    name, arguments = calls[-1]
    if name != tool.name:
        raise InvalidResponse(f"a call of {name!r:.40}; the tool is called {tool.name}")
    argument = _read_argument(arguments)
    for lead in (f"{text.strip()}\n", "") if text.strip() else ("",):
        for written in _write_argument(argument, tool):
            line = f"{lead}{tool.label}{written}"
            if _reads(line, form) == (argument if tool.has_lines else written.strip(" \t*_#`")):
                return line
    raise InvalidResponse(f"a call whose {_ARGUMENT} holds another call, a listing or a move")


def describe_calls(text: str, calls: Calls) -> str:
    """Write calls without a meaning for the record."""
    written = json.dumps([{"name": n, "arguments": a} for n, a in calls], ensure_ascii=False)
    return f"{text}\n{written[:_CUT]}".strip()


def _read_argument(arguments: str) -> str:
    try:
        value = json.loads(arguments)[_ARGUMENT]
    except (ValueError, KeyError, TypeError, RecursionError):
        value = None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidResponse(f"a call without a text {_ARGUMENT!r} in its JSON")
    # Half a surrogate pair, which JSON may carry, is in no table.
    return str(value).encode("utf-8", "replace").decode().rstrip()


def _write_argument(argument: str, tool: Tool) -> list[str]:
    if not tool.has_lines:
        return [f" {' '.join(argument.split())}"]
    return [f" {argument}", f"\n```\n{argument}\n```"]


def _reads(line: str, form: AnswerForm) -> str | None:
    """Read the argument of a call as it will be read from the record."""
    try:
        return parse_response(line, replace(form, is_used_up=False)).call
    except InvalidResponse:
        return None
