"""Streamed answers of an upstream on their way to the client, however the bytes are cut."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served_here import CHAT, KEY, ChosenEngine, Here, serve, until

from nip_lm_server.api.upstream import proxy
from nip_lm_server.api.upstream.relay import WholeEvents
from nip_lm_server.engines.base import Upstream

STREAM = {**CHAT, "stream": True}


def event(text: str, reason: str | None = None) -> bytes:
    choice = {"delta": {"content": text}, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":11}}\n\n'
DONE = b"data: [DONE]\n\n"
ABORTED = event("half", "abort")
QUOTED = event('he said "finish_reason": "abort" and "completion_tokens":99\n\n')
ANSWER = [event("a"), QUOTED, event("b", "stop"), USAGE, DONE]


@st.composite
def cut(
    draw: st.DrawFn, streams: st.SearchStrategy[list[bytes]]
) -> tuple[list[bytes], list[bytes]]:
    """The events of a stream, and the pieces that they come in."""
    events = draw(streams)
    whole = b"".join(events)
    places = sorted(draw(st.sets(st.integers(1, max(1, len(whole) - 1)), max_size=12)))
    return events, [whole[a:b] for a, b in zip([0, *places], [*places, None], strict=True)]


@settings(max_examples=150)
@given(cut(st.lists(st.sampled_from(ANSWER), min_size=1, max_size=8)))
def test_whole_events_go_on_wherever_they_are_cut(case: tuple[list[bytes], list[bytes]]) -> None:
    events, pieces = case
    passed = WholeEvents()
    out = [passed.take(piece) for piece in pieces]
    assert b"".join(out) == b"".join(events) and passed.rest() == b""
    assert all(piece == b"" or piece.endswith(b"\n\n") for piece in out)
    assert passed.usage == ((7, 11) if USAGE in events else (0, 0)) and not passed.broken_off


@settings(max_examples=150)
@given(cut(st.lists(st.sampled_from(ANSWER), max_size=4).map(lambda e: [*e, ABORTED, *ANSWER])))
def test_nothing_of_an_event_that_was_broken_off_or_behind_it_goes_on(
    case: tuple[list[bytes], list[bytes]],
) -> None:
    events, pieces = case
    passed = WholeEvents()
    out = b"".join([passed.take(piece) for piece in pieces]) + passed.rest()
    assert out == b"".join(events[: events.index(ABORTED)]) and passed.broken_off


class Sending:
    """An upstream that sends these pieces as they are, each in a packet of its own."""

    def __init__(self, *pieces: bytes, close: bool = False, whole: bool = True):
        self.pieces, self.close, self.whole = pieces, close, whole
        self.sent = self.left = 0

    async def speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.split(b"Content-Length: ")[1].split()[0]))
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                    b"Transfer-Encoding: chunked\r\n\r\n"
                )
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
                    self.sent += len(piece)
                    await asyncio.sleep(0)
                if self.whole:
                    writer.write(b"0\r\n\r\n")
                if self.close:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left += 1
        finally:
            writer.close()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def streaming(state: Path, upstream: Sending) -> AsyncIterator[Here]:
    server = await asyncio.start_server(upstream.speak, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    parameters = frozenset({"model", "messages", "stream"})
    async with serve(state, ChosenEngine(Upstream(url, "secret", parameters))) as here:
        yield here
    server.close()


def error_code(answer: bytes) -> str:
    return str(json.loads(answer.removeprefix(b"data: "))["error"]["code"])


@pytest.mark.parametrize(
    "pieces",
    [
        [chunk(b"".join(ANSWER))],
        [chunk(part) for part in ANSWER],
        [chunk(b"".join(ANSWER)[at : at + 9]) for at in range(0, len(b"".join(ANSWER)), 9)],
        [chunk(ANSWER[0])[:5], chunk(ANSWER[0])[5:] + chunk(b"".join(ANSWER[1:]))[:2], chunk(b"".join(ANSWER[1:]))[2:]],
    ],
    ids=["one chunk", "a chunk each", "torn events", "torn chunks"],
)  # fmt: skip
async def test_a_stream_arrives_whole_however_it_is_packed(
    tmp_path: Path, pieces: list[bytes]
) -> None:
    async with streaming(tmp_path / "s", Sending(*pieces)) as here:
        assert (await here.post("/v1/chat/completions", STREAM))[:2] == (200, b"".join(ANSWER))
        metrics = await (await here.http.get("/metrics")).text()
        assert 'nip_tokens_total{kind="generated",model_kind="base"} 11.0' in metrics
        # To a client that knows no chunks it goes without their frames.
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        body = json.dumps(STREAM).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.0\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
            % (KEY.encode(), len(body), body)
        )
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        assert b" 200 " in head and b"chunked" not in head and answer == b"".join(ANSWER)
        writer.close()


@pytest.mark.parametrize("before", [[], [event("a")], [event("a"), event("b")]])
@pytest.mark.parametrize("last", [ABORTED + DONE, ABORTED, ABORTED.rstrip()])
@pytest.mark.parametrize("apart", [False, True])
async def test_an_answer_that_was_broken_off_is_never_passed_on(
    tmp_path: Path, before: list[bytes], last: bytes, apart: bool
) -> None:
    events = b"".join(before)
    pieces = [chunk(part) for part in (*before, last)] if apart else [chunk(events + last)]
    async with streaming(tmp_path / "s", Sending(*pieces)) as here:
        status, answer, headers = await here.post("/v1/chat/completions", STREAM)
        assert answer.startswith(events) and b"abort" not in answer and b"DONE" not in answer
        assert error_code(answer.removeprefix(events)) == "engine_training"
        assert status == (200 if before else 503)
        assert headers.get("Retry-After") == (None if before else "5")


@pytest.mark.parametrize("pieces", [[], [chunk(event("a"))], [chunk(event("a")), b"ff\r\ndata: {"]])
async def test_an_upstream_that_breaks_off_ends_the_stream_with_an_error(
    tmp_path: Path, pieces: list[bytes]
) -> None:
    async with streaming(tmp_path / "s", Sending(*pieces, close=True, whole=False)) as here:
        status, answer, _ = await here.post("/v1/chat/completions", STREAM)
        assert status == (200 if pieces else 502)
        begin = event("a") if pieces else b""
        assert answer.startswith(begin)
        assert error_code(answer.removeprefix(begin)) == "engine_connection_lost"


@pytest.mark.parametrize("pieces", [[], [chunk(event("a"))]])
async def test_an_answer_that_takes_too_long_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]
) -> None:
    monkeypatch.setattr(proxy, "ANSWER_TIMEOUT_S", 0.2)
    upstream = Sending(*pieces, whole=False)
    async with streaming(tmp_path / "s", upstream) as here:
        status, answer, _ = await here.post("/v1/chat/completions", STREAM)
        assert status == (200 if pieces else 504)
        assert error_code(answer[len(event("a")) if pieces else 0 :]) == "engine_timeout"
        await until(lambda: upstream.left == 1)


async def test_a_slow_client_is_waited_for_and_gets_everything(tmp_path: Path) -> None:
    piece = event("x" * 60_000)
    # More than the kernel lets the sockets between keep: 32 MiB to receive, 4 to send, each twice.
    upstream = Sending(*[chunk(piece)] * 1_600)
    async with streaming(tmp_path / "s", upstream) as here:
        async with here.http.post("/v1/chat/completions", json=STREAM) as answer:
            before = -1
            async with asyncio.timeout(20):
                while upstream.sent > before:  # until the sockets between are full
                    before = upstream.sent
                    await asyncio.sleep(0.3)
            assert upstream.sent < 1_400 * len(piece), "it is read although nobody takes it"
            assert await answer.read() == piece * 1_600


async def test_a_client_that_leaves_a_running_stream_ends_it(tmp_path: Path) -> None:
    upstream = Sending(*[chunk(event("x" * 60_000))] * 400)
    async with streaming(tmp_path / "s", upstream) as here:
        async with here.http.post("/v1/chat/completions", json=STREAM) as answer:
            await answer.content.readany()
            assert here.services.metrics.in_flight == 1
            answer.close()
        await until(lambda: upstream.left == 1 and here.services.metrics.in_flight == 0)
