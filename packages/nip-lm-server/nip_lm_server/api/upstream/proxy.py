"""Passing requests through to an engine with an OpenAI-compatible server of its own.

The body goes on as it came and the answer comes back as it came, piece by piece if it is
streamed (`relay`). Of the upstream's headers only the content type is sent on, and the upstream's
key goes nowhere but there. When the client leaves, the upstream's connection is closed, so that it
abandons the request.
"""

import asyncio
import json
import re
from functools import partial
from typing import Any

from aiohttp import web

from nip_base.api_errors import ApiError
from nip_base.formats import bounds
from nip_lm_server.api.upstream.engine_http import Answer, EngineConnections, EngineLost
from nip_lm_server.api.upstream.relay import (
    RETRY_AFTER_S,
    broken_off_error,
    find_aborted,
    read_usage,
    relay,
)
from nip_lm_server.engines.base import Upstream

ANSWER_TIMEOUT_S = 3600.0
"""Longest time for one answer, streamed or not."""
_ERROR_BYTES = 64 * 1024
_WRONG_SCHEMA = re.compile(r"grammar error|json schema|structured outputs", re.IGNORECASE)
"""Words of an upstream about a `response_format` that it can't enforce and doesn't name."""


class Proxy:
    """Passes requests on to the upstreams of one server, over pooled connections."""

    def __init__(self) -> None:
        self._connections = EngineConnections()

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()

    async def forward(
        self, request: web.Request, upstream: Upstream, path: str, raw: bytes
    ) -> tuple[web.StreamResponse, tuple[int, int]]:
        """Answer with the upstream's answer to `raw`, and count its tokens.

        Returns the response and (prompt tokens, generated tokens), zeros where it has no counts.
        Raises ApiError with the upstream's status and message, 503 if it went to sleep over the
        answer, 502 if it can't be reached or breaks off, 504 if it takes longer than
        ANSWER_TIMEOUT_S.
        """
        deadline = asyncio.get_running_loop().time() + ANSWER_TIMEOUT_S
        try:
            async with (
                asyncio.timeout_at(deadline) as waiting,
                self._connections.post(upstream.url, path, raw, upstream.api_key) as answer,
            ):
                if answer.status != 200:
                    raise _read_error(answer.status, await answer.read(_ERROR_BYTES), upstream)
                if answer.is_event_stream:
                    waiting.reschedule(None)  # the relay looks at the deadline itself
                    return await relay(request, answer, deadline, partial(_explain, upstream))
                body, content_type = await _read_whole(answer)
                response = web.Response(body=body, headers={"Content-Type": content_type})
                return response, read_usage(body)
        except (EngineLost, TimeoutError) as error:
            raise _explain(upstream, error) from error

    async def fetch(
        self, upstream: Upstream, path: str, raw: bytes
    ) -> tuple[bytes, str, tuple[int, int]]:
        """Get the upstream's answer to `raw` in one piece, without a limit of time.

        Returns body, content type, and tokens as `forward` does. Raises ApiError as it does, but
        none for the time: a client that waits learns whether the engine advances.
        """
        try:
            async with self._connections.post(upstream.url, path, raw, upstream.api_key) as answer:
                if answer.status != 200:
                    raise _read_error(answer.status, await answer.read(_ERROR_BYTES), upstream)
                body, content_type = await _read_whole(answer)
                return body, content_type, read_usage(body)
        except EngineLost as error:
            raise _explain(upstream, error) from error


async def _read_whole(answer: Answer) -> tuple[bytes, str]:
    """Return body and content type. Raises ApiError 503 for an answer that was broken off."""
    body = await answer.read()
    if find_aborted(body) is not None:
        raise broken_off_error()
    return body, answer.content_type or "application/json"


def _read_error(status: int, body: bytes, upstream: Upstream) -> ApiError:
    """OpenAI's error object for an error of the upstream, which has several shapes."""
    try:
        answer: Any = bounds.parse_json(body)
    except ValueError:
        answer = body.decode(errors="replace")
    if isinstance(answer, dict):
        answer = answer.get("error", answer)
    # 1. Its message: vLLM's own object, FastAPI's `detail`, or the whole body.
    fields = answer if isinstance(answer, dict) else {}
    message = fields.get("message", fields.get("detail", answer))
    text = message if isinstance(message, str) else json.dumps(message)
    text = _without_key(text, upstream)[:2000] or f"HTTP {status}"
    # 2. Its status.
    if status in (401, 403) or status < 400:
        # The client's key is right; the engine refuses ours.
        return ApiError(
            502, f"The engine refused the server: HTTP {status}: {text}", code="engine_error"
        )
    # 3. A code where it has words alone.
    code, param = fields.get("code"), fields.get("param")
    if not isinstance(code, str):
        code = "engine_error" if status >= 500 else None
        if status == 400 and _WRONG_SCHEMA.search(text):
            code, param = "invalid_value", param or "response_format"
        if "maximum context length" in text:
            code = "context_length_exceeded"
        elif status == 404:
            code = "model_not_found"
    return ApiError(
        status,
        text,
        code=code,
        param=param.removeprefix("body.") if isinstance(param, str) else None,
        headers={"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else None,
    )


def _explain(upstream: Upstream, error: Exception) -> ApiError:
    """The error object for a failure on the way."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TimeoutError):
        return ApiError(
            504,
            f"The engine did not answer within {ANSWER_TIMEOUT_S:g} s",
            code="engine_timeout",
            type="server_error",
        )
    return ApiError(
        502,
        f"The connection to the engine was lost: {_without_key(str(error), upstream)}",
        code="engine_connection_lost",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def _without_key(text: str, upstream: Upstream) -> str:
    return text.replace(upstream.api_key, "***") if upstream.api_key else text
