"""What somebody without a key can do to a server: connections, requests that are no HTTP, web pages.

The server runs in this process or, where its own limit on descriptors is low, in one of its own.
Everything stays on the loopback interface.
"""

import asyncio
import contextlib
import itertools
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from served_here import CHAT, KEY, Here, serve

from nip_lm_server.api import connections
from nip_lm_server.api.connections import SparseLog
from nip_lm_server.auth import KeyRing, load_keys
from nip_lm_server.state.directory import read_card

SECRET = "sk-wait-for-it"


async def answer(here: Here, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) for bytes on a connection of their own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(raw)
    head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
    writer.close()
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, body


# Keys


def test_keys_of_a_file_with_windows_line_ends_are_those_that_clients_send(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_bytes(b"\xef\xbb\xbfone\r\n two \r\n")
    ring = load_keys(keys, False, {"NIP_API_KEYS": "three\r\n"})
    assert all(ring.accepts(f"Bearer {key}") for key in ("one", "two", "three"))


@pytest.mark.parametrize(
    "content", [b"on\x00e\n", b"o\x1bne\n", "schl\u00fcssel".encode(), b"\xff\xfeo\0"]
)
def test_a_key_that_no_header_can_carry_is_refused_at_the_start(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(ValueError, match=r"keys: key 1 |keys is no UTF-8 text$"):
        load_keys(tmp_path / "keys", False, {})


REFUSED_HEADERS = (
    f"Authorization: Bearer {SECRET}\x00",
    f"Authorization: Bearer {SECRET}\r",
    f"Authorization: Bearer \x1b[31m{SECRET}",
    f"Authorization Bearer {SECRET}",
    f"Authorization: Bearer {SECRET * 1000}",
    f"X: y\r\nContent-Length: {SECRET}",
    f" {SECRET}: y",
)


async def test_nothing_of_a_refused_request_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is answered with an error object, as everything is."""
    now = itertools.count(0, 61)
    monkeypatch.setattr(connections, "_refused", SparseLog(lambda: next(now)))
    async with serve(tmp_path / "state") as here:
        for header in REFUSED_HEADERS:
            request = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n"
            status, headers, body = await answer(here, request.encode())
            assert status == 400 and headers["content-type"].startswith("application/json")
            told = json.loads(body)
            error = told["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_http")
            assert told["category"] == "user"  # which Tinker's SDK reads
            assert SECRET not in body.decode()
    assert caplog.text.count("refused what is no HTTP") == len(REFUSED_HEADERS)
    assert "sk-" not in caplog.text and "Traceback" not in caplog.text


async def test_requests_that_are_no_http_are_logged_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(connections, "_refused", SparseLog(lambda: now[0]))
    async with serve(tmp_path / "state") as here:
        for junk in (b"\x16\x03\x01\0\0", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n:\r\n\r\n") * 3:
            assert (await answer(here, junk + b"\r\n\r\n"))[0] == 400
        now[0] = 61.0
        await answer(here, b"GET\r\n\r\n")
    lines = [record.getMessage() for record in caplog.records if "no HTTP" in record.getMessage()]
    assert len(lines) == 2 and lines[1].endswith("(8 more like it before)")


# Descriptors


async def test_a_silent_connection_makes_room_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "_MAX_CONNECTIONS", 20)
    async with serve(tmp_path / "state") as here:
        silent = [await asyncio.open_connection("127.0.0.1", here.port) for _ in range(60)]
        status, _, _ = await here.post("/v1/chat/completions", CHAT)
        assert status == 200
        ended = [reader for reader, _ in silent if reader.at_eof() or await _is_closed(reader)]
        assert 40 <= len(ended) <= 42  # those are the first
        assert await _is_closed(silent[0][0]) and not await _is_closed(silent[-1][0])
        for _, writer in silent:
            writer.close()
    assert caplog.text.count("no more are taken") <= 1


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(TimeoutError, ConnectionError):
        return await asyncio.wait_for(reader.read(1), 0.02) == b""
    return reader.at_eof()


async def test_where_everybody_is_busy_a_new_connection_is_a_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_MAX_CONNECTIONS", 16)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
    head += b"Authorization: Bearer " + KEY.encode() + b"\r\n\r\n"
    async with serve(tmp_path / "state") as here:
        busy = [await asyncio.open_connection("127.0.0.1", here.port) for _ in range(16)]
        for _, writer in busy:
            writer.write(head)
        while here.services.metrics.in_flight < 16:
            await asyncio.sleep(0.01)
        status, headers, body = await answer(here, b"")
        assert (status, headers["retry-after"]) == (503, "1")
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        for _, writer in busy:
            writer.close()
        while here.services.metrics.in_flight:
            await asyncio.sleep(0.01)
        assert (await here.http.get("/health")).status == 200


async def test_refused_requests_whose_bodies_never_come_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have their answers, and hold connections only while what they announced is awaited."""
    monkeypatch.setattr(connections, "_MAX_CONNECTIONS", 16)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
    async with serve(tmp_path / "state") as here:
        refused = [await asyncio.open_connection("127.0.0.1", here.port) for _ in range(16)]
        for reader, writer in refused:
            writer.write(head)
            assert b" 401 " in await reader.readline()
        assert (await here.http.get("/health")).status == 200
        for _, writer in refused:
            writer.close()


async def test_an_upload_without_a_descriptor_is_a_503(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    form = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="t"\r\n\r\n{}\r\n--b--\r\n'
    )
    kind = {"Content_Type": "multipart/form-data; boundary=b"}
    async with serve(tmp_path / "state") as here:
        assert (await here.post("/v1/files", form, **kind))[0] == 200
        with _no_descriptors_left():
            for _ in range(3):
                status, body, _ = await here.post("/v1/files", form, **kind)
                assert status == 503, body
        assert json.loads(body)["error"]["code"] == "out_of_descriptors"
        assert (await here.post("/v1/files", form, **kind))[0] == 200
    assert "Traceback" not in caplog.text


@contextlib.contextmanager
def _no_descriptors_left() -> Any:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
async def crowded(tmp_path: Path) -> AsyncIterator[tuple[int, Path, int]]:
    """(port, log, pid) of a server that may open 256 files."""
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *("sh", "-c", 'ulimit -n 256; exec "$@"', "sh"),
                *(sys.executable, "-m", "nip_lm_server", "--engine", "deterministic"),
                *("--model", "sim", "--state", str(tmp_path / "state"), "--port", "0"),
            ],
            env={**os.environ, "NIP_API_KEYS": KEY},
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + 60
        while (card := read_card(tmp_path / "state")) is None:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            await asyncio.sleep(0.05)
        yield int(card.url.rpartition(":")[2]), log, process.pid
    finally:
        process.terminate()
        process.wait(20)


async def test_a_flood_of_connections_leaves_the_server_answering_and_its_log_short(
    crowded: tuple[int, Path, int],
) -> None:
    port, log, pid = crowded
    size = log.stat().st_size
    flood = []
    for _ in range(600):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", port))
        flood.append(connection)
    try:
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 200")
            writer.close()
        assert len(os.listdir(f"/proc/{pid}/fd")) < 200
    finally:
        for connection in flood:
            connection.close()
    said = log.read_bytes()[size:].decode()
    assert len(said.splitlines()) <= 2 and "Traceback" not in said


# Web pages


@pytest.fixture
async def open_to_all(tmp_path: Path) -> AsyncIterator[Here]:
    async with serve(tmp_path / "state", keys=KeyRing(open_to_all=True)) as here:
        yield here


async def _ask(here: Here, method: str = "POST", body: bytes = b"", **headers: str) -> int:
    path = "/v1/chat/completions" if body else "/nip/engines/sim/sleep"
    lines = {"Host": f"127.0.0.1:{here.port}", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    raw = f"{method} {path} HTTP/1.1\r\nConnection: close\r\n{head}\r\n".encode() + body
    return (await answer(here, raw))[0]


async def test_without_keys_no_web_page_gets_anything_done(open_to_all: Here) -> None:
    here, chat = open_to_all, json.dumps(CHAT).encode()
    json_type = {"Content_Type": "application/json"}
    assert await _ask(here, body=chat, **json_type) == 200
    refused = [
        {"Host": "evil.example"},
        {"Host": f"evil.example:{here.port}"},
        {"Host": "localhost.evil.example"},
        {"Host": "localhost@evil.example"},
        {"Host": "[::1"},
        {"Host": "[::1%lo].evil.example"},
        {"Host": "localhost#evil.example"},
        {"Host": "evil.example@localhost"},
        {"Host": "localhost:http"},
        {"Host": "0.0.0.0"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://localhost:{here.port}"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ]
    for headers in refused:
        assert await _ask(here, body=chat, **json_type, **headers) == 403, headers
        assert await _ask(here, **headers) == 403, headers  # would stop the engine
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert await _ask(here, body=chat, Content_Type=kind) == 415, kind
    assert await _ask(here, body=chat) == 415
    assert await _ask(here, "OPTIONS", Origin="https://evil.example") == 403
    for host in ("localhost", f"LOCALHOST:{here.port}", "[::1]:1", "127.1.2.3"):
        assert await _ask(here, body=chat, **json_type, Host=host) == 200, host


async def test_with_keys_origins_and_names_are_the_clients_own_business(tmp_path: Path) -> None:
    key = {"Authorization": f"Bearer {KEY}", "Content_Type": "application/json"}
    async with serve(tmp_path / "state") as here:
        chat = json.dumps(CHAT).encode()
        assert await _ask(here, body=chat, Host="gpu.example", Origin="https://a", **key) == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "gpu.example"])
def test_without_keys_the_server_listens_to_this_machine_only(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nip_lm_server.__main__ import main

    arguments = ["--engine=deterministic", "--model=sim", f"--state={tmp_path}", f"--host={host}"]
    assert main([*arguments, "--no-auth"]) == 2
    assert "--no-auth is for this machine alone" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
