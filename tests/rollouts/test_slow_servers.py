"""Slow servers are slow and not stuck: waited for, joined, followed; what hangs is named."""

import asyncio
import subprocess
import sys

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from scripted_server import ScriptedServer, scripted_server
from served_here import KEY, serve
from slow_engine import SlowEngine
from tcp_proxy import tcp_proxy

from nip_cli.cli import exit_code
from nip_core.errors import StageError
from nip_core.rollouts.client.chat_client import ChatClient, TransportError
from nip_core.rollouts.client.completions import Endpoint
from nip_core.rollouts.client.joined_calls import EngineHangsError

BODY = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "seed": 1}


def client(timeout_s=10.0, retries=2, concurrency=8, **more):
    return ChatClient(concurrency=concurrency, timeout_s=timeout_s, retries=retries, **more)


async def test_an_answer_may_take_many_times_the_time_out_while_the_engine_advances(tmp_path):
    engine, reasons = SlowEngine(steps=100, step_s=0.05), []
    async with serve(tmp_path, engine) as here, client(2.0, on_retry=reasons.append) as chats:
        at = Endpoint(f"{here.url}/v1", KEY, joins=True)
        bodies = [{**BODY, "seed": seed} for seed in range(8)]
        answers = await asyncio.gather(*(chats.complete(at, body) for body in bodies))
    assert reasons == [] and {answer.transport_retries for answer in answers} == {0}
    assert (engine.begun, engine.generated) == (8, 800)
    assert min(answer.latency_s for answer in answers) > 2.0


async def test_an_engine_that_hangs_is_named_in_an_error_and_not_asked_again(tmp_path):
    engine, reasons = SlowEngine(steps=100), []
    async with serve(tmp_path, engine) as here, client(1.0, 100, on_retry=reasons.append) as chats:
        call = asyncio.create_task(
            chats.complete(Endpoint(f"{here.url}/v1", KEY, joins=True), BODY)
        )
        while engine.generated < 3:
            await asyncio.sleep(0.01)
        engine.hangs = True
        with pytest.raises(EngineHangsError, match=r"engine of 'sim' \(deterministic\) hangs") as e:
            await call
    assert isinstance(e.value, StageError)  # which no task tries again
    assert engine.begun == 1 and reasons == []


async def test_a_server_that_says_nothing_any_more_is_named_in_an_error(tmp_path):
    engine = SlowEngine(steps=100)
    async with serve(tmp_path, engine) as here, tcp_proxy(here.port) as proxy:
        async with client(0.6, 100) as chats:
            call = asyncio.create_task(chats.complete(Endpoint(proxy.url, KEY, joins=True), BODY))
            while not chats._joining:
                await asyncio.sleep(0.01)
            proxy.silent = True
            with pytest.raises(EngineHangsError, match=r"the server hangs: .*answered nothing"):
                await call


async def test_a_connection_that_breaks_again_and_again_costs_no_token_twice(tmp_path):
    engine, reasons = SlowEngine(steps=60), []
    async with serve(tmp_path, engine) as here, tcp_proxy(here.port) as proxy:
        async with client(retries=8, on_retry=reasons.append) as chats:
            at = Endpoint(proxy.url, KEY, joins=True)
            bodies = [{**BODY, "seed": seed} for seed in range(4)]
            calls = asyncio.gather(*(chats.complete(at, body) for body in bodies))
            for steps in (40, 100, 160):
                while engine.generated < steps:
                    await asyncio.sleep(0.01)
                proxy.break_all()
            answers = await calls
    assert len(answers) == 4 and len(reasons) >= 3
    assert (engine.begun, engine.given_up, engine.generated) == (4, 0, 240)


ASKER = """
import asyncio, sys
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.client.completions import Endpoint

async def main():
    async with ChatClient(concurrency=1, timeout_s=5, retries=0) as chats:
        body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "seed": 1}
        await chats.complete(Endpoint(sys.argv[1], sys.argv[2], joins=True), body)

asyncio.run(main())
"""


async def test_a_process_that_is_killed_and_run_again_joins_what_it_had_asked_for(tmp_path):
    engine = SlowEngine(steps=200)
    async with serve(tmp_path, engine) as here:
        url = f"{here.url}/v1"
        asker = subprocess.Popen([sys.executable, "-c", ASKER, url, KEY])
        while engine.generated < 3:
            await asyncio.sleep(0.01)
        asker.kill()
        asker.wait()
        async with client() as chats:
            await chats.complete(Endpoint(url, KEY, joins=True), BODY)
    assert (engine.begun, engine.given_up, engine.generated) == (1, 0, 200)


async def test_calls_that_say_the_same_without_a_seed_have_an_answer_each(tmp_path):
    engine = SlowEngine(steps=1)
    body = {name: value for name, value in BODY.items() if name != "seed"}
    async with serve(tmp_path, engine) as here, client() as chats:
        at = Endpoint(f"{here.url}/v1", KEY, joins=True)
        await asyncio.gather(chats.complete(at, body), chats.complete(at, body))
    assert engine.begun == 2


