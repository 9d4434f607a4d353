"""Seconds that the phases of an iteration take, over all processes that have worked on them.

A process that is killed takes its clocks along. So the seconds of a phase are put on record while
it goes on, as a sum and not as a part to add: several writers, and repeated writes, count nothing
twice. A kill loses at most `EVERY_S` of an iteration. It is for people alone: where it can't be
written the run goes on, and on an object store a runner that was replaced may, in the moment of it,
put an older sum in the place of a newer one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from nip_core.errors import LeaseError, StoreError
from nip_core.progress.board import STAGES
from nip_core.progress.phases import IDLE, START, sum_stage
from nip_core.records.stage_seconds import divide_stages, name_times_file, read_seconds_so_far
from nip_core.rollouts.plan import TEST
from nip_core.run_store.documents import encode
from nip_core.session.session import Session

T = TypeVar("T")
EVERY_S = 20.0
"""Seconds of an iteration that may be on no record."""
_WORTH_IT_S = 1.0  # at a stop: less is not worth a request


class StageTimes:
    """The phases of one iteration, by one process at a time.

    They add up to the time since the iteration before was put on record, which ends with its swap,
    or since the process began.
    """

    def __init__(self, session: Session, iteration: int, *, is_last: bool = False) -> None:
        """Reads the seconds of earlier processes. The `is_last` has a test, and may go on later."""
        self._session, self._iteration, self._is_last = session, iteration, is_last
        run, last_splits = session.run, session.records.shown.measured_last or (TEST,)
        ends = (run.store.exists(run.metrics(iteration, split)) for split in last_splits)
        self._is_over = is_last and all(ends)  # by another process
        self.seconds = read_seconds_so_far(session.run, iteration)
        """By phase."""
        self._is_on_record = bool(self.seconds)
        self._recorded_s = sum(self.seconds.values())
        self._count()

    @contextlib.asynccontextmanager
    async def during(self, stage: str) -> AsyncIterator[None]:
        """Show the stage while the block goes on, and add its seconds to the record."""

        async def record_now_and_then() -> None:
            while True:
                await asyncio.sleep(max(EVERY_S - self._count(), _WORTH_IT_S))
                if self._count() >= EVERY_S:
                    self._record()

        self._count()
        before_s = sum_stage(self.seconds, stage)
        recording = asyncio.create_task(record_now_and_then())
        try:
            with self._session.progress.during(self._iteration, stage, before_s):
                yield
        finally:
            recording.cancel()
            if self._count() >= _WORTH_IT_S:
                self._record()

    async def count(self, phase: str, step: Awaitable[T]) -> T:
        """Count the seconds of a step to a phase; return its result."""
        with self._session.progress.phases.during(phase):
            return await step

    async def finish(self) -> None:
        """Put the times of the whole iteration on record, each stage divided; of no stage none."""
        session, run = self._session, self._session.run
        self._count()
        path = f"{run.iteration(self._iteration)}/times.json"
        has_stage = any(phase in STAGES for phase in self.seconds)
        if not has_stage or run.store.exists(path):
            return
        groups = session.parameters.groups
        with contextlib.suppress(StoreError):  # a file that is damaged is another stage's to tell
            self.seconds = await asyncio.to_thread(
                divide_stages, run, self._iteration, self.seconds, groups
            )
        if self._is_last:
            self._record()
            return
        seconds = {phase: round(spent_s, 3) for phase, spent_s in self.seconds.items()}
        session.lease.check()
        # Those of the process that has done the work stay, where another looks whether it is done.
        run.store.put_if_absent(path, encode(seconds), fence=session.lease.fence)
        # After the whole is on record: a kill in between leaves a file too many, and no figure is
        # lost.
        if self._is_on_record:
            run.store.delete(name_times_file(run, self._iteration), fence=session.lease.fence)

    def _record(self) -> None:
        """Put the times so far on record."""
        if self._is_over:
            return
        session, run = self._session, self._session.run
        seconds = {phase: round(spent_s, 3) for phase, spent_s in self.seconds.items()}
        # For people alone, so the run does not stop for it.
        with contextlib.suppress(LeaseError, StoreError):
            session.lease.check()
            path, content = name_times_file(run, self._iteration), encode(seconds)
            run.store.put(path, content, fence=session.lease.fence)
            self._is_on_record, self._recorded_s = True, sum(self.seconds.values())

    def _count(self) -> float:
        """Bring the sums up to date; returns the seconds on no record."""
        for phase, spent_s in self._session.progress.phases.take().items():
            if spent_s or phase not in (START, IDLE):
                self.seconds[phase] = self.seconds.get(phase, 0.0) + spent_s
        return sum(self.seconds.values()) - self._recorded_s
