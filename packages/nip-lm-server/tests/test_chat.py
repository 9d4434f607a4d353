"""Chat completions: what is taken, what is refused by name, and what comes back."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from served_here import CHAT, ChosenEngine, serve, until

from nip_base.api_errors import ApiError
from nip_lm_server.api import connections
from nip_lm_server.api import plumbing as server_http
from nip_lm_server.api.generation_parameters import (
    CHAT_PARAMETERS,
    check_passed_through,
    parse_chat,
    parse_completion,
)
from nip_lm_server.engines.base import Capabilities, Upstream

HELLO = CHAT["messages"]


@pytest.fixture(scope="module")
def http(server) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.handle.api_key}"}
    with httpx.Client(base_url=server.handle.url, headers=headers, timeout=20) as client:
        yield client


def chat(http: httpx.Client, **body: Any) -> Any:
    return http.post("/v1/chat/completions", json={**CHAT, "seed": 1, **body})


LISTED = {"logprobs": True, "top_logprobs": 3, "logprobs_at": ["a"]}

HARMLESS = {
    "user": "me",
    "safety_identifier": "me",
    "metadata": {"a": "b"},
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"ttl": "30m"},
    "store": False,
    "service_tier": "auto",
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "reasoning_effort": "none",
    "verbosity": "medium",
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "functions": [],
    "function_call": "none",
    "logprobs": False,
    "top_logprobs": 0,
    "stream": False,
    "n": 1,
    "audio": None,
    "something_unknown": None,
}


def test_what_makes_no_difference_is_taken(http: httpx.Client) -> None:
    plain = chat(http).json()["choices"]
    for name, value in HARMLESS.items():
        answer = chat(http, **{name: value})
        assert answer.status_code == 200, (name, answer.text)
        assert answer.json()["choices"] == plain, name
    assert chat(http, **HARMLESS).json()["choices"] == plain


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"store": True}, "unsupported_value", "store"),
        ({"service_tier": "priority"}, "unsupported_value", "service_tier"),
        ({"presence_penalty": 0.5}, "unsupported_value", "presence_penalty"),
        ({"frequency_penalty": False}, "unsupported_value", "frequency_penalty"),
        ({"logit_bias": {"1": 5}}, "unsupported_value", "logit_bias"),
        ({"modalities": ["text", "audio"]}, "unsupported_value", "modalities"),
        ({"reasoning_effort": "high"}, "unsupported_value", "reasoning_effort"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_value", "tools[0].type"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"web_search_options": {}}, "unsupported_value", "web_search_options"),
        ({"prediction": {"type": "content"}}, "unsupported_value", "prediction"),
        ({"logprobs": True}, "unsupported_value", "logprobs"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "logprobs_at": ["a"]}, "invalid_value", "logprobs_at"),
        ({**LISTED, "top_logprobs_at": ["a"]}, "invalid_value", "logprobs_at"),
        ({**LISTED, "return_tokens_as_token_ids": True}, "invalid_value", "logprobs_at"),
        ({"return_tokens_as_token_ids": True}, "invalid_value", "return_tokens_as_token_ids"),
        ({"top_logprobs": 21, "logprobs": True}, "invalid_value", "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"metadata": {"a": 1}}, "invalid_value", "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "invalid_value", "metadata"),
        ({"user": 5}, "invalid_value", "user"),
        ({"top_k": 3}, "unknown_parameter", "top_k"),
        ({"messages": [{"role": "function", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": ["x"]}, "invalid_value", "messages[0]"),
        ({"messages": [None]}, "invalid_value", "messages[0]"),
        ({"messages": [{"role": [], "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": {}, "content": "x"}]}, "invalid_value", "messages[0].role"),
    ],
)  # fmt: skip
def test_what_would_change_the_answer_and_cannot_is_named(
    http: httpx.Client, body: dict[str, Any], code: str, param: str
) -> None:
    answer = chat(http, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param), error
    assert error["type"] == "invalid_request_error" and param in error["message"]


@pytest.mark.parametrize("role", [[], {}, 1, None])
def test_a_role_that_is_no_text_does_not_pass_through_either(role: Any) -> None:
    upstream = Upstream("http://127.0.0.1:1", "", parameters=frozenset({"model", "messages"}))
    with pytest.raises(ApiError) as caught:
        check_passed_through({"messages": [{"role": role}]}, upstream, chat=True)
    assert (caught.value.status, caught.value.param) == (400, "messages[0].role")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": [None]}, "got null, expected an object"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "Give one of"),
        ({"seed": 10**30 + 1}, f"got {10**30 + 1},"),
        ({"seed": 1.5}, "got 1.5,"),
    ],
)
def test_an_error_says_what_was_got(http: httpx.Client, body: dict[str, Any], says: str) -> None:
    answer = chat(http, **body)
    assert answer.status_code == 400 and says in answer.json()["error"]["message"], answer.text


def test_metadata_comes_back_and_usage_is_broken_down(http: httpx.Client) -> None:
    body = chat(http, metadata={"a": "b"}).json()
    ChatCompletion.model_validate(body, strict=True)
    assert body["metadata"] == {"a": "b"}
    usage = body["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert "metadata" not in chat(http).json()


def test_a_fingerprint_is_the_same_for_the_same_engine(http: httpx.Client, make_server) -> None:
    prints = {chat(http).json()["system_fingerprint"] for _ in range(3)}
    assert len(prints) == 1 and prints.pop().startswith("fp_")
    other = make_server(model="another").client.chat.completions.create(
        model="another", messages=HELLO
    )
    assert other.system_fingerprint != chat(http).json()["system_fingerprint"]


def test_a_developer_is_the_system(http: httpx.Client) -> None:
    answers = [
        chat(http, messages=[{"role": role, "content": "You are the verifier"}, *HELLO]).json()
        for role in ("system", "developer")
    ]
    assert answers[0]["choices"] == answers[1]["choices"]


async def test_the_engine_gets_what_was_asked_and_nothing_more(tmp_path: Path) -> None:
    engine = ChosenEngine(capabilities=Capabilities(logprobs=True, max_top_logprobs=5))
    async with serve(tmp_path / "state", engine) as here:
        asked = {**CHAT, "max_completion_tokens": 9, "temperature": 0, "top_p": 0.5, "n": 2}
        asked |= {"seed": -3, "stop": "x", "logprobs": True, "top_logprobs": 5, "user": "me"}
        await here.post("/v1/chat/completions", asked)
        status, body, _ = await here.post("/v1/chat/completions", {**asked, "top_logprobs": 6})
        assert (status, json.loads(body)["error"]["param"]) == (400, "top_logprobs")
    (request,) = engine.asked
    assert (request.max_tokens, request.temperature, request.top_p) == (9, 0.0, 0.5)
    assert (request.n, request.seed, request.stop) == (2, -3, ("x",))
    assert (request.logprobs, request.top_logprobs, request.prompt) == (True, 5, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
NAMES = st.sampled_from([*CHAT_PARAMETERS, "messages", "prompt", "model", "best_of", "odd"])


@given(st.dictionaries(NAMES, JSON, max_size=4))
def test_no_body_does_worse_than_a_400_that_names_something(body: dict[str, Any]) -> None:
    for parse, base in ((parse_chat, CHAT), (parse_completion, {"model": "m", "prompt": "p"})):
        try:
            parse({**base, **body})
        except ApiError as error:
            assert error.status == 400 and error.param is not None


async def test_a_body_that_trickles_in_is_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_http, "BODY_WINDOW_S", 0.5)
    async with serve(tmp_path / "state") as here:
        for path, kind in (
            (b"/v1/chat/completions", b"application/json"),
            (b"/v1/files", b"multipart/form-data; boundary=b"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(
                b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
                b"Content-Type: " + kind + b"\r\nAuthorization: Bearer k\r\n\r\n--b\r\n"
            )
            answer = asyncio.create_task(reader.readuntil(b"}}"))
            while not answer.done():
                writer.write(b"x")
                await asyncio.sleep(0.1)
            got = await answer
            assert got.startswith(b"HTTP/1.1 408") and b"request_timeout" in got, path
            writer.close()
        # One that is slow but steady is waited for.
        body = json.dumps(CHAT).encode().rjust(100_000)
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n"
            b"Authorization: Bearer k\r\nConnection: close\r\n\r\n"
        )
        for start in range(0, len(body), 20_000):
            writer.write(body[start : start + 20_000])
            await asyncio.sleep(0.15)
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_head_that_trickles_in_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_TIMEOUT_S", 0.4)
    async with serve(tmp_path / "state") as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        ended = asyncio.create_task(reader.read())
        for number in range(100):
            if ended.done():
                break
            writer.write(b"X-%d: y\r\n" % number)
            await asyncio.sleep(0.05)
        assert ended.done(), "five seconds of one header each"
        writer.close()


async def test_an_upload_whose_client_leaves_leaves_nothing(tmp_path: Path) -> None:
    async with serve(tmp_path / "state") as here:
        _, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\nAuthorization: Bearer k\r\n\r\n"
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            + b"{"
            * 99_999
        )
        await writer.drain()
        files = tmp_path / "state" / "files"
        await until(lambda: list(files.iterdir()))
        writer.close()
        await until(lambda: not list(files.iterdir()))
        assert here.services.metrics.in_flight == 0
