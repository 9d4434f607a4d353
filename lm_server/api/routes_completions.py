"""POST /v1/completions: prompts as text or token ids, in OpenAI's legacy shape.

The choices of prompt number p have the indexes p * n to p * n + n - 1. Offsets of tokens count
characters from the beginning of the completion.
"""

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from aiohttp import web

from nip_lm_server import aside
from nip_lm_server.api.generation import (
    answer_generation,
    fingerprint,
    note_tokens,
    streamed_by_engine,
    usage_object,
)
from nip_lm_server.api.generation_parameters import (
    Delivery,
    check_capabilities,
    parse_completion,
)
from nip_lm_server.api.plumbing import dumps, json_response, notes_of
from nip_lm_server.api.routes_chat import VERY_UNLIKELY
from nip_lm_server.api.streaming import merged
from nip_lm_server.engines.base import (
    Choice,
    Engine,
    GenerationRequest,
    GenerationResult,
    TopLogprob,
)

_ids = itertools.count()
_id_prefix = f"cmpl-{secrets.token_hex(6)}-"


async def create_completion(request: web.Request) -> web.StreamResponse:
    """Answer a completion."""
    return await answer_generation(request, "/v1/completions", _answer)


async def _answer(request: web.Request, engine: Engine, body: dict[str, Any]) -> web.StreamResponse:
    prompts, delivery = await aside.run(notes_of(request).body_bytes, parse_completion, body)
    check_capabilities(prompts[0], engine, chat=False)
    head: dict[str, Any] = {
        "id": _id_prefix + str(next(_ids)),
        "object": "text_completion",
        "created": int(time.time()),
        "model": prompts[0].model,
        "system_fingerprint": fingerprint(engine.name, engine.base_model),
    }
    if delivery.stream:
        chunks = _chunks(request, engine, prompts, delivery, head)
        return await streamed_by_engine(request, chunks)
    results = await _generate_all(engine, prompts)
    choices = [choice for result in results for choice in result.choices]
    prompt_tokens = sum([result.prompt_tokens for result in results])
    generated = sum([choice.completion_tokens for choice in choices])
    note_tokens(request, prompt_tokens, generated)
    head["model"] = results[0].model
    head["choices"] = [_choice(index, choice) for index, choice in enumerate(choices)]
    head["usage"] = usage_object(prompt_tokens, generated)
    if results[0].prompt_token_ids is not None:
        for index, entry in enumerate(head["choices"]):
            entry["prompt_token_ids"] = results[index // prompts[0].n].prompt_token_ids
    return json_response(head)


async def _generate_all(
    engine: Engine, prompts: Sequence[GenerationRequest]
) -> list[GenerationResult]:
    """Answer all prompts at once. The first error ends the others and is raised as it is."""
    if len(prompts) == 1:
        return [await engine.generate(prompts[0])]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(engine.generate(prompt)) for prompt in prompts]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _choice(index: int, choice: Choice) -> dict[str, Any]:
    body: dict[str, Any] = {
        "index": index,
        "text": choice.text,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
    }
    if choice.logprobs is not None:
        tokens = choice.tokens or ("",) * len(choice.logprobs)
        body["logprobs"] = _logprobs(tokens, choice.logprobs, choice.top_logprobs or (), 0)
    if choice.token_ids is not None:
        body["token_ids"] = choice.token_ids
    return body


async def _chunks(
    request: web.Request,
    engine: Engine,
    prompts: Sequence[GenerationRequest],
    delivery: Delivery,
    head: dict[str, Any],
) -> AsyncGenerator[bytes, None]:
    """The events of a streamed answer: pieces of each choice, the last with its finish reason."""
    prefix = b"data: " + dumps(head)[:-1]
    suffix = b',"usage":null}\n\n' if delivery.include_usage else b"}\n\n"
    asked = prompts[0]
    offsets: dict[int, int] = {}
    prompt_tokens = generated = 0
    try:
        async with aclosing(merged([engine.stream(prompt) for prompt in prompts])) as deltas:
            async for number, delta in deltas:
                index = number * asked.n + delta.index
                generated += delta.completion_tokens
                prompt_tokens += delta.prompt_tokens or 0
                piece: dict[str, Any] = {
                    "index": index,
                    "text": delta.text,
                    "logprobs": None,
                    "finish_reason": delta.finish_reason,
                }
                if asked.logprobs:
                    start = offsets.get(index, 0)
                    piece["logprobs"] = _logprobs(
                        delta.tokens, delta.logprobs, delta.top_logprobs, start
                    )
                    offsets[index] = start + sum([len(token) for token in delta.tokens])
                if asked.return_token_ids:
                    piece["token_ids"] = delta.token_ids
                    if delta.prompt_token_ids is not None:
                        piece["prompt_token_ids"] = delta.prompt_token_ids
                yield prefix + b',"choices":[' + dumps(piece) + b"]" + suffix
    finally:
        note_tokens(request, prompt_tokens, generated)
    if delivery.include_usage:
        usage = dumps(usage_object(prompt_tokens, generated))
        yield prefix + b',"choices":[],"usage":' + usage + b"}\n\n"


def _logprobs(
    tokens: Sequence[str],
    logprobs: Sequence[float],
    top_logprobs: Sequence[Sequence[TopLogprob]],
    offset: int,
) -> dict[str, Any]:
    """The legacy shape: parallel lists. With alternatives the token itself is one of them."""
    lengths = [len(token) for token in tokens]
    chosen = [max(logprob, VERY_UNLIKELY) for logprob in logprobs]
    top = None
    if top_logprobs:
        top = [
            {token: logprob, **{t.token: max(t.logprob, VERY_UNLIKELY) for t in alternatives}}
            for token, logprob, alternatives in zip(tokens, chosen, top_logprobs, strict=True)
        ]
    return {
        "tokens": list(tokens),
        "token_logprobs": chosen,
        "top_logprobs": top,
        "text_offset": list(itertools.accumulate(lengths, initial=offset))[:-1],
    }
