"""From messages or a text to the token ids of a model's prompt.

PromptEncoder   of one model: short texts at once, long ones aside, and none that can't fit

Encoding takes 270 bytes and several microseconds for each character. So lengths are looked at
first: a token has no more characters than the longest one of the vocabulary. What may fit is
encoded, after it was counted piece by piece if it is huge. A short text that is one of many in its
body is encoded aside as a long one is: it is the body that would hold others up. (Tokenizers that
leave characters out are no matter: a prompt that is mostly blanks may be refused by them for its
length.)
"""

import asyncio
import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nip_lm_server import aside
from nip_lm_server.chats import chat_template
from nip_lm_server.engines.base import EngineRequestError

LONG_TEXT = 16_000
"""Characters from which on a text is encoded aside, in a thread of its own. At several microseconds
each, so many hold the event loop for about a tenth of a second."""
HUGE_TEXT = 16 * LONG_TEXT
"""Characters from which on a text is counted before it is encoded. At 270 bytes each, so many take
some 70 MB, which any request may have; counting takes the time of encoding once more."""
# Characters that a template adds to a message, about. It only decides whether a prompt is encoded
# aside, so it need not be right.
_MESSAGE_CHARACTERS = 16


class _Abandoned(Exception):
    """Nobody waits for the tokens any more."""


class PromptEncoder:
    """`tokenizer` may be used by others who hold `lock`; `context` is the model's, in tokens."""

    def __init__(self, tokenizer: Any, lock: threading.Lock, context: int):
        self._tokenizer, self._lock, self._context = tokenizer, lock, context
        self._longest_token = max(map(len, tokenizer.get_vocab()))
        self._second: Any = None  # a tokenizer for long texts, or short ones would wait
        # One thread: of long texts one at a time takes its memory.
        self._thread = ThreadPoolExecutor(1, "long-texts")

    def close(self) -> None:
        """Drop the waiting texts: they are not encoded any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        contexts: int = 1,
        body_bytes: int = 0,
    ) -> list[int]:
        """Token ids of a conversation's prompt, of at most so many times the model's context.

        `body_bytes` is the size of the request that has them. Raises EngineRequestError.
        """
        # Too many are not even measured.
        self._check(0, len(messages), contexts, "messages")
        size = await aside.run(body_bytes, _size, messages, tools)
        self._check(size, len(messages), contexts, "messages")

        def encode(tokenizer: Any, abandoned: threading.Event) -> list[int]:
            # What a template refuses, its sender can write otherwise: the request's fault.
            try:
                text = chat_template.render(tokenizer, messages, generation=True, tools=tools)
            except chat_template.ChatTemplateError as error:
                raise EngineRequestError(str(error), "chat_template", "messages") from error
            self._count(tokenizer, text, abandoned, contexts, "messages")
            return chat_template.encode(tokenizer, text)

        return await self._run(size + _MESSAGE_CHARACTERS * len(messages), body_bytes, encode)

    async def text(self, text: str, *, body_bytes: int = 0) -> list[int]:
        """Token ids of a text, with what the tokenizer puts around plain texts.

        `body_bytes` is the size of the request that has it. Raises EngineRequestError.
        """
        self._check(len(text), 0, 1, "prompt")

        def encode(tokenizer: Any, abandoned: threading.Event) -> list[int]:
            self._count(tokenizer, text, abandoned, 1, "prompt")
            return list(tokenizer(text)["input_ids"])

        return await self._run(len(text), body_bytes, encode)

    async def _run(
        self, size: int, body_bytes: int, encode: Callable[[Any, threading.Event], list[int]]
    ) -> list[int]:
        """A text of `size` characters. If this is cancelled, the text is left where it is."""
        abandoned = threading.Event()
        # Short texts at once: handing them to a thread would take longer.
        if size < LONG_TEXT and body_bytes < aside.LARGE_BYTES:
            with self._lock:
                return encode(self._tokenizer, abandoned)

        def work() -> list[int]:
            # Made when the first long text comes: many a server never sees one.
            if self._second is None:
                with self._lock:
                    self._second = copy.deepcopy(self._tokenizer)
            try:
                return encode(self._second, abandoned)
            finally:
                # The allocator would keep what such a text took.
                if size >= HUGE_TEXT:
                    aside.give_memory_back()

        # Whoever is cancelled here can't stop the thread, which looks at this by itself.
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            abandoned.set()  # of no effect once it is done

    def _check(self, size: int, messages: int, contexts: int, param: str) -> None:
        """Refuse a text of this size as too long, if no tokens could make it short enough."""
        at_least = max(messages, -(-size // self._longest_token))
        if at_least > contexts * self._context:
            raise self._too_long_error(at_least, param)

    def _count(
        self, tokenizer: Any, text: str, abandoned: threading.Event, contexts: int, param: str
    ) -> None:
        """Refuse a huge text if its pieces have twice the tokens allowed for the whole."""
        if len(text) < HUGE_TEXT:  # encoding it tells, and costs no more
            return
        count, most = 0, contexts * self._context
        for start in range(0, len(text), LONG_TEXT):
            # The thread can't be interrupted, and others wait for it.
            if abandoned.is_set():
                raise _Abandoned
            count += len(chat_template.encode(tokenizer, text[start : start + LONG_TEXT]))
            if count > 2 * most:  # where a text is cut, a token may become several
                raise self._too_long_error(most, param)

    def _too_long_error(self, at_least: int, param: str) -> EngineRequestError:
        verb = "messages take" if param == "messages" else "prompt takes"
        return EngineRequestError(
            f"This model's context is {self._context} tokens; the {verb} more than "
            f"{at_least - 1}. Shorten the {param}.",
            code="context_length_exceeded",
            param=param,
        )


def _size(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> int:
    return sum(map(_characters, messages)) + sum(map(_characters, tools))


def _characters(value: Any) -> int:
    """Of all texts in a message or a tool, roles and keys left aside."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_characters(item) for key, item in value.items() if key != "role")
    return sum(map(_characters, value)) if isinstance(value, list | tuple) else 0
