"""The progress of engines: their counters of work, and the time since the last change.

Advance       an engine's work so far, and the seconds without more of it
AdvanceWatch  looks at the engines of a server when a caller asks
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from nip_lm_server.engines.base import Engine, WorkDone

LOOK_S = 0.25
"""Looks at one engine are at least so far apart: a thousand requests may ask at once."""


@dataclass(frozen=True)
class Advance:
    """An engine's work, and the seconds since it last did some."""

    work: WorkDone
    silent_s: float


@dataclass
class _Look:
    epoch: int
    work: WorkDone | None
    looked_s: float
    advanced_s: float


class AdvanceWatch:
    """The engines of a server, as they were at the last look."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._looks: dict[int, _Look] = {}
        self._looking = asyncio.Lock()

    async def look(self, engine: Engine) -> Advance | None:
        """Return the engine's progress; None where it can't tell.

        An engine that has nothing to do does not advance either: `silent_s` counts from the first
        look, and means something only while the engine has a request.
        """
        async with self._looking:
            look, now_s = self._looks.get(id(engine)), self._clock()
            # Another start of it counts from zero.
            if look is None or look.epoch != engine.epoch:
                work = await engine.measure_work()
                look = self._looks[id(engine)] = _Look(engine.epoch, work, now_s, now_s)
            elif now_s - look.looked_s >= LOOK_S:
                work = await engine.measure_work()
                if work != look.work:
                    look.work, look.advanced_s = work, now_s
                look.looked_s = now_s
        if look.work is None:
            return None
        return Advance(look.work, now_s - look.advanced_s)
