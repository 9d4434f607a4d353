"""What every route shares: the server's parts, the key check, errors, JSON, query parameters."""

import errno
import json
import logging
import re
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from nip_core.lm_server.auth import KeyRing
from nip_core.lm_server.database import Database
from nip_core.lm_server.engines.base import Engine, EngineError, EngineRequestError
from nip_core.lm_server.errors import ApiError, error_body
from nip_core.lm_server.files import FileStore
from nip_core.lm_server.jobs import JobTable
from nip_core.lm_server.models import ModelStore
from nip_core.lm_server.pool import EnginePool
from nip_core.lm_server.supervisor import JobSupervisor

_log = logging.getLogger("nip.lm_server")

_dumps: Callable[[Any], bytes]
loads: Callable[[bytes], Any]
try:
    import orjson

    _dumps, loads = orjson.dumps, orjson.loads
except ImportError:  # pragma: no cover - optional, only faster
    loads = json.loads

    def _dumps(value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Services:
    """The parts of a running server, as routes see them."""

    state_dir: Path
    keys: KeyRing
    database: Database
    engine: Engine
    pool: EnginePool
    files: FileStore
    models: ModelStore
    jobs: JobTable
    supervisor: JobSupervisor
    configuration_digest: str


SERVICES = web.AppKey("services", Services)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def json_response(
    value: Any, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """A JSON answer."""
    return web.Response(
        body=_dumps(value), status=status, content_type="application/json", headers=headers
    )


def guarded(handler: Handler) -> Handler:
    """Check the key before a handler, and turn what it raises into OpenAI's error object.

    A decorator and not a middleware, because middlewares cost every chat completion more.
    """

    async def guard(request: web.Request) -> web.StreamResponse:
        try:
            if not request.app[SERVICES].keys.accepts(request.headers.get("Authorization")):
                raise ApiError(
                    401,
                    "No valid API key: send it in the header 'Authorization: Bearer KEY'",
                    code="invalid_api_key",
                )
            return await handler(request)
        except Exception as error:
            return error_response(request, error)

    return guard


def error_response(request: web.Request, error: Exception) -> web.Response:
    """The answer for an exception; what was not foreseen is logged and becomes a 500."""
    if isinstance(error, ApiError):
        return json_response(error.body(), error.status, error.headers)
    if isinstance(error, EngineRequestError):
        found = error.code != "model_not_found"
        body = error_body(error.message, "invalid_request_error", error.code, error.param)
        return json_response(body, 400 if found else 404)
    if isinstance(error, web.HTTPException):
        code = "request_too_large" if error.status == 413 else None
        body = error_body(error.text or error.reason, "invalid_request_error", code)
        return json_response(body, error.status)
    if isinstance(error, EngineError):
        _log.error("%s %s: %s", request.method, request.path, error)
        return json_response(error_body(str(error), "server_error", "engine_error"), 503)
    if _is_disk_full(error):
        message = "The server's disk is full: nothing was stored"
        return json_response(error_body(message, "server_error", "disk_full"), 507)
    _log.error("%s %s", request.method, request.path, exc_info=error)
    return json_response(
        error_body(f"The server broke: {type(error).__name__}", "server_error", "internal_error"),
        500,
    )


async def unknown_route(request: web.Request) -> web.StreamResponse:
    """404 for a path or a method that the API does not have."""
    raise ApiError(404, f"Unknown request: {request.method} {request.path}", code="unknown_url")


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
