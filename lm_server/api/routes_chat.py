"""POST /v1/chat/completions, and POST /tokenize: the prompt that messages give."""

import itertools
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from aiohttp import web

from nip_lm_server import aside
from nip_lm_server.api.bodies import read_object
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
    model_of,
    parse_chat,
    parse_messages,
)
from nip_lm_server.api.plumbing import SERVICES, dumps, json_response, notes_of
from nip_lm_server.api.streaming import closing
from nip_lm_server.engines.base import (
    Choice,
    Engine,
    GenerationRequest,
    TopLogprob,
)
from nip_lm_server.errors import unknown_parameter
from nip_lm_server.formats.tool_calls import ToolCall

VERY_UNLIKELY = -9999.0
"""What the API says instead of a log-probability that JSON has no number for."""
_ids = itertools.count()
_id_prefix = f"chatcmpl-{secrets.token_hex(6)}-"
_DETAILS = {
    "completion_tokens_details": {
        "accepted_prediction_tokens": 0,
        "audio_tokens": 0,
        "reasoning_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
    "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 0},
}


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Answer a chat completion."""
    return await answer_generation(request, "/v1/chat/completions", _answer)


async def tokenize(request: web.Request) -> web.StreamResponse:
    """Token ids of the prompt that messages give, as vLLM's endpoint of this name has them."""
    services = request.app[SERVICES]
    raw, body = await read_object(request)
    for name in body:
        if name not in ("model", "messages"):
            raise unknown_parameter(name)
    model = model_of(body)
    messages = await aside.run(len(raw), parse_messages, body.get("messages"))
    async with services.pool.using(model) as engine:
        if engine.upstream is not None:
            response, _ = await services.proxy.forward(request, engine.upstream, "/tokenize", raw)
            return response
        tokens = await engine.tokenize(model, messages)
        return json_response(
            {"tokens": tokens, "count": len(tokens), "max_model_len": engine.max_model_len}
        )


async def _answer(request: web.Request, engine: Engine, body: dict[str, Any]) -> web.StreamResponse:
    chat, delivery = await aside.run(notes_of(request).body_bytes, parse_chat, body)
    check_capabilities(chat, engine, chat=True)
    head: dict[str, Any] = {
        "id": _id_prefix + str(next(_ids)),
        "object": "chat.completion.chunk" if delivery.stream else "chat.completion",
        "created": int(time.time()),
        "model": chat.model,
        "system_fingerprint": fingerprint(engine.name, engine.base_model),
    }
    if delivery.stream:
        chunks = _chunks(request, engine, chat, delivery, head)
        return await streamed_by_engine(request, chunks)
    result = await engine.generate(chat)
    generated = sum([choice.completion_tokens for choice in result.choices])
    note_tokens(request, result.prompt_tokens, generated)
    head["model"] = result.model
    head["choices"] = [
        _choice(index, choice, tokens_as_ids=delivery.tokens_as_ids)
        for index, choice in enumerate(result.choices)
    ]
    head["usage"] = usage_object(result.prompt_tokens, generated, _DETAILS)
    if delivery.metadata is not None:
        head["metadata"] = delivery.metadata
    if result.prompt_token_ids is not None:
        head["prompt_token_ids"] = result.prompt_token_ids
    return json_response(head)


def _choice(index: int, choice: Choice, *, tokens_as_ids: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "finish_reason": choice.finish_reason,
        "logprobs": None,
    }
    if choice.tool_calls:
        message = body["message"]
        message["tool_calls"] = _tool_calls(choice.tool_calls)
        message["content"] = choice.text or None
    if choice.logprobs is not None:
        tokens = choice.tokens or ("",) * len(choice.logprobs)
        if tokens_as_ids:
            tokens = _named_by_ids(choice.token_ids or ())
        body["logprobs"] = _logprobs(tokens, choice.logprobs, choice.top_logprobs or ())
    if choice.token_ids is not None:
        body["token_ids"] = choice.token_ids
    return body


async def _chunks(
    request: web.Request,
    engine: Engine,
    chat: GenerationRequest,
    delivery: Delivery,
    head: dict[str, Any],
) -> AsyncGenerator[bytes, None]:
    """The events of a streamed answer: role, text, finish reason of each choice; then usage."""
    prefix = b"data: " + dumps(head)[:-1]
    suffix = b',"usage":null}\n\n' if delivery.include_usage else b"}\n\n"

    def event(choice: dict[str, Any], more: bytes = b"") -> bytes:
        return prefix + more + b',"choices":[' + dumps(choice) + b"]" + suffix

    begun: set[int] = set()
    prompt_tokens = generated = 0
    try:
        async with closing(engine.stream(chat)) as deltas:
            async for delta in deltas:
                events = b""
                generated += delta.completion_tokens
                if delta.prompt_tokens is not None:
                    prompt_tokens = delta.prompt_tokens
                if delta.index not in begun:
                    begun.add(delta.index)
                    first = {"role": "assistant", "content": "", "refusal": None}
                    ids = delta.prompt_token_ids
                    more = b"" if ids is None else b',"prompt_token_ids":' + dumps(ids)
                    events += event(_piece(delta.index, first), more)
                if delta.text or delta.tokens or delta.token_ids:
                    piece = _piece(delta.index, {"content": delta.text})
                    if chat.logprobs:
                        tokens = delta.tokens
                        if delivery.tokens_as_ids:
                            tokens = _named_by_ids(delta.token_ids)
                        piece["logprobs"] = _logprobs(tokens, delta.logprobs, delta.top_logprobs)
                    if chat.return_token_ids:
                        piece["token_ids"] = delta.token_ids
                    events += event(piece)
                if delta.tool_calls:
                    calls = _tool_calls(delta.tool_calls)
                    numbered = [{"index": i, **call} for i, call in enumerate(calls)]
                    events += event(_piece(delta.index, {"tool_calls": numbered}))
                if delta.finish_reason is not None:
                    events += event(_piece(delta.index, {}, delta.finish_reason))
                if events:
                    yield events
    finally:
        note_tokens(request, prompt_tokens, generated)
    if delivery.include_usage:
        usage = dumps(usage_object(prompt_tokens, generated, _DETAILS))
        yield prefix + b',"choices":[],"usage":' + usage + b"}\n\n"


def _tool_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]


def _piece(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _named_by_ids(token_ids: Sequence[int]) -> tuple[str, ...]:
    return tuple([f"token_id:{token}" for token in token_ids])


def _logprobs(
    tokens: Sequence[str],
    logprobs: Sequence[float],
    top_logprobs: Sequence[Sequence[TopLogprob]],
) -> dict[str, Any]:
    alternatives = top_logprobs or [()] * len(logprobs)
    return {
        "content": [
            {**_token(token, logprob), "top_logprobs": [_token(t.token, t.logprob) for t in top]}
            for token, logprob, top in zip(tokens, logprobs, alternatives, strict=True)
        ],
        "refusal": None,
    }


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {
        "token": token,
        "logprob": max(logprob, VERY_UNLIKELY),
        "bytes": list(token.encode("utf-8", "surrogatepass")),
    }
