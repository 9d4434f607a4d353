"""From messages or a text to the token ids of a model's prompt.

PromptEncoder   encodes for one model: short texts at once, long ones in a thread of their own

Encoding takes 270 bytes and several microseconds for each character. So lengths are looked at
first: a token has no more characters than the longest one of the vocabulary, and a text that can't
fit into the context is refused. A text that may fit is encoded; a huge one is counted piece by
piece before. A short text in a large body is encoded in the thread as well, since the whole body
would hold up other requests. (A tokenizer that leaves characters out may be too strict: a prompt
that is mostly blanks may be refused for its length.)
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
"""A text of so many characters is encoded in a thread of its own. At several microseconds each, so
many hold the event loop for about a tenth of a second."""
HUGE_TEXT = 16 * LONG_TEXT
"""A text of so many characters is counted before it is encoded. At 270 bytes each, so many take
some 70 MB, which any request may have; counting takes the time of encoding once more."""
# About the characters that a template adds to a message. The number only decides whether a prompt
# is encoded in the thread, so it need not be exact.
_MESSAGE_CHARACTERS = 16


class _Abandoned(Exception):
    """The caller was cancelled: the tokens have no reader any more."""


class PromptEncoder:
    """Other users of `tokenizer` hold `lock`; `context` is the model's, in tokens."""

    def __init__(self, tokenizer: Any, lock: threading.Lock, context: int):
        self._tokenizer, self._lock, self._context = tokenizer, lock, context
        self._longest_token = max(map(len, tokenizer.get_vocab()))
        self._second: Any = None  # a tokenizer for long texts, so that short ones don't wait
        # One thread, so that one long text at a time takes its memory.
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
        """Token ids of a conversation's prompt, at most `contexts` times the model's context.

        `body_bytes` is the size of the whole request. Raises EngineRequestError.
        """
        # Too many messages are not even measured.
        self._check(0, len(messages), contexts, "messages")
        size = await aside.run(body_bytes, _count_all_characters, messages, tools)
        self._check(size, len(messages), contexts, "messages")

        def encode(tokenizer: Any, abandoned: threading.Event) -> list[int]:
            # The sender can write the refused messages otherwise: the request's fault.
            try:
                text = chat_template.render(tokenizer, messages, generation=True, tools=tools)
            except chat_template.ChatTemplateError as error:
                raise EngineRequestError(str(error), "chat_template", "messages") from error
            self._count(tokenizer, text, abandoned, contexts, "messages")
            return chat_template.encode(tokenizer, text)

        return await self._run(size + _MESSAGE_CHARACTERS * len(messages), body_bytes, encode)

    async def text(self, text: str, *, body_bytes: int = 0) -> list[int]:
        """Token ids of a text, with the tokenizer's special tokens for plain texts.

        `body_bytes` is the size of the whole request. Raises EngineRequestError.
        """
        self._check(len(text), 0, 1, "prompt")

        def encode(tokenizer: Any, abandoned: threading.Event) -> list[int]:
            self._count(tokenizer, text, abandoned, 1, "prompt")
            return list(tokenizer(text)["input_ids"])

        return await self._run(len(text), body_bytes, encode)

    async def _run(
        self, size: int, body_bytes: int, encode: Callable[[Any, threading.Event], list[int]]
    ) -> list[int]:
        """Encode a text of `size` characters; a cancelled call abandons it."""
        abandoned = threading.Event()
        # Short texts at once: to hand them to a thread would take longer.
        if size < LONG_TEXT and body_bytes < aside.LARGE_BYTES:
            with self._lock:
                return encode(self._tokenizer, abandoned)

        def work() -> list[int]:
            # Made for the first long text: many servers never get one.
            if self._second is None:
                with self._lock:
                    self._second = copy.deepcopy(self._tokenizer)
            try:
                return encode(self._second, abandoned)
            finally:
                # The allocator would keep the memory that such a text took.
                if size >= HUGE_TEXT:
                    aside.give_memory_back()

        # A cancelled caller can't stop the thread, which looks at `abandoned` itself.
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            abandoned.set()  # no effect once the text is encoded

    def _check(self, size: int, messages: int, contexts: int, param: str) -> None:
        """Refuse a text of this size if even the longest tokens could not make it fit."""
        at_least = max(messages, -(-size // self._longest_token))
        if at_least > contexts * self._context:
            raise self._too_long_error(at_least, param)

    def _count(
        self, tokenizer: Any, text: str, abandoned: threading.Event, contexts: int, param: str
    ) -> None:
        """Refuse a huge text if its pieces have twice the tokens allowed for the whole."""
        if len(text) < HUGE_TEXT:  # to encode it costs no more
            return
        count, limit = 0, contexts * self._context
        for start in range(0, len(text), LONG_TEXT):
            # The thread can't be interrupted, and other texts wait for it.
            if abandoned.is_set():
                raise _Abandoned
            count += len(chat_template.encode(tokenizer, text[start : start + LONG_TEXT]))
            if count > 2 * limit:  # a cut may split a token into several
                raise self._too_long_error(limit, param)

    def _too_long_error(self, at_least: int, param: str) -> EngineRequestError:
        verb = "messages take" if param == "messages" else "prompt takes"
        return EngineRequestError(
            f"This model's context is {self._context} tokens; the {verb} more than "
            f"{at_least - 1}. Shorten the {param}.",
            code="context_length_exceeded",
            param=param,
        )


def _count_all_characters(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> int:
    return sum(map(_count_characters, messages)) + sum(map(_count_characters, tools))


def _count_characters(value: Any) -> int:
    """Count the characters of all texts in a message or a tool, without roles and keys."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_count_characters(item) for key, item in value.items() if key != "role")
    return sum(map(_count_characters, value)) if isinstance(value, list | tuple) else 0
