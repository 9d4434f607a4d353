"""An engine that leaves its device ends its answers first; one that is broken off is none."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from served_here import CHAT, KEY, Here, serve, until

from nip_base.spec import ServerSpec
from nip_lm_server.engines.base import Upstream
from nip_lm_server.engines.scripted.deterministic_engine import DeterministicEngine
from nip_lm_server.engines.vllm.installation import Installation
from nip_lm_server.engines.vllm.process import VllmProcess
from nip_lm_server.engines.vllm.vllm_engine import VllmEngine
from nip_lm_server.serving import engine_lifecycle
from nip_lm_server.serving.pool import EnginePool
from nip_lm_server.training.deterministic_trainer import DeterministicTrainer
from nip_lm_server.training.job import TrainingError, TrainingJob

STREAM = {**CHAT, "stream": True}


@dataclass
class StandIn:
    """A server that answers, sleeps and breaks off as vLLM does."""

    calls: list[str] = field(default_factory=list)
    asleep: asyncio.Event = field(default_factory=asyncio.Event)
    finish: asyncio.Event = field(default_factory=asyncio.Event)
    may_wake: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0

    def __post_init__(self) -> None:
        self.may_wake.set()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/v1/models", self.models),
            web.post("/v1/chat/completions", self.chat),
            web.post("/sleep", self.sleep),
            web.post("/wake_up", self.wake),
        ]

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "sim"}]})

    async def sleep(self, request: web.Request) -> web.Response:
        self.calls.append(request.path_qs)
        self.asleep.set()
        await until(lambda: not self.running)
        return web.Response()

    async def wake(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        await self.may_wake.wait()
        self.asleep.clear()
        return web.Response()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.running += 1
        try:
            if not asked.get("stream"):
                reason = await self._reason()
                choice = {"message": {"content": 'a "abort" b'}, "finish_reason": reason}
                return web.Response(body=encoded({"choices": [choice]}))
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            if asked.get("n") != 2:
                await response.write(event("a", None) + event("b", None))
            last = event("c", await self._reason())
            # Nobody promises that an event comes in one piece.
            await response.write(last[:-20])
            await asyncio.sleep(0.05)
            await response.write(last[-20:] + b"data: [DONE]\n\n")
            return response
        finally:
            self.running -= 1

    async def _reason(self) -> str:
        waits = [
            asyncio.ensure_future(self.finish.wait()),
            asyncio.ensure_future(self.asleep.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return "stop" if self.finish.is_set() else "abort"


def encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def event(text: str, reason: str | None) -> bytes:
    return b"data: " + encoded({"choices": [{"delta": text, "finish_reason": reason}]}) + b"\n\n"


@asynccontextmanager
async def sleepy(state: Path) -> AsyncIterator[tuple[Here, StandIn]]:
    """A server over the real vLLM engine, of which all but the child is there."""
    stand_in = StandIn()
    app = web.Application()
    app.add_routes(stand_in.routes())
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    engine = VllmEngine("model", "sim", state_dir=state)
    engine._installation = Installation(Path("python"), {"vllm": "0.32.0"}, False, (9, 0))
    process = engine._process = VllmProcess(state / "log", {"VLLM_API_KEY": "secret"})
    process.url, process.exited = url, asyncio.get_running_loop().create_future()
    engine._upstream = Upstream(url, "secret", frozenset({"model", "messages", "stream", "n"}))
    engine._state, engine._max_model_len = "running", 1024
    spec = ServerSpec("deterministic", "sim", share_device="yes")
    try:
        async with serve(state, engine, spec) as here:  # type: ignore[arg-type]
            yield here, stand_in
    finally:
        await process._connections().close()
        await runner.cleanup()


@asynccontextmanager
async def training(here: Here) -> AsyncIterator[asyncio.Event]:
    """Within, a training asks for the device; the event is set once it has it."""
    begun = asyncio.Event()

    async def train() -> None:
        async with here.services.pool.training_on_device("sim"):
            begun.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(train())
    yield begun
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def code(answer: bytes) -> str:
    return str(json.loads(answer)["error"]["code"])


async def test_an_engine_sleeps_once_its_answers_have_ended_and_takes_no_new_ones(
    tmp_path: Path,
) -> None:
    async with sleepy(tmp_path / "s") as (here, vllm):
        asked = [
            asyncio.create_task(here.post("/v1/chat/completions", body)) for body in (CHAT, STREAM)
        ]
        await until(lambda: vllm.running == 2)
        async with training(here) as begun:
            await until(lambda: not here.services.pool.is_served("sim"))
            status, answer, headers = await here.post("/v1/chat/completions", CHAT)
            assert (status, code(answer)) == (503, "engine_training") and headers["Retry-After"]
            assert vllm.calls == [] and not begun.is_set()
            vllm.finish.set()
            whole, streamed = await asyncio.gather(*asked)
            assert whole[0] == 200 and b'"finish_reason":"stop"' in whole[1]
            assert streamed[1].endswith(event("c", "stop") + b"data: [DONE]\n\n")
            await asyncio.wait_for(begun.wait(), 10)
            assert vllm.calls == ["/sleep?level=1&mode=abort"]
        await until(lambda: here.services.pool.is_served("sim"))
        assert vllm.calls[1:] == ["/wake_up"]
        assert (await here.post("/v1/chat/completions", CHAT))[0] == 200


async def test_an_engine_that_comes_back_from_a_training_says_so_until_it_answers(
    tmp_path: Path,
) -> None:
    async with sleepy(tmp_path / "s") as (here, vllm):
        vllm.may_wake.clear()  # on a card it takes seconds
        vllm.finish.set()

        async def train() -> None:
            async with training(here) as begun:
                await asyncio.wait_for(begun.wait(), 10)

        leaving = asyncio.create_task(train())
        try:
            await until(lambda: "/wake_up" in vllm.calls)
            status, answer, headers = await here.post("/v1/chat/completions", CHAT)
            assert (status, code(answer)) == (503, "engine_training") and headers["Retry-After"]
        finally:
            vllm.may_wake.set()
            await leaving
        await until(lambda: here.services.pool.is_served("sim"))
        assert (await here.post("/v1/chat/completions", CHAT))[0] == 200


async def test_an_answer_that_sleep_broke_off_is_a_503_and_never_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_lifecycle, "DRAIN_S", 0.1)
    async with sleepy(tmp_path / "s") as (here, vllm):
        # The last has nothing yet when it is broken off.
        bodies = (CHAT, STREAM, {**STREAM, "n": 2})
        asked = [asyncio.create_task(here.post("/v1/chat/completions", body)) for body in bodies]
        await until(lambda: vllm.running == 3)
        async with training(here) as begun:
            await asyncio.wait_for(begun.wait(), 10)
            whole, streamed, empty = await asyncio.gather(*asked)
        for status, answer, headers in (whole, empty):
            assert (status, code(answer)) == (503, "engine_training")
            assert headers["Retry-After"] == "5"
        status, answer, _ = streamed
        begin = event("a", None) + event("b", None) + b"data: "
        assert status == 200 and answer.startswith(begin)
        assert code(answer.removeprefix(begin)) == "engine_training"
        assert b"abort" not in answer and b"[DONE]" not in answer
        # Nothing keeps answers under a key, so none of these can come again.
        refused = await here.post("/v1/chat/completions", CHAT, Idempotency_Key="k")
        assert refused[0] == 400


@dataclass
class Jobs:
    """The jobs of a server: a training waits for `train`, a publishing for `publish`."""

    client: openai.AsyncOpenAI
    sleeps: list[str] = field(default_factory=list)
    train: asyncio.Event = field(default_factory=asyncio.Event)
    publish: asyncio.Event = field(default_factory=asyncio.Event)

    async def create(self, *seeds: int) -> list[str]:
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        data = (encoded({"messages": messages}) + b"\n") * 10
        file = await self.client.files.create(file=("a.jsonl", data), purpose="fine-tune")
        create = self.client.fine_tuning.jobs.create
        return [(await create(model="sim", training_file=file.id, seed=seed)).id for seed in seeds]

    async def until(self, ids: list[str], *statuses: str) -> None:
        """Wait until the jobs have these statuses."""
        retrieve = self.client.fine_tuning.jobs.retrieve
        async with asyncio.timeout(10):
            while [(await retrieve(id)).status for id in ids] != [*statuses]:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def with_jobs(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Here, Jobs]]:
    """A server whose engine sleeps for trainings. That of seed 3 fails."""
    spec = ServerSpec("deterministic", "sim", share_device="yes")
    sleep, train, publish = (
        DeterministicEngine.sleep,
        DeterministicTrainer.train,
        EnginePool.publish,
    )
    async with (
        serve(state, spec=spec) as here,
        openai.AsyncOpenAI(base_url=f"{here.url}/v1", api_key=KEY, max_retries=0) as client,
    ):
        jobs = Jobs(client)

        async def counted(engine: DeterministicEngine) -> None:
            jobs.sleeps.append(engine.state)
            await sleep(engine)

        async def trained(trainer: DeterministicTrainer, job: TrainingJob, *rest: Any) -> Any:
            await jobs.train.wait()
            if job.seed == 3:
                raise TrainingError("broken", "it broke")
            return await train(trainer, job, *rest)

        async def published(pool: EnginePool, *arguments: Any) -> Any:
            await jobs.publish.wait()
            return await publish(pool, *arguments)

        monkeypatch.setattr(DeterministicEngine, "sleep", counted)
        monkeypatch.setattr(DeterministicTrainer, "train", trained)
        monkeypatch.setattr(EnginePool, "publish", published)
        yield here, jobs


async def test_an_engine_sleeps_once_for_the_jobs_that_are_queued_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_jobs(tmp_path / "s", monkeypatch) as (here, jobs):
        jobs.publish.set()
        ids = await jobs.create(1, 2, 3)
        await jobs.until(ids, "running", "queued", "queued")
        jobs.train.set()
        await jobs.until(ids, "succeeded", "succeeded", "failed")
        assert jobs.sleeps == ["running"]
        for id in ids[:2]:
            model = (await jobs.client.fine_tuning.jobs.retrieve(id)).fine_tuned_model
            assert (await here.post("/v1/chat/completions", {**CHAT, "model": model}))[0] == 200
        first = await jobs.client.fine_tuning.jobs.list_events(ids[0])
        assert any("stays asleep" in event.message for event in first.data)


async def test_a_job_that_was_trained_before_keeps_nobody_who_passes_the_device_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_jobs(tmp_path / "s", monkeypatch) as (here, jobs):
        services = here.services
        # 1. A job is paused when its model is committed, and before that is published.
        jobs.train.set()
        (before,) = await jobs.create(1)
        digest = services.jobs.get_row(before).adapter_digest
        await until(lambda: services.models.is_committed(digest))
        assert (await here.post(f"/v1/fine_tuning/jobs/{before}/pause", {}))[0] == 200
        jobs.train.clear()
        jobs.publish.set()
        await until(lambda: not services.supervisor._runs)
        # 2. It is resumed while another is trained, and has its turn after that.
        (after,) = await jobs.create(2)
        await jobs.until([after, before], "running", "queued")
        assert (await here.post(f"/v1/fine_tuning/jobs/{before}/resume", {}))[0] == 200
        jobs.train.set()
        await jobs.until([after, before], "succeeded", "succeeded")
        assert len(jobs.sleeps) == 2
