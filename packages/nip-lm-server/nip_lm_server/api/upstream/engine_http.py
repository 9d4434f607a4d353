"""A small HTTP/1.1 client for the engines: requests out, answers in, as bytes.

EngineConnections   the pooled connections; `post` is a request and its answer
Answer              status, type and body; `pass_on` hands the body out as it comes
EngineLost          the engine can't be reached, or breaks off, or doesn't speak HTTP

aiohttp's client takes half the time of a request through the server, and wakes a task for each
piece of a streamed answer. Here the piece that a socket gave goes to its `sink` in the same turn
of the event loop. httptools (llhttp) parses. This file refuses some forms that llhttp takes and no
engine of ours sends: a body up to the end of the connection, which may be cut off unseen, a
transfer coding other than chunked, HTTP/1.0, and a head or a chunk's extension without an end. TLS,
redirects, compression and pipelining are not covered. An answer that can't be understood is an
EngineLost, never a guess.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import urlsplit

import httptools

CONNECT_TIMEOUT_S = 10.0
IDLE_S = 60.0
"""An unused connection is closed after this; an engine must keep it longer."""
_HEAD_BYTES = 64 * 1024
_BETWEEN_BYTES = 4096
"""Between two pieces of a body: a chunk's size, its extension, trailers."""

Sink = Callable[[bytes], bool | None]
"""Takes a piece of a body; true: no more for the moment."""


class EngineLost(ConnectionError):
    """The connection to an engine failed, or the bytes that came over it are no answer."""


