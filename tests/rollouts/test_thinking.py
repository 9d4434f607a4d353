"""Models that think: whatever shape their API gives, thoughts are kept, counted and shown to nobody.

The answers have the shapes in which the APIs give them; fields that nobody reads are left in.
"""

import json
from typing import Any

import pytest
from aiohttp import web
from scripted_play import bare_settings, play
from scripted_server import scripted_server
from stored_rows import typed_tables

from nip_core.rollouts.client.chat_client import ChatClient, TransportError
from nip_core.rollouts.client.completions import ChatAnswer, Endpoint, RequestRefusedError
from nip_core.rollouts.storage.schema import GENERATIONS

SAID = "Decision: accept"
THOUGHT = "First, x plus 0.\nThat is x."
COUNTED = {"completion_tokens_details": {"reasoning_tokens": 40}}


def usage(prompt: int, completion: int, total: int | None = None, **more: Any) -> dict[str, Any]:
    total = prompt + completion if total is None else total
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": total,
        **more,
    }


def message(content: Any = SAID, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


# name, message, usage; then thoughts, tokens of the completion, and how many of them were thought
SHAPES: list[tuple[str, dict[str, Any], dict[str, Any], str | None, int, int | None]] = [
    (
        "OpenAI",
        message(refusal=None, annotations=[]),
        usage(11, 45, **COUNTED),
        None,
        45,
        40,
    ),
    (
        "vLLM with a parser",
        message(reasoning=THOUGHT, tool_calls=[], refusal=None),
        usage(11, 45),
        THOUGHT,
        45,
        None,
    ),
    (
        "vLLM before 0.12, DeepSeek",
        message(reasoning_content=THOUGHT, tool_calls=None),
        usage(11, 45),
        THOUGHT,
        45,
        None,
    ),
    (
        "OpenRouter",
        message(
            reasoning=THOUGHT,
            reasoning_details=[
                {"type": "reasoning.text", "text": THOUGHT, "signature": "c2ln", "index": 0}
            ],
        ),
        usage(11, 45, **COUNTED, cost=0.0012),
        THOUGHT,
        45,
        40,
    ),
    (
        "OpenRouter, a summary",
        message(
            reasoning=None,
            reasoning_details=[
                {"type": "reasoning.summary", "summary": THOUGHT},
                {"type": "reasoning.encrypted", "data": "eW91IG1heSBub3Q="},
            ],
        ),
        usage(11, 45, **COUNTED),
        THOUGHT,
        45,
        40,
    ),
    ("Gemini", message(), usage(11, 5, total=56), None, 45, 40),
    ("Anthropic", message(), usage(11, 45), None, 45, None),
    (
        "Mistral",
        message(
            [
                {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}], "closed": True},
                {"type": "text", "text": SAID},
            ]
        ),
        usage(11, 45),
        THOUGHT,
        45,
        None,
    ),
]  # fmt: skip


def response(model: str, said: dict[str, Any], counted: dict[str, Any]) -> web.Response:
    choice = {"index": 0, "message": said, "finish_reason": "stop", "logprobs": None}
    answer = {"id": "c", "object": "chat.completion", "created": 0, "model": model}
    return web.json_response({**answer, "choices": [choice], "usage": counted})


async def ask(answer: web.Response, *aliases: str) -> ChatAnswer:
    async with scripted_server(lambda body: answer) as server:
        async with ChatClient(concurrency=1, timeout_s=5, retries=0) as client:
            return await client.complete(Endpoint(server.url, "key", aliases), {"model": "m"})


@pytest.mark.parametrize(
    ("said", "counted", "thought", "tokens", "of_them"),
    [shape[1:] for shape in SHAPES],
    ids=[shape[0] for shape in SHAPES],
)
async def test_nothing_of_an_answer_is_lost(said, counted, thought, tokens, of_them):
    answer = await ask(response("m", said, counted))
    assert answer.text == SAID
    assert answer.reasoning == thought
    assert (answer.prompt_tokens, answer.completion_tokens) == (11, tokens)
    assert answer.reasoning_tokens == of_them


