"""A generation with a name goes on without its request, and the same request joins it."""

import asyncio
import json

import pytest
from served_here import CHAT, KEY, ChosenEngine, serve, until
from slow_engine import SlowEngine

from nip_base.wire import JOIN_HEADER
from nip_lm_server.api import joined
from nip_lm_server.engines.base import Upstream

NAME = {"Nip_Generation": "a-name-of-ours", "Prefer": "wait=0.05"}
ASK = {**CHAT, "seed": 1}


class Clock:
    def __init__(self):
        self.s = 0.0

    def __call__(self):
        return self.s


async def test_a_request_is_answered_in_time_with_how_far_it_is_and_joins_when_it_comes_again(
    tmp_path,
):
    engine = SlowEngine(steps=20)
    async with serve(tmp_path, engine) as here:
        status, body, headers = await here.post("/v1/chat/completions", ASK, **NAME)
        told = json.loads(body)
        assert (status, headers[JOIN_HEADER]) == (202, "a-name-of-ours")
        assert (told["object"], told["status"]) == ("nip.generation", "running")
        assert told["engine"] == "deterministic" and told["silent_s"] < 5
        answers = []
        while len(answers) < 2:
            status, body, _ = await here.post("/v1/chat/completions", ASK, **NAME)
            answers += [body] * (status == 200)
    assert answers[0] == answers[1] and json.loads(body)["choices"][0]["message"]["content"]
    assert (engine.begun, engine.generated) == (1, 20)


async def test_it_goes_on_when_its_client_leaves_and_is_not_generated_twice(tmp_path):
    engine = SlowEngine(steps=20)
    async with serve(tmp_path, engine) as here:
        named = {**NAME, "Prefer": "wait=60"}
        first = asyncio.create_task(here.post("/v1/chat/completions", ASK, **named))
        await until(lambda: engine.generated > 2)
        first.cancel()
        status, _, _ = await here.post("/v1/chat/completions", ASK, **named)
    assert (status, engine.begun, engine.given_up, engine.generated) == (200, 1, 0, 20)


async def test_without_a_name_it_ends_with_its_client(tmp_path):
    engine = SlowEngine(steps=1000)
    async with serve(tmp_path, engine) as here:
        asking = asyncio.create_task(here.post("/v1/chat/completions", ASK))
        await until(lambda: engine.generated > 1)
        asking.cancel()
        await until(lambda: engine.given_up == 1)


async def test_a_name_is_of_one_request_and_of_no_stream(tmp_path):
    async with serve(tmp_path, SlowEngine()) as here:

        async def refused(body, **headers):
            status, raw, _ = await here.post("/v1/chat/completions", body, **headers)
            error = json.loads(raw)["error"]
            return status, error["code"], error["param"]

        await here.post("/v1/chat/completions", ASK, **NAME)
        other = {**ASK, "seed": 2}
        assert await refused(other, **NAME) == (422, "generation_mismatch", JOIN_HEADER)
        streamed = {**ASK, "stream": True}
        assert await refused(streamed, **NAME) == (400, "unsupported_value", JOIN_HEADER)
        no_name = {"Nip_Generation": "a name"}
        assert await refused(ASK, **no_name) == (400, "invalid_value", JOIN_HEADER)


async def test_what_failed_is_begun_anew(tmp_path):
    engine = SlowEngine(steps=1)
    async with serve(tmp_path, engine) as here:
        named = {**NAME, "Prefer": "wait=60"}
        unknown = {**ASK, "model": "nobody"}
        assert (await here.post("/v1/chat/completions", unknown, **named))[0] == 404
        assert (await here.post("/v1/chat/completions", ASK, **named))[0] == 200


async def test_what_nobody_asks_for_is_abandoned_and_an_answer_leaves_after_a_while(tmp_path):
    engine, clock = SlowEngine(steps=50), Clock()
    async with serve(tmp_path, engine) as here:
        here.services.generations.clock = clock
        await here.post("/v1/chat/completions", ASK, **NAME)
        clock.s = joined.UNASKED_S - 1
        here.services.generations.sweep()
        await here.post("/v1/chat/completions", ASK, **NAME)  # asked for once more
        clock.s = joined.UNASKED_S + 1
        here.services.generations.sweep()
        await asyncio.sleep(0)
        assert engine.given_up == 0
        clock.s = 2 * joined.UNASKED_S
        here.services.generations.sweep()
        await until(lambda: engine.given_up == 1)
        engine.steps = 1
        named = {**NAME, "Prefer": "wait=60"}
        await here.post("/v1/chat/completions", ASK, **named)
        await here.post("/v1/chat/completions", ASK, **named)
        assert engine.begun == 2
        clock.s += joined.KEPT_S + 1
        here.services.generations.sweep()
        await here.post("/v1/chat/completions", ASK, **named)
        assert engine.begun == 3


async def test_answers_that_are_kept_take_no_more_than_their_room(tmp_path, monkeypatch):
    engine = SlowEngine(steps=1, step_s=0.0)
    async with serve(tmp_path, engine) as here:

        async def ask(number):
            named = {"Nip_Generation": f"number-{number:04d}", "Prefer": "wait=60"}
            _, body, _ = await here.post("/v1/chat/completions", {**ASK, "seed": number}, **named)
            return len(body)

        size = await ask(0)
        monkeypatch.setattr(joined, "KEPT_BYTES", 5 * size)
        for number in range(1, 20):
            await ask(number)
        begun = engine.begun
        await ask(19)
        assert engine.begun == begun
        await ask(0)
        assert engine.begun == begun + 1


@pytest.mark.parametrize("hangs", [False, True])
async def test_how_long_an_engine_has_computed_nothing_is_told(tmp_path, hangs):
    engine, clock = SlowEngine(steps=1000, step_s=0.01), Clock()
    async with serve(tmp_path, engine) as here:
        here.services.generations.clock = here.services.advances._clock = clock
        await here.post("/v1/chat/completions", ASK, **NAME)
        engine.hangs = hangs
        await asyncio.sleep(0.03)  # the step that is under way
        told = []
        for _ in range(2):
            clock.s += 60
            before = engine.generated
            await until(lambda before=before: hangs or engine.generated > before)
            _, body, _ = await here.post("/v1/chat/completions", ASK, **NAME)
            told.append(json.loads(body)["silent_s"])
    assert told[1] >= 60 if hangs else told[1] == 0


async def test_a_request_with_a_name_is_passed_on_to_an_engine_of_its_own(tmp_path):
    engine = SlowEngine(steps=3)
    async with serve(tmp_path / "behind", engine) as behind:
        parameters = frozenset({"model", "messages", "seed"})
        upstream = Upstream(behind.url, KEY, parameters, parameters)
        async with serve(tmp_path / "front", ChosenEngine(upstream)) as front:
            named = {**NAME, "Prefer": "wait=0.01"}
            statuses = []
            while 200 not in statuses:
                status, body, _ = await front.post("/v1/chat/completions", ASK, **named)
                statuses.append(status)
    assert statuses[0] == 202 and engine.begun == 1
    assert json.loads(body)["usage"]["completion_tokens"] > 0
