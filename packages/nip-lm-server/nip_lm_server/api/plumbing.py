"""The shared parts of all routes.

Services                   the server's parts, as routes see them
BackgroundTasks            work that goes on without its request
guard_route                around every route: key, errors, request id, metrics, slow bodies
error_answer               the status and the error object of an exception
json_object, json_response the JSON of a body, and of an answer
query_int ...              query parameters
"""

import asyncio
import itertools
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
from aiohttp import StreamReader, web

from nip_base.api_errors import (
    ApiError,
    ErrorBody,
    Places,
    doubled_parameter,
    error_body,
    other_value,
    unsupported_header,
    unsupported_value,
)
from nip_base.disk import is_full
from nip_base.formats import bounds
from nip_lm_server.api.connections import OUT_OF_DESCRIPTORS, short_of_descriptors
from nip_lm_server.api.joined import Generations
from nip_lm_server.api.metrics import Metrics, RequestNotes
from nip_lm_server.api.streaming import ClientGone
from nip_lm_server.api.upstream.proxy import Proxy
from nip_lm_server.auth import KeyRing, is_loopback
from nip_lm_server.engines.base import EngineError, EngineRequestError
from nip_lm_server.jobs.supervisor import JobSupervisor
from nip_lm_server.jobs.table import JobTable
from nip_lm_server.serving.advance import AdvanceWatch
from nip_lm_server.serving.pool import EnginePool
from nip_lm_server.state.database import Database
from nip_lm_server.state.files import FileStore
from nip_lm_server.state.models import ModelStore
from nip_lm_server.tinker.door import TinkerDoor

BODY_WINDOW_S = 20.0
BODY_WINDOW_BYTES = 16 * 1024
"""A body must grow by this much in each window, or be complete."""
REQUEST_ID_HEADER = "x-request-id"
_NOTES = web.RequestKey("notes", RequestNotes)
_CLIENT_GONE = 499
IDEMPOTENCY_KEY = "Idempotency-Key"
TINKER_PATH = "/api/v1/"
_OTHER_TYPES = {
    "/v1/files": "multipart/form-data",
    "/api/v1/forward_backward": "application/x-protobuf",
}
"""The type of a body that is no JSON, by its path."""
_KEYED_PATH = "/v1/fine_tuning/jobs"
_DECODED = ("identity", "gzip", "deflate")
"""Content-Encodings that `bodies` undoes."""

_HOST = re.compile(r"(\[(?P<address>[0-9a-fA-F:]+)\]|(?P<name>[^\[\]:]*))(:[0-9]*)?")
"""The header Host, strictly: a value that no browser could have sent is not interpreted."""

_log = logging.getLogger("nip.lm_server")
_ids = itertools.count()
_T = TypeVar("_T")
_id_prefix = f"req_{secrets.token_hex(6)}"


class BackgroundTasks:
    """Work that goes on after its request has ended.

    A client that leaves cancels its handler. That is right for generating text, and wrong for half
    of a change: deleting a model, starting an engine. Such work runs to its end or the server's.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def finish(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await `work`; if this await is cancelled, `work` goes on."""
        # Held here, for asyncio itself keeps no task from being collected.
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel the running tasks, and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that still waits gets it too


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
    tinker: TinkerDoor
    metrics: Metrics
    proxy: Proxy
    generations: Generations
    advances: AdvanceWatch
    configuration_digest: str
    created_at: int
    places: Places


SERVICES = web.AppKey("services", Services)

Handler = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]


