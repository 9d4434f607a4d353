"""The runs of a sweep for whoever compares arms: from its file, or from its results.

`Sweep` of `swept_runs` and `SweepFacts` of `swept_facts` are such sweeps.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

SEED = "seed"
"""The axis whose values are repetitions: runs that differ in it alone are an arm."""


class NamedAttack(Protocol):
    """An attack on a run of a sweep; it is a run of its own."""

    @property
    def label(self) -> str:
        """Return its name in the sweep's file."""

    @property
    def name(self) -> str:
        """Return the name of its run."""


class PlannedRun(Protocol):
    """A run of a sweep: its place in the table, and its settings."""

    @property
    def name(self) -> str:
        """Return the run's name."""

    @property
    def values(self) -> Mapping[str, str]:
        """Return its value on each axis."""

    @property
    def attacks(self) -> Sequence[NamedAttack]:
        """Return the attacks on it, in the order of the file."""

    @property
    def tested_by(self) -> tuple[str, ...]:
        """Return the names of those of them that play the problems of its own tests."""

    @property
    def problems(self) -> tuple[str, str]:
        """Return its scenario and its dataset."""


class PlannedSweep(Protocol):
    """A sweep's runs, with its attacks."""

    @property
    def attacks(self) -> tuple[str, ...]:
        """Return the names of its attacks."""

    @property
    def runs(self) -> Sequence[PlannedRun]:
        """Return its runs, in the order of the file."""

    @property
    def arms(self) -> Mapping[tuple[str, ...], Sequence[PlannedRun]]:
        """Return the runs of each arm."""


_Run = TypeVar("_Run", bound=PlannedRun)


def group_by_arm(runs: Iterable[_Run]) -> dict[tuple[str, ...], list[_Run]]:
    """Group runs by their values but the seed: runs of an arm repeat each other."""
    arms: dict[tuple[str, ...], list[_Run]] = {}
    for run in runs:
        arm = tuple(value for axis, value in run.values.items() if axis != SEED)
        arms.setdefault(arm, []).append(run)
    return arms


def find_attack(run: PlannedRun, label: str | None) -> str | None:
    """Return the name of the run, or of the attack `label` on it; None without such an attack."""
    if label is None:
        return run.name
    return next((attack.name for attack in run.attacks if attack.label == label), None)
