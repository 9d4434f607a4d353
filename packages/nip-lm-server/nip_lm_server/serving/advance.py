"""Whether engines advance: their counters of work, and since when these have stood still.

Advance       an engine's work so far, and for how long there was no more of it
AdvanceWatch  looks at the engines of a server when somebody asks
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
class _Seen:
    epoch: int
    work: WorkDone | None
    looked_s: float
    advanced_s: float


class AdvanceWatch:
    """The engines of a server, as they were at the last look."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._seen: dict[int, _Seen] = {}
        self._looking = asyncio.Lock()

    async def look(self, engine: Engine) -> Advance | None:
        """Return how far the engine is; None where it can't tell.

        An engine that has nothing to do does not advance either: `silent_s` counts from the first
        look, and means something only while the engine has a request.
        """
        async with self._looking:
            seen, now_s = self._seen.get(id(engine)), self._clock()
            # Another start of it counts from zero.
            if seen is None or seen.epoch != engine.epoch:
                work = await engine.measure_work()
                seen = self._seen[id(engine)] = _Seen(engine.epoch, work, now_s, now_s)
            elif now_s - seen.looked_s >= LOOK_S:
                work = await engine.measure_work()
                if work != seen.work:
                    seen.work, seen.advanced_s = work, now_s
                seen.looked_s = now_s
        if seen.work is None:
            return None
        return Advance(seen.work, now_s - seen.advanced_s)
