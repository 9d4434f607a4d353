"""The client that asks engines: what it reads whatever the pieces, what it refuses, what it keeps."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from served_here import until

from nip_lm_server.api.upstream import engine_http
from nip_lm_server.api.upstream.engine_http import EngineConnections, EngineLost

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nab\r\nc\r\n1a;name=value\r\n0123456789abcdefghijklmnop\r\n0\r\nTrailer: x\r\n\r\n"
)
CHUNKED_BODY = b"ab\r\nc0123456789abcdefghijklmnop"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Type: application/json\r\n\r\nhello"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


class Engine:
    """Answers each request with the next of its answers, each a list of pieces.

    It waits for an event among them, and None closes the connection.
    """

    def __init__(self) -> None:
        self.answers: list[list[bytes | asyncio.Event | None]] = []
        self.requests: list[bytes] = []
        self.connections = self.lost = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                for piece in self.answers.pop(0):
                    if piece is None:
                        return
                    if isinstance(piece, asyncio.Event):
                        await piece.wait()
                    else:
                        writer.write(piece)
                        await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost += 1
        finally:
            writer.close()


@asynccontextmanager
async def engine_at() -> AsyncIterator[tuple[Engine, EngineConnections, str]]:
    engine, connections = Engine(), EngineConnections()
    server = await asyncio.start_server(engine.speak, "127.0.0.1", 0)
    try:
        yield engine, connections, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await connections.close()
        for writer in engine.writers:
            writer.close()
        server.close()


async def ask(connections: EngineConnections, url: str) -> tuple[int, bytes]:
    async with asyncio.timeout(10), connections.post(url, "/v1/x", b"{}", "key") as answer:
        return answer.status, await answer.read()


@pytest.mark.parametrize(
    ("whole", "body"), [(CHUNKED, CHUNKED_BODY), (SIZED, b"hello")], ids=["in chunks", "by length"]
)
async def test_an_answer_is_the_same_wherever_it_is_split(whole: bytes, body: bytes) -> None:
    async with engine_at() as (engine, connections, url):
        for at in range(1, len(whole)):
            engine.answers.append([whole[:at], whole[at:]])
            assert await ask(connections, url) == (200, body)
        engine.answers.append([bytes([byte]) for byte in whole])
        assert await ask(connections, url) == (200, body)
        assert engine.connections == 1
        assert engine.requests[0].startswith(b"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"\r\nAuthorization: Bearer key\r\n" in engine.requests[0]


async def test_a_long_head_may_come_by_itself() -> None:
    async with engine_at() as (engine, connections, url):
        head, body = SIZED.replace(b"\r\n\r\n", b"\r\nX: " + b"x" * 9000 + b"\r\n\r\n").split(
            b"hello"
        )
        engine.answers.append([head, b"hello", body])
        assert await ask(connections, url) == (200, b"hello")


async def test_pieces_are_handed_out_as_they_come_and_wait_for_who_wants_no_more() -> None:
    async with engine_at() as (engine, connections, url):
        at, goes_on = CHUNKED.index(b"\n1a;") + 1, asyncio.Event()
        engine.answers.append([CHUNKED[:at], goes_on, CHUNKED[at:]])
        got: list[bytes] = []

        def take(data: bytes) -> bool:
            got.append(data)
            return True

        async with asyncio.timeout(10), connections.post(url, "/", b"", "k") as answer:
            assert not await answer.pass_on(take)
            assert got == [CHUNKED_BODY[:5]], "it waits for the rest"
            goes_on.set()
            await asyncio.sleep(0.05)
            assert got == [CHUNKED_BODY[:5]], "it is read although nobody takes it"
            while not await answer.pass_on(take):
                pass
            assert b"".join(got) == CHUNKED_BODY
        engine.answers.append([SIZED])
        assert await ask(connections, url) == (200, b"hello")
        assert engine.connections == 1, "one that had paused is used again"


async def test_what_its_taker_raises_ends_the_answer_and_the_request() -> None:
    async with engine_at() as (engine, connections, url):
        engine.answers.append([SIZED[:-2]])

        def fail(data: bytes) -> None:
            raise LookupError("not this one")

        with pytest.raises(LookupError, match="not this one"):
            async with asyncio.timeout(10), connections.post(url, "/", b"", "k") as answer:
                await answer.pass_on(fail)
        await until(lambda: engine.lost == 1)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", "not HTTP/1.1"),
        (b"HTTP/1.1 700 OK\r\nContent-Length: 1\r\n\r\nx", "not HTTP/1.1.*status 700"),
        (b"HTTP/1.1 101 OK\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "status 101"),
        (b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx", "expected CR"),
        (b"HTTP/1.1 200 OK\r\n\r\nall of it?", "does not tell its length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello", "in Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n 6\r\n\r\nhello", "whitespace after header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "Duplicate"),
        (b"HTTP/1.1 200 OK\r\nContent-Length 5\r\n\r\nhello", "header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello", "header"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer coding"),
        (
            CHUNKED.replace(b"\nTransfer", b"\nTransfer-Encoding: gzip\r\nTransfer"),
            "transfer coding",
        ),
        (CHUNKED.replace(b"\r\n\r\n5\r", b"\r\nContent-Length: 5\r\n\r\n5\r"), "Content-Length"),
        (CHUNKED.replace(b"\n5\r", b"\n-5\r"), "in chunk size"),
        (CHUNKED.replace(b"\n5\r", b"\n4\r"), "after chunk data"),
        (CHUNKED.replace(b"\n5\r", b"\n5"), "after chunk size"),
        (CHUNKED.replace(b"1a;", b"1" * 17 + b";"), "Chunk size overflow"),
        (CHUNKED[: CHUNKED.index(b"name")] + b"n" * 600_000, "chunk is too long"),
        (CHUNKED + b"x", "more came"),
        (SIZED + b"x", "more came"),
        (SIZED + SIZED, "more came"),
        (b"HTTP/1.1 204 No Content\r\n\r\nx", "more came"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "head is too long"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 3000, "head is too long"),
    ],
)
async def test_what_is_no_answer_is_lost_and_never_guessed(answer: bytes, why: str) -> None:
    async with engine_at() as (engine, connections, url):
        engine.answers.append([answer])
        with pytest.raises(EngineLost, match=why):
            await ask(connections, url)
        engine.answers.append([EMPTY])
        assert await ask(connections, url) == (204, b"")
        assert engine.connections == 2


@pytest.mark.parametrize("whole", [CHUNKED, SIZED], ids=["in chunks", "by length"])
async def test_an_answer_that_breaks_off_is_lost(whole: bytes) -> None:
    async with engine_at() as (engine, connections, url):
        for end in (0, 20, len(whole) - 1):
            engine.answers.append([whole[:end], None])
            with pytest.raises(EngineLost, match="it was closed"):
                await ask(connections, url)


async def test_a_connection_that_the_engine_closes_is_not_used_again() -> None:
    async with engine_at() as (engine, connections, url):
        # 1. Because it says so.
        engine.answers += [[SIZED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")], [SIZED]]
        for _ in range(2):
            assert await ask(connections, url) == (200, b"hello")
        assert engine.connections == 2
        # 2. While nobody uses it, or after it said something that nobody asked.
        for last_words in (b"", SIZED):
            engine.writers[-1].write(last_words)
            engine.writers[-1].close()
            await asyncio.sleep(0.05)
            engine.answers.append([SIZED])
            assert await ask(connections, url) == (200, b"hello")
        assert engine.connections == 4


async def test_an_unused_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_http, "IDLE_S", 0.1)
    async with engine_at() as (engine, connections, url):
        engine.answers += [[SIZED], [SIZED]]
        await ask(connections, url)
        await until(lambda: engine.lost == 1)
        await ask(connections, url)
        await until(lambda: engine.lost == 2)


async def test_a_connection_that_was_busy_while_others_were_closed_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_http, "IDLE_S", 0.1)
    async with engine_at() as (engine, connections, url):
        # 1. One is idle once, so that there will be a look at the idle ones.
        engine.answers.append([SIZED])
        await ask(connections, url)
        # 2. It is busy when that comes.
        ends = asyncio.Event()
        engine.answers.append([SIZED[:-1], ends, SIZED[-1:]])
        asked = asyncio.create_task(ask(connections, url))
        await asyncio.sleep(0.3)
        ends.set()
        await asked
        # 3. Then it is there for the next, and closed once nobody wants it.
        engine.answers.append([SIZED])
        await ask(connections, url)
        assert engine.connections == 1
        await until(lambda: engine.lost == 1)


async def test_an_answer_that_is_left_ends_its_request() -> None:
    async with engine_at() as (engine, connections, url):
        for pieces in ([], [SIZED[:-1]]):
            engine.answers.append(pieces)
            asked = asyncio.create_task(ask(connections, url))
            seen = engine.lost
            await until(lambda: not engine.answers)
            await asyncio.sleep(0.02)
            asked.cancel()
            await until(lambda seen=seen: engine.lost == seen + 1)


async def test_an_address_that_it_can_not_speak_to_is_refused() -> None:
    connections = EngineConnections()
    for url in ("https://127.0.0.1:1", "http://127.0.0.1", "127.0.0.1:80"):
        with pytest.raises(ValueError, match="must be http://HOST:PORT"):
            await ask(connections, url)
    with pytest.raises(EngineLost, match="Connect call failed"):
        await ask(connections, "http://127.0.0.1:9")