async def test_a_model_that_does_not_think_has_no_thoughts():
    none = {"completion_tokens_details": {"reasoning_tokens": 0}}
    answer = await ask(response("m", message(reasoning=None), usage(11, 5, **none)))
    assert (answer.reasoning, answer.reasoning_tokens, answer.completion_tokens) == (None, None, 5)


async def test_thoughts_that_used_up_the_limit_are_kept():
    answer = await ask(response("m", message(None, reasoning=THOUGHT), usage(11, 45)))
    assert answer.text is None and answer.reasoning == THOUGHT


LIMIT_REACHED = {
    "error": {
        "message": "Could not finish the message because max_tokens or model output limit was "
        "reached. Please try again with higher max_tokens.",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }
}


async def test_thoughts_that_used_up_the_limit_at_openai_are_asked_for_again_and_paid():
    """OpenAI refuses, with 400, a request whose thoughts left no room for a text."""
    refused = web.json_response(LIMIT_REACHED, status=400)
    played = await play(
        bare_settings("nip", retries=1, nip_protocol={"max_message_rounds": 3}),
        {0: {"verifier": [refused, "Why?"]}, 1: {"prover": "So."}, 2: {"verifier": SAID}},
    )
    assert played.episode["outcome"] == "finished"
    first, second = [g for g in played.generations if g["round"] == 0]
    assert (first["invalid_reason"], first["finish_reason"]) == ("no content", "length")
    limit = played.bodies[0, "verifier", 0]["max_tokens"]
    assert first["completion_tokens"] == first["reasoning_tokens"] == limit
    assert second["invalid_reason"] is None


async def test_another_refusal_stays_one():
    other = {"error": {"message": "max_tokens is too large", "code": "invalid_value"}}
    with pytest.raises(RequestRefusedError, match="too large"):
        await ask(web.json_response(other, status=400))


async def test_content_of_an_unknown_kind_is_not_guessed_at():
    with pytest.raises(TransportError, match="a part of content is of type 'image'"):
        await ask(response("m", message([{"type": "image"}]), usage(11, 45)))


@pytest.mark.parametrize("shape", SHAPES, ids=[shape[0] for shape in SHAPES])
async def test_others_are_never_shown_a_thought(shape):
    """A prover thinks before each answer; the verifier's chats and the tables are looked at."""
    _, said, counted, thought, *_ = shape
    said = json.loads(json.dumps(said).replace(SAID, "It is right."))
    thinking = response("prover-model", said, counted)
    played = await play(
        bare_settings("nip", nip_protocol={"max_message_rounds": 3}),
        {0: {"verifier": "Why?"}, 1: {"prover": thinking}, 2: {"verifier": SAID}},
    )
    # 1. Seen by the verifier: what was said.
    (seen,) = [m for m in played.bodies[2, "verifier", 0]["messages"] if m.get("role") == "user"]
    assert seen["content"] == "It is right."
    # 2. Recorded: what was said, and what was thought.
    (row,) = [g for g in played.generations if g["agent"] == "prover"]
    assert (row["text"], row["reasoning"]) == ("It is right.", thought)
    # 3. In the table of generations.
    table = typed_tables([played.episode], played.generations).generations
    assert table.schema.equals(GENERATIONS)
    assert thought in table["reasoning"].to_pylist()


async def test_the_words_of_an_error_in_a_list_are_read():
    """As Gemini's endpoint for OpenAI's protocol sends them."""
    refusal = [{"error": {"code": 400, "message": 'Unknown name "seed": Cannot find field.'}}]
    with pytest.raises(RequestRefusedError, match=r'HTTP 400: Unknown name "seed"'):
        await ask(web.json_response(refusal, status=400))


async def test_an_alias_answers_only_where_it_is_named():
    name = "vendor/m-turbo"
    with pytest.raises(TransportError, match=r"'vendor/m-turbo' answered.*set served_as"):
        await ask(response(name, message(), usage(11, 5)))
    assert (await ask(response(name, message(), usage(11, 5)), name)).model == name
