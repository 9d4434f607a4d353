"""What every route shares.

Services                   the server's parts, as routes see them
guarded                    around every route: key, errors, request id, metrics, slow bodies
error_answer               which status and error object an exception becomes
json_response, query_int   JSON and query parameters
make_runner                the application's runner, with the limits on connections
"""

import asyncio
import errno
import itertools
import json
import logging
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import StreamReader, web

from nip_core.lm_server.auth import KeyRing
from nip_core.lm_server.background import BackgroundTasks
from nip_core.lm_server.database import Database
from nip_core.lm_server.engines.base import EngineError, EngineRequestError
from nip_core.lm_server.errors import ApiError, error_body
from nip_core.lm_server.files import FileStore
from nip_core.lm_server.jobs import JobTable
from nip_core.lm_server.metrics import Metrics, RequestNotes
from nip_core.lm_server.models import ModelStore
from nip_core.lm_server.pool import EnginePool
from nip_core.lm_server.proxy import Proxy
from nip_core.lm_server.responses import ResponseTable
from nip_core.lm_server.streaming import ClientGone
from nip_core.lm_server.supervisor import JobSupervisor

IDLE_TIMEOUT_S = 75.0
"""A connection that has not sent a whole request head for this long is closed."""
BODY_WINDOW_S = 20.0
BODY_WINDOW_BYTES = 16 * 1024
"""A body must grow by this much in each window, or be complete."""
REQUEST_ID_HEADER = "x-request-id"
_NOTES = web.RequestKey("notes", RequestNotes)
_CLIENT_GONE = 499

_log = logging.getLogger("nip.lm_server")
_ids = itertools.count()
_id_prefix = f"req_{secrets.token_hex(6)}"

dumps: Callable[[Any], bytes]
loads: Callable[[bytes], Any]
try:
    import orjson

    dumps, loads = orjson.dumps, orjson.loads
except ImportError:  # pragma: no cover - optional, only faster
    loads = json.loads

    def dumps(value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Services:
    """The parts of a running server, as routes see them."""

    state_dir: Path
    keys: KeyRing
    database: Database
    pool: EnginePool
    files: FileStore
    models: ModelStore
    jobs: JobTable
    supervisor: JobSupervisor
    background: BackgroundTasks
    metrics: Metrics
    proxy: Proxy
    responses: ResponseTable | None  # None: nothing is kept
    configuration_digest: str
    started_at: float


SERVICES = web.AppKey("services", Services)

Handler = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]


