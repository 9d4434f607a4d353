"""Passing through to an engine that is a server itself: bytes, errors, and either side leaving."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from served_here import CHAT, KEY, ChosenEngine, Here, serve, until

from nip_lm_server.engines.base import Upstream

SECRET = "upstream-secret"
ANSWER = b'{"id":"x",  "odd spacing":1,"usage":{"prompt_tokens": 7,"completion_tokens": 11}}'
EVENTS = [b'data: {"n":1}\n\n', b'data: {"n":2,"usage":{"completion_tokens":5}}\n\n', b"data: [DONE]\n\n"]  # fmt: skip
PARAMETERS = frozenset({"model", "messages", "stream", "seed", "top_k", "n"})
STREAM = {**CHAT, "stream": True}


@dataclass
class UpstreamServer:
    """An OpenAI-compatible server that does what `mode` says."""

    mode: str = "answer"
    error: tuple[int, Any] = (500, "")
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    lost: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append(dict(request.headers))
        try:
            return await self._answer(request)
        except (asyncio.CancelledError, ConnectionError):
            self.lost += 1
            raise

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.mode == "error":
            status, body = self.error
            if isinstance(body, str):
                return web.Response(status=status, text=body, headers={"Location": "/elsewhere"})
            return web.json_response(body, status=status)
        if self.mode == "drop":
            request.transport.abort()
            return web.Response()
        if self.mode == "hang":
            await self.gate.wait()
        if b'"stream":true' not in self.bodies[-1].replace(b" ", b""):
            if self.mode == "cut":
                response = web.StreamResponse(headers={"Content-Length": "1000"})
                await response.prepare(request)
                await response.write(b"{")
                request.transport.close()
                return response
            return web.Response(
                body=ANSWER, content_type="application/json", headers={"X-Internal": SECRET}
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for number, event in enumerate(EVENTS):
            await response.write(event)
            if number == 0 and self.mode == "cut":
                request.transport.close()
                return response
            if number == 0 and self.mode == "pause":
                await self.gate.wait()
        return response


@asynccontextmanager
async def passed_through(
    state: Path, upstream: UpstreamServer
) -> AsyncIterator[tuple[Here, ChosenEngine]]:
    app = web.Application()
    app.router.add_post("/{rest:.*}", upstream.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    engine = ChosenEngine(Upstream(url, SECRET, PARAMETERS, frozenset({"model", "prompt", "n"})))
    try:
        async with serve(state, engine) as here:
            yield here, engine
    finally:
        await runner.cleanup()


async def test_bytes_go_through_unchanged_both_ways(tmp_path: Path) -> None:
    upstream = UpstreamServer()
    async with passed_through(tmp_path / "s", upstream) as (here, _):
        raw = b'{ "messages":[{"role":"user","content":"h\\u00e9"}],  "model":"sim","top_k":5,"x":null}'
        for path, body in (
            ("/v1/chat/completions", raw),
            ("/v1/completions", b'{"model":"sim","prompt":[1,2],"echo":false}'),
            ("/tokenize", b'{"model":"sim", "messages":[{"role":"user","content":"hi"}]}'),
        ):
            status, answer, headers = await here.post(path, body)
            assert (status, answer, upstream.bodies[-1]) == (200, ANSWER, body)
            assert headers["Content-Type"].startswith("application/json")
            assert headers["x-request-id"].startswith("req_")
            assert SECRET not in str(headers)
            sent = upstream.headers[-1]
            assert sent["Authorization"] == f"Bearer {SECRET}" and KEY not in sent.values()
        metrics = await (await here.http.get("/metrics")).text()
        assert 'nip_tokens_total{kind="generated",model_kind="base"} 22.0' in metrics


async def test_a_stream_goes_through_event_by_event(tmp_path: Path) -> None:
    upstream = UpstreamServer(mode="pause")
    async with passed_through(tmp_path / "s", upstream) as (here, _):
        async with here.http.post("/v1/chat/completions", json=STREAM) as answer:
            async with asyncio.timeout(5):
                assert await answer.content.readany() == EVENTS[0], "it waits for the second"
            upstream.gate.set()
            assert await answer.content.read() == b"".join(EVENTS[1:])
            assert answer.headers["Content-Type"].startswith("text/event-stream")


async def test_a_stream_that_breaks_off_ends_without_done(tmp_path: Path) -> None:
    upstream = UpstreamServer(mode="cut")
    async with passed_through(tmp_path / "s", upstream) as (here, _):
        cut = await here.post("/v1/chat/completions", STREAM)
        assert b"[DONE]" not in cut[1]
        upstream.mode = "answer"
        whole = await here.post("/v1/chat/completions", STREAM)
        assert whole[1] == b"".join(EVENTS)
        assert len(upstream.bodies) == 2


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"guided_json": {}}, "unknown_parameter", "guided_json"),
        ({"temperature": 1}, "unknown_parameter", "temperature"),
        ({"store": True}, "unsupported_value", "store"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "invalid_value", "messages[0].role"),
    ],
)
async def test_what_the_upstream_would_ignore_is_refused(
    tmp_path: Path, body: dict[str, Any], code: str, param: str
) -> None:
    upstream = UpstreamServer()
    async with passed_through(tmp_path / "s", upstream) as (here, _):
        status, answer, _ = await here.post("/v1/chat/completions", {**CHAT, **body})
        error = json.loads(answer)["error"]
        assert (status, error["code"], error["param"]) == (400, code, param)
        assert upstream.bodies == []
        harmless = {"user": "me", "store": False, "presence_penalty": 0, "temperature": None}
        harmless |= {"top_logprobs_at": ["accept"], "logprobs_at": ["accept"]}
        assert (await here.post("/v1/chat/completions", {**CHAT, **harmless}))[0] == 200
        # It lists them everywhere, and the client finds those that it wants.
        sent = json.loads(upstream.bodies[-1])
        assert (sent["top_logprobs_at"], sent["logprobs_at"]) == (["accept"], ["accept"])


async def test_a_developer_is_the_system_to_the_upstream(tmp_path: Path) -> None:
    upstream = UpstreamServer()
    async with passed_through(tmp_path / "s", upstream) as (here, _):
        messages = [{"role": "developer", "content": "be kind"}, *CHAT["messages"]]
        await here.post("/v1/chat/completions", {**CHAT, "messages": messages})
        assert json.loads(upstream.bodies[0])["messages"][0] == {
            "role": "system",
            "content": "be kind",
        }


VLLM = {"object": "error", "message": "bad", "type": "BadRequestError", "param": "n", "code": 400}


@pytest.mark.parametrize(
    ("status", "body", "wanted", "code", "param"),
    [
        (400, {"error": VLLM}, 400, None, "n"),
        (400, VLLM, 400, None, "n"),
        (400, {"error": {**VLLM, "message": "maximum context length is 9"}}, 400, "context_length_exceeded", "n"),
        (404, {"error": {**VLLM, "param": None}}, 404, "model_not_found", None),
        (400, {"error": {**VLLM, "message": "Grammar error: Invalid type: objekt", "param": None}}, 400, "invalid_value", "response_format"),
        (400, {"error": {**VLLM, "param": "body.response_format.type"}}, 400, None, "response_format.type"),
        (422, {"detail": [{"loc": ["n"]}]}, 422, None, None),
        (503, "overloaded", 503, "engine_error", None),
        (401, {"error": {"message": f"wrong key {SECRET}"}}, 502, "engine_error", None),
        (307, "elsewhere", 502, "engine_error", None),
    ],
)  # fmt: skip
async def test_errors_of_the_upstream_become_openais(
    tmp_path: Path, status: int, body: Any, wanted: int, code: str | None, param: str | None
) -> None:
    upstream = UpstreamServer("error", (status, body))
    async with passed_through(tmp_path / "s", upstream) as (here, _):
        for asked in (CHAT, STREAM):
            got, answer, _ = await here.post("/v1/chat/completions", asked)
            error = json.loads(answer)["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert (got, error["code"], error["param"]) == (wanted, code, param)
            assert error["type"] == ("server_error" if wanted >= 500 else "invalid_request_error")
            assert SECRET not in answer.decode()


@pytest.mark.parametrize("mode", ["drop", "cut", "gone"])
async def test_a_lost_upstream_is_a_502(tmp_path: Path, mode: str) -> None:
    upstream = UpstreamServer(mode)
    async with passed_through(tmp_path / "s", upstream) as (here, engine):
        if mode == "gone":
            engine.chosen_upstream = Upstream("http://127.0.0.1:9", SECRET, PARAMETERS)
        status, answer, headers = await here.post("/v1/chat/completions", CHAT)
        error = json.loads(answer)["error"]
        assert (status, error["code"]) == (502, "engine_connection_lost")
        assert headers["Retry-After"] == "5" and SECRET not in answer.decode()


async def test_a_stream_that_breaks_off_ends_with_an_error(tmp_path: Path) -> None:
    async with passed_through(tmp_path / "s", UpstreamServer("cut")) as (here, _):
        client = openai.AsyncOpenAI(base_url=here.url + "/v1", api_key=KEY, max_retries=0)
        with pytest.raises(openai.APIError, match="connection to the engine was lost"):
            async for _ in await client.chat.completions.create(**STREAM):
                pass
        await client.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_upstreams_request(
    tmp_path: Path, stream: bool
) -> None:
    upstream = UpstreamServer("pause" if stream else "hang")
    async with passed_through(tmp_path / "s", upstream) as (here, _):
        asked = asyncio.create_task(here.post("/v1/chat/completions", STREAM if stream else CHAT))
        await until(lambda: upstream.bodies)
        await asyncio.sleep(0.05)
        asked.cancel()
        await until(lambda: upstream.lost == 1)


async def test_connections_to_the_upstream_are_used_again(tmp_path: Path) -> None:
    peers: set[Any] = set()

    class Counting(UpstreamServer):
        async def _answer(self, request: web.Request) -> web.StreamResponse:
            peers.add(request.transport.get_extra_info("peername"))
            return await super()._answer(request)

    async with passed_through(tmp_path / "s", Counting()) as (here, _):
        for _ in range(5):
            await asyncio.gather(*[here.post("/v1/chat/completions", CHAT) for _ in range(4)])
    assert len(peers) <= 4


async def test_an_abandoned_upload_of_a_client_does_no_harm(tmp_path: Path) -> None:
    async with passed_through(tmp_path / "s", UpstreamServer()) as (here, _):
        _, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
            b"Authorization: Bearer k\r\n\r\n{"
        )
        await writer.drain()
        await until(lambda: here.services.metrics.in_flight == 1)
        writer.close()
        await until(lambda: here.services.metrics.in_flight == 0)
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as http:
            async with http.post(here.url + "/v1/chat/completions", json=CHAT) as answer:
                assert answer.status == 200
