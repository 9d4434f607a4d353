"""Keeps what a message says from being read as the beginning or the end of a message.

ControlTokens        of one tokenizer: breaks them in texts and in messages
BreakControlTokens   middleware inside the vLLM server: the same for every chat that it is asked

A chat template writes control tokens around messages, and a tokenizer reads them wherever they
stand. Whoever writes <|im_end|> into a message would end it, and begin another in any role. So in
each control token that a message says, a blank is put after the first character: the model sees
what was written, and no token id of it is a control token's. A text without any is left alone.

Control tokens are the tokenizer's special tokens, and where a template uses plain words instead,
such as [/INST] or USER:, these. Not broken are tokens that models themselves write, as <think>.

Serving, training and vLLM use this one module, so that what is trained is what is served. vLLM's
own Python imports it from a directory of its own: nothing of ours, and heavy things late.
"""

import json
import os
import re
import weakref
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
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


class ControlTokens:
    """Those of `tokenizer`, one of transformers, as it is now."""

    def __init__(self, tokenizer: Any):
        added = tokenizer.added_tokens_decoder
        special = {token.content: token for token in added.values() if token.special}
        names = {*tokenizer.all_special_tokens, *special}
        self._tokenizer = weakref.ref(tokenizer)  # which may itself lead to this object
        self._ids = {tokenizer.convert_tokens_to_ids(name) for name in names}
        self._ids -= {tokenizer.unk_token_id}
        self._is_normalized = any(token.normalized for token in special.values())
        self._pattern = _any_of(names)
        plain = _plain_markers(tokenizer, self._pattern)
        plain -= {token.content for token in added.values()}
        self._pattern = _any_of(names | plain)

    def break_in(self, text: str) -> str:
        """`text` with a blank in every control token."""
        if self._pattern.search(text) is not None:
            text = self._pattern.sub(_broken, text)
            while self._pattern.search(text) is not None:  # of one character, or with a blank
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
        """The same where other characters too may become control tokens (as by NFKC)."""
        tokenizer = self._tokenizer()
        assert tokenizer is not None, "who breaks tokens has their tokenizer"
        while True:
            encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            spans = [
                span
                for id, span in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
                if id in self._ids and span[0] < span[1]  # of no text: nothing to take out
            ]
            if not spans:
                return text
            for start, end in reversed(spans):
                text = text[:start] + text[end:]


def _any_of(names: Iterable[str]) -> "re.Pattern[str]":
    longest_first = sorted(filter(None, names), key=lambda name: (-len(name), name))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _broken(match: "re.Match[str]") -> str:
    return f"{match[0][0]} {match[0][1:]}"


def _plain_markers(tokenizer: Any, control: "re.Pattern[str]") -> set[str]:
    """Words that the template writes instead of control tokens, or beside them in brackets."""
    markers: set[str] = set()
    for roles in _SHAPES:
        contents = [_SENTINEL.format(index) for index in range(len(roles))]
        messages = [
            {"role": role, "content": content}
            for role, content in zip(roles, contents, strict=True)
        ]
        try:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception:  # templates raise whatever their author chose
            text = ""
        before, *between = re.split("|".join(contents), text)
        # Of what stands before the first message only the end is its role's: no prompt of its own.
        for piece in (*before.rstrip().splitlines()[-1:], *between):
            if control.search(piece) is None:
                markers.update(map(str.strip, piece.splitlines()))
        markers.update(_BRACKETED.findall(control.sub(" ", re.sub("|".join(contents), " ", text))))
    return {
        marker
        for marker in markers
        if sum(map(str.isalpha, marker)) >= _MIN_LETTERS and _THOUGHTS.fullmatch(marker) is None
    }


class BreakControlTokens:
    """Passes on requests whose messages have no control token but broken ones.

    The tokenizer is that of the model $NIP_VLLM_MODEL. Raises what loading it raises, so that vLLM
    does not start without.
    """

    def __init__(self, app: _Application, tokens: ControlTokens | None = None):
        self._app = app
        if tokens is None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(os.environ["NIP_VLLM_MODEL"])
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
        body = self._passed_on(body)
        length = (b"content-length", str(len(body)).encode())
        headers = [pair for pair in scope["headers"] if pair[0] not in _LENGTHS]
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> MutableMapping[str, Any]:
            return unread.pop() if unread else await receive()

        await self._app({**scope, "headers": [*headers, length]}, again, send)

    def _passed_on(self, body: bytes) -> bytes:
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
