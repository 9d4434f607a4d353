"""A small HTTP/1.1 client for the engines: requests out, answers in, as bytes.

EngineConnections   the pooled connections; `post` is a request and its answer
Answer              status, type and body; `pass_on` hands the body out as it comes
EngineLost          the engine can't be reached, or breaks off, or doesn't speak HTTP

aiohttp's client costs half of what a request through the server costs, and wakes a task for each
piece of a streamed answer. Here the piece that a socket gave goes to its `sink` in the same turn
of the event loop. What is covered is what an engine of ours sends: HTTP/1.1, a body by length or
in chunks (RFC 9112, section 7.1). What is not: TLS, redirects, compression, pipelining, and a body
up to the end of the connection, of which nobody can tell whether it is whole. What can't be
understood is an EngineLost, never a guess.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 10.0
IDLE_S = 60.0
"""An unused connection is closed after this; an engine must keep it longer."""
_HEAD_BYTES = 64 * 1024
_LINE_BYTES = 4096

_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2})(?: [^\r\n]*)?")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*?)[ \t]*")
_LENGTH = re.compile(rb"[0-9]{1,15}")
# The line end behind a chunk's data stands before the size of the next.
_SIZE = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;[^\r\n]*)?\r\n")
_NEXT_SIZE = re.compile(rb"\r\n([0-9a-fA-F]{1,12})[ \t]*(?:;[^\r\n]*)?\r\n")
_TRAILER = re.compile(rb"(?:[^\r\n]+\r\n)*\r\n")

Sink = Callable[[bytes], bool | None]
"""Takes a piece of a body; true: no more for the moment."""


class EngineLost(ConnectionError):
    """The connection to an engine failed, or what came over it is no answer."""


class _Sized:
    """A body of so many bytes."""

    def __init__(self, length: int):
        self._left = length
        self.ended = not length

    def feed(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise EngineLost("more came than its answer")
        self.ended = not self._left
        return data


class _Chunked:
    """A body in chunks, each behind its size."""

    def __init__(self) -> None:
        self.ended = False
        self._left = 0  # of the chunk that is being read
        self._unread = b""  # a part of what stands between chunks
        self._between = _SIZE

    def feed(self, data: bytes) -> bytes:
        if self.ended:
            raise EngineLost("more came than its answer")
        if self._unread:
            data, self._unread = self._unread + data, b""
        pieces = []
        at, length = 0, len(data)
        while at < length:
            # 1. What is left of a chunk.
            if self._left:
                end = min(at + self._left, length)
                pieces.append(data[at:end])
                self._left -= end - at
                at = end
                continue
            # 2. What stands between chunks, or waits for its other half.
            match = self._between.match(data, at)
            if match is None:
                self._unread = data[at:]
                is_whole = b"\n" in self._unread[2:] and self._between is not _TRAILER
                if is_whole or len(self._unread) > _LINE_BYTES:
                    raise EngineLost("its answer is not in chunks as HTTP has them")
                break
            at = match.end()
            # 3. The next chunk, or the end behind an empty one.
            if self._between is _TRAILER:
                if at < length:
                    raise EngineLost("more came than its answer")
                self.ended = True
            else:
                self._left = int(match[1], 16)
                self._between = _NEXT_SIZE if self._left else _TRAILER
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Answer:
    """An engine's answer: its head, and its body as it comes."""

    def __init__(self, status: int, headers: dict[bytes, bytes], connection: "_Connection"):
        self.status = status
        self.content_type = headers.get(b"content-type", b"").decode("latin-1")
        self._connection = connection

    @property
    def is_event_stream(self) -> bool:
        """It is a stream of server-sent events."""
        return self.content_type.partition(";")[0].strip().lower() == "text/event-stream"

    async def pass_on(self, sink: Sink) -> bool:
        """Hand the body to `sink`, piece by piece, from where it was left to its end.

        Returns True at the end. Returns False once `sink` has returned something true: nothing
        more is read until the next call. Raises what `sink` raises, and EngineLost.
        """
        return await self._connection.pass_on(sink)

    async def read(self, most: int | None = None) -> bytes:
        """Return the whole body, or a little more than its first `most` bytes."""
        pieces: list[bytes] = []
        size = 0

        def take(data: bytes) -> bool:
            nonlocal size
            pieces.append(data)
            size += len(data)
            return most is not None and size >= most

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
        # Asked for anew: a sweep drops the lists that were empty.
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
        left = [c.idle_since for idle in self._idle.values() for c in idle]
        self._sweep = loop.call_at(min(left) + IDLE_S, self._close_old) if left else None


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
        self._idle: list[_Connection] | None = None  # those that it rests among
        self._error: EngineLost | None = None
        self._begin()

    def _begin(self) -> None:
        """Forget the last answer."""
        self._head = b""  # what there is of it
        self._body: _Sized | _Chunked | None = None
        self._answer: Answer | None = None
        self._keeps_alive = False
        self._unread: list[bytes] = []  # pieces of the body that no sink has taken
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None

    # The side of whoever asks

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
        assert self._body is not None
        # 1. What came while nobody took it.
        if self._unread:
            data = b"".join(self._unread)
            self._unread.clear()
            if sink(data) and not self._body.ended:
                return False
        # 2. What comes, straight from `data_received`.
        if not self._body.ended and self._error is None:
            self._sink = sink
            self._transport.resume_reading()
            try:
                await self._wait()
            finally:
                self._sink = None
        if self._error is not None and not self._body.ended:
            raise self._error
        return self._body.ended

    @property
    def is_closing(self) -> bool:
        """The engine is closing it, though `connection_lost` has not run yet."""
        return self._transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        """Its answer has ended, the request was read, and the engine keeps it open."""
        return (
            self._keeps_alive
            and self._error is None
            and self._body is not None
            and self._body.ended
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
            if self._body is None:
                data = self._read_head(data)
                if self._body is None:
                    return
            piece = self._body.feed(data) if data else b""
            if self._sink is None:
                self._hold(piece)
            elif (piece and self._sink(piece)) or self._body.ended:
                self._pause()
        except EngineLost as error:
            self._fail(error)
        except Exception as error:  # a sink's own
            self._pause(error)

    def connection_lost(self, exc: Exception | None) -> None:
        where = "before its answer" if self._answer is None else "in the middle of its answer"
        self._fail(EngineLost(str(exc) if exc is not None else f"it was closed {where}"))

    def _read_head(self, data: bytes) -> bytes:
        """Read a head; returns what follows it."""
        data, status = self._head + data, 100
        while status < 200:  # below, it says that the answer is yet to come
            head, end, data = data.partition(b"\r\n\r\n")
            if not end:
                if len(head) > _HEAD_BYTES:
                    raise EngineLost("its answer's head is too long")
                self._head = head
                return b""
            lines = head.split(b"\r\n")
            match = _STATUS.fullmatch(lines[0])
            if match is None:
                raise EngineLost("its answer is not HTTP/1.1")
            status = int(match[1])
        headers = _headers(lines[1:])
        self._body = _body(status, headers)
        self._keeps_alive = b"close" not in headers.get(b"connection", b"").lower()
        self._answer = Answer(status, headers, self)
        self._wake()
        return data

    def _hold(self, piece: bytes) -> None:
        """Keep what nobody takes yet, and soon read no further."""
        if piece:
            self._unread.append(piece)
            if len(self._unread) > 1 and self._body is not None and not self._body.ended:
                self._transport.pause_reading()

    def _pause(self, error: Exception | None = None) -> None:
        """Wake who waits: the body has ended, the sink wants no more, or it raised this."""
        self._sink = None
        if self._body is not None and not self._body.ended:
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


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            raise EngineLost("a header of its answer is not HTTP")
        name, value = match[1].lower(), match[2]
        if name == b"content-length" and headers.get(name, value) != value:
            raise EngineLost("its answer has two lengths")
        headers[name] = value
    return headers


def _body(status: int, headers: dict[bytes, bytes]) -> _Sized | _Chunked:
    """Say how the body of an answer ends."""
    coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
    if status in (204, 304):
        return _Sized(0)
    if coding is not None:
        if coding.lower() != b"chunked" or length is not None:
            raise EngineLost("its answer has a transfer coding other than chunked, or a length too")
        return _Chunked()
    if length is None or not _LENGTH.fullmatch(length):
        raise EngineLost("its answer does not tell its length")
    return _Sized(int(length))
