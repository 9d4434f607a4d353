"""The gateway answers chats as the service's own endpoint does, and with token ids."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow.parquet as pq
import pytest
from aiohttp import web

from nip_core.models import BUNDLED
from nip_core.rollouts.client.answer_parts import read_answers
from nip_core.rollouts.client.completions import ChatAnswer
from nip_lm_server.client import make
from nip_lm_server.testing import ServerDouble
from nip_tinker.gateway.app import make_app
from nip_tinker.gateway.gateway import Gateway
from nip_tinker.wire import PROTOBUF, TinkerClient

CHAT = [{"role": "user", "content": "Is this right? def add(a, b): return a + b"}]
NEUTRAL: dict[str, Any] = {
    # Of nip, where it records tokens.
    "repetition_penalty": 1.0,
    # Of OpenAI's clients, and of frameworks over them.
    **{"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "n": 1, "seed": None},
    **{"stop": [], "stream": False, "stream_options": None, "store": False, "user": "me"},
    **{"response_format": {"type": "text"}, "tools": [], "tool_choice": "none", "top_p": 1},
    **{"parallel_tool_calls": True, "metadata": {"a": "b"}, "service_tier": "auto"},
    **{"modalities": ["text"], "reasoning_effort": None, "audio": None, "functions": None},
    # Of vLLM's clients.
    **{"top_k": -1, "min_p": 0.0, "min_tokens": 0, "length_penalty": 1.0, "best_of": 1},
    **{"ignore_eos": False, "skip_special_tokens": True, "include_stop_str_in_output": False},
    **{"add_generation_prompt": True, "stop_token_ids": [], "chat_template_kwargs": {}},
}
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@asynccontextmanager
async def serve_before(handle: Handle, key: str = "tml-key") -> AsyncIterator[tuple[str, str]]:
    """Serve a gateway before a service that answers by `handle`; gives both addresses."""
    app = web.Application(client_max_size=1 << 27)
    app.router.add_route("*", "/{path:.*}", handle)
    tokenizer = str(BUNDLED["tiny"])
    async with serve(app) as url, serve(make_app(Gateway(url, key, tokenizer))) as gate:
        yield gate, url


@pytest.fixture
async def gateway(service: ServerDouble) -> AsyncIterator[str]:
    async with serve(make_app(Gateway(service.url, service.api_key))) as url:
        yield url


async def send(
    url: str, key: str, data: bytes, path: str = "/oai/api/v1"
) -> tuple[int, Any, bytes]:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{url}{path}/chat/completions", data=data, allow_redirects=False) as answer,
    ):
        return answer.status, answer.headers, await answer.read()


async def ask(url: str, key: str, **body: object) -> tuple[int, bytes]:
    status, _, raw = await send(url, key, json.dumps({"messages": CHAT, **body}).encode())
    return status, raw


def read(raw: bytes, model: str) -> list[ChatAnswer]:
    return read_answers(raw, [model], 0, 0.0)


def read_error(raw: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(raw)["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["message"], error
    return error


# Answers


@pytest.mark.parametrize("messages", [CHAT, [{"role": "system", "content": "Count: eins, zwei."}]])
async def test_it_answers_as_the_service_and_has_the_tokens(
    service: ServerDouble, gateway: str, messages: list[dict[str, str]]
) -> None:
    body = {"model": "tiny", "max_tokens": 24, "temperature": 0, "return_token_ids": True}
    body |= {"logprobs": True, "top_logprobs": 3, "messages": messages}
    answers = []
    for url in (service.url, gateway):
        status, raw = await ask(url, service.api_key, **body)
        assert status == 200, raw
        answers.append(read(raw, "tiny")[0])
    own, here = answers
    assert (here.text, here.token_ids, here.prompt_token_ids) == (
        own.text, own.token_ids, own.prompt_token_ids,
    )  # fmt: skip
    assert here.finish_reason == own.finish_reason and here.prompt_tokens == own.prompt_tokens
    assert here.tokens is not None and own.tokens is not None
    for one, other in zip(here.tokens, own.tokens, strict=True):
        assert one["token"] == other["token"] and len(one["top"]) == len(other["top"]) == 3
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-3)
        assert [top["token"] for top in one["top"]] == [top["token"] for top in other["top"]]
        assert [top["logprob"] for top in one["top"]] == pytest.approx(
            [top["logprob"] for top in other["top"]], abs=1e-3
        )


async def test_several_answers_have_tokens_each_and_other_calls_are_passed_on(
    service: ServerDouble, gateway: str
) -> None:
    body = {"model": "tiny", "max_tokens": 8, "n": 3, "seed": 1, "logprobs": True}
    status, raw = await ask(gateway, service.api_key, **body)
    answers = read(raw, "tiny")
    assert status == 200 and len(answers) == 3
    assert all(len(one.tokens or ()) == len(one.token_ids or ()) > 0 for one in answers)
    client = TinkerClient(gateway, service.api_key)
    assert await client.list_bases() == ["tiny"]
    await client.aclose()
    headers = {"Authorization": f"Bearer {service.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        for path in ("/oai/api/v1", "/v1"):
            async with http.get(f"{gateway}{path}/models") as answer:
                assert [model["id"] for model in (await answer.json())["data"]] == ["tiny"]


async def test_log_probabilities_come_where_they_are_asked_for(
    service: ServerDouble, gateway: str
) -> None:
    for asked, given in (({}, False), ({"logprobs": False}, False), ({"logprobs": True}, True)):
        body = {"model": "tiny", "messages": CHAT, "max_tokens": 4, **asked}
        # The path, too, is what clients of OpenAI's API write.
        status, _, raw = await send(gateway, service.api_key, json.dumps(body).encode(), "/v1")
        assert status == 200, raw
        choice = json.loads(raw)["choices"][0]
        assert bool(choice["logprobs"]) is given and choice["token_ids"]


MINE = f"""
from nip_core.parameters.services.providers import Tinker

