"""The document ``facts.json`` of a sweep: all that its results need beside the verdicts.

SweepFacts   a sweep: its axes, its runs, and what else is told of it
RunFacts     a run: its values and its game, whether it is finished, and what its tests took
AttackFacts  an attack on it
SweptGame    what is played: by that arms are compared, and baselines known

With ``cells.parquet`` and, where one was made, ``declaration.json`` it gives every figure again;
see `recompute`. No rate, no interval and no p-value is in it.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from nip_core.sweep.results_document import Part
from nip_core.sweep.swept_runs import SEED

FORMAT = 1
Kind = Literal["alone", "random", "shuffled"]
"""Of baselines: no provers, provers that say random things, labels drawn at random."""


class SweptGame(Part):
    """What a run plays."""

    scenario: str
    dataset: str
    protocol: str
    kind: Kind | None
    """Which baseline it is; None for any other game."""
    rate_alone: float | None
    """How often its verifier could be right alone; None where nobody knows."""


class SpentOnTest(Part):
    """What a test took, of all agents together."""

    iteration: int
    prompt_tokens: int | None
    generated_tokens: int | None


class AttackFacts(Part):
    """An attack on a run."""

    label: str
    """Its name in the sweep's file."""
    name: str
    """Of its run."""
    status: str
    failure: str | None
    iteration: int
    """Of its last test."""
    n: int | None
    """Of best-of-n the largest; None for other attacks."""
    attacked: int
    """The iteration whose models it attacks."""
    is_lying_known: bool
    """Whether it can be said what lying took: provers are told to, and the run had that test."""
    caution: str | None
    """Why it shows less than it seems to."""
    verdict: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """How one that goes on to a plateau ended."""
    is_apart: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether it plays other problems than the run's own tests."""


class RunFacts(Part):
    """A run of a sweep."""

    name: str
    values: Mapping[str, str]
    """By axis."""
    seed: int
    game: SweptGame
    status: str
    failure: str | None
    tests: tuple[SpentOnTest, ...] | None
    """None for a run that has not begun, or can't be read."""
    attacks: tuple[AttackFacts, ...]

    @property
    def arm(self) -> tuple[str, ...]:
        """Return its values but the seed: runs of an arm repeat each other."""
        return tuple(value for axis, value in self.values.items() if axis != SEED)

    @property
    def attacked_by(self) -> tuple[str, ...]:
        """Return the names of the attacks on it, in the order of the file."""
        return tuple(attack.label for attack in self.attacks)

    @property
    def tested_by(self) -> tuple[str, ...]:
        """Return the names of those of them that play the problems of its own tests."""
        return tuple(attack.label for attack in self.attacks if not attack.is_apart)

    @property
    def problems(self) -> tuple[str, str]:
        """Return its scenario and its dataset."""
        return self.game.scenario, self.game.dataset

    def name_after(self, attack: str | None) -> str | None:
        """Return the name of this run, or of an attack on it; None without such an attack."""
        if attack is None:
            return self.name
        return next((made.name for made in self.attacks if made.label == attack), None)


class SweepFacts(Part):
    """A sweep."""

    format: Literal[1]
    name: str
    axes: tuple[str, ...]
    attacks: tuple[str, ...]
    runs: tuple[RunFacts, ...] = Field(min_length=1)
    left_out: tuple[str, ...]
    """Which verdicts could not be read, a sentence each."""
    declaration: str | None
    """The SHA-256 that ``declaration.json`` names; None where nothing was declared."""
    departures: tuple[str, ...]
    """What is not as declared, a line each."""

    @property
    def arms(self) -> dict[tuple[str, ...], list[RunFacts]]:
        """Group the runs by their arms, in the order of the file."""
        arms: dict[tuple[str, ...], list[RunFacts]] = {}
        for run in self.runs:
            arms.setdefault(run.arm, []).append(run)
        return arms
