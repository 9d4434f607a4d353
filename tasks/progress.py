"""The progress of a run in Prefect's UI, while a flow goes on: an artifact and lines in its log.

It is one artifact for each flow run, changed in place; a line in the log comes as seldom as it must
for the page to be worth reading. Whether Prefect takes them makes no difference to the run.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from prefect.artifacts import acreate_progress_artifact, aupdate_progress_artifact

from nip_core.progress.outlook import State, Whole, observe_run
from nip_core.progress.words import state_line
from nip_core.session.session import Session

ARTIFACT_EVERY_S = 10.0
LOG_EVERY_S = 60.0
"""Beside the lines of what has happened."""
_log = logging.getLogger(__name__)


@asynccontextmanager
async def show_progress(session: Session, every_s: float = ARTIFACT_EVERY_S) -> AsyncIterator[None]:
    """Show the progress of the session's run until the block is left."""
    state_shown = _Shown(session)
    showing = asyncio.create_task(state_shown.keep_on(every_s))
    try:
        yield
    finally:
        showing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await showing
        await state_shown.update()


class _Shown:
    """The artifact of one flow run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._id: UUID | None = None
        self._percent = 0.0

    async def keep_on(self, every_s: float) -> None:
        """Update it again and again."""
        logged_s = self._session.progress.clock()
        while True:
            await asyncio.sleep(every_s)
            await self.update()
            now_s = self._session.progress.clock()
            if now_s - logged_s >= LOG_EVERY_S:
                logged_s = now_s
                if line := state_line(self._look()):
                    self._session.log.info("%s", line)

    async def update(self) -> None:
        """Write what is known now."""
        state = self._look()
        if state.whole is None:
            return
        # It never goes back, also where the share by time is less than that by stages before it.
        self._percent = percent = max(self._percent, 100.0 * _share(state.whole))
        words = state_line(state)
        try:
            if self._id is None:
                key = f"nip-{state.run}-progress"
                self._id = await acreate_progress_artifact(percent, key=key, description=words)
            else:
                await aupdate_progress_artifact(self._id, progress=percent, description=words)
        except Exception as error:  # a view for people: the run goes on without it
            _log.debug("progress not published: %s: %s", type(error).__name__, error)

    def _look(self) -> State:
        return observe_run(self._session.progress, self._session.parameters)


def _share(whole: Whole) -> float:
    """The share by time, or by the number of stages where time is not known yet."""
    if whole.share is not None:
        return min(whole.share, 1.0)
    return whole.stages_done / max(whole.stages, 1)
