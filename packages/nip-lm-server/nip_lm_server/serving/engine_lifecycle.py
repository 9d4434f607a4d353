"""Keeps one engine as it is wanted: running, asleep or stopped; and brings it back when it dies.

EngineLifecycle.set_wanted   a user's wishes: start, sleep, wake, stop
EngineLifecycle.lend         within, the engine leaves its device to a training
EngineLifecycle.keep_at_work      within, it is at work: it leaves once that has ended
EngineLifecycle.is_ready     whether it answers; describe_absence says why not

An engine that ends by itself is started again, after a pause that doubles up to MAX_PAUSE_S.
Each start is a new epoch. However the engine comes back, `_restore` loads and proves its adapters
before they answer again. All methods are called on the server's event loop.
"""

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Literal

from nip_lm_server.engines.base import Engine, EngineError

FIRST_PAUSE_S = 0.5
"""Pause before an engine that died is started: next to nothing, for a death that stays alone."""
MAX_PAUSE_S = 60.0
"""Longest pause between two attempts to start an engine that died: trying more often would keep a
machine busy with starts that fail, and more seldom leave it idle when the trouble has passed."""
QUIET_S = 300.0
"""An engine that ran this long is started after the first pause when it dies. With much less, one
that dies of its first long request each time would be started without end, one start after the
other."""
DRAIN_S = 60.0
"""Time that an engine's running answers have to end before it leaves its device. By a rule of
thumb: with much less, long answers would be broken off each time; with much more, a single one
would keep a training and its whole device waiting."""
DRAIN_POLL_S = 0.02
"""Seconds between two looks whether all is answered: a comparison, small beside any answer."""
LOOK_S = 1.0
"""Seconds between two looks whether an awaited engine is lent; so exact is the wait."""

Wanted = Literal["running", "sleeping", "stopped"]

_log = logging.getLogger("nip.lm_server.engine")