class Mine(Tinker):
    options = {{"tokenizer": {str(BUNDLED["tiny"])!r}}}
"""
SETTINGS = """
run_name: there
run_store: runs
dataset: families
interaction_protocol: nip
trainer: pure_text_grpo
agents:
  _default: {model_provider: "mine.py:Mine", model_name: tiny, max_tokens_per_message: 32,
    base_url: "URL", lora_rank: 8, lora_alpha: 32, lora_dropout: 0.0,
    per_device_train_batch_size: 4, fine_tune_from_scratch: false}
rl: {num_iterations: 1, rollouts_per_iteration: 8}
rollouts: {record_p_accept: true}
code_validation: {system_prompt_version: short}
protocol_common: {shared_reward: true}
nip_protocol: {max_message_rounds: 3}
prices:
  tiny: {prompt_usd: 1.0, completion_usd: 1.0, training_usd: 1.0}
"""


async def test_a_game_for_policy_gradient_is_played_with_tokens_and_p_accept(
    service: ServerDouble, gateway: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "there.yaml").write_text(SETTINGS.replace("URL", gateway))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nip_cli", "play", "there.yaml", "--out", "played"),
        cwd=tmp_path,
        env={**os.environ, **service.environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 240)
    assert process.returncode == 0, output.decode()[-3000:]
    rows = [
        row
        for path in (tmp_path / "played").rglob("generations*.parquet")
        for row in pq.read_table(path).to_pylist()
    ]
    assert {row["agent"] for row in rows} == {"prover", "verifier"}
    for row in rows:
        assert row["prompt_token_ids"] and row["completion_token_ids"]
        assert len(row["completion_logprobs"]) == len(row["completion_token_ids"])
    verdicts = [row for row in rows if row["agent"] == "verifier" and row["decision"] in (0, 1)]
    assert verdicts and all(row["p_accept"] is not None for row in verdicts)


# Bodies


async def test_values_that_ask_for_nothing_are_taken_and_others_refused_by_name(
    service: ServerDouble, gateway: str
) -> None:
    key = service.api_key
    status, raw = await ask(gateway, key, model="tiny", max_tokens=2, **NEUTRAL)
    assert status == 200, raw
    everything = dict.fromkeys(NEUTRAL)
    status, raw = await ask(gateway, key, model="tiny", max_tokens=2, **everything)
    assert status == 200, raw
    for name, value in {
        **{"repetition_penalty": 1.1, "frequency_penalty": 0.5, "stop": ["x"], "stream": True},
        **{"tools": [{"type": "function"}], "response_format": {"type": "json_object"}},
        **{"logit_bias": {"5": 1}, "reasoning_effort": "high", "min_p": 0.1, "ignore_eos": True},
        **{"skip_special_tokens": False, "enable_thinking": False, "best_of": 2},
        **{"tool_choice": "required", "chat_template_kwargs": {"a": 1}, "store": True},
    }.items():
        status, raw = await ask(gateway, key, model="tiny", max_tokens=2, **{name: value})
        error = read_error(raw)
        assert status == 400 and f"can't carry {name}" in error["message"], raw
        assert error["param"] == name
    status, raw = await ask(gateway, key, model="tiny", stop=["x"], tools=[])
    assert status == 400 and b"can't carry stop" in raw
    assert "tokens that end the model's turn" in read_error(raw)["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["hello"]}, "messages.0"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, "surrogate"),
        ({"messages": [{**CHAT[0], "tool_calls": [{"id": "a"}]}]}, "messages.0.tool_calls"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "logprobs"),
    ],
)
async def test_a_wrong_body_is_refused_by_name(
    service: ServerDouble, gateway: str, body: dict[str, Any], words: str
) -> None:
    status, raw = await ask(gateway, service.api_key, **{"model": "tiny", "max_tokens": 2, **body})
    assert status == 400 and words in read_error(raw)["message"], raw


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff{}", b"<html>", b"[" * 100_000])
async def test_a_body_that_is_no_object_is_refused(
    service: ServerDouble, gateway: str, data: bytes
) -> None:
    status, _, raw = await send(gateway, service.api_key, data)
    assert status == 400 and "JSON" in read_error(raw)["message"], raw


async def test_texts_of_all_kinds_are_read(service: ServerDouble, gateway: str) -> None:
    parts = [{"type": "text", "text": "Größe 𝛼 "}, {"type": "text", "text": "日本 🙂\u0000"}]
    whole = "".join(part["text"] for part in parts)
    prompts = []
    for content in (whole, parts):
        messages = [
            {"role": "developer", "content": "Be brief.", "name": None},
            {"role": "user", "content": content},
            # Clients send an answer back with its empty fields.
            {"role": "assistant", "content": "Ja.", "refusal": None, "tool_calls": []},
            {"role": "user", "content": "So?", "name": "Ann"},
        ]
        status, raw = await ask(
            gateway, service.api_key, model="tiny", max_tokens=4, messages=messages
        )
        assert status == 200, raw
        prompts.append(read(raw, "tiny")[0].prompt_token_ids)
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(
    ("size", "code"), [(50_000, "context_length_exceeded"), (9_000_000, "request_too_large")]
)
async def test_a_prompt_that_is_too_long_is_refused(
    service: ServerDouble, gateway: str, size: int, code: str
) -> None:
    messages = [{"role": "user", "content": "a b " * (size // 4)}]
    status, raw = await ask(gateway, service.api_key, model="tiny", max_tokens=4, messages=messages)
    assert (status, read_error(raw)["code"]) == (413 if size > 50_000 else 400, code), raw


async def test_a_wrong_key_and_an_unknown_model_are_refused(
    service: ServerDouble, gateway: str
) -> None:
    status, raw = await ask(gateway, "tml-other", model="tiny")
    assert status == 401 and read_error(raw)["code"] == "invalid_api_key"
    status, raw = await ask(gateway, service.api_key, model="tinker://none/sampler_weights/x")
    assert status == 404 and b"is not there" in raw
    assert read_error(raw)["code"] == "model_not_found"
    status, raw = await ask(gateway, service.api_key, model="gpt-4o")
    error = read_error(raw)
    assert status == 404 and error["code"] == "model_not_found"
    assert error["message"].count("tiny") == 1, error
    status, raw = await ask(gateway, service.api_key, model="tiny", max_tokens=2)
    assert status == 200, raw


# Services that fail


def give_samples(**changes: bytes) -> Handle:
    """A service without likeliest tokens, whose every sample has two tokens."""
    fields = {"tokens": b"\5\0\0\0\6\0\0\0", "logprobs": b"\0\0\x80\xbf\0\0\x80\xbf", **changes}
    sample = make("SampleResponse", prompt_cache_hit_tokens=3)
    sample.sequences.add(stop_reason=0, **fields)

    async def handle(request: web.Request) -> web.StreamResponse:
        route = request.path.removeprefix("/api/v1/")
        if route == "retrieve_future":
            return web.Response(body=sample.SerializeToString(), content_type=PROTOBUF)
        answer = {"session_id": "s", "sampling_session_id": "t", "request_id": "r"}
        return web.json_response(answer)

    return handle


async def test_likeliest_tokens_that_a_service_has_not_are_refused_and_paid_once() -> None:
    asked: list[Any] = []
    handle = give_samples()

    async def note(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/asample"):
            asked.append(await request.json())
            return web.json_response({"request_id": "r"})
        return await handle(request)

    async with serve_before(note) as (gate, _):
        for _ in range(2):
            status, raw = await ask(
                gate, "tml-key", model="tiny", max_tokens=2, logprobs=True, top_logprobs=5
            )
            error = read_error(raw)
            assert (status, error["param"]) == (400, "top_logprobs"), raw
            assert "record_p_accept" in error["message"]
        assert [body["topk_sample_logprobs"] for body in asked] == [5]
        status, raw = await ask(gate, "tml-key", model="tiny", max_tokens=2, logprobs=True)
        assert status == 200 and "topk_sample_logprobs" not in asked[-1]
        # The price of tokens that were read before is another one.
        assert json.loads(raw)["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


@pytest.mark.parametrize("logprobs", [b"", b"\0\0\x80\xbf", b"\0\0\xc0\x7f\0\0\x80\xbf"])
async def test_a_sample_without_its_log_probabilities_is_the_services_fault(
    logprobs: bytes,
) -> None:
    async with serve_before(give_samples(logprobs=logprobs)) as (gate, url):
        status, raw = await ask(gate, "tml-key", model="tiny", max_tokens=2)
    assert status == 502 and url in read_error(raw)["message"], raw


async def test_a_redirect_is_an_error_and_the_key_stays_here() -> None:
    seen: list[str] = []

    async def steal(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        return web.json_response({})

    other = web.Application()
    other.router.add_route("*", "/{path:.*}", steal)

    async def redirect(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"{place}/stolen?token=secret"})

    async with serve(other) as place, serve_before(redirect) as (gate, url):
        async with (
            aiohttp.ClientSession(headers={"X-API-Key": "tml-key"}) as http,
            http.get(f"{gate}/api/v1/get_server_capabilities") as answer,
        ):
            words = read_error(await answer.read())["message"]
            assert answer.status == 502 and url in words and place in words, words
            assert "secret" not in words
        status, raw = await ask(gate, "tml-key", model="tiny")
        assert status == 502 and url in read_error(raw)["message"], raw
        assert "redirect" in read_error(raw)["message"]
    assert not seen


@pytest.mark.parametrize("busy", [429, 503])
async def test_the_pause_that_a_service_asks_for_is_passed_on(busy: int) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        # Longer than the gateway itself would wait.
        return web.json_response({"error": "busy"}, status=busy, headers={"Retry-After": "4000"})

    async with serve_before(refuse) as (gate, _):
        async with aiohttp.ClientSession() as http, http.get(f"{gate}/api/v1/any") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (busy, "4000")
        data = json.dumps({"model": "tiny", "messages": CHAT}).encode()
        status, headers, raw = await send(gate, "tml-key", data)
        assert (status, headers["Retry-After"]) == (busy, "4000")
        assert read_error(raw)


@pytest.mark.parametrize("status", [200, 403])
async def test_a_page_of_a_proxy_is_an_error_in_json(status: int) -> None:
    async def show(_: web.Request) -> web.StreamResponse:
        text = "<html><body>Please <b>log in</b></body></html>"
        return web.Response(text=text, content_type="text/html", status=status)

    async with serve_before(show) as (gate, url):
        async with aiohttp.ClientSession() as http, http.get(f"{gate}/api/v1/any") as answer:
            words = read_error(await answer.read())["message"]
            assert answer.status == (502 if status == 200 else status) and url in words, words
        answered, raw = await ask(gate, "tml-key", model="tiny")
        words = read_error(raw)["message"]
        assert answered == (502 if status == 200 else status) and url in words, raw
        assert "log in" in words and "<b>" not in words


@pytest.mark.parametrize(("status", "answered"), [(404, 502), (401, 401), (402, 402)])
async def test_a_service_without_sessions_is_no_missing_model(status: int, answered: int) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"detail": "Not Found"}, status=status)

    async with serve_before(refuse) as (gate, _):
        got, raw = await ask(gate, "tml-key", model="tiny")
    assert got == answered and "create_session" in read_error(raw)["message"], raw
    assert read_error(raw)["code"] is None


async def test_a_service_that_is_away_is_a_503_and_a_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = make_app(Gateway("http://127.0.0.1:9", "tml-key", patience_s=1.0))
    async with serve(app) as gate, aiohttp.ClientSession() as http:
        async with http.get(f"{gate}/api/v1/any?tml-key") as answer:
            assert (
                answer.status == 503 and "127.0.0.1:9" in read_error(await answer.read())["message"]
            )
            assert answer.headers["Retry-After"]
        data = json.dumps({"model": "tiny", "messages": CHAT}).encode()
        # Each of them does not wait for all before it.
        async with asyncio.timeout(6):
            answers = await asyncio.gather(*(send(gate, "tml-key", data) for _ in range(12)))
    assert {(status, headers["Retry-After"]) for status, headers, _ in answers} == {(503, "5")}
    lines = [one.getMessage() for one in caplog.records if one.name == "nip.tinker.gateway"]
    assert len(lines) == 13 and all("503" in line and "127.0.0.1:9" in line for line in lines)
    assert "tml-key" not in caplog.text and not any("\n" in line for line in lines)


async def test_an_answer_of_the_service_that_says_no_is_a_line_without_the_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "no tml-key\n\x1b[31m"}, status=422)

    async with serve_before(refuse) as (gate, _), aiohttp.ClientSession() as http:
        async with http.get(f"{gate}/api/v1/any") as answer:
            assert answer.status == 422
    [line] = [one.getMessage() for one in caplog.records if one.name == "nip.tinker.gateway"]
    assert "422" in line and "no ***" in line and line.isprintable()


async def test_a_tokenizer_that_is_not_here_is_given_by_an_option() -> None:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", give_samples())
    async with serve(app) as url, serve(make_app(Gateway(url, "tml-key"))) as gate:
        status, raw = await ask(gate, "tml-key", model="./nowhere")
    words = read_error(raw)["message"]
    assert status == 400 and "--tokenizer" in words and "provider" not in words, words


async def test_a_session_that_is_over_is_begun_anew_for_a_new_model(service: ServerDouble) -> None:
    """Each iteration has a new model, and the gateway may have stood still before."""
    sessions = list[str]()
    http = aiohttp.ClientSession()

    async def lose(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        route = request.path.removeprefix("/api/v1/")
        if route != "create_session" and sessions and sessions[0].encode() in body and lost:
            return web.json_response({"error": {"message": "it is over"}}, status=410)
        headers = {n: request.headers[n] for n in ("X-API-Key", "Accept", "Content-Type")}
        async with http.post(service.url + request.path, data=body, headers=headers) as answer:
            raw = await answer.read()
            if route == "create_session":
                sessions.append(json.loads(raw)["session_id"])
            kind = answer.content_type
            return web.Response(body=raw, status=answer.status, content_type=kind)

    lost = False
    async with http, serve_before(lose, service.api_key) as (gate, _):
        status, raw = await ask(gate, service.api_key, model="nothing", max_tokens=2)
        assert status == 404, raw
        lost = True
        status, raw = await ask(gate, service.api_key, model="tiny", max_tokens=2)
        assert status == 200 and len(sessions) == 2, raw
        status, raw = await ask(gate, service.api_key, model="nothing", max_tokens=2)
        assert status == 404 and len(sessions) == 2, raw


# The command


def test_a_port_in_use_is_one_line_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "nip_cli", "gateway", "--port", str(port)],
            env={**os.environ, "TINKER_API_KEY": "tml-key"},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert done.returncode == 2 and "base_url" not in done.stdout
    words = done.stderr.strip()
    assert "Traceback" not in words and str(port) in words and "--port" in words
    assert len(re.findall(r"\S\n\S", words)) <= 3, words


@pytest.mark.parametrize(
    ("options", "key", "status", "words"),
    [
        (["--address", "http://127.0.0.1:9"], "tml-key", 3, "--address or TINKER_BASE_URL"),
        ([], "tml-other", 2, "TINKER_API_KEY"),
        (["--tokenizer", "./nowhere"], "tml-key", 2, "--tokenizer ./nowhere"),
    ],
)
def test_a_gateway_that_can_not_work_does_not_start(
    service: ServerDouble, options: list[str], key: str, status: int, words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nip_cli", "gateway", "--port", "0", *options],
        env={**os.environ, "TINKER_BASE_URL": service.url, "TINKER_API_KEY": key},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == status and "base_url" not in done.stdout, done
    assert words in done.stderr and key not in done.stderr and "Traceback" not in done.stderr


async def test_it_ends_soon_with_a_request_in_flight() -> None:
    asked = asyncio.Event()
    handle = give_samples()

    async def hang(request: web.Request) -> web.StreamResponse:
        if request.path.endswith(("/retrieve_future", "/finish")):
            asked.set()
            await asyncio.sleep(60)
        return await handle(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", hang)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nip_cli", "gateway", "--port", "0"),
        *("--address", f"http://127.0.0.1:{runner.addresses[0][1]}"),
        *("--tokenizer", str(BUNDLED["tiny"])),
        env={**os.environ, "TINKER_API_KEY": "tml-key"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(120):
        line = (await process.stdout.readline()).decode()
        assert (await ask(line.split()[1], "tml-other", model="tiny"))[0] == 401
        pending = asyncio.create_task(ask(line.split()[1], "tml-key", model="tiny"))
        await asked.wait()
        process.terminate()
    async with asyncio.timeout(15):  # 5 s, and a slow machine
        _, errors = await process.communicate()
        with pytest.raises(aiohttp.ClientError):
            await pending
    assert b"Traceback" not in errors, errors.decode()
    assert errors.count(b"chat/completions: HTTP 401: the key is not the gateway's") == 1, errors
    await runner.cleanup()
