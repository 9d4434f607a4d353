"""The runs of a sweep for whoever compares arms: from its file, or from its results.

PlannedSweep  a sweep's runs, with its axes and attacks
PlannedRun    one of its runs

`Sweep` of `swept_runs` and `SweepFacts` of `swept_facts` are such sweeps.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol


class PlannedRun(Protocol):
    """A run of a sweep: its place in the table, and its settings."""

    @property
    def name(self) -> str:
        """Return the run's name."""
        ...

    @property
    def values(self) -> Mapping[str, str]:
        """Return its value on each axis."""
        ...

    @property
    def attacked_by(self) -> tuple[str, ...]:
        """Return the names of the attacks on it, in the order of the file."""
        ...

    @property
    def tested_by(self) -> tuple[str, ...]:
        """Return the names of those of them that play the problems of its own tests."""
        ...

    @property
    def problems(self) -> tuple[str, str]:
        """Return its scenario and its dataset."""
        ...

    def name_after(self, attack: str | None) -> str | None:
        """Return the name of this run, or of an attack on it; None without such an attack."""
        ...


class PlannedSweep(Protocol):
    """A sweep's runs, with its axes and attacks."""

    @property
    def name(self) -> str:
        """Return the sweep's name."""
        ...

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the names of its axes."""
        ...

    @property
    def attacks(self) -> tuple[str, ...]:
        """Return the names of its attacks."""
        ...

    @property
    def runs(self) -> Sequence[PlannedRun]:
        """Return its runs, in the order of the file."""
        ...

    @property
    def arms(self) -> Mapping[tuple[str, ...], Sequence[PlannedRun]]:
        """Return the runs of each arm."""
        ...