def json_response(
    value: Any, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """A JSON answer."""
    return web.Response(
        body=dumps(value), status=status, content_type="application/json", headers=headers
    )


def json_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises ApiError 400 if there is none."""
    try:
        body = loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The body must be a JSON object", code="invalid_json")
    return body


def guarded(handler: Handler, *, key: bool = True, abandonable: bool = False) -> Handler:
    """Check the key before a handler, and turn what it raises into OpenAI's error object.

    When the client leaves, an `abandonable` handler is cancelled and any other is finished. A
    decorator and not a middleware, because middlewares cost every chat completion more.
    """

    async def guard(request: web.Request) -> web.StreamResponse:
        services = request.app[SERVICES]
        metrics, begun, status = services.metrics, time.perf_counter(), _CLIENT_GONE
        request[_NOTES] = notes = RequestNotes(_id_prefix + str(next(_ids)))
        watch = None if request.content.is_eof() else _BodyWatch(request.content)
        metrics.in_flight += 1
        try:
            if key and not services.keys.accepts(request.headers.get("Authorization")):
                raise _no_key(request)
            work = handler(request)
            response = await (work if abandonable else services.background.finish(work))
            status = response.status
            return response
        except ClientGone:
            return web.Response(status=status)  # nobody sees it
        except Exception as error:
            response = error_response(request, error)
            status = response.status
            return response
        finally:
            metrics.in_flight -= 1
            if watch is not None:
                watch.timer.cancel()
            resource = request.match_info.route.resource
            route = resource.canonical if resource is not None else UNKNOWN_PATH
            metrics.observe(route, notes.model_kind, status, time.perf_counter() - begun)

    return guard


def notes_of(request: web.Request) -> RequestNotes:
    """Where a handler notes what it learns for the metrics."""
    return request[_NOTES]


def _no_key(request: web.Request) -> ApiError:
    given = "Authorization" in request.headers
    return ApiError(
        401,
        "Incorrect API key provided."
        if given
        else "No API key provided: send it in the header 'Authorization: Bearer KEY'.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


class _BodyWatch:
    """Breaks off a request whose body comes too slowly, so that it can't hold a connection."""

    def __init__(self, content: StreamReader):
        self._content, self._seen = content, content.total_bytes
        self._loop = asyncio.get_running_loop()
        self.timer = self._loop.call_later(BODY_WINDOW_S, self._check)

    def _check(self) -> None:
        if self._content.is_eof():
            return
        total = self._content.total_bytes
        if total - self._seen >= BODY_WINDOW_BYTES:
            self._seen = total
            self.timer = self._loop.call_later(BODY_WINDOW_S, self._check)
            return
        self._content.set_exception(
            ApiError(
                408,
                f"The body came too slowly: {total - self._seen} bytes in {BODY_WINDOW_S:g} s",
                code="request_timeout",
            )
        )
        self._content.feed_eof()  # or the rest would be waited for


def error_answer(request: web.Request, error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and error object for an exception; what was not foreseen is logged and a 500."""
    if isinstance(error, ApiError):
        return error.status, error.body()
    if isinstance(error, EngineRequestError):
        found = error.code != "model_not_found"
        body = error_body(error.message, "invalid_request_error", error.code, error.param)
        return 400 if found else 404, body
    if isinstance(error, web.HTTPException):
        code = "request_too_large" if error.status == 413 else None
        return error.status, error_body(error.text or error.reason, "invalid_request_error", code)
    id = notes_of(request).id
    if isinstance(error, EngineError):
        _log.error("%s %s %s: %s", id, request.method, request.path, error)
        return 503, error_body(str(error), "server_error", "engine_error")
    if _is_disk_full(error):
        message = "The server's disk is full: nothing was stored"
        return 507, error_body(message, "server_error", "disk_full")
    _log.error("%s %s %s", id, request.method, request.path, exc_info=error)
    message = f"The server broke: {type(error).__name__}"
    return 500, error_body(message, "server_error", "internal_error")


def error_response(request: web.Request, error: Exception) -> web.Response:
    """The answer for an exception."""
    status, body = error_answer(request, error)
    response = json_response(body, status, error.headers if isinstance(error, ApiError) else None)
    if status in (408, 413):
        response.force_close()  # the rest of the body is not waited for
    return response


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Give every answer an id; a signal, so that streamed answers have it too."""
    response.headers[REQUEST_ID_HEADER] = notes_of(request).id


async def unknown_route(request: web.Request) -> web.StreamResponse:
    """404 for a path that the API does not have, 405 for a method; OPTIONS tells the methods."""
    methods: set[str] = set()
    for resource in request.app.router.resources():
        if resource.canonical != UNKNOWN_PATH:
            methods |= (await resource.resolve(request))[1]
    if not methods:
        raise ApiError(404, f"Unknown request: {request.method} {request.path}", code="unknown_url")
    allow = {"Allow": ", ".join(sorted({*methods, "OPTIONS"}))}
    if request.method == "OPTIONS":
        return web.Response(status=204, headers=allow)
    raise ApiError(
        405,
        f"{request.path} takes {allow['Allow']}, not {request.method}",
        code="method_not_supported",
        headers=allow,
    )


UNKNOWN_PATH = "/{rest}"
"""As aiohttp shows the path of the route that takes everything else."""


def make_runner(app: web.Application, drain_s: float) -> web.AppRunner:
    """The application's runner. Requests in flight may go on for `drain_s` after a stop."""
    return web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=drain_s,
        keepalive_timeout=IDLE_TIMEOUT_S,
        handler_cancellation=True,
    )


def query_int(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """An integer query parameter. Raises ApiError 400 outside [low, high]."""
    text = request.query.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"-?\d{1,9}", text) or not low <= int(text) <= high:
        raise ApiError(
            400,
            f"Invalid '{name}': got {text!r}, expected an integer from {low} to {high}",
            code="invalid_value",
            param=name,
        )
    return int(text)


def refuse_unknown_query(request: web.Request, known: set[str]) -> None:
    """Raise ApiError 400 for a query parameter that would be ignored."""
    for name in request.query:
        if name not in known and name.partition("[")[0] + "[" not in known:
            raise ApiError(
                400, f"Unknown parameter: '{name}'.", code="unknown_parameter", param=name
            )


def _is_disk_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, sqlite3.OperationalError) and "full" in str(error)