async def test_the_time_in_which_a_call_waits_for_its_place_is_no_silence_of_the_server(tmp_path):
    engine, reasons = SlowEngine(steps=40, step_s=0.05), []  # two seconds: twice the time-out
    async with serve(tmp_path, engine) as here, tcp_proxy(here.port) as proxy:
        async with client(1.0, 8, concurrency=1, on_retry=reasons.append) as chats:
            at = Endpoint(proxy.url, KEY, joins=True)
            calls = [
                asyncio.create_task(chats.complete(at, {**BODY, "seed": seed})) for seed in (1, 2)
            ]
            await calls[0]  # the second has waited for it all the while
            proxy.silent = True
            while not reasons:
                await asyncio.sleep(0.01)
            proxy.silent = False
            await calls[1]
    assert set(reasons) == {"TimeoutError: no answer within 0.5 s"}


async def test_a_generation_that_ends_the_engine_each_time_is_given_up():
    asked = 0

    async def answer(request):
        nonlocal asked
        asked += 1
        named = {"Nip-Generation": request.headers["Nip-Generation"]}
        if asked % 2:  # it has begun
            return web.json_response({"status": "running"}, status=202, headers=named)
        dead = {"error": {"message": "the engine died"}}
        return web.json_response(dead, status=503, headers=named)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app) as server, client(retries=3, sleep=no_pause) as chats:
        with pytest.raises(TransportError, match=r"after 4 tries.*HTTP 503: the engine died"):
            await chats.complete(Endpoint(str(server.make_url("/v1")), KEY, joins=True), BODY)
    assert asked == 8


async def test_a_server_of_somebody_else_keeps_the_deadline():
    async def script(body):
        await end.wait()

    end = asyncio.Event()
    async with scripted_server(script) as server, client(0.1, 1) as chats:
        with pytest.raises(TransportError, match=r"no answer after 2 tries.*TimeoutError"):
            await chats.complete(Endpoint(server.url, "key", joins=True), BODY)
        end.set()


async def test_fewer_are_in_flight_at_a_server_that_times_out_on_everything_and_it_is_said():
    words, end = [], asyncio.Event()

    async def script(body):
        if 8 < len(server.bodies) <= 32:
            await end.wait()
        return "fine"

    async with scripted_server(script) as server:
        async with client(
            0.25, 20, concurrency=8, follows=True, on_fewer=words.append, sleep=no_pause
        ) as chats:
            at = Endpoint(server.url, "key")
            await asyncio.gather(*(chats.complete(at, BODY) for _ in range(8)))
            await asyncio.gather(*(chats.complete(at, {**BODY, "seed": i}) for i in range(8)))
        end.set()
    assert "none of 16 calls was answered within 0.25 s" in words[0]
    assert words[0].endswith("with 8 in flight: 4 from here on")


@pytest.mark.parametrize(
    ("joins", "advice"), [(False, "raise rollouts.request_timeout_s if"), (True, "its log")]
)
async def test_a_server_that_never_answered_in_time_ends_the_run_when_one_call_alone_has_none(
    joins, advice
):
    async def script(body):
        await end.wait()

    end = asyncio.Event()
    async with scripted_server(script) as server:
        async with client(0.1, 1000, concurrency=16, follows=True, sleep=no_pause) as chats:
            at = Endpoint(server.url, "key", joins=joins)
            calls = [chats.complete(at, {**BODY, "seed": seed}) for seed in range(40)]
            errors = await asyncio.gather(*calls, return_exceptions=True)
        end.set()
    # Two rounds of 16, those that had begun by then, and two alone. No call that waits is made.
    assert 34 <= len(server.bodies) <= 49
    assert {type(error) for error in errors} == {StageError}  # which no task tries again
    assert exit_code(errors[0]) == 3
    assert "calls was answered within 0.1 s (rollouts.request_timeout_s)" in str(errors[0])
    assert advice in str(errors[0])


async def test_a_server_that_computes_one_call_at_a_time_is_not_drowned_in_calls():
    words, one, asked = [], asyncio.Lock(), 0
    scripted = ScriptedServer(lambda body: "fine")

    async def answer(request):
        nonlocal asked
        asked += 1
        async with one:
            if request.transport is None:  # who has gone is left out
                return web.Response()
            await asyncio.sleep(0.1)
        return web.Response() if request.transport is None else await scripted.handle(request)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app) as server:
        async with client(
            0.55, 40, concurrency=32, follows=True, on_fewer=words.append, sleep=no_pause
        ) as chats:
            at = Endpoint(str(server.make_url("/v1")), "key")
            await asyncio.gather(*(chats.complete(at, {**BODY, "seed": i}) for i in range(48)))
            assert chats.limit_at(at).limit <= 6
    # Some five of 32 are answered in time: to go on like that would be 300 calls for 48 answers.
    assert asked < 200 and "calls were answered within 0.55 s" in words[0]


async def no_pause(seconds):
    await asyncio.sleep(0)
