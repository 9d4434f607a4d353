"""Hypotheses of a plan: their statements on arms, and the runs that they are about.

Hypothesis     a statement about two arms, or about one and a number
list_compared  the runs that it is about
pair_runs      the runs of two arms, two by two
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nip_core.errors import SettingsError
from nip_study.parts.counted import WORST, Balance, Figure
from nip_study.parts.document_parts import is_none
from nip_study.plan.planned import PlannedRun, PlannedSweep
from nip_study.plan.swept_runs import as_text

Rate = Annotated[float, Field(ge=0, le=1)]
Arm = Annotated[dict[str, str | int | float | bool | None], Field(min_length=1)]


class Hypothesis(BaseModel):
    """A statement about the difference of two arms, or of one and a number, and its test."""

    model_config = ConfigDict(extra="forbid", strict=True)

    says: Annotated[str, Field(min_length=1)]
    """In words."""
    figure: Figure
    """Of the last test of each run."""
    after: str | Annotated[list[str], Field(min_length=1)] | None = None
    """The attack after which the figure and `where` are measured; "worst": of each run the test of
    an attack that left the least soundness; a list: of these attacks alone, where "held_out" stands
    for all that are held out; None: the runs' own tests."""
    balanced: Balance | None = Field(default=None, exclude_if=is_none)
    """After an attack, with whose play completeness is counted, in ``completeness``, ``accuracy``
    and `where`: "honest", the run's own test, or "attacked", the attacker's. None: honest; in what
    was declared before there was a choice, attacked."""
    arm: Arm
    """Values of axes: all runs that have them."""
    against: Arm | Rate
    """The runs that they are compared with, each with the one that has all other values alike; or a
    number in their place, such as the rate that a theorem gives."""
    any_of: Annotated[int, Field(ge=1)] | None = Field(default=None, exclude_if=is_none)
    """The arm in `against` is a verifier alone, asked so often: it rejects where any of so many
    plays of its last test does; 1 is a verdict at a time, averaged over plays. No agent can attack
    it, so `after` is about `arm` alone."""
    expected: Literal["higher", "lower", "equal"]
    """Of `arm`, as against `against`."""
    margin: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Of a rate: a difference that is smaller counts as none. For "equal" alone."""
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Of all hypotheses of its kind (primary or not) together, by Holm's method."""
    where: dict[Figure, Rate] = Field(default_factory=dict)
    """The least rates of both arms (with a number: of the one), or nothing is said of the
    hypothesis."""
    primary: bool = False
    """Exactly one of a plan is."""
    # A plan without one is the plan that earlier versions declared, to the digest.
    gate: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether all others are tested only if this one, the primary one, is shown."""

    @field_validator("against", mode="before")
    @classmethod
    def _check_against(cls, value: object) -> object:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not isinstance(value, Mapping) and not is_number:
            raise ValueError(f"give values of axes, or a number from 0 to 1 (got {value!r})")
        if isinstance(value, int | float) and not 0 <= value <= 1:
            raise ValueError(f"a rate is from 0 to 1, as 0.875 for 87.5 % (got {value})")
        return value

    @model_validator(mode="after")
    def _check_margin(self) -> "Hypothesis":
        if (self.expected == "equal") != (self.margin is not None):
            raise ValueError('a margin belongs to expected: "equal", and to nothing else')
        if self.balanced is not None and self.after is None:
            raise ValueError(
                f"balanced: {self.balanced} says how an attacked figure is counted; name the "
                "attack in after, or leave balanced out"
            )
        if self.any_of is not None and self.number is not None:
            raise ValueError(f"any_of: a number is not asked again (against: {self.number:g})")
        if (self.expected, self.number) in (("lower", 0), ("higher", 1)):
            raise ValueError(f"no rate is {self.expected} than {self.number:g}")
        return self

    @property
    def is_of_worst(self) -> bool:
        """Return whether the figure is after the worst of several attacks on each run."""
        return self.after == WORST or isinstance(self.after, list)

    @property
    def number(self) -> float | None:
        """Return the number that the arm is compared with; None where that is an arm."""
        return None if isinstance(self.against, Mapping) else float(self.against)


def list_compared(sweep: PlannedSweep, hypothesis: Hypothesis) -> Sequence[tuple[PlannedRun, ...]]:
    """List the pairs of runs of a hypothesis; against a number, the runs of its arm by themselves.

    Raises SettingsError as `pair_runs` does.
    """
    if isinstance(hypothesis.against, Mapping):
        return pair_runs(sweep, hypothesis.arm, hypothesis.against)
    return [(run,) for run in _runs_with(sweep, hypothesis.arm)]


def pair_runs(sweep: PlannedSweep, arm: Arm, against: Arm) -> list[tuple[PlannedRun, PlannedRun]]:
    """Pair the runs of both arms; two of a pair differ in nothing but the arm.

    Raises SettingsError for an arm that no run has, or a run without its counterpart.
    """
    compared = {*arm, *against}
    arms = [_runs_with(sweep, one) for one in (arm, against)]
    by_rest = [
        {tuple(v for axis, v in run.values.items() if axis not in compared): run for run in runs}
        for runs in arms
    ]
    if any(len(rests) < len(runs) for rests, runs in zip(by_rest, arms, strict=True)):
        raise SettingsError(
            f"name the same axes in arm and against (got {', '.join(arm)} and {', '.join(against)})"
        )
    if by_rest[0].keys() != by_rest[1].keys():
        lone_keys = by_rest[0].keys() ^ by_rest[1].keys()
        lone_names = ", ".join(sorted(" ".join(other_values) for other_values in lone_keys))
        raise SettingsError(
            f"arm and against must have the same other values (unpaired: {lone_names})"
        )
    if arms[0] == arms[1]:
        raise SettingsError("arm and against are the same runs")
    return [(by_rest[0][other_values], by_rest[1][other_values]) for other_values in by_rest[0]]


def _runs_with(sweep: PlannedSweep, arm: Arm) -> list[PlannedRun]:
    """Find the runs with these values. Raises SettingsError for a value or an axis not there."""
    for axis, value in arm.items():
        values = list(dict.fromkeys(run.values.get(axis) for run in sweep.runs))
        if as_text(value) not in values:
            detail = f"values are {', '.join(map(str, values))}" if any(values) else "no such axis"
            raise SettingsError(f"{axis}: {value!r}: {detail}")
    texts = {axis: as_text(value) for axis, value in arm.items()}
    return [run for run in sweep.runs if texts.items() <= run.values.items()]
