"""Seconds that the stages of an iteration take, over all processes that have worked on them.

A process that is killed takes its clocks along. So the seconds of a stage are put on record while
it goes on, as a sum and not as a part to add: several writers, and repeated writes, count nothing
twice. A kill loses at most `EVERY_S` of an iteration. It is for people alone: where it can't be
written the run goes on, and on an object store a runner that was replaced may, in the moment of it,
put an older sum in the place of a newer one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from nip_core.errors import LeaseError, StoreError
from nip_core.records.stage_seconds import name_times_file, read_seconds_so_far
from nip_core.run_store.documents import encode
from nip_core.session.session import Session

EVERY_S = 20.0
"""Seconds of an iteration that may be on no record."""
_WORTH_IT_S = 1.0  # at a stop: less is not worth a request


class StageTimes:
    """The stages of one iteration, by one process at a time."""

    def __init__(self, session: Session, iteration: int) -> None:
        """Reads the seconds that earlier processes have put on record."""
        self._session, self._iteration = session, iteration
        self.seconds = read_seconds_so_far(session.run, iteration)
        """By stage."""
        self._is_on_record = bool(self.seconds)
        self._recorded_s = sum(self.seconds.values())

    @contextlib.asynccontextmanager
    async def during(self, stage: str) -> AsyncIterator[None]:
        """Show the stage while the block goes on, and add its seconds to the record."""
        clock = self._session.progress.clock
        before_s, began_s = self.seconds.get(stage, 0.0), clock()

        def count() -> float:
            """Bring the sum up to date; returns the seconds that are on no record."""
            self.seconds[stage] = round(before_s + clock() - began_s, 3)
            return sum(self.seconds.values()) - self._recorded_s

        async def record_now_and_then() -> None:
            while True:
                await asyncio.sleep(max(EVERY_S - count(), _WORTH_IT_S))
                if count() >= EVERY_S:
                    self._record()

        recording = asyncio.create_task(record_now_and_then())
        least_s = _WORTH_IT_S
        try:
            with self._session.progress.during(self._iteration, stage, before_s):
                yield
            least_s = EVERY_S  # the next stage follows at once
        finally:
            recording.cancel()
            if count() >= least_s:
                self._record()

    def finish(self) -> None:
        """Put the times of the whole iteration on record."""
        session, run = self._session, self._session.run
        path = f"{run.iteration(self._iteration)}/times.json"
        run.write_json_once(path, self.seconds, lease=session.lease)
        # After the whole is on record: a kill in between leaves a file too many, and no figure is
        # lost.
        if self._is_on_record:
            run.store.delete(name_times_file(run, self._iteration), fence=session.lease.fence)

    def _record(self) -> None:
        session, run = self._session, self._session.run
        # For people alone, so the run does not stop for it.
        with contextlib.suppress(LeaseError, StoreError):
            session.lease.check()
            path, content = name_times_file(run, self._iteration), encode(self.seconds)
            run.store.put(path, content, fence=session.lease.fence)
            self._is_on_record, self._recorded_s = True, sum(self.seconds.values())
