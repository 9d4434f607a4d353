"""Streamed answers: their pieces, their end, and what happens when either side breaks off."""

import asyncio
import json
import logging
import socket
import struct
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from served_here import CHAT, KEY, ChosenEngine, Here, serve, until

from nip_lm_server.engines.base import Capabilities, Delta, EngineError, TopLogprob

HELLO = CHAT["messages"]


def parse(body: bytes) -> list[Any]:
    """The events of a stream that ended as it should."""
    events = body.decode().split("\n\n")
    assert events[-1] == "" and events[-2] == "data: [DONE]", events[-2:]
    assert all(event.startswith("data: ") for event in events[:-1])
    return [json.loads(event[6:]) for event in events[:-2]]


def post(server: Any, path: str, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {server.handle.api_key}"}
    return httpx.post(server.handle.url + path, json=body, headers=headers, timeout=20)


def test_the_pieces_joined_are_the_answer(server) -> None:
    asked = {"model": "sim", "messages": HELLO, "n": 3, "seed": 5}
    whole = server.client.chat.completions.create(**asked)
    chunks = parse(post(server, "/v1/chat/completions", stream=True, **asked).content)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
        assert chunk["object"] == "chat.completion.chunk" and "usage" not in chunk
    assert len({(c["id"], c["created"], c["model"], c["system_fingerprint"]) for c in chunks}) == 1
    for choice in whole.choices:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice.index]
        assert mine[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
        assert len(mine) > 3, "an answer in one piece is no stream"
        assert "".join(c["delta"].get("content", "") for c in mine) == choice.message.content
        assert mine[-1]["delta"] == {} and mine[-1]["finish_reason"] == choice.finish_reason
        assert {c["finish_reason"] for c in mine[:-1]} == {None}


def test_the_usage_chunk_comes_last_and_only_when_asked_for(server) -> None:
    asked = {"model": "sim", "messages": HELLO, "seed": 5}
    whole = server.client.chat.completions.create(**asked)
    options = {"include_usage": True, "include_obfuscation": False}
    answer = post(server, "/v1/chat/completions", stream=True, stream_options=options, **asked)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *before, last = parse(answer.content)
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in before)
    assert last["choices"] == []
    assert last["usage"] == whole.usage.model_dump(exclude_unset=True)


def test_token_ids_come_with_the_pieces(server) -> None:
    asked = {"model": "sim", "messages": HELLO, "seed": 5, "return_token_ids": True}
    whole = post(server, "/v1/chat/completions", **asked).json()
    chunks = parse(post(server, "/v1/chat/completions", stream=True, **asked).content)
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
    ids = [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", [])]
    assert ids == whole["choices"][0]["token_ids"]


def test_the_stock_client_reads_a_stream(server) -> None:
    with server.client.chat.completions.create(
        model="sim", messages=HELLO, stream=True, seed=1
    ) as chunks:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    whole = server.client.chat.completions.create(model="sim", messages=HELLO, seed=1)
    assert text == whole.choices[0].message.content


def test_completions_of_several_prompts_are_streamed_side_by_side(server) -> None:
    asked = {"model": "sim", "prompt": ["one", "two", "three"], "n": 2, "seed": 4}
    asked |= {"max_tokens": 40}
    whole = post(server, "/v1/completions", **asked).json()
    options = {"include_usage": True}
    *chunks, last = parse(
        post(server, "/v1/completions", stream=True, stream_options=options, **asked).content
    )
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
    assert last["usage"] == whole["usage"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"model": "nobody"}, 404, "model_not_found"),
        ({"messages": [{"role": "user", "content": "x" * 200_000}]}, 400, "context_length_exceeded"),
        ({"stream_options": {"include_obfuscation": True}}, 400, "unsupported_value"),
        ({"stream_options": {"x": 1}}, 400, "unknown_parameter"),
    ],
)  # fmt: skip
def test_what_is_wrong_before_the_first_piece_is_a_plain_error(
    server, body: dict[str, Any], status: int, code: str
) -> None:
    answer = post(server, "/v1/chat/completions", **{**CHAT, "stream": True, **body})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["content-type"].startswith("application/json")


FIRST = Delta(0, "It ", prompt_tokens=3, completion_tokens=1)


async def test_an_engine_that_fails_on_the_way_ends_the_stream_with_an_error(
    tmp_path: Path,
) -> None:
    engine = ChosenEngine(deltas=(FIRST, EngineError("the engine died")))
    async with serve(tmp_path / "state", engine) as here:
        _, body, _ = await here.post("/v1/chat/completions", {**CHAT, "stream": True})
        assert b"[DONE]" not in body
        *_, last = body.decode().strip().split("\n\n")
        assert json.loads(last[6:])["error"] == {
            "message": "the engine died", "type": "server_error", "param": None,
            "code": "engine_error",
        }  # fmt: skip
        client = openai.AsyncOpenAI(base_url=here.url + "/v1", api_key=KEY, max_retries=0)
        with pytest.raises(openai.APIError, match="the engine died"):
            async for _ in await client.chat.completions.create(**CHAT, stream=True):
                pass
        await client.close()


async def test_an_engine_that_fails_at_once_is_a_plain_error(tmp_path: Path) -> None:
    engine = ChosenEngine(deltas=(EngineError("the engine died"),))
    async with serve(tmp_path / "state", engine) as here:
        status, body, _ = await here.post("/v1/chat/completions", {**CHAT, "stream": True})
        assert (status, json.loads(body)["error"]["code"]) == (503, "engine_error")


