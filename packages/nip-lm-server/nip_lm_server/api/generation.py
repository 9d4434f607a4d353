"""POST /v1/chat/completions, /v1/completions and /tokenize: from a body to an answer.

create_chat_completion, create_completion    one way for both, in the shape of each
tokenize                                     the prompt that messages give
"""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, NotRequired, TypedDict

from aiohttp import web
from orjson import dumps

from nip_base.api_errors import ApiError, unknown_parameter
from nip_base.version import SERVER_VERSION
from nip_base.wire import JOIN_HEADER
from nip_lm_server import aside
from nip_lm_server.api.bodies import read_object
from nip_lm_server.api.generation_parameters import (
    check_capabilities,
    check_passed_through,
    parse_messages,
    read_model,
)
from nip_lm_server.api.joined import (
    WholeAnswer,
    describe_running,
    read_name,
    read_wait_s,
    wait_for,
)
from nip_lm_server.api.plumbing import (
    SERVICES,
    Services,
    error_answer,
    json_response,
    take_notes,
)
from nip_lm_server.api.shapes import (
    CHAT,
    COMPLETION,
    ChatChoice,
    PromptBatch,
    Shape,
    TextChoice,
    UsageDetails,
)
from nip_lm_server.api.streaming import merge_streams, send_events
from nip_lm_server.engines.base import Engine, GenerationRequest, GenerationResult, Upstream

_ids = itertools.count()
_id_suffix = secrets.token_hex(6)


