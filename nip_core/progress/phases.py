"""The phases of an iteration, into which its time is divided.

PhaseClock           counts each moment of a process to the innermost phase that goes on
PHASES               the phases, in their order, with their words
sum_stage, by_stage  a stage, or all of them, whole
describe_phases      the phases of several iterations, in words

A stage is a phase of its own name, and phases with names like ``play/slow`` are its parts. No
second is in two of them, so all add up to the time that the iteration took.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

START, IDLE = "start", "idle"
"""Before the first iteration of the process is begun; and later, where nothing else goes on."""

PHASES = {
    "start": "start",
    "prove": "prove the models that play first",
    "test": "test",
    "test/slow": "test: wait for slow answers",
    "attack": "attack",
    "play": "play",
    "play/slow": "play: wait for slow answers",
    "dataset": "choose and write datasets",
    "train/queue": "train: queue",
    "train/load": "train: load",
    "train": "train",
    "train/save": "train: save, serve, prove",
    "train/poll": "train: between submission and polls",
    "gate": "gate",
    "swap/prove": "swap: prove the new models",
    "swap": "swap",
    "publish": "publish the report before",
    "idle": "between phases",
}
"""By phase, its words."""


class PhaseClock:
    """Seconds by phase, which add up to the time since the process began.

    For the steps that follow each other: of two phases that overlap without one being inside of
    the other, the second would be counted wrongly.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._counted_s, self._phase = clock, clock(), START
        self._seconds: dict[str, float] = {}

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count to this phase while the block goes on."""
        self._count()
        outer, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._count()
            self._phase = outer

    def take(self) -> dict[str, float]:
        """Hand over the seconds since the last time, by phase. The start is over with the first."""
        self._count()
        if self._phase == START:
            self._phase = IDLE
        taken, self._seconds = self._seconds, {}
        return taken

    def _count(self) -> None:
        now_s = self._clock()
        self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + now_s - self._counted_s
        self._counted_s = now_s


def sum_stage(seconds: Mapping[str, float], stage: str) -> float:
    """Add up the phases of a stage."""
    return sum(spent_s for phase, spent_s in seconds.items() if phase.partition("/")[0] == stage)


def by_stage(seconds: Mapping[str, float]) -> dict[str, float]:
    """Add up the phases of each stage, in the order of phases."""
    return {
        p.partition("/")[0]: sum_stage(seconds, p.partition("/")[0]) for p in sort_phases(seconds)
    }


def sort_phases(seconds: Mapping[str, float]) -> list[str]:
    """Sort phases by their order in an iteration; those of another version of nip come last."""
    order = {phase: place for place, phase in enumerate(PHASES)}
    return sorted(seconds, key=lambda phase: order.get(phase, len(order)))


def describe_phases(iterations: Sequence[Mapping[str, float]]) -> list[tuple[str, float, float]]:
    """Add up phases: words, seconds, share of all seconds; none below a thousandth of these."""
    seconds: dict[str, float] = {}
    for phase, spent_s in (item for iteration in iterations for item in iteration.items()):
        seconds[phase] = seconds.get(phase, 0.0) + spent_s
    all_s = sum(seconds.values())
    return [
        (PHASES.get(phase, phase), seconds[phase], seconds[phase] / all_s)
        for phase in sort_phases(seconds)
        if seconds[phase] > all_s / 1000
    ]
