"""What the generation endpoints share: which engine, passing through, streams."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import lru_cache
from hashlib import sha256
from typing import Any

from aiohttp import web

from nip_lm_server import aside
from nip_lm_server.api.bodies import read_object
from nip_lm_server.api.generation_parameters import check_passed_through, model_of
from nip_lm_server.api.plumbing import SERVICES, dumps, error_answer, notes_of
from nip_lm_server.api.streaming import send_events
from nip_lm_server.engines.base import Engine, Upstream
from nip_lm_server.version import SERVER_VERSION

Answer = Callable[[web.Request, Engine, dict[str, Any]], Awaitable[web.StreamResponse]]


async def answer_generation(request: web.Request, path: str, answer: Answer) -> web.StreamResponse:
    """Answer a generation request: by the engine's server, or by `answer`."""
    services = request.app[SERVICES]
    raw, body = await read_object(request)
    async with services.pool.using(model_of(body)) as engine:
        kind = "base" if body["model"] == engine.base_model else "adapter"
        notes_of(request).model_kind = kind
        upstream = engine.upstream
        if upstream is None:
            return await answer(request, engine, body)
        passed_on = await aside.run(len(raw), _to_pass_on, raw, body, upstream, path)
        response, tokens = await services.proxy.forward(request, upstream, path, passed_on)
        services.metrics.add_tokens(kind, *tokens)
        return response


def _to_pass_on(raw: bytes, body: dict[str, Any], upstream: Upstream, path: str) -> bytes:
    changed = check_passed_through(body, upstream, chat=path.endswith("/chat/completions"))
    return raw if changed is None else dumps(changed)


async def streamed_by_engine(
    request: web.Request, events: AsyncGenerator[bytes, None]
) -> web.StreamResponse:
    """Send the events that were made of an engine's deltas."""
    return await send_events(request, events, lambda error: dumps(error_answer(request, error)[1]))


def note_tokens(request: web.Request, prompt: int, generated: int) -> None:
    """Count the tokens of an answer, or of what there was of it."""
    kind = notes_of(request).model_kind
    request.app[SERVICES].metrics.add_tokens(kind, prompt, generated)


def usage_object(
    prompt_tokens: int, completion_tokens: int, details: dict[str, Any] | None = None
) -> dict[str, Any]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        **(details or {}),
    }


@lru_cache(maxsize=256)
def fingerprint(engine: str, base_model: str) -> str:
    """Changes where the same seed may begin to give another answer: a server, engine or base."""
    return "fp_" + sha256(f"{SERVER_VERSION} {engine} {base_model}".encode()).hexdigest()[:10]
