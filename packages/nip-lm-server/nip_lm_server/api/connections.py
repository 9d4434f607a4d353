"""Connections below the routes: their greatest number, and the requests that aiohttp refuses.

make_runner           the application's runner, with these connections
quiet_loop            an exception handler that says once a minute that descriptors are short
SparseLog             a log line for events that clients can cause as often as they like

A connection takes a descriptor before its client is known. Some are kept back for the rest of the
server (an upload, the engine's side of a request). When the others are all taken, the oldest
connection that has nothing to answer makes room; if none does, the newcomer gets a 503.
"""

import asyncio
import errno
import json
import logging
import resource
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.web_protocol import RequestHandler

from nip_base.api_errors import error_body

IDLE_TIMEOUT_S = 75.0
"""A connection that has not sent a whole request head for this long is closed."""
BACKLOG = 4096
"""Connections that the system holds until they are accepted."""
ACCEPTED_AT_ONCE = 16
"""... of which so many are accepted before the next look at the limit."""
_KEPT_BACK = 128
_MAX_CONNECTIONS, _MIN_CONNECTIONS = 16_384, 16
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_INTERVAL_S = 60.0

_log = logging.getLogger("nip.lm_server")


class SparseLog:
    """Logs a warning at most once a minute, with the number of those in between."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._next_s, self._silent = float("-inf"), 0

    def warn(self, message: str, *values: Any) -> None:
        """Log it, unless one was logged in the last minute."""
        if self._clock() < self._next_s:
            self._silent += 1
            return
        self._next_s = self._clock() + _INTERVAL_S
        count = f" ({self._silent} more like it before)" if self._silent else ""
        _log.warning(message + "%s", *values, count)
        self._silent = 0


short_of_descriptors = SparseLog()
_refused = SparseLog()


def most_connections() -> int:
    """Return how many connections this process has enough file descriptors for.

    A connection may need a second descriptor, for the engine's side of its request or for a file.
    """
    # Half of the rest: each may take a second one for the engine's side of it.
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(_MIN_CONNECTIONS, min(_MAX_CONNECTIONS, (soft - _KEPT_BACK) // 2))


def quiet_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exception handler of an event loop; asyncio reports every single failing accept to it."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
        short_of_descriptors.warn("no descriptor is left to accept a connection: %s", error)
    else:
        loop.default_exception_handler(context)


class _Connection(RequestHandler):
    """A client's connection; a request that aiohttp refuses gets an error like the API's."""

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        manager = self._manager
        if isinstance(manager, _Connections) and not manager.make_room(self):
            assert isinstance(transport, asyncio.Transport)
            transport.write(_too_many())
            self.force_close()

    @property
    def is_silent(self) -> bool:
        """It waits for the head of a request, or for the rest of an answered one."""
        # aiohttp sets a waiter while it has no request to answer.
        is_answering = self._waiter is None and self._request_in_progress
        return not is_answering and not self._force_close

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that never reached a route.

        The error's own text quotes the bad line, which may be a key, so it is not shown.
        """
        if status >= 500:
            _log.error("a request from %s broke", request.remote, exc_info=exc)
        else:
            _refused.warn("refused what is no HTTP from %s: %s", request.remote, type(exc).__name__)
        # Two answers to one request would be read as answers to two.
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer was sent already")
        body = error_body(
            _describe_failure(status, exc),
            "server_error" if status >= 500 else "invalid_request_error",
            "internal_error" if status >= 500 else "invalid_http",
        )
        # The client's API is not known; other clients than Tinker's read past this.
        body["category"] = "server" if status >= 500 else "user"
        response = web.json_response(body, status=status)
        response.force_close()
        return response


class _Connections(web.Server):
    """The connections of one server, `max_connections` at a time."""

    def __init__(self, server: web.Server, max_connections: int, **arguments: Any):
        super().__init__(
            server.request_handler,
            request_factory=server.request_factory,
            handler_cancellation=server.handler_cancellation,
            **arguments,
        )
        self._arguments, self._max_connections = arguments, max_connections

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), **self._arguments)

    def make_room(self, newcomer: RequestHandler) -> bool:
        """Close the oldest silent one if there are too many; False if all are busy."""
        if len(self._connections) <= self._max_connections:
            return True
        # The client of a silent one waits for nothing; a busy client would lose its work.
        short_of_descriptors.warn("%d connections, no more are taken", self._max_connections)
        for connection in self._connections:  # the oldest first
            if (
                isinstance(connection, _Connection)
                and connection.is_silent
                and connection is not newcomer
            ):
                connection.force_close()
                return True
        return False


class _Runner(web.AppRunner):
    """An AppRunner with connections of ours. aiohttp has no other place to say so."""

    def __init__(
        self, app: web.Application, max_connections: int, drain_s: float, **arguments: Any
    ):
        super().__init__(app, handle_signals=False, shutdown_timeout=drain_s, **arguments)
        self._arguments, self._max_connections = arguments, max_connections

    async def _make_server(self) -> web.Server:
        arguments = {k: v for k, v in self._arguments.items() if k != "handler_cancellation"}
        return _Connections(await super()._make_server(), self._max_connections, **arguments)


def make_runner(app: web.Application, drain_s: float) -> web.AppRunner:
    """The application's runner. Requests in flight may go on for `drain_s` after a stop."""
    return _Runner(
        app,
        most_connections(),
        drain_s,
        access_log=None,
        keepalive_timeout=IDLE_TIMEOUT_S,
        handler_cancellation=True,
        auto_decompress=False,  # see `bodies`
    )


def _describe_failure(status: int, error: BaseException | None) -> str:
    if status >= 500:
        return f"The server broke: {type(error).__name__}"
    if isinstance(error, LineTooLong):
        return "The request line or a header is too long"
    if isinstance(error, BadHttpMessage):
        return (
            "The request can't be read as HTTP: its first line or a header is not as it has to be. "
            "A key with a line end in it does that"
        )
    return "The request can't be read"


def _too_many() -> bytes:
    message = "The server has as many connections as it can take: try again"
    body = json.dumps(error_body(message, "server_error", "too_many_connections")).encode()
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        b"Retry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
