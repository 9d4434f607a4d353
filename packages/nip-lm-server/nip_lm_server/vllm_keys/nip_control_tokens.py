"""Keeps the words of a message from being read as the beginning or the end of a message.

ControlTokens        the control tokens of one tokenizer: breaks them in texts and in messages
BreakControlTokens   middleware inside the vLLM server: the same for every chat request
set_template_kwargs  the variables with which a tokenizer's chat template is rendered, from then on
template_facts       whether the template writes today's date, names of speakers, and thoughts
thought_form         where the template takes an answer's thoughts from

A chat template writes control tokens around messages, and a tokenizer reads them wherever they
stand. A writer of <|im_end|> in a message would end it, and could begin another in any role. So a
blank follows the first character of each control token in a message: the model sees the text, and
none of its token ids is a control token's. A text without control tokens stays as it is.

Control tokens are the tokenizer's special tokens, and plain words where a template uses these
instead, such as [/INST] or USER:. Tokens that models themselves write, as <think>, are not broken.

Serving, training and vLLM use this one module, so that a model is served the texts that it was
trained on. vLLM's own Python imports it from a directory of its own: it imports nothing of ours,
and heavy modules late.
"""

import json
import os
import re
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Application = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

_SHAPES = (("system", "user", "assistant", "user"), ("user", "assistant", "user"))
_SENTINEL = "sentinel{}sentinel"
_BRACKETED = re.compile(r"<{1,2}/?\|?[^\s<>|]+\|?>{1,2}|\[/?[^\s\[\]]+\]")
_THOUGHTS = re.compile(r"</?think(ing)?>", re.IGNORECASE)
_MIN_LETTERS = 2  # of a plain word that is a marker
_SAID = ("messages", "input", "instructions", "system", "tools")
_NOT_SAID = ("role", "type")
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "strftime_now")
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
_USUAL = ("enable_thinking", "thinking", "reasoning_effort", "date_string", "current_date")
"""Variables that usual chat templates let callers set."""


def set_template_kwargs(tokenizer: Any, kwargs: Mapping[str, Any]) -> None:
    """Have every rendering by the tokenizer's chat template set these variables.

    Raises ValueError for a variable that the template does not read, or that callers may not set.
    """
    template = _template_text(tokenizer)
    for name in kwargs:
        if name in _RESERVED or re.search(rf"\b{re.escape(name)}\b", template) is None:
            usual = [usual for usual in _USUAL if re.search(rf"\b{usual}\b", template)]
            raise ValueError(
                f"chat_template_kwargs: the model's chat template has no variable {name!r} to set"
                + (f"; it has {', '.join(usual)}" if usual else "")
            )
    tokenizer.nip_template_kwargs = dict(kwargs)


def template_kwargs(tokenizer: Any) -> dict[str, Any]:
    """Return the variables set by `set_template_kwargs`."""
    return dict(getattr(tokenizer, "nip_template_kwargs", {}))


def _render(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], *, generation: bool = True, **kwargs: Any
) -> str | None:
    """Render by the chat template, with the variables set now; None where it refuses that."""
    variables = {**template_kwargs(tokenizer), **kwargs}
    try:
        return str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generation, **variables
            )
        )
    except Exception:  # a template may raise any exception
        return None


def template_facts(tokenizer: Any) -> dict[str, Any]:
    """Find out by renderings which texts the chat template writes, with the variables set now.

    writes_date: it writes today's date. shows_names: it writes speakers' names. thoughts: see
    `thought_form`. unset: its variables that usual templates let callers set, and no caller has
    set. Empty where the template does not take a user's message.
    """

    def render(name: str, **kwargs: Any) -> str | None:
        message = {"role": "user", "content": _SENTINEL.format(0), "name": name}
        return _render(tokenizer, [message], **kwargs)

    text, variables = _template_text(tokenizer), template_kwargs(tokenizer)
    plain = render("Ann")
    if plain is None:
        return {}
    return {
        # A template that asks for the date calls this function, and fails where there is none.
        "writes_date": plain != render("Ann", strftime_now="no function"),
        "shows_names": plain != render("Bob"),
        "thoughts": thought_form(tokenizer),
        "unset": [n for n in _USUAL if n not in variables and re.search(rf"\b{n}\b", text)],
    }


def thought_form(tokenizer: Any) -> str | None:
    """Find out by renderings where the chat template takes the last answer's thoughts from.

    Returns the field of the message that it reads; ``content`` where thoughts can stand in the
    text, between <think> and </think>; None if it leaves thoughts out, or if the conversation with
    them does not begin with the prompt that a model is served.
    """
    user = {"role": "user", "content": _SENTINEL.format(0)}
    answer, thought = _SENTINEL.format(1), _SENTINEL.format(2)
    prompt = _render(tokenizer, [user]) or ""
    for field in (*_THOUGHT_FIELDS, "content"):
        reply = {"role": "assistant", **add_thoughts({"content": answer}, thought, field)}
        whole = _render(tokenizer, [user, reply], generation=False) or ""
        ending = whole.removeprefix(prompt)
        if whole.startswith(prompt) and 0 <= ending.find(thought) < ending.find(answer):
            return field
    return None


def add_thoughts(message: Mapping[str, Any], thoughts: str, field: str) -> dict[str, Any]:
    """Put a message's thoughts into the field named by `thought_form`."""
    if field == "content":
        return {**message, "content": f"<think>\n{thoughts}\n</think>\n\n{message['content']}"}
    return {**message, field: thoughts}


