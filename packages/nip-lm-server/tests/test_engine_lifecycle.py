"""The life of an engine, against a real engine whose process is really killed."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nip_lm_server.engines.base import Capabilities, EngineError
from nip_lm_server.serving import engine_lifecycle
from nip_lm_server.serving.engine_lifecycle import EngineLifecycle

DEADLINE_S = 10.0


class ProcessEngine:
    """An engine that is a child process, so that it can really die. It answers nothing."""

    name = "process"
    base_model = "base"

    def __init__(self, *, can_sleep: bool = False, refuse: Callable[[], bool] = lambda: False):
        self.epoch = 0
        self.can_sleep, self.refuse = can_sleep, refuse
        self.child: asyncio.subprocess.Process | None = None
        self.asleep = False

    @property
    def state(self) -> str:
        if self.child is None:
            return "stopped"
        if self.child.returncode is not None:
            return "failed"
        return "sleeping" if self.asleep else "running"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(sleep=self.can_sleep)

    async def start(self) -> None:
        if self.refuse():
            raise EngineError("refused to start")
        self.child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import time; time.sleep(600)"
        )
        self.epoch += 1
        self.asleep = False

    async def stop(self) -> None:
        child, self.child = self.child, None
        if child is not None and child.returncode is None:
            child.kill()
            await child.wait()

    async def sleep(self) -> None:
        self.asleep = True

    async def wake(self) -> None:
        self.asleep = False

    async def wait_dead(self) -> str:
        assert self.child is not None
        return f"exited with {await self.child.wait()}"

    def kill(self) -> None:
        assert self.child is not None
        os.kill(self.child.pid, signal.SIGKILL)


class Kept(EngineLifecycle):
    """An engine's life that takes down what comes with its ups and downs."""

    engine: ProcessEngine

    def __init__(self, engine: ProcessEngine):
        super().__init__(engine)  # type: ignore[arg-type]
        self.restored: list[int] = []
        self.epochs: list[int] = []
        self.downs = 0

    async def _restore(self, woken: bool) -> None:
        self.restored.append(self.engine.epoch)

    def _went_down(self) -> None:
        self.downs += 1

    def _epoch_began(self) -> None:
        self.epochs.append(self.engine.epoch)

    async def until(self, holds: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not holds():
                await asyncio.sleep(0.01)

        await asyncio.wait_for(wait(), DEADLINE_S)


@asynccontextmanager
async def kept(**arguments: Any) -> AsyncIterator[Kept]:
    one = Kept(ProcessEngine(**arguments))
    try:
        yield one
    finally:
        await one.close()
        assert one.engine.child is None


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_lifecycle, "FIRST_PAUSE_S", 0.02)


async def test_an_engine_that_is_killed_is_restarted_as_a_new_epoch_and_restored() -> None:
    async with kept() as one:
        await one.set_wanted("running")
        assert one.is_ready and one.epochs == [1] and one.restored == [1]
        for epoch in (2, 3):
            one.engine.kill()
            await one.until(lambda: one.restarts == epoch - 1 and one.is_ready)
            assert one.epochs[-1] == epoch == one.restored[-1]
        assert one.last_death == "exited with -9"
        assert one.downs >= 2


async def test_starting_is_tried_again_until_it_works() -> None:
    refusals = iter([False, True, True, False])
    async with kept(refuse=lambda: next(refusals, False)) as one:
        await one.set_wanted("running")
        one.engine.kill()
        await one.until(lambda: len(one.epochs) == 2 and one.is_ready)
        assert next(refusals, None) is None


async def test_a_first_start_that_fails_says_so_and_is_tried_again() -> None:
    refusals = iter([True, True])
    async with kept(refuse=lambda: next(refusals, False)) as one:
        with pytest.raises(EngineError, match="refused to start"):
            await one.set_wanted("running")
        await one.until(lambda: one.is_ready)


@pytest.mark.parametrize("can_sleep", [True, False])
async def test_a_lent_engine_leaves_and_comes_back_whatever_happens_inside(
    can_sleep: bool,
) -> None:
    async with kept(can_sleep=can_sleep) as one:
        await one.set_wanted("running")
        with pytest.raises(RuntimeError, match="the job broke"):
            async with one.lend():
                assert one.engine.state == ("sleeping" if can_sleep else "stopped")
                assert not one.is_ready
                raise RuntimeError("the job broke")
        assert one.is_ready
        # Waking is no new epoch, starting is; both prove the adapters again.
        assert one.epochs == ([1] if can_sleep else [1, 2])
        assert len(one.restored) == 2


@pytest.mark.parametrize("ends", [True, False])
async def test_a_lent_engine_ends_its_work_first_but_not_for_ever(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_lifecycle, "DRAIN_S", 10.0 if ends else 0.05)
    async with kept(can_sleep=True) as one:
        await one.set_wanted("running")
        working = asyncio.Event()

        async def work() -> str:
            with one.keep_at_work():
                await asyncio.wait({asyncio.create_task(working.wait())}, timeout=0.3)
                return one.engine.state

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.02, working.set if ends else lambda: None)
        async with one.lend():
            assert one.engine.state == "sleeping" and task.done() is ends
        assert await task == "running" or not ends


async def test_an_engine_comes_back_when_the_job_that_had_its_device_is_cancelled() -> None:
    async with kept() as one:
        await one.set_wanted("running")
        inside = asyncio.Event()

        async def job() -> None:
            async with one.lend():
                inside.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(job())
        await asyncio.wait_for(inside.wait(), DEADLINE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await one.until(lambda: one.is_ready)


async def test_what_is_asked_for_while_the_device_is_lent_happens_afterwards() -> None:
    async with kept() as one:
        await one.set_wanted("running")
        async with one.lend():
            await one.set_wanted("stopped")
            await one.set_wanted("running")
            assert one.engine.state == "stopped"
        assert one.is_ready
        async with one.lend():
            await one.set_wanted("stopped")
        assert one.engine.state == "stopped" and not one.is_ready


async def test_an_engine_that_dies_while_it_sleeps_is_started_when_it_is_needed() -> None:
    async with kept(can_sleep=True) as one:
        await one.set_wanted("running")
        async with one.lend():
            one.engine.kill()
            await one.until(lambda: one.engine.state == "failed")
        assert one.is_ready and one.epochs == [1, 2]


async def test_an_engine_that_cannot_sleep_is_not_put_to_sleep() -> None:
    async with kept() as one:
        await one.set_wanted("running")
        with pytest.raises(EngineError, match="stop it instead"):
            await one.set_wanted("sleeping")
        assert one.is_ready
