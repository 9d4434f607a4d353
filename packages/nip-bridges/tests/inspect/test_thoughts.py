"""Thoughts that Inspect's models return apart from the text are on record, as in nip's own runs."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from aiohttp import web
from both_ways import play_there, write_config
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
)
from scripted_server import scripted_server

from nip_inspect.model_calls import _answers
from nip_inspect.scoring import GENERATIONS

THOUGHT, SAID = "First, x plus 0.", "Decision: accept"


def thinking(body):
    """As vLLM with a reasoning parser answers, with OpenAI's count of thoughts."""
    message = {"role": "assistant", "content": SAID, "reasoning_content": THOUGHT}
    usage = {
        "prompt_tokens": 11,
        "completion_tokens": 45,
        "total_tokens": 56,
        "completion_tokens_details": {"reasoning_tokens": 40},
    }
    return web.json_response(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": usage,
        }
    )


@contextmanager
def served_in_thread() -> Iterator[str]:
    """The address of a server whose model thinks, for as long as the block lasts."""
    ready, over, place = threading.Event(), threading.Event(), []

    async def serve() -> None:
        async with scripted_server(thinking) as server:
            place.append(server.url)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield place[0]
    finally:
        over.set()
        thread.join()


def test_they_are_among_the_generations_of_a_sample_and_nobody_else_sees_them(
    server, tmp_path, monkeypatch
):
    config = write_config(tmp_path, server, interaction_protocol="adp")
    with served_in_thread() as url:
        monkeypatch.setenv("NIP_BASE_URL", url)
        log = play_there(tmp_path / "logs", limit=2, config=str(config))
    assert log.status == "success" and log.samples, log.error
    for sample in log.samples:
        rows = sample.store[GENERATIONS]
        assert {row["agent"] for row in rows} == {"prover", "verifier"}
        for row in rows:
            assert (row["text"], row["reasoning"]) == (SAID, THOUGHT)
            assert (row["completion_tokens"], row["reasoning_tokens"]) == (45, 40)
        asked = [m for e in sample.events if e.event == "model" for m in e.input]
        assert asked and not any(THOUGHT in message.text for message in asked)


@pytest.mark.parametrize(
    ("part", "thought"),
    [
        (ContentReasoning(reasoning=THOUGHT), THOUGHT),
        (ContentReasoning(reasoning="eW91", redacted=True, summary="In short."), "In short."),
        (ContentReasoning(reasoning="eW91", redacted=True), None),
    ],
)
def test_of_hidden_thoughts_the_summary_is_kept(part, thought):
    message = ChatMessageAssistant(content=[part, ContentText(text=SAID)])
    choices = [ChatCompletionChoice(message=message)] * 2
    usage = ModelUsage(input_tokens=3, output_tokens=9, reasoning_tokens=7)
    first, second = _answers(ModelOutput(model="m", choices=choices, usage=usage))
    assert (first.text, first.reasoning) == (second.text, second.reasoning) == (SAID, thought)
    assert (first.completion_tokens, second.completion_tokens) == (5, 4)
    assert (first.reasoning_tokens, second.reasoning_tokens) == (4, 3)
