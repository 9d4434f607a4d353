"""The client retries what can pass, stops at what can't, and never takes another model's answer."""

import asyncio
import resource
import subprocess
import sys
import traceback

import pytest
from aiohttp import web
from scripted_server import DROP, scripted_server

from nip_core.errors import NipError, StageError
from nip_core.rollouts.client.chat_client import ChatClient, TransportError, _Route
from nip_core.rollouts.client.completions import ContextLengthError, Endpoint, RequestRefusedError

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def ask(script, *, retries=3, timeout_s=5.0, body=BODY):
    async with scripted_server(script) as server:
        async with ChatClient(concurrency=4, timeout_s=timeout_s, retries=retries) as client:
            return server, await client.complete(Endpoint(server.url, "secret-key"), body)


def failing_first(*answers):
    queue = list(answers)
    return lambda body: queue.pop(0) if queue else "fine"


async def test_an_answer_carries_model_usage_and_text():
    server, answer = await ask(lambda body: "hello")
    assert (answer.text, answer.model, answer.finish_reason) == ("hello", "m", "stop")
    assert (answer.prompt_tokens, answer.completion_tokens) == (7, 3)
    assert answer.transport_retries == 0
    assert server.headers[0]["Authorization"] == "Bearer secret-key"


@pytest.mark.parametrize(
    "trouble",
    [
        DROP,
        web.Response(status=500, text="oops"),
        web.Response(status=503),
        web.Response(status=429, headers={"Retry-After": "0.01"}),
        web.Response(status=200, text='{"choices": ['),
        web.Response(status=200, text="[]"),
        {"text": "x", "logprobs": {"content": [{"token": "x", "logprob": float("nan")}]}},
        {"model": "another"},
    ],
    ids=["dropped", "500", "503", "429", "truncated", "no-object", "nan", "wrong-model"],
)
async def test_a_passing_trouble_is_retried(trouble):
    server, answer = await ask(failing_first(trouble))
    assert answer.text == "fine" and answer.transport_retries == 1
    assert len(server.bodies) == 2 and server.bodies[0] == server.bodies[1]


async def test_a_slow_answer_is_retried_after_the_time_out():
    slow = [True]

    async def script(body):
        if slow.pop() if slow else False:
            await asyncio.sleep(1.0)
        return "fine"

    _, answer = await ask(script, timeout_s=0.3)
    assert answer.transport_retries == 1


async def test_retries_end():
    with pytest.raises(TransportError, match=r"no answer after 3 tries.*HTTP 500: oops"):
        await ask(lambda body: web.Response(status=500, text="oops"), retries=2)


async def test_log_probabilities_are_read_with_the_likeliest_tokens():
    top = [{"token": "y", "logprob": -3.5, "bytes": None}, {"token": "\ud83d", "logprob": -9}]
    content = [{"token": "x", "logprob": -0.25, "bytes": [120], "top_logprobs": top}]
    _, answer = await ask(lambda body: {"text": "x", "logprobs": {"content": content}})
    others = [{"token": "y", "logprob": -3.5}, {"token": "?", "logprob": -9.0}]
    assert answer.tokens == [{"token": "x", "logprob": -0.25, "top": others}]
    _, without = await ask(lambda body: "x")
    assert without.tokens is None


async def test_a_dated_name_of_the_asked_model_is_accepted():
    _, answer = await ask(lambda body: {"model": "m-2024-07-18", "text": "x"})
    assert answer.model == "m-2024-07-18"


def error(status, code=None):
    return web.json_response({"error": {"message": "no", "code": code}}, status=status)


async def test_a_refusal_names_the_parameter_that_the_server_blames():
    for blamed, said in (("top_p", "top_p: no more"), ("more", "400: no more")):
        body = {"error": {"message": "no more", "code": None, "param": blamed}}
        with pytest.raises(RequestRefusedError, match=said):
            await ask(lambda _, body=body: web.json_response(body, status=400))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(401), StageError),
        (error(404), StageError),
        (error(400), RequestRefusedError),
        (error(400, "context_length_exceeded"), ContextLengthError),
    ],
)
async def test_a_refusal_is_not_retried(answer, kind):
    asked = []

    def script(body):
        asked.append(body)
        return answer

    with pytest.raises(kind) as caught:
        await ask(script)
    assert len(asked) == 1
    assert "secret-key" not in str(caught.value)


async def test_calls_in_flight_are_bounded():
    async def script(body):
        await asyncio.sleep(0.02)
        return "x"

    async with scripted_server(script) as server:
        async with ChatClient(concurrency=3, timeout_s=5, retries=0) as client:
            endpoint = Endpoint(server.url, "k")
            await asyncio.gather(*(client.complete(endpoint, BODY) for _ in range(20)))
        assert server.most_in_flight == 3


def test_an_endpoint_hides_its_key():
    endpoint = Endpoint("http://x/v1", "secret")
    assert "secret" not in f"{endpoint} {_Route.to(endpoint)}"


async def no_pause(seconds):
    """Between two tries."""


@pytest.mark.parametrize("status", [400, 401, 500, 422])
@pytest.mark.parametrize("form", ["page", "json", "name"])
async def test_a_server_that_sends_the_key_back_can_not_make_us_print_it(status, form):
    key = "sk-0123456789-abcdef"
    said = f"{'x' * 160} Authorization: Bearer {key}, again {key}"
    answers = {
        "page": lambda body: web.Response(status=status, text=said),
        "json": lambda body: web.json_response({"error": {"message": said}}, status=status),
        "name": lambda body: {"model": key},
    }
    reasons = []
    async with scripted_server(answers[form]) as server:
        async with ChatClient(
            concurrency=1, timeout_s=5, retries=1, on_retry=reasons.append, sleep=no_pause
        ) as client:
            with pytest.raises(NipError) as caught:
                await client.complete(Endpoint(server.url, key), BODY)
    shown = str(caught.value) + "".join(traceback.format_exception(caught.value)) + "".join(reasons)
    assert "***" in shown
    assert key[:10] not in shown


FILES = """
import asyncio, resource, sys
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.client.completions import Endpoint
soft, hard, concurrency = map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
endpoint, body = Endpoint(sys.argv[1], "k"), {"model": "m", "messages": []}
async def main():
    words = []
    client = ChatClient(concurrency=concurrency, timeout_s=20, retries=0, on_fewer=words.append)
    async with client:
        calls = (client.complete(endpoint, body) for _ in range(concurrency))
        await asyncio.gather(*calls if soft == hard else ())
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], *words)
asyncio.run(main())
"""


async def run_with_files(*numbers, url="http://x/v1"):
    command = [sys.executable, "-c", FILES, url, *map(str, numbers)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().partition(" ")[::2]


async def test_a_client_has_a_descriptor_for_each_of_its_calls():
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4096 + 128)
    raised, words = await run_with_files(256, hard, 4096)
    assert int(raised) == hard and bool(words) is (hard < 4096 + 128)


async def test_a_client_that_may_open_few_files_makes_fewer_calls_and_says_so():
    async def script(body):
        await asyncio.sleep(0.2)
        return "x"

    async with scripted_server(script) as server:
        _, words = await run_with_files(64, 64, 100, url=server.url)
        assert server.most_in_flight == 32
    assert "rollouts.concurrency is 100" in words and "64 files (ulimit -Hn): at most 32" in words
