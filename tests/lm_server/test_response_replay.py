"""Idempotency-Key on generation: the first answer again, whatever happened in between."""

import asyncio
import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import openai
import pytest
from served_here import CHAT, ChosenEngine, serve, until

from nip_lm_server.api.kept_answers import Kept, Recording, ResponseTable
from nip_lm_server.engines.base import Delta, EngineError
from nip_lm_server.state.directory import StateError

COMPLETION = {"model": "sim", "prompt": "hello", "max_tokens": 20}
FIRST = Delta(0, "It ", prompt_tokens=3, completion_tokens=1)
LAST = Delta(0, "is.", "stop", completion_tokens=1)


def ask(server: Any, key: str, seed: int, **options: Any) -> Any:
    return server.client.chat.completions.with_raw_response.create(
        **CHAT, seed=seed, extra_headers={"Idempotency-Key": key}, **options
    )


@pytest.mark.parametrize("killed", [False, True])
def test_the_first_answer_comes_again_also_after_a_restart(make_server, killed: bool) -> None:
    server = make_server()
    first = ask(server, "a", 1)
    again = ask(server, "a", 1)
    assert again.content == first.content
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["content-type"] == first.headers["content-type"]
    assert ask(server, "b", 1).content != first.content, "the id tells answers apart"
    streamed = ask(server, "c", 1, stream=True).http_response.read()
    if killed:
        os.kill(server.handle.pid, signal.SIGKILL)
        server.client.close()
    else:
        server.stop()
    server.start()
    assert ask(server, "c", 1, stream=True).http_response.read() == streamed
    assert ask(server, "a", 1).content == first.content
    with pytest.raises(openai.ConflictError) as caught:
        ask(server, "a", 2)
    assert (caught.value.code, caught.value.param) == ("idempotency_key_reused", "Idempotency-Key")


def test_the_order_of_keys_in_the_payload_does_not_matter(server) -> None:
    url, key = server.handle.url + "/v1/chat/completions", {"Idempotency-Key": "order"}
    headers = {"Authorization": f"Bearer {server.handle.api_key}", **key}
    post = lambda body: server.client._client.post(url, content=json.dumps(body), headers=headers)  # noqa: E731
    first = post({"seed": 1, **CHAT})
    assert first.status_code == 200
    assert post({**CHAT, "seed": 1}).content == first.content
    assert post({**CHAT, "seed": 1, "n": 1}).status_code == 409


async def test_one_key_is_for_one_endpoint(tmp_path: Path) -> None:
    async with serve(tmp_path / "state") as here:
        assert (await here.post("/v1/completions", COMPLETION, Idempotency_Key="a"))[0] == 200
        assert (await here.post("/v1/chat/completions", CHAT, Idempotency_Key="a"))[0] == 409


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_of_two_that_race_one_is_answered_by_the_engine(tmp_path: Path, path: str) -> None:
    gate = asyncio.Event()
    engine = ChosenEngine(deltas=(gate,))
    body = CHAT if "chat" in path else COMPLETION
    async with serve(tmp_path / "state", engine) as here:
        both = [asyncio.create_task(here.post(path, body, Idempotency_Key="a")) for _ in range(8)]
        await engine.started.wait()
        other = await here.post(path, {**body, "seed": 9}, Idempotency_Key="a")
        assert other[0] == 409, "another payload is not worth waiting"
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in both)
        gate.set()
        answers = await asyncio.gather(*both)
    assert len(engine.asked) == 1
    assert len({body for _, body, _ in answers}) == 1
    assert [status for status, _, _ in answers] == [200] * 8
    assert sum("Idempotent-Replayed" in headers for _, _, headers in answers) == 7


async def test_after_an_error_the_key_is_free(tmp_path: Path) -> None:
    engine = ChosenEngine(deltas=(EngineError("dead"),))
    async with serve(tmp_path / "state", engine) as here:
        stream = {**CHAT, "stream": True}
        assert (await here.post("/v1/chat/completions", stream, Idempotency_Key="a"))[0] == 503
        engine.deltas = (FIRST, EngineError("dead"))
        status, broken, _ = await here.post("/v1/chat/completions", stream, Idempotency_Key="a")
        assert status == 200 and b'"error"' in broken
        engine.deltas = (FIRST, LAST)
        _, whole, _ = await here.post("/v1/chat/completions", stream, Idempotency_Key="a")
        assert whole.endswith(b"data: [DONE]\n\n")
        _, again, headers = await here.post("/v1/chat/completions", stream, Idempotency_Key="a")
    assert again == whole
    assert headers["Idempotent-Replayed"] == "true"
    assert headers["Content-Type"].startswith("text/event-stream")
    assert len(engine.asked) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_the_work_goes_on_when_its_client_leaves(tmp_path: Path, stream: bool) -> None:
    gate = asyncio.Event()
    engine = ChosenEngine(deltas=(FIRST, gate, LAST) if stream else (gate,))
    body = {**CHAT, "stream": stream}
    async with serve(tmp_path / "state", engine) as here:
        first = asyncio.create_task(here.post("/v1/chat/completions", body, Idempotency_Key="a"))
        await engine.started.wait()
        await asyncio.sleep(0.05)
        first.cancel()
        await until(lambda: here.services.metrics.in_flight == 0)
        second = asyncio.create_task(here.post("/v1/chat/completions", body, Idempotency_Key="a"))
        await asyncio.sleep(0.05)
        gate.set()
        status, answer, headers = await second
        assert (status, headers["Idempotent-Replayed"]) == (200, "true")
        assert answer.endswith(b"data: [DONE]\n\n") is stream
        assert len(engine.asked) == 1 and engine.abandoned == 0