def _template_text(tokenizer: Any) -> str:
    template = tokenizer.chat_template
    return "\n".join(template.values()) if isinstance(template, dict) else str(template or "")


class ControlTokens:
    """The control tokens of `tokenizer`, one of transformers, as it is now."""

    def __init__(self, tokenizer: Any):
        tokens = tokenizer.added_tokens_decoder
        special = {token.content: token for token in tokens.values() if token.special}
        names = {*tokenizer.all_special_tokens, *special}
        self._tokenizer = weakref.ref(tokenizer)  # the tokenizer may lead to this object
        self._ids = {tokenizer.convert_tokens_to_ids(name) for name in names}
        self._ids -= {tokenizer.unk_token_id}
        self._is_normalized = any(token.normalized for token in special.values())
        self._pattern = _match_any(names)
        plain = _find_plain_markers(tokenizer, self._pattern)
        plain -= {token.content for token in tokens.values()}
        self._pattern = _match_any(names | plain)

    def break_in(self, text: str) -> str:
        """`text` with a blank in every control token."""
        if self._pattern.search(text) is not None:
            text = self._pattern.sub(_break, text)
            while self._pattern.search(text) is not None:  # one character, or a blank in it
                text = self._pattern.sub("", text)
        if self._is_normalized:
            text = self._break_by_id(text)
        return text

    def break_in_message(self, message: Any) -> Any:
        """A message with a blank in every control token of every text in it."""
        if isinstance(message, str):
            return self.break_in(message)
        if isinstance(message, list):
            return [self.break_in_message(item) for item in message]
        if isinstance(message, dict):
            return {
                key: value if key in _NOT_SAID else self.break_in_message(value)
                for key, value in message.items()
            }
        return message

    def _break_by_id(self, text: str) -> str:
        """`text` without characters for control tokens (as by NFKC)."""
        tokenizer = self._tokenizer()
        assert tokenizer is not None, "who breaks tokens has their tokenizer"
        while True:
            encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            spans = [
                span
                for id, span in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
                if id in self._ids and span[0] < span[1]  # an empty one has no text
            ]
            if not spans:
                return text
            for start, end in reversed(spans):
                text = text[:start] + text[end:]


def _match_any(names: Iterable[str]) -> "re.Pattern[str]":
    longest_first = sorted(filter(None, names), key=lambda name: (-len(name), name))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _break(match: "re.Match[str]") -> str:
    return f"{match[0][0]} {match[0][1:]}"


def _find_plain_markers(tokenizer: Any, control: "re.Pattern[str]") -> set[str]:
    """Collect the template's words in place of control tokens, or beside them in brackets."""
    markers: set[str] = set()
    for roles in _SHAPES:
        contents = [_SENTINEL.format(index) for index in range(len(roles))]
        messages = [
            {"role": role, "content": content}
            for role, content in zip(roles, contents, strict=True)
        ]
        text = _render(tokenizer, messages) or ""
        beginning, *between = re.split("|".join(contents), text)
        # Before the first message only the last line is its role's: the rest is a prompt of the
        # template's own.
        for piece in (*beginning.rstrip().splitlines()[-1:], *between):
            if control.search(piece) is None:
                markers.update(map(str.strip, piece.splitlines()))
        markers.update(_BRACKETED.findall(control.sub(" ", re.sub("|".join(contents), " ", text))))
    return {
        marker
        for marker in markers
        if sum(map(str.isalpha, marker)) >= _MIN_LETTERS and _THOUGHTS.fullmatch(marker) is None
    }


class BreakControlTokens:
    """Passes on requests after it has broken the control tokens in their messages.

    The tokenizer is that of the model $NIP_VLLM_MODEL, rendering with the variables of the JSON
    object $NIP_VLLM_TEMPLATE. The `template_facts` are written to the file $NIP_VLLM_FACTS.
    Raises the error of the loading, so that vLLM does not start without a tokenizer.
    """

    def __init__(self, app: _Application, tokens: ControlTokens | None = None):
        self._app = app
        if tokens is None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(os.environ["NIP_VLLM_MODEL"])
            set_template_kwargs(
                self._tokenizer, json.loads(os.environ.get("NIP_VLLM_TEMPLATE", "{}"))
            )
            if facts := os.environ.get("NIP_VLLM_FACTS"):
                Path(facts).write_text(json.dumps(template_facts(self._tokenizer)))
            tokens = ControlTokens(self._tokenizer)
        self._tokens = tokens

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """ASGI entry point."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = b""
        while True:
            event = await receive()
            if event["type"] != "http.request":
                return  # the client is gone
            body += event.get("body", b"")
            if not event.get("more_body", False):
                break
        body = self._rewrite(body)
        length = (b"content-length", str(len(body)).encode())
        headers = [pair for pair in scope["headers"] if pair[0] not in _LENGTHS]
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> MutableMapping[str, Any]:
            return unread.pop() if unread else await receive()

        await self._app({**scope, "headers": [*headers, length]}, replay, send)

    def _rewrite(self, body: bytes) -> bytes:
        try:
            value = json.loads(body)
        except ValueError:  # vLLM says what is wrong with it
            return body
        if not isinstance(value, dict):
            return body
        broken = {
            name: self._tokens.break_in_message(value[name]) for name in _SAID if name in value
        }
        if all(broken[name] == value[name] for name in broken):
            return body
        return json.dumps({**value, **broken}).encode()


_LENGTHS = (b"content-length", b"transfer-encoding")