async def test_log_probabilities_come_with_the_pieces(tmp_path: Path) -> None:
    top = ((TopLogprob("It ", -0.5), TopLogprob("So", -1.0)), (TopLogprob("is", -0.1),))
    engine = ChosenEngine(
        deltas=(
            Delta(0, "It ", tokens=("It ",), logprobs=(-0.5,), top_logprobs=top[:1], prompt_tokens=3),
            Delta(0, "is", "stop", tokens=("is", "<end>"), logprobs=(-0.1, float("-inf")), top_logprobs=(*top[1:], ())),
        ),
        capabilities=Capabilities(logprobs=True, max_top_logprobs=2),
    )  # fmt: skip
    async with serve(tmp_path / "state", engine) as here:
        asked = {**CHAT, "stream": True, "logprobs": True, "top_logprobs": 2}
        _, body, _ = await here.post("/v1/chat/completions", asked)
        chunks = parse(body)
        for chunk in chunks:
            ChatCompletionChunk.model_validate(chunk, strict=True)
        content = [
            token
            for chunk in chunks
            if chunk["choices"][0]["logprobs"]
            for token in chunk["choices"][0]["logprobs"]["content"]
        ]
        assert [t["token"] for t in content] == ["It ", "is", "<end>"]
        assert [t["logprob"] for t in content] == [-0.5, -0.1, -9999.0]
        assert bytes(content[0]["bytes"]) == b"It "
        assert [t["token"] for t in content[0]["top_logprobs"]] == ["It ", "So"]
        asked = {"model": "sim", "prompt": "x", "stream": True, "logprobs": 2}
        _, body, _ = await here.post("/v1/completions", asked)
        one, two = [chunk["choices"][0]["logprobs"] for chunk in parse(body)]
        assert one == {"tokens": ["It "], "token_logprobs": [-0.5], "text_offset": [0],
                       "top_logprobs": [{"It ": -0.5, "So": -1.0}]}  # fmt: skip
        assert two["text_offset"] == [3, 5]
        assert engine.asked[-1].prompt == "x" and engine.asked[-1].top_logprobs == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_abandons_its_request(tmp_path: Path, stream: bool) -> None:
    deltas = (FIRST, asyncio.Event()) if stream else (asyncio.Event(),)
    engine = ChosenEngine(deltas=deltas)
    async with serve(tmp_path / "state", engine) as here:
        asked = asyncio.create_task(here.post("/v1/chat/completions", {**CHAT, "stream": stream}))
        await engine.started.wait()
        await asyncio.sleep(0.05)
        assert engine.abandoned == 0
        asked.cancel()
        await until(lambda: engine.abandoned == 1)
        await until(lambda: here.services.metrics.in_flight == 0)
        assert engine.abandoned == 1


async def test_a_slow_reader_holds_the_stream_back(tmp_path: Path) -> None:
    pieces = 4000
    engine = ChosenEngine(deltas=tuple([Delta(0, "x" * 10_000, prompt_tokens=1)] * pieces))
    produced = 0

    async def counted(request: Any, inner: Any = engine.stream) -> Any:
        nonlocal produced
        async for delta in inner(request):
            produced += 1
            yield delta

    engine.stream = counted  # type: ignore[method-assign]
    async with serve(tmp_path / "state", engine) as here:
        async with here.http.post("/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
            await answer.content.readany()
            await asyncio.sleep(0.5)
            assert produced < pieces, "40 MB were taken from the engine for nobody"


def _leave(client: socket.socket) -> None:
    """Break the connection off, with nothing in between that the server could notice it by."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


async def _begin(here: Here, path: str, head: str, body: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", here.port))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n{head}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


async def test_a_client_that_leaves_before_the_end_of_a_stream_is_no_trouble_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rest = asyncio.Event()
    engine = ChosenEngine(deltas=(Delta(0, "It ", "stop", prompt_tokens=3), rest))
    body = json.dumps({**CHAT, "stream": True}).encode()
    async with serve(tmp_path / "state", engine) as here:
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
        client = await _begin(here, "/v1/chat/completions", head, body)
        client.setblocking(False)
        received = b""
        while b"It " not in received:
            received += await asyncio.get_running_loop().sock_recv(client, 4096)
        # The end is written before the event loop can see that nobody is there.
        _leave(client)
        rest.set()
        seen = await until_counted(here)
    assert (seen.get("499"), seen.get("500")) == (1, None)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("path", ["/v1/files", "/v1/fine_tuning/jobs"])
async def test_a_client_that_leaves_while_it_sends_is_no_trouble_of_the_server(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = {"/v1/files": "multipart/form-data; boundary=b"}
    head = f"Content-Type: {kinds.get(path, 'application/json')}\r\nContent-Length: 9000"
    async with serve(tmp_path / "state") as here:
        client = await _begin(here, path, head, b"--b\r\n")
        await until(lambda: here.services.metrics.in_flight == 1)
        _leave(client)
        seen = await until_counted(here)
    assert (seen.get("499"), seen.get("500"), seen.get("400")) == (1, None, None)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def until_counted(here: Here) -> dict[str, float]:
    """Requests by status, once none is being answered any more."""
    await until(lambda: here.services.metrics.in_flight == 0)
    return {
        sample.labels["status"]: sample.value
        for metric in here.services.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "nip_requests_total"
    }
