"""Passing requests through to an engine that is an OpenAI-compatible server itself.

The body goes on as it came and the answer comes back as it came, chunk by chunk if it is
streamed. Of the upstream's headers only the content type is sent on, and the upstream's key goes
nowhere but there. When the client leaves, the upstream's connection is closed, by which it
abandons the request.
"""

import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
from aiohttp import web

from nip_lm_server.api.streaming import send_events
from nip_lm_server.engines.base import Upstream
from nip_lm_server.errors import ApiError

CONNECT_TIMEOUT_S = 10.0
IDLE_S = 60.0
"""An unused connection is closed after this; an upstream must keep it longer."""
ANSWER_TIMEOUT_S = 3600.0
"""Longest time for one answer, streamed or not."""
_RETRY_AFTER_S = 5
_ERROR_BYTES = 64 * 1024
_WRONG_SCHEMA = re.compile(r"grammar error|json schema|structured outputs", re.IGNORECASE)
"""Words of an upstream about a `response_format` that it can't enforce and doesn't name."""
_ABORTED = re.compile(rb'"finish_reason":\s*"abort"')
"""An answer that the upstream broke off. Quoted in a text its quotation marks have backslashes."""
_EVENT_END = b"\n\n"
_GENERATED = b'"completion_tokens":'
_COUNTS = {
    name: re.compile(re.escape(name) + rb"\s*([0-9]{1,11})")
    for name in (b'"prompt_tokens":', _GENERATED)
}


class Proxy:
    """The pooled connections to the upstreams of one server."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def forward(
        self, request: web.Request, upstream: Upstream, path: str, raw: bytes
    ) -> tuple[web.StreamResponse, tuple[int, int]]:
        """Answer with what the upstream answers to `raw`, and say how many tokens that took.

        Returns the response and (prompt tokens, generated tokens), zeros where it doesn't tell.
        Raises ApiError with the upstream's status and message, 503 if it went to sleep over the
        answer, 502 if it can't be reached or breaks off, 504 if it takes longer than
        ANSWER_TIMEOUT_S.
        """
        if self._session is None:
            self._session = _make_session()
        headers = {
            "Authorization": f"Bearer {upstream.api_key}",
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        try:
            async with self._session.post(
                upstream.url + path, data=raw, headers=headers, allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    raise _error_of(
                        answer.status, await answer.content.read(_ERROR_BYTES), upstream
                    )
                if answer.content_type == "text/event-stream":
                    return await _relay(request, answer, upstream)
                body = await answer.read()
                if _find_aborted(body) is not None:
                    raise _aborted()
                kind = answer.headers.get("Content-Type", "application/json")
                return web.Response(body=body, headers={"Content-Type": kind}), _usage(body)
        except aiohttp.ClientError as error:
            raise _broken(error, upstream) from error
        except TimeoutError as error:
            raise ApiError(
                504,
                f"The engine did not answer within {ANSWER_TIMEOUT_S:g} s",
                code="engine_timeout",
                type="server_error",
            ) from error


async def _relay(
    request: web.Request, answer: aiohttp.ClientResponse, upstream: Upstream
) -> tuple[web.StreamResponse, tuple[int, int]]:
    """Send on the events as they come, ``[DONE]`` among them."""
    usages = [(0, 0)]

    def error_body(error: Exception) -> bytes:
        if isinstance(error, TimeoutError | aiohttp.ClientPayloadError):
            error = _broken(error, upstream)
        if not isinstance(error, ApiError):
            raise error
        return json.dumps(error.body()).encode()

    response = await send_events(request, _events(answer, usages), error_body, last=b"")
    return response, usages[-1]


async def _events(
    answer: aiohttp.ClientResponse, usages: list[tuple[int, int]]
) -> AsyncGenerator[bytes, None]:
    part = b""
    async for data in answer.content.iter_any():
        # 1. Whole events only: half of one that says that it was broken off can't be taken back.
        events = part + data
        part = b""
        if not events.endswith(_EVENT_END):
            events, part = _split(events, len(events))
        # 2. None that says so, and nothing after it.
        broken_off = _find_aborted(events)
        if broken_off is not None:
            events, _ = _split(events, broken_off)
        # 3. The counts stand in the last event, if they were asked for.
        if _GENERATED in events:
            usages.append(_usage(events))
        if events:
            yield events
        if broken_off is not None:
            raise _aborted()
    if part:
        yield part


def _split(data: bytes, before: int) -> tuple[bytes, bytes]:
    """Split after the last whole event that ends before this place."""
    end = data.rfind(_EVENT_END, 0, before)
    end = 0 if end < 0 else end + len(_EVENT_END)
    return data[:end], data[end:]


def _find_aborted(data: bytes) -> int | None:
    """Find where an answer says that it was broken off; most have no such word at all."""
    match = _ABORTED.search(data) if b'"abort"' in data else None
    return None if match is None else match.start()


def _make_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
        timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def _error_of(status: int, body: bytes, upstream: Upstream) -> ApiError:
    """OpenAI's error object for an error of the upstream, whose own come in several shapes."""
    try:
        answer: Any = json.loads(body)
    except ValueError:
        answer = body.decode(errors="replace")
    if isinstance(answer, dict):
        answer = answer.get("error", answer)
    # 1. Its message: vLLM's own object, FastAPI's `detail`, or whatever came.
    fields = answer if isinstance(answer, dict) else {}
    message = fields.get("message", fields.get("detail", answer))
    text = message if isinstance(message, str) else json.dumps(message)
    text = _without_key(text, upstream)[:2000] or f"HTTP {status}"
    # 2. Its status.
    if status in (401, 403) or status < 400:
        # The client's key is right; it is ours that the engine refuses.
        return ApiError(
            502, f"The engine refused the server: HTTP {status}: {text}", code="engine_error"
        )
    # 3. A code for what it says in words alone.
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
        headers={"Retry-After": str(_RETRY_AFTER_S)} if status in (429, 503) else None,
    )


def _aborted() -> ApiError:
    """vLLM answers so, with status 200 and what there is, when it is put to sleep."""
    return ApiError(
        503,
        "The engine broke this answer off, as it leaves its device to a training or sleeps: ask "
        "again",
        code="engine_training",
        headers={"Retry-After": str(_RETRY_AFTER_S)},
    )


def _broken(error: Exception, upstream: Upstream) -> ApiError:
    return ApiError(
        502,
        f"The connection to the engine was lost: {_without_key(str(error), upstream)}",
        code="engine_connection_lost",
        headers={"Retry-After": str(_RETRY_AFTER_S)},
    )


def _without_key(text: str, upstream: Upstream) -> str:
    return text.replace(upstream.api_key, "***") if upstream.api_key else text


def _usage(body: bytes) -> tuple[int, int]:
    """(prompt tokens, generated tokens) as the last numbers of these names in a body.

    Only for the metrics, so the body isn't decoded for it.
    """
    counts = []
    for name, number in _COUNTS.items():
        match = number.match(body, max(0, body.rfind(name)))
        counts.append(int(match[1]) if match else 0)
    return counts[0], counts[1]