class _Reader:
    """Reads answers with llhttp, which calls the methods `on_...` as it goes through bytes.

    One for each connection: parser and reader hold each other, and would be garbage per request.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        """Expect the next answer."""
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._bytes_without_body = 0
        self.status = 0
        """Zero before the head is read."""
        self.content_type = ""
        self.ended = False
        self.keeps_alive = False

    def feed(self, data: bytes) -> bytes:
        """Return the body's part of `data`. Raises EngineLost."""
        was_in_head = not self.status
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, EngineLost):
                raise error.__context__ from None
            raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise EngineLost(self._describe(error)) from None
        self._check_size(len(data), was_in_head)
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _describe(self, error: Exception) -> str:
        if self.ended:
            return "more came than its answer"
        return f"its {'body' if self.status else 'head'} is not HTTP/1.1: {error}"

    def _check_size(self, size: int, was_in_head: bool) -> None:
        """Count the bytes since the last piece of the body. Raises EngineLost for too many."""
        if self._pieces or self.ended or (was_in_head and self.status):
            self._bytes_without_body = 0
            return
        self._bytes_without_body += size
        if self._bytes_without_body > (_HEAD_BYTES if was_in_head else _BETWEEN_BYTES):
            raise EngineLost(f"its {'head' if was_in_head else 'chunk'} is too long")

    def on_message_begin(self) -> None:
        if self.ended:
            raise EngineLost("more came than its answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # or it is a trailer
            name = name.lower()
            earlier = self._headers.get(name)
            self._headers[name] = value if earlier is None else earlier + b", " + value

    def on_headers_complete(self) -> None:
        if self._parser.get_http_version() != "1.1":
            raise EngineLost("its answer is not HTTP/1.1")
        status, headers = self._parser.get_status_code(), self._headers
        self._headers = {}
        if not 100 <= status < 600 or status == 101:
            raise EngineLost(f"its answer is not HTTP/1.1: it has the status {status}")
        if status < 200:  # it says that the answer is yet to come
            return
        coding = headers.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise EngineLost("its answer has a transfer coding other than chunked")
        if status not in (204, 304) and coding is None and b"content-length" not in headers:
            raise EngineLost("its answer does not tell its length")
        self.status = status
        self.content_type = headers.get(b"content-type", b"").decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self.status:
            self.ended = True
            self.keeps_alive = self._parser.should_keep_alive()


class Answer:
    """An engine's answer: its head, and its body as it comes."""

    def __init__(self, status: int, content_type: str, connection: "_Connection"):
        self.status = status
        self.content_type = content_type
        self._connection = connection

    @property
    def is_event_stream(self) -> bool:
        """It is a stream of server-sent events."""
        return self.content_type.partition(";")[0].strip().lower() == "text/event-stream"

    async def pass_on(self, sink: Sink) -> bool:
        """Hand the unread part of the body to `sink`, piece by piece, to its end.

        Returns True at the end. Returns False once `sink` has returned a true value: nothing more
        is read until the next call. Exceptions of `sink` go on up. Raises EngineLost.
        """
        return await self._connection.pass_on(sink)

    async def read(self, max_bytes: int | None = None) -> bytes:
        """Return the whole body, or a little more than its first `max_bytes` bytes."""
        pieces: list[bytes] = []
        size = 0

        def take(data: bytes) -> bool:
            nonlocal size
            pieces.append(data)
            size += len(data)
            return max_bytes is not None and size >= max_bytes

        await self.pass_on(take)
        return b"".join(pieces)


class EngineConnections:
    """The pooled connections to the engines of one server."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int], list[_Connection]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        """Close the idle connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in [c for idle in self._idle.values() for c in idle]:
            connection.abort()

    @asynccontextmanager
    async def post(self, url: str, path: str, raw: bytes, api_key: str) -> AsyncIterator[Answer]:
        """Send `raw` as JSON, without a retry. Yields the answer once its head is there.

        An answer that is left before its end abandons the request: its connection is closed.
        Raises EngineLost.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise ValueError(f"an engine's address must be http://HOST:PORT, got {url!r}")
        place = (parts.hostname, parts.port)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: */*\r\n"
            f"Authorization: Bearer {api_key}\r\nContent-Type: application/json\r\n"
            f"Accept-Encoding: identity\r\nContent-Length: {len(raw)}\r\n\r\n"
        )
        connection = self._pick_idle(place) or await _connect(place)
        try:
            yield await connection.ask(head.encode("latin-1") + raw)
        finally:
            if connection.is_reusable:
                self._keep(connection, place)
            else:
                connection.abort()

    def _pick_idle(self, place: tuple[str, int]) -> "_Connection | None":
        """Return the idle connection used last, or None. The engine closes it last, too."""
        idle = self._idle.get(place, [])
        while idle:
            connection = idle[-1]
            connection.leave()
            if not connection.is_closing:
                return connection
        return None

    def _keep(self, connection: "_Connection", place: tuple[str, int]) -> None:
        # Looked up anew: a sweep drops the lists that were empty.
        connection.rest(self._idle.setdefault(place, []))
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_S, self._close_old)

    def _close_old(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - IDLE_S
        for idle in self._idle.values():
            for connection in [c for c in idle if c.idle_since <= oldest]:
                connection.abort()
        self._idle = {place: idle for place, idle in self._idle.items() if idle}
        since = [c.idle_since for idle in self._idle.values() for c in idle]
        self._sweep = loop.call_at(min(since) + IDLE_S, self._close_old) if since else None


async def _connect(place: tuple[str, int]) -> "_Connection":
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(_Connection, *place)
    except TimeoutError:
        raise EngineLost(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise EngineLost(str(error)) from error
    return connection


class _Connection(asyncio.Protocol):
    """One connection: a request at a time."""

    idle_since = 0.0

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Connection] | None = None  # the idle ones, while it is among them
        self._error: EngineLost | None = None
        self._reader = _Reader()
        self._begin()

    def _begin(self) -> None:
        """Forget the last answer."""
        self._reader.begin()
        self._answer: Answer | None = None
        self._unread: list[bytes] = []  # pieces of the body that no sink has taken
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None

    # The side of the client

    async def ask(self, request: bytes) -> Answer:
        """Send a request; return its answer once the head is there. Raises EngineLost."""
        self._idle = None
        self._begin()
        if self._error is None:
            self._transport.write(request)
            await self._wait()
        if self._error is not None and self._answer is None:
            raise self._error
        assert self._answer is not None
        return self._answer

    async def pass_on(self, sink: Sink) -> bool:
        """See `Answer.pass_on`."""
        # 1. The pieces that came while there was no sink.
        if self._unread:
            data = b"".join(self._unread)
            self._unread.clear()
            if sink(data) and not self._reader.ended:
                return False
        # 2. The next pieces, straight from `data_received`.
        if not self._reader.ended and self._error is None:
            self._sink = sink
            self._transport.resume_reading()
            try:
                await self._wait()
            finally:
                self._sink = None
        if self._error is not None and not self._reader.ended:
            raise self._error
        return self._reader.ended

    @property
    def is_closing(self) -> bool:
        """The engine is closing it, though `connection_lost` has not run yet."""
        return self._transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        """Its answer has ended, the request was read, and the engine keeps it open."""
        return (
            self._reader.keeps_alive
            and self._error is None
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()
        )

    def rest(self, idle: list["_Connection"]) -> None:
        """Wait among `idle` for the next request; the engine may close it meanwhile."""
        self._transport.resume_reading()  # or that would go unnoticed
        self.idle_since = self._loop.time()
        self._idle = idle
        idle.append(self)

    def abort(self) -> None:
        """Close it now."""
        self.leave()
        self._transport.abort()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # The side of the engine

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            piece = self._reader.feed(data)
            if self._answer is None and self._reader.status:
                reader = self._reader
                self._answer = Answer(reader.status, reader.content_type, self)
                self._wake()
            if self._sink is None:
                self._hold(piece)
            elif (piece and self._sink(piece)) or self._reader.ended:
                self._pause()
        except EngineLost as error:
            self._fail(error)
        except Exception as error:  # a sink's own
            self._pause(error)

    def connection_lost(self, exc: Exception | None) -> None:
        moment = "before its answer" if self._answer is None else "in the middle of its answer"
        self._fail(EngineLost(str(exc) if exc is not None else f"it was closed {moment}"))

    def _hold(self, piece: bytes) -> None:
        """Keep a piece for which there is no sink yet, and soon read no further."""
        if piece:
            self._unread.append(piece)
            if len(self._unread) > 1 and not self._reader.ended:
                self._transport.pause_reading()

    def _pause(self, error: Exception | None = None) -> None:
        """Wake the waiter: the body has ended, the sink wants no more, or it raised `error`."""
        self._sink = None
        if not self._reader.ended:
            self._transport.pause_reading()
        self._wake(error)

    def _fail(self, error: EngineLost) -> None:
        if self._error is None:
            self._error = error
        self._sink = None
        self.leave()
        self._transport.abort()
        self._wake()

    def _wake(self, error: Exception | None = None) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if error is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(error)

    def leave(self) -> None:
        """Wait among the idle ones no longer."""
        if self._idle is not None:
            self._idle.remove(self)
            self._idle = None