def json_response(
    value: Any, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """A JSON answer."""
    return web.Response(
        body=orjson.dumps(value), status=status, content_type="application/json", headers=headers
    )


def json_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises ApiError 400 if there is none."""
    try:
        body = bounds.loads(raw, orjson.loads, surrogates=False)
        if isinstance(body, dict) and type(body.get("seed")) is float:
            # orjson makes a float of an integer beyond 64 bits; the error shows the client's value.
            body = bounds.loads(raw, json.loads, surrogates=False)
    except bounds.JsonBoundsError as error:
        raise ApiError(400, f"The body's JSON is too much: {error}", code="invalid_json") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The body must be a JSON object", code="invalid_json")
    return body


def guard_route(handler: Handler, *, key: bool = True, abandonable: bool = False) -> Handler:
    """Check the key before a handler, and turn its exceptions into OpenAI's error object.

    When the client leaves, an `abandonable` handler is cancelled and any other is finished. Such a
    request is counted with status 499, as no trouble of the server's. This is a decorator and not a
    middleware, because middlewares cost every chat completion more.
    """

    async def guard(request: web.Request) -> web.StreamResponse:
        services = request.app[SERVICES]
        metrics, start_s, status = services.metrics, time.perf_counter(), _CLIENT_GONE
        notes = take_notes(request)
        watch = None if request.content.is_eof() else _BodyWatch(request.content)
        metrics.in_flight += 1
        try:
            # 1. The client's right to ask, and its headers.
            if services.keys.open_to_all:
                _refuse_web_pages(request)
            if key and not services.keys.accepts(_authorization(request)):
                raise _key_error(request)
            _check_headers(request)
            # 2. The work.
            work = handler(request)
            response = await (work if abandonable else services.background.finish(work))
            status = response.status
            return response
        except Exception as error:
            if isinstance(error, ClientGone) or _has_client_left(request, error):
                _log.debug("%s %s %s: the client left", notes.id, request.method, request.path)
                return web.Response(status=status)  # no client sees it
            response = error_response(request, error)
            status = response.status
            return response
        finally:
            # 3. The books, after an error too.
            metrics.in_flight -= 1
            if watch is not None:
                watch.timer.cancel()
                if request.content.exception() is not None:
                    # Nothing more can be read on this connection, neither the rest of the body (for
                    # which aiohttp would wait) nor another request.
                    request.content.feed_eof()
                    request.protocol.close()
            resource = request.match_info.route.resource
            route = resource.canonical if resource is not None else UNKNOWN_PATH
            metrics.observe(route, notes.model_kind, status, time.perf_counter() - start_s)

    return guard


def _authorization(request: web.Request) -> str | None:
    """The header with the key; clients of Tinker's API have one of their own for it."""
    headers = request.headers
    if request.path.startswith(TINKER_PATH) and "X-API-Key" in headers:
        return f"Bearer {headers['X-API-Key']}"
    return headers.get("Authorization")


def _has_client_left(request: web.Request, error: Exception) -> bool:
    """Say whether the request's own connection broke, no matter which part noticed the error."""
    transport = request.transport
    is_away = transport is None or transport.is_closing()
    return is_away and isinstance(error, ConnectionError)


def take_notes(request: web.Request) -> RequestNotes:
    """Return the request's notes for the metrics, and begin them at the first call."""
    notes = request.get(_NOTES)
    if notes is None:
        request[_NOTES] = notes = RequestNotes(_id_prefix + str(next(_ids)))
    return notes


def _check_headers(request: web.Request) -> None:
    """Refuse headers that ask for more than the server does."""
    headers = request.headers
    if IDEMPOTENCY_KEY in headers and request.method in ("POST", "DELETE"):
        resource = request.match_info.route.resource
        if resource is not None and resource.canonical not in (_KEYED_PATH, UNKNOWN_PATH):
            raise unsupported_value(
                IDEMPOTENCY_KEY, f"{request.path} does its work at every request"
            )
    if "Content-Encoding" in headers and request.body_exists:
        encoding = ", ".join(headers.getall("Content-Encoding"))
        if encoding.strip().lower() not in _DECODED:
            reason = f"got {encoding!r}, expected gzip, deflate or none"
            raise unsupported_header("Content-Encoding", reason)


def _refuse_web_pages(request: web.Request) -> None:
    """Refuse requests that a browser may send for any web page, where no key names the client.

    A page of another origin sends its origin, or can't set the type of its body. A page that had
    its own name resolved to this machine sends that name as the host.
    """
    # 1. The name by which the client calls this machine, and the page that it shows.
    headers, names = request.headers, request.headers.getall("Host", [])
    if len(names) != 1 or not is_loopback(_without_port(names[0])):
        raise _web_page_error(f"the header Host says {', '.join(names) or 'nothing'!r}")
    if "Origin" in headers:
        raise _web_page_error(f"the header Origin says {headers['Origin']!r}")
    if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise _web_page_error(f"the header Sec-Fetch-Site says {headers['Sec-Fetch-Site']!r}")
    # 2. A type that a page of another origin can't send without being asked first.
    expected = _OTHER_TYPES.get(request.path, "application/json")
    if request.body_exists and request.content_type != expected:
        reason = f"got {headers.get('Content-Type', '')!r}, expected {expected}"
        raise unsupported_header("Content-Type", reason)


def _without_port(host: str) -> str:
    parts = _HOST.fullmatch(host)
    return "" if parts is None else parts["address"] or parts["name"]


def _web_page_error(reason: str) -> ApiError:
    return ApiError(
        403,
        f"A server that runs with --no-auth takes no requests of web pages or for other names "
        f"than localhost, and {reason}: start it with keys instead",
        code="forbidden",
    )


def _key_error(request: web.Request) -> ApiError:
    is_tinker = request.path.startswith(TINKER_PATH)
    header = "X-API-Key: KEY" if is_tinker else "Authorization: Bearer KEY"
    has_key = _authorization(request) is not None
    return ApiError(
        401,
        "Incorrect API key provided."
        if has_key
        else f"No API key provided: send it in the header '{header}'.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


class _BodyWatch:
    """Breaks off a request with a slow body, to free its connection."""

    def __init__(self, content: StreamReader):
        self._content, self._seen = content, content.total_bytes
        self._loop = asyncio.get_running_loop()
        self.timer = self._loop.call_later(BODY_WINDOW_S, self._check)

    def _check(self) -> None:
        if self._content.is_eof():
            return
        # Each window counts by itself: a body that was fast must stay so.
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


def error_answer(request: web.Request, error: Exception) -> tuple[int, ErrorBody]:
    """Status and error object for an exception; an unforeseen one is logged and a 500.

    The object names no place on this machine; the log does. Below Tinker's path it says whether the
    error is the user's or the server's, as clients of that API read it.
    """
    status, body = _choose_answer(request, error)
    if request.path.startswith(TINKER_PATH):
        body["category"] = "user" if status < 500 else "server"
    return status, request.app[SERVICES].places.hide(body)


def _choose_answer(request: web.Request, error: Exception) -> tuple[int, ErrorBody]:
    # 1. Errors that were raised to be answered.
    if isinstance(error, ApiError):
        return error.status, error.body()
    if isinstance(error, EngineRequestError):
        status = 404 if error.code == "model_not_found" else 400
        body = error_body(error.message, "invalid_request_error", error.code, error.param)
        return status, body
    # 2. Errors of aiohttp and the parser about the request.
    if isinstance(error, web.HTTPException):
        if error.status == 404:
            return 404, _unknown_url(request).body()
        code = "request_too_large" if error.status == 413 else None
        return error.status, error_body(error.text or error.reason, "invalid_request_error", code)
    if isinstance(error, web.RequestPayloadError):
        message = "The body can't be read: it is broken off, or not encoded as its headers say"
        return 400, error_body(message, "invalid_request_error", "invalid_body")
    if isinstance(error, RecursionError):
        message = "The body's JSON is nested too deeply"
        return 400, error_body(message, "invalid_request_error", "invalid_json")
    # 3. The server's own trouble.
    id = take_notes(request).id
    if isinstance(error, EngineError):
        _log.error("%s %s %s: %s", id, request.method, request.path, error)
        return 503, error_body(str(error), "server_error", "engine_error")
    if is_full(error):
        message = "The server's disk is full: nothing was stored"
        return 507, error_body(message, "server_error", "disk_full")
    if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
        short_of_descriptors.warn("no descriptor is left for %s", request.path)
        message = "The server has as many files and connections open as it can: try again"
        return 503, error_body(message, "server_error", "out_of_descriptors")
    _log.error("%s %s %s", id, request.method, request.path, exc_info=error)
    message = f"The server broke: {type(error).__name__}"
    return 500, error_body(message, "server_error", "internal_error")


def error_response(request: web.Request, error: Exception) -> web.Response:
    """The answer for an exception."""
    status, body = error_answer(request, error)
    response = json_response(body, status, error.headers if isinstance(error, ApiError) else None)
    if status in (408, 413) or request.content.exception() is not None:
        response.force_close()  # the rest of the body is not waited for
    return response


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Give every answer an id. As a signal of aiohttp, this reaches streamed answers too.

    A request that aiohttp refuses before there is a handler (for an unknown `Expect`, or a target
    that is no path) gets OpenAI's error object here.
    """
    if isinstance(response, web.HTTPException):
        response.body = body = orjson.dumps(error_answer(request, response)[1])
        response.content_type = "application/json"
        response.headers["Content-Length"] = str(len(body))
    response.headers[REQUEST_ID_HEADER] = take_notes(request).id


async def unknown_route(request: web.Request) -> web.StreamResponse:
    """Answer 404 for an unknown path and 405 for an unknown method; OPTIONS lists the methods."""
    # Each route tells its methods, so that the answer can't differ from the routes.
    methods: set[str] = set()
    for resource in request.app.router.resources():
        if resource.canonical != UNKNOWN_PATH:
            methods |= (await resource.resolve(request))[1]
    if not methods:
        raise _unknown_url(request)
    allow = {"Allow": ", ".join(sorted({*methods, "OPTIONS"}))}
    if request.method == "OPTIONS":
        return web.Response(status=204, headers=allow)
    raise ApiError(
        405,
        f"{request.path} takes {allow['Allow']}, not {request.method}",
        code="method_not_supported",
        headers=allow,
    )


def _unknown_url(request: web.Request) -> ApiError:
    return ApiError(404, f"Unknown request: {request.method} {request.path}", code="unknown_url")


UNKNOWN_PATH = "/{rest}"
"""As aiohttp shows the path of the route that takes everything else."""


def query_int(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """An integer query parameter. Raises ApiError 400 outside [low, high]."""
    text = request.query.get(name)
    if text is None:
        return default
    # Digits of ASCII alone, and few: int() takes more than a query should say.
    if not re.fullmatch(r"-?[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise other_value(name, text, f"an integer from {low} to {high}")
    return int(text)


def refuse_unknown_query(request: web.Request, names: set[str]) -> None:
    """Raise ApiError 400 for a query parameter beside `names`, instead of ignoring it.

    In `names`, ``name[`` stands for every ``name[key]``.
    """
    for name in request.query:
        if len(request.query.getall(name)) > 1:
            raise doubled_parameter(name)
        keyed = re.fullmatch(r"(\w+\[).+\]", name, re.DOTALL)
        if name not in names and (keyed is None or keyed[1] not in names):
            raise ApiError(
                400, f"Unknown parameter: '{name}'.", code="unknown_parameter", param=name
            )