class EngineLifecycle(ABC):
    """One engine and its life. A subclass restores its adapters, and keeps its books."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.wanted: Wanted = "stopped"
        self.restarts = 0
        self.last_death: str | None = None
        self._at_work = 0
        self._lent = 0
        self._coming_back = 0
        self._lock = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    @abstractmethod
    async def _restore(self, woken: bool) -> None:
        """Load and prove adapters after the engine was started, or only woken.

        Raises EngineError if the engine can't serve after all.
        """

    @abstractmethod
    def _went_down(self) -> None:
        """Forget what has answered: the engine goes, or is gone."""

    @abstractmethod
    def _epoch_began(self) -> None:
        """Store the engine's epoch."""

    @property
    def is_ready(self) -> bool:
        """Say whether the engine runs and its adapters were proved since it was last brought up."""
        return self._ready.is_set() and self.engine.state == "running"

    @property
    def is_lent(self) -> bool:
        """Say whether a training has the engine's device."""
        return self._lent > 0

    @contextmanager
    def keep_at_work(self) -> Iterator[None]:
        """Within, the engine is at work, and is not put to sleep for up to DRAIN_S."""
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1

    @property
    def is_away_for_training(self) -> bool:
        """Say whether a training has the engine's device, or it is on its way back from one."""
        return self.is_lent or self._coming_back > 0

    async def set_wanted(self, state: Wanted, *, drain: bool = False) -> None:
        """Bring the engine to this state; while its device is lent, afterwards.

        With `drain`, running answers may end before it stops, for up to DRAIN_S. Raises EngineError
        if it can't be done: for "running", attempts go on nevertheless.
        """
        # Not stopped in its place: a user who asks for sleep counts on a short wake.
        if state == "sleeping" and not self.engine.capabilities.sleep:
            raise EngineError(f"the engine {self.engine.name} can't sleep here: stop it instead")
        self.wanted = state
        await self._settle(drain)

    async def close(self) -> None:
        """Stop the engine for good."""
        # First, or the watcher would start it again.
        self.wanted = "stopped"
        await self._stop_watching()
        async with self._lock:
            await self._take_down()
            await self.engine.stop()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[None]:
        """Within, the engine sleeps, or is stopped if it can't; afterwards it is as wanted again.

        It leaves once its running answers have ended, or after DRAIN_S; new requests are refused.
        If bringing it back fails, attempts go on and the work inside is not affected.
        """
        # Counted: the next training has the device before this one has given it back.
        self._lent += 1
        try:
            await self._settle()
            yield
        finally:
            self._lent -= 1
            # Before the await: with weights that go back onto a card it takes seconds, and requests
            # of this time are told why they have to wait.
            self._coming_back += 1
            # Even when the work inside was cancelled, the engine has to come back.
            await asyncio.shield(asyncio.ensure_future(self._settle_or_retry()))

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Wait for the engine to come up. Raises EngineError after `timeout_s`.

        Time in which a training has its device does not count.
        """
        waited_s = 0.0
        while waited_s < timeout_s:
            begun_s, is_lent = time.monotonic(), self.is_lent
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ready.wait(), min(timeout_s - waited_s, LOOK_S))
                return
            # A training may have the device for days, which is no fault of the engine. The state
            # before this wait counts: each start or end of a training costs LOOK_S of exactness.
            waited_s += 0.0 if is_lent else time.monotonic() - begun_s
        raise EngineError(
            f"the engine of {self.engine.base_model!r} is {self.engine.state}, not running, after "
            f"{timeout_s:.0f} s"
        )

    def describe_absence(self) -> str:
        """Tell why it does not answer, for people."""
        if self.is_away_for_training:
            return "gives its device to a training job and comes back by itself"
        if self.wanted != "running":
            state = self.engine.state if self.engine.state != "running" else "about to leave"
            return f"is {state}: POST /nip/engines/{self.engine.base_model}/start"
        return "is being started" if self.last_death is None else "died and is being restarted"

    # Moving

    def _choose_target(self) -> Wanted:
        """Choose its next state: a lent one leaves its device, asleep if it can, since a wake is
        shorter than a start.
        """
        if self.wanted == "stopped" or not self._lent:
            return self.wanted
        return "sleeping" if self.engine.capabilities.sleep else "stopped"

    async def _settle(self, drain: bool = False) -> None:
        """Bring the engine to its target, and watch it if it is to run."""
        await self._stop_watching()
        try:
            async with self._lock:
                await self._move(drain)
        finally:
            # Also after a move that failed: the watcher goes on trying.
            if self._watcher is None and self._choose_target() == "running":
                name = f"watch {self.engine.base_model}"
                self._watcher = asyncio.create_task(self._bring_back_when_dead(), name=name)

    async def _settle_or_retry(self) -> None:
        """Settle; a failure is left to the watcher, as the training that had the device is over."""
        try:
            await self._settle()
        except EngineError as error:
            _log.error("%s does not come back, trying again: %s", self.engine.base_model, error)
        finally:
            self._coming_back -= 1

    async def _move(self, drain: bool = False) -> None:
        engine, target = self.engine, self._choose_target()
        if target == "running":
            await self._bring_up()
            return
        # A stop on request is at once. To sleep, or to lend its device, an engine first ends its
        # running answers.
        if engine.state == "running" and (drain or target == "sleeping" or self._lent):
            await self._drain()
        await self._take_down()
        if target == "sleeping" and engine.state == "running":
            try:
                await engine.sleep()
            except EngineError as error:
                # Its memory is to be free in any case, and a start is all that this costs.
                _log.warning("%s can't sleep, stopping it: %s", engine.base_model, error)
                await engine.stop()
        elif target == "stopped":
            await engine.stop()

    async def _bring_up(self) -> None:
        engine = self.engine
        # Proved already; a repeated wish must not stop its answers.
        if self.is_ready:
            return
        # 1. Wake it, if it only sleeps.
        woken = False
        if engine.state == "sleeping":
            try:
                await engine.wake()
                woken = True
            except EngineError as error:
                # Nothing is lost with it: its adapters are loaded from their files.
                _log.warning("%s can't be woken, starting it: %s", engine.base_model, error)
                await engine.stop()
        # 2. Else start it, as a new epoch.
        if engine.state != "running":
            await engine.stop()  # the rest of one that has died
            await engine.start()
            self._epoch_began()
        # 3. Prove its models; only then it is ready.
        await self._restore(woken)
        self._ready.set()

    async def _drain(self) -> None:
        """Refuse new requests and let the running ones end, for up to DRAIN_S."""
        self._ready.clear()
        deadline_s = time.monotonic() + DRAIN_S
        while self._at_work and time.monotonic() < deadline_s:  # noqa: ASYNC110 (no event is set)
            await asyncio.sleep(DRAIN_POLL_S)
        if self._at_work:
            _log.warning(
                "%s leaves its device with %d requests unanswered that took more than %g s",
                *(self.engine.base_model, self._at_work, DRAIN_S),
            )

    async def _take_down(self) -> None:
        self._ready.clear()
        self._went_down()

    # Watching

    async def _stop_watching(self) -> None:
        watcher, self._watcher = self._watcher, None
        # Not itself, which would wait for its own end.
        if watcher is not None and watcher is not asyncio.current_task():
            watcher.cancel()
            # Waited for: it may be in the middle of a start, which has to be undone first.
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    async def _bring_back_when_dead(self) -> None:
        pause_s = FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            # 1. Wait for its death, unless it is dead.
            if self.is_ready:
                since = loop.time()
                self.last_death = await self.engine.wait_dead()
                self.restarts += 1
                _log.error("the engine of %s died: %s", self.engine.base_model, self.last_death)
                # It ran well meanwhile: this death is a new trouble, not the last one going on.
                if loop.time() - since > QUIET_S:
                    pause_s = FIRST_PAUSE_S
                await self._take_down()
            # 2. Pause, longer each time.
            await asyncio.sleep(pause_s)
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)
            # 3. Try to start it.
            try:
                async with self._lock:
                    await self._move()
            # Of any kind: with this task the engine would be down for good. Its device is free for
            # the next attempt, which meets any trouble of stopping it.
            except Exception as error:
                self.last_death = str(error)
                _log.error("can't start the engine of %s: %s", self.engine.base_model, error)
                with contextlib.suppress(Exception):
                    await self.engine.stop()
