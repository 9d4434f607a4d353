"""Prompts are refused by their length before they are encoded; long ones are encoded aside."""

import asyncio
import threading
from typing import Any

import pytest

pytest.importorskip("transformers")

from tiny_model import make_tokenizer

from nip_lm_server import aside
from nip_lm_server.chats import chat_template
from nip_lm_server.engines.base import COUNTED_CONTEXTS, EngineRequestError
from nip_lm_server.engines.embedded.prompt_tokens import HUGE_TEXT, LONG_TEXT, PromptEncoder

CONTEXT = 200_000
LONGEST = len("<|assistant|>")


class Counting:
    """A tokenizer that counts the characters that it is given, and may be held up."""

    def __init__(self, tokenizer: Any, counts: list[int], gate: threading.Event):
        self._tokenizer, self._counts, self._gate = tokenizer, counts, gate
        self.threads: list[threading.Thread] = []

    def __call__(self, text: str, **options: Any) -> Any:
        self.threads.append(threading.current_thread())
        self._counts.append(len(text))
        assert len(text) < LONG_TEXT or self._gate.wait(20)
        return self._tokenizer(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __deepcopy__(self, memo: Any) -> "Counting":
        copied = Counting(self._tokenizer, self._counts, self._gate)
        copied.threads = self.threads
        return copied


@pytest.fixture
def parts():
    counts: list[int] = []
    gate = threading.Event()
    gate.set()
    tokenizer = Counting(make_tokenizer(context=CONTEXT), counts, gate)
    encoder = PromptEncoder(tokenizer, threading.Lock(), CONTEXT)
    yield encoder, counts, gate
    gate.set()
    encoder.close()


def said(text: str, times: int = 1) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}] * times


@pytest.mark.parametrize(
    ("messages", "encoded"),
    [
        (said("a" * (CONTEXT * LONGEST + 1)), 0),  # no token is so long that it could fit
        (said("", CONTEXT + 1), 0),
        # It could, but it does not: found after two contexts' worth of pieces.
        (said("a" * (CONTEXT * LONGEST - 1)), 2 * CONTEXT + 2 * LONG_TEXT),
    ],
)
async def test_what_can_not_fit_is_refused_before_it_is_encoded(parts, messages, encoded) -> None:
    encoder, counts, _ = parts
    with pytest.raises(EngineRequestError, match="context is 200000 tokens") as refused:
        await encoder.messages(messages)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
    assert sum(counts) <= encoded
    with pytest.raises(EngineRequestError, match="Shorten the prompt") as refused:
        await encoder.text("".join(m["content"] for m in messages) or "a" * 10_000_000)
    assert refused.value.param == "prompt"
    assert sum(counts) <= 2 * encoded


async def test_a_huge_text_that_may_fit_is_counted_and_then_encoded_as_a_whole(parts) -> None:
    encoder, counts, _ = parts
    messages = said("a" * (HUGE_TEXT + 1))
    assert HUGE_TEXT > CONTEXT, "too long for an answer, short enough to be told"
    expected = chat_template.encode_prompt(make_tokenizer(), messages)
    assert await encoder.messages(messages, contexts=COUNTED_CONTEXTS) == expected
    assert counts[-1] > HUGE_TEXT
    assert max(counts[:-1]) == LONG_TEXT
    with pytest.raises(EngineRequestError):
        await encoder.messages(
            said("a" * (COUNTED_CONTEXTS * 2 * CONTEXT + LONG_TEXT)), contexts=COUNTED_CONTEXTS
        )


async def test_short_texts_do_not_wait_for_long_ones_and_an_abandoned_one_is_left(parts) -> None:
    encoder, counts, gate = parts
    long, waiting = said("a" * HUGE_TEXT), said("b" * LONG_TEXT)
    gate.clear()
    tasks = [
        asyncio.create_task(encoder.messages(messages, contexts=COUNTED_CONTEXTS))
        for messages in (long, waiting)
    ]
    while not counts:
        await asyncio.sleep(0.001)
    assert len(await asyncio.wait_for(encoder.messages(said("short")), 20)) == 8
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    begun = len(counts)
    gate.set()
    # The next one has its turn at once: of the first no other piece was read, of the second none.
    assert await encoder.messages(
        waiting, contexts=COUNTED_CONTEXTS
    ) == chat_template.encode_prompt(make_tokenizer(), waiting)
    assert len(counts) == begun + 1


async def test_a_short_text_of_a_large_body_is_encoded_beside_the_event_loop() -> None:
    tokenizer = Counting(make_tokenizer(context=CONTEXT), [], threading.Event())
    encoder = PromptEncoder(tokenizer, threading.Lock(), CONTEXT)
    try:
        alone = await encoder.text("a" * 10)
        assert alone == await encoder.text("a" * 10, body_bytes=aside.LARGE_BYTES)
    finally:
        encoder.close()
    here, beside = tokenizer.threads
    assert here is threading.current_thread() is not beside


async def test_no_more_messages_are_looked_at_than_can_fit() -> None:
    class Unseen(dict[str, str]):
        def items(self) -> Any:
            raise AssertionError("this one is in vain")

    encoder = PromptEncoder(make_tokenizer(), threading.Lock(), 100)
    try:
        with pytest.raises(EngineRequestError, match="more than 100"):
            await encoder.messages([Unseen(role="user", content="")] * 101)
    finally:
        encoder.close()
