"""How many threads compute on the processors: all, and fewer while other programs want them.

count_processors   the processors that this process may use
read_waiting       how long its threads have waited for one, and how long they have run
Threads            the number for a thread that computes, looked at again between its passes
most_threads       the processors for a model of so many bytes
weights_bytes      the bytes of a model on disk
usual_threads      the one of the environment, or None

An engine and a training have all processors where nothing else computes, which is so while one of
them waits for the other. Where other programs compute, threads that are to meet after every
operation wait for the last of them to get a processor, and several are slower than one
(`docs/decisions/0040-real-shapes.md`). The kernel tells how long threads were ready and waited, so
no other program has to be asked, neither an engine of ours nor any other.

A number that the user has set stays. Where the kernel doesn't tell, half of the processors compute.
Standard library only.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from nip_base.machine.control_groups import PROC, find_groups, read_number

SMALL_BYTES = 32 * 1024 * 1024
"""A model with fewer bytes of weights is computed on half of the processors at most. A rule of
thumb: below, the weights lie in a processor's own caches, and threads wait for each other in each
of the operations of a step for about as long as these take."""
LOOK_S = 0.5
"""How often it is looked: a look takes less than a millisecond, and some passes are to lie between
two of them."""
CROWDED = 0.25
"""Threads that waited more than this share of their time are too many. Two threads beside one busy
program on two processors wait a third of it; what the system does by itself takes a few percent."""
FREE = 0.05
"""With less than this there is room for more of them."""
FIRST_PAUSE_S = 4.0
"""So long after threads were too many more are tried again, and twice as long each further time, up
to MAX_PAUSE_S: trying costs some passes of half the speed."""
MAX_PAUSE_S = 120.0

Read = Callable[[], tuple[float, float] | None]


def count_processors(proc: Path = PROC) -> int:
    """Count the processors of this process, by its affinity and by its containers' limits."""
    has_affinity = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    for group in find_groups("cpu", proc):
        if (limit := _read_processors(group)) is not None:
            count = min(count, limit)
    return max(1, count)


def _read_processors(group: Path) -> int | None:
    """Read how many processors a control group may keep busy, rounded up; None: all."""
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # ValueError: "max"
        quota, period = map(int, (group / "cpu.max").read_text().split())
        return -(-quota // period)
    quota_us = read_number(group / "cpu.cfs_quota_us")  # version 1; -1: no limit
    period_us = read_number(group / "cpu.cfs_period_us")
    return -(-quota_us // period_us) if quota_us and period_us and quota_us > 0 else None


def most_threads(weights: int) -> int:
    """Count the threads that compute a model with so many bytes of weights, at most."""
    count = count_processors()
    return count if weights >= SMALL_BYTES else max(1, count // 2)


def weights_bytes(model: str | Path) -> int | None:
    """Count the bytes of a model's weights on disk; None where `model` is no directory of them."""
    files = list(Path(model).expanduser().glob("*.safetensors"))
    return sum(file.stat().st_size for file in files) if files else None


def usual_threads(environment: Mapping[str, str]) -> int | None:
    """Return what OMP_NUM_THREADS says, or None."""
    value = environment.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(value) if value.isdigit() and int(value) > 0 else None


def read_waiting(tasks: Path = Path("/proc/self/task")) -> tuple[float, float] | None:
    """Seconds in which threads of this process were ready without a processor, and had one.

    None where the kernel doesn't tell.
    """
    waited_ns = ran_ns = 0
    try:
        for task in os.listdir(tasks):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                ran, waited, _ = (tasks / task / "schedstat").read_text().split()
                waited_ns, ran_ns = waited_ns + int(waited), ran_ns + int(ran)
    except (OSError, ValueError):
        return None
    return (waited_ns / 1e9, ran_ns / 1e9) if ran_ns else None


class Threads:
    """The number of threads of one thread that computes; only that one calls it.

    `fixed` is a number that stays; None: up to `most`. `apply` sets it, torch's `set_num_threads`.
    """

    def __init__(
        self,
        limit: int,
        apply: Callable[[int], None],
        *,
        fixed: int | None = None,
        read: Read = read_waiting,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._most, self._apply, self._read, self._clock = limit, apply, read, clock
        self._last = None if fixed is not None else read()
        self._is_fixed = self._last is None
        half = max(1, limit // 2)
        self.count = fixed or (half if self._is_fixed else limit)
        self._looked_s, self._again_s = clock(), 0.0
        self._pause_s = FIRST_PAUSE_S
        apply(self.count)

    def look(self) -> None:
        """Choose the number anew, if it is time; call it between two passes."""
        now_s = self._clock()
        if self._is_fixed or now_s - self._looked_s < LOOK_S:
            return
        earlier, now = self._last, self._read()
        self._looked_s, self._last = now_s, now
        if earlier is None or now is None:
            return
        waited, ran = now[0] - earlier[0], now[1] - earlier[1]
        if min(waited, ran) >= 0 and waited + ran > 0:  # a thread that has ended takes its share
            self._decide(waited / (waited + ran), now_s)

    def _decide(self, share: float, now_s: float) -> None:
        count = self.count
        if share > CROWDED and count > 1:
            count //= 2
            self._again_s = now_s + self._pause_s
            self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s)
        elif share < FREE and count < self._most and now_s >= self._again_s:
            count = min(self._most, 2 * count)
        elif share < FREE and count == self._most and now_s >= self._again_s + self._pause_s:
            self._pause_s = FIRST_PAUSE_S  # it went well for long
        if count != self.count:
            self.count = count
            self._apply(count)