async def test_the_end_of_a_stream_is_sent_only_once_it_is_on_disk(tmp_path: Path) -> None:
    engine = ChosenEngine(deltas=(FIRST, LAST))
    async with serve(tmp_path / "state", engine) as here:
        blocker = sqlite3.connect(tmp_path / "state" / "responses.sqlite3", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        body = {**CHAT, "stream": True}
        headers = {"Idempotency-Key": "a"}
        async with here.http.post("/v1/chat/completions", json=body, headers=headers) as answer:
            seen = b""
            while b'"finish_reason":"stop"' not in seen:
                seen += await answer.content.readany()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    seen += await answer.content.readany()
            assert b"[DONE]" not in seen
            blocker.execute("ROLLBACK")
            blocker.close()
            seen += await answer.content.read()
        assert seen.endswith(b"data: [DONE]\n\n")


async def test_answers_expire_and_are_removed(tmp_path: Path) -> None:
    now = [1000.0]
    table = ResponseTable(tmp_path / "t.sqlite3", ttl_s=60, clock=lambda: now[0])
    kept = Kept(b"d", 200, "text/plain", b"x")
    for number in range(50):
        await table.write(f"old {number}", kept)
    now[0] += 30
    await table.write("newer", kept)
    assert await table.claim("old 3", b"d") == kept
    now[0] += 40
    claimed = await table.claim("old 3", b"d")
    assert isinstance(claimed, Recording)
    await claimed.commit(200, "text/plain", b"y")
    table.release(claimed)
    assert await table.claim("old 3", b"d") == Kept(b"d", 200, "text/plain", b"y")
    assert await table.claim("newer", b"d") == kept
    await table.close()
    # What has expired is removed by the first write after a start.
    table = ResponseTable(tmp_path / "t.sqlite3", ttl_s=60, clock=lambda: now[0])
    await table.write("last", kept)
    await table.close()
    with sqlite3.connect(tmp_path / "t.sqlite3") as connection:
        keys = {key for (key,) in connection.execute("SELECT key FROM responses")}
    assert keys == {"old 3", "newer", "last"}


async def test_one_commit_serves_those_that_wait_together(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite3"
    table = ResponseTable(path, ttl_s=60)
    kept = Kept(b"d", 200, "text/plain", b"x")
    await table.write("first", kept)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    writes = [asyncio.ensure_future(table.write(f"k{i}", kept)) for i in range(64)]
    await asyncio.sleep(0.2)
    assert not any(write.done() for write in writes)
    version = blocker.execute("PRAGMA data_version").fetchone()[0]
    blocker.execute("ROLLBACK")
    commits = set()
    while not all(write.done() for write in writes):
        commits.add(blocker.execute("PRAGMA data_version").fetchone()[0])
        await asyncio.sleep(0.001)
    commits.add(blocker.execute("PRAGMA data_version").fetchone()[0])
    blocker.close()
    await table.close()
    assert len(commits - {version}) <= 2, "one for the first that waited, one for all the others"


async def test_a_table_of_another_format_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "t.sqlite3") as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StateError, match="format 99"):
        ResponseTable(tmp_path / "t.sqlite3", ttl_s=60)


async def test_a_server_that_keeps_nothing_refuses_a_key(tmp_path: Path) -> None:
    async with serve(tmp_path / "state", idempotency_ttl_s=0) as here:
        assert (await here.post("/v1/chat/completions", CHAT))[0] == 200
        status, body, _ = await here.post("/v1/chat/completions", CHAT, Idempotency_Key="a")
        error = json.loads(body)["error"]
        assert (status, error["param"]) == (400, "Idempotency-Key")
    assert not (tmp_path / "state" / "responses.sqlite3").exists()