class AnswerHead(TypedDict):
    """The beginning of an answer, and of each of its events."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class Usage(UsageDetails):
    """The tokens of an answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Answer(TypedDict):
    """The rest of an answer sent in one piece. `model` is the one that really answered."""

    model: str
    choices: list[ChatChoice | TextChoice]
    usage: Usage
    metadata: NotRequired[dict[str, str]]
    prompt_token_ids: NotRequired[tuple[int, ...]]


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Answer a chat completion."""
    return await _answer(request, CHAT)


async def create_completion(request: web.Request) -> web.StreamResponse:
    """Answer a completion."""
    return await _answer(request, COMPLETION)


async def tokenize(request: web.Request) -> web.StreamResponse:
    """Return the token ids of a prompt given as messages, in the form of vLLM's endpoint of this
    name.
    """
    services = request.app[SERVICES]
    raw, body = await read_object(request)
    for name in body:
        if name not in ("model", "messages"):
            raise unknown_parameter(name)
    model = read_model(body)
    messages = await aside.run(len(raw), parse_messages, body.get("messages"))
    async with services.pool.using(model) as engine:
        if engine.upstream is not None:
            response, _ = await services.proxy.forward(request, engine.upstream, "/tokenize", raw)
            return response
        prompt = GenerationRequest(model=model, messages=messages, body_bytes=len(raw))
        tokens = await engine.tokenize(prompt)
        return json_response(
            {"tokens": tokens, "count": len(tokens), "max_model_len": engine.max_model_len}
        )


async def _answer(request: web.Request, shape: Shape) -> web.StreamResponse:
    services = request.app[SERVICES]
    # 1. The body, and the engine of its model.
    raw, body = await read_object(request)
    if (name := read_name(request)) is not None:
        return await _answer_joined(request, shape, name, raw, body)
    model = read_model(body)
    async with services.pool.using(model) as engine:
        kind = take_notes(request).model_kind = _kind(engine, model)
        # 2. An engine that is a server itself answers, or
        upstream = engine.upstream
        if upstream is not None:
            passed_on = await aside.run(len(raw), _to_pass_on, raw, body, upstream, shape)
            response, tokens = await services.proxy.forward(
                request, upstream, shape.path, passed_on
            )
            services.metrics.add_tokens(kind, *tokens)
            return response
        # 3. one of ours does: at once, or piece by piece.
        batch = await _read_batch(engine, raw, body, shape)
        head = _head(engine, batch, shape)
        if not batch.delivery.stream:
            results = await _generate_all(engine, batch.prompts)
            return json_response({**head, **_build_answer(services, kind, results, batch, shape)})
        return await send_events(
            request,
            _write_events(request, engine, batch, shape, head),
            lambda error: dumps(error_answer(request, error)[1]),
        )


async def _answer_joined(
    request: web.Request, shape: Shape, name: str, raw: bytes, body: dict[str, Any]
) -> web.StreamResponse:
    """Answer from the generation of this name, which goes on when this request does not."""
    services = request.app[SERVICES]
    if body.get("stream"):
        raise ApiError(
            400,
            f"A stream can't be joined: leave out the header {JOIN_HEADER}, or 'stream'",
            code="unsupported_value",
            param=JOIN_HEADER,
        )
    begin = partial(_generate_whole, services, raw, body, shape)
    wait_s = read_wait_s(request)
    answer = await wait_for(services.generations, name, raw, shape.path, wait_s, begin)
    if isinstance(answer, WholeAnswer):
        take_notes(request).model_kind = answer.model_kind
        headers = {"Content-Type": answer.content_type, JOIN_HEADER: name}
        return web.Response(body=answer.body, headers=headers)
    # An engine that does not serve now starts, trains or has died: that wait has limits of its own.
    engine, advance = "", None
    with contextlib.suppress(ApiError):
        serving = services.pool.engine_for(read_model(body))
        engine, advance = serving.name, await services.advances.look(serving)
    how_far = describe_running(services.generations, name, answer, engine, advance)
    return json_response(
        how_far, 202, {"Preference-Applied": f"wait={wait_s:g}", JOIN_HEADER: name}
    )


async def _generate_whole(
    services: Services, raw: bytes, body: dict[str, Any], shape: Shape
) -> WholeAnswer:
    """Answer in one piece, without a request that could leave."""
    model = read_model(body)
    async with services.pool.using(model) as engine:
        kind = _kind(engine, model)
        upstream = engine.upstream
        if upstream is not None:
            passed_on = await aside.run(len(raw), _to_pass_on, raw, body, upstream, shape)
            whole, content_type, tokens = await services.proxy.fetch(
                upstream, shape.path, passed_on
            )
            services.metrics.add_tokens(kind, *tokens)
            return WholeAnswer(whole, content_type, kind)
        batch = await _read_batch(engine, raw, body, shape)
        results = await _generate_all(engine, batch.prompts)
        answer = _build_answer(services, kind, results, batch, shape)
        return WholeAnswer(
            dumps({**_head(engine, batch, shape), **answer}), "application/json", kind
        )


def _kind(engine: Engine, model: str) -> str:
    return "base" if model == engine.base_model else "adapter"


async def _read_batch(
    engine: Engine, raw: bytes, body: dict[str, Any], shape: Shape
) -> PromptBatch:
    """Read a body for an engine of ours, and check it."""
    batch = await aside.run(len(raw), shape.parse, body, len(raw))
    check_capabilities(batch.first, engine, chat=shape.is_chat)
    if len(batch.prompts) > 1:
        batch = replace(batch, prompts=await engine.read_prompts(batch.prompts))
    return batch


def _head(engine: Engine, batch: PromptBatch, shape: Shape) -> AnswerHead:
    return {
        "id": f"{shape.id_prefix}-{_id_suffix}-{next(_ids)}",
        "object": shape.chunk_object if batch.delivery.stream else shape.object,
        "created": int(time.time()),
        "model": batch.first.model,
        "system_fingerprint": _fingerprint(engine.name, engine.base_model),
    }


def _to_pass_on(raw: bytes, body: dict[str, Any], upstream: Upstream, shape: Shape) -> bytes:
    replacement = check_passed_through(body, upstream, chat=shape.is_chat)
    return raw if replacement is None else dumps(replacement)


async def _generate_all(
    engine: Engine, prompts: Sequence[GenerationRequest]
) -> list[GenerationResult]:
    """Answer all prompts at once. The first error ends the others and is raised as it is."""
    if len(prompts) == 1:
        return [await engine.generate(prompts[0])]
    try:
        # A group, so that no prompt goes on for an answer that no client will get.
        async with asyncio.TaskGroup() as group:
            tasks = []
            for prompt in prompts:
                tasks.append(group.create_task(engine.generate(prompt)))
                await asyncio.sleep(0)  # others have their turn
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _build_answer(
    services: Services,
    kind: str,
    results: Sequence[GenerationResult],
    batch: PromptBatch,
    shape: Shape,
) -> Answer:
    """Build the body of an answer sent in one piece: everything from `model` on."""
    choices = [choice for result in results for choice in result.choices]
    prompt_ids = results[0].prompt_token_ids
    if prompt_ids is not None and not shape.is_chat:
        # Completions answer several prompts: each choice says which tokens it continues.
        choices = [
            replace(choice, prompt_token_ids=result.prompt_token_ids)
            for result in results
            for choice in result.choices
        ]
    prompt_tokens = sum([result.prompt_tokens for result in results])
    generated = sum([choice.completion_tokens for choice in choices])
    services.metrics.add_tokens(kind, prompt_tokens, generated)
    body: Answer = {
        "model": results[0].model,
        "choices": [shape.choice(index, choice, batch) for index, choice in enumerate(choices)],
        "usage": _count_usage(prompt_tokens, generated, shape),
    }
    if batch.delivery.metadata is not None:
        body["metadata"] = batch.delivery.metadata
    if prompt_ids is not None and shape.is_chat:
        body["prompt_token_ids"] = prompt_ids
    return body


async def _write_events(
    request: web.Request, engine: Engine, batch: PromptBatch, shape: Shape, head: AnswerHead
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a streamed answer: the pieces of each choice, then the usage.

    The choices of prompt number p have the indexes p * n to p * n + n - 1.
    """
    # The common part of all events is encoded once.
    prefix = b"data: " + dumps(head)[:-1]
    suffix = b',"usage":null}\n\n' if batch.delivery.include_usage else b"}\n\n"
    offsets: dict[int, int] = {}  # index -> characters of the tokens so far
    prompt_tokens = generated = 0
    try:
        async with aclosing(
            merge_streams([engine.stream(prompt) for prompt in batch.prompts])
        ) as deltas:
            async for number, delta in deltas:
                index = number * batch.first.n + delta.index
                offset = offsets.get(index)
                offsets[index] = (offset or 0) + sum([len(token) for token in delta.tokens])
                generated += delta.completion_tokens
                prompt_tokens += delta.prompt_tokens or 0
                events = prompt_part = b""
                if shape.is_chat and delta.prompt_token_ids is not None:
                    prompt_part = b',"prompt_token_ids":' + dumps(delta.prompt_token_ids)
                for piece in shape.pieces(index, delta, batch, offset):
                    events += prefix + prompt_part + b',"choices":[' + dumps(piece) + b"]" + suffix
                    prompt_part = b""
                if events:
                    yield events
    finally:
        # Also for a client that has left: the tokens were generated.
        kind = take_notes(request).model_kind
        request.app[SERVICES].metrics.add_tokens(kind, prompt_tokens, generated)
    if batch.delivery.include_usage:
        usage = dumps(_count_usage(prompt_tokens, generated, shape))
        yield prefix + b',"choices":[],"usage":' + usage + b"}\n\n"


def _count_usage(prompt_tokens: int, completion_tokens: int, shape: Shape) -> Usage:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        **shape.usage_details,
    }


@lru_cache(maxsize=256)
def _fingerprint(engine: str, base_model: str) -> str:
    """Changes where the same seed may begin to give another answer: a server, engine or base."""
    return "fp_" + sha256(f"{SERVER_VERSION} {engine} {base_model}".encode()).hexdigest()[:10]
