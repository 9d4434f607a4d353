"""The document ``results.json`` of a sweep, part by part.

SweepResults      all of it: arms, runs, baselines, and what came of a declaration
RunResult         a run with its tests and the attacks on it
ArmResult         the runs of an arm, summed up
BaselineFindings  what the baselines among the arms say of the others
ArmDifferences    each arm less the first, which nobody declared
HypothesisOutcome what came of a hypothesis
OverRuns          a figure of several runs; `sum_up` makes it

The order of the fields is that of the keys in the file. A field that is not set has no key there,
so results of earlier versions, which knew less, can be read and written back as they are.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from nip_core.evaluation.split_metrics import AnyOfRow, Interval95
from nip_core.evaluation.statistics.two_way import TwoWay

MAJORITY = "majority_accuracy"
"""Where problems are played several times: of the verdict that is the more frequent."""

FINISHED = "finished"
NOT_BEGUN = "not begun"
DAMAGED = "damaged"
"""The status of a run that can't be read."""

Finding = Literal["shown", "contradicted", "not shown", "not tested"]


def _is_none(value: object) -> bool:
    return value is None


class Part(BaseModel):
    """A document about a sweep, or a part of one."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def as_json(self) -> dict[str, Any]:
        """Encode the document as it stands in a file, without the keys of fields not set."""
        return self.model_dump(exclude_unset=True)


class OverRuns(Part):
    """A figure of several runs."""

    mean: float
    lowest: float
    highest: float
    ci95: Interval95 | None = Field(default=None, exclude_if=_is_none)
    """Of the mean, over seeds and questions; no key where nothing shows the spread."""


def sum_up(values: Iterable[float | None], both_ways: TwoWay | None = None) -> OverRuns | None:
    """Average a figure over runs; None where no run has it.

    `both_ways` is the same mean over seeds and questions, for its interval: that of a rate.
    """
    measured = [value for value in values if value is not None]
    if not measured:
        return None
    interval = None if both_ways is None else both_ways.ci95
    return OverRuns(
        mean=sum(measured) / len(measured),
        lowest=min(measured),
        highest=max(measured),
        ci95=None if interval is None else clip_interval(interval),
    )


def clip_interval(interval: Interval95, lowest: float = 0.0) -> Interval95:
    """Cut an interval to [`lowest`, 1], the range of rates, or of differences between rates."""
    # With few seeds Student's t reaches beyond what a rate can be.
    return max(lowest, interval[0]), min(1.0, interval[1])


class SweptTest(Part):
    """A test of a run of a sweep."""

    iteration: int
    accuracy: float | None = None
    completeness: float | None = None
    soundness: float | None = None
    always_fail_rate: float | None = None
    majority_accuracy: float | None = None
    any_of: tuple[AnyOfRow, ...] | None = None
    """By the number of plays; None where no problem was played more than once."""
    believed_accuracy: float | None = None
    """What believing the prover would give."""
    without_prover: int | None = None
    """Episodes that this leaves out, as no prover had spoken."""
    shows_checking: bool | None = None
    """Whether the verifier was right more often than that; None where it can't be said."""
    episodes: int | None = None
    distinct_problems: int | None = None
    generated_tokens: float | None = None
    """Of all agents, an episode, in the mean."""
    prompt_tokens: float | None = None


class AttackResult(Part):
    """An attack on a run. What follows the failure has keys where the attack is finished."""

    run: str
    status: str
    failure: str | None = Field(default=None, exclude_if=_is_none)
    soundness: float | None = None
    """With the largest n, or after the last tested step; so is what follows."""
    completeness: float | None = None
    fooled: int | None = None
    """Wrong solutions that were accepted."""
    lost_to_lying: float | None = None
    lost_to_training: float | None = None
    caution: str | None = None
    """Why the attack shows less than it seems to."""
    verdict: str | None = Field(default=None, exclude_if=_is_none)
    """How an attack that goes on to a plateau ended; no key for any other."""
    is_apart: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether it plays other problems than the run's own tests."""


class RunResult(Part):
    """A run of a sweep."""

    run: str
    values: Mapping[str, str]
    """By axis."""
    status: str
    failure: str | None = Field(default=None, exclude_if=_is_none)
    """Why it did not end, or can't be read."""
    tests: tuple[SweptTest, ...] | None = Field(default=None, exclude_if=_is_none)
    """No key for a run that has not begun, or can't be read."""
    attacks: Mapping[str, AttackResult] = Field(default={}, exclude_if=lambda value: not value)
    """By their names in the sweep's file."""

    @property
    def last_test(self) -> SweptTest | None:
        """Return the last test of a finished run; None for any other run."""
        return self.tests[-1] if self.status == FINISHED and self.tests else None


class AskedAgainRow(Part):
    """The runs of an arm with `k` plays of each problem: any rejecting play rejects."""

    k: int
    soundness: OverRuns | None
    completeness: OverRuns | None
    generated_tokens: float
    """A problem, in the mean."""
    prompt_tokens: float


class AskedAgainTest(Part):
    """The same by `k`, in one test of the arm's runs."""

    iteration: int
    rows: tuple[AskedAgainRow, ...]


class ArmAttack(Part):
    """What an attack did to the runs of an arm."""

    runs: int
    finished: int
    soundness: OverRuns | None = None
    completeness: OverRuns | None = None
    lost_to_lying: OverRuns | None = None
    lost_to_training: OverRuns | None = None

    @property
    def rates(self) -> dict[str, OverRuns | None]:
        """Return what the attack left of the verifier, by the names of the table."""
        return {"soundness": self.soundness, "completeness": self.completeness}

    @property
    def losses(self) -> dict[str, OverRuns | None]:
        """Return by what soundness was lost, by the names of the table."""
        return {"lost to lying": self.lost_to_lying, "lost to training": self.lost_to_training}


class ArmResult(Part):
    """The runs of an arm: they differ in the seed alone. Figures are those of their last tests."""

    values: Mapping[str, str]
    """By axis, without the seed."""
    runs: int
    finished: int
    accuracy: OverRuns | None = None
    completeness: OverRuns | None = None
    soundness: OverRuns | None = None
    always_fail_rate: OverRuns | None = None
    majority_accuracy: OverRuns | None = None
    gain: OverRuns | None = None
    """Of accuracy, from the first test to the last."""
    generated_tokens: OverRuns | None = None
    prompt_tokens: OverRuns | None = None
    any_of: tuple[AskedAgainTest, ...] = ()
    """The first test and the last; () where no problem is played again."""
    attacks: Mapping[str, ArmAttack] = Field(default={}, exclude_if=lambda value: not value)

    @property
    def name(self) -> str:
        """Return the arm's values in a row."""
        return " ".join(self.values.values())

    @property
    def figures(self) -> dict[str, OverRuns | None]:
        """Return what an arm is judged by, by name."""
        return {
            "accuracy": self.accuracy,
            "completeness": self.completeness,
            "soundness": self.soundness,
            "always_fail_rate": self.always_fail_rate,
            MAJORITY: self.majority_accuracy,
        }


class BaselineComparison(Part):
    """An arm beside a baseline on the same problems."""

    arm: str
    baseline: str
    kind: Literal["alone", "random", "shuffled", "voted"]
    rates: tuple[float | None, float | None]
    """The accuracy of both."""
    difference: float | None
    ci95: Interval95 | None
    p: float | None
    outcome: Finding
    because: str | None = Field(default=None, exclude_if=_is_none)
    """Why they were not compared."""


class VerifierAlone(Part):
    """An arm without provers, beside how often its verifier could be right by itself."""

    arm: str
    accuracy: float
    ci95: Interval95
    rate_alone: float
    is_above: bool


class ProverBelieved(Part):
    """An arm beside what believing its provers would give."""

    arm: str
    runs: int
    more_often: int
    """The runs whose verifier was right more often than that."""
    believed: float
    """The accuracy of believing, in the mean over runs."""
    without_prover: int | None = None
    """Episodes in which no prover spoke, of all `episodes`."""
    episodes: int | None = None


class AttackedRates(Part):
    """What an attack left of an arm."""

    soundness: OverRuns | None
    completeness: OverRuns | None


class AskedAgainAt(Part):
    """A baseline asked `k` times, in one of its tests."""

    iteration: int
    k: int
    soundness: OverRuns | None
    completeness: OverRuns | None
    generated_tokens: float
    prompt_tokens: float


class AtEqualTokens(Part):
    """An arm beside a verifier alone, asked again at no more generated tokens."""

    arm: str
    baseline: str
    k: int
    generated_tokens: tuple[float, float]
    """Of the arm, and of the baseline with `k` plays."""
    soundness: OverRuns | None
    """Of the arm."""
    completeness: OverRuns | None
    attacked: Mapping[str, AttackedRates]
    """By the names of the sweep's attacks, of the arm."""
    any_of: tuple[AskedAgainAt, ...]
    """Of the baseline, untrained and trained."""


class BaselineFindings(Part):
    """What the baselines among the arms of a sweep say of the others."""

    compared: tuple[BaselineComparison, ...] = ()
    alone: tuple[VerifierAlone, ...] = ()
    believed: tuple[ProverBelieved, ...] = ()
    any_of: tuple[AtEqualTokens, ...] = ()


class SeedsNeeded(Part):
    """How many seeds show a difference at 80 % power, as it varied with those that were played."""

    for_this: int | None
    """For the difference that was seen; None where no number is enough with these questions."""
    for_five_points: int | None
    """For a difference of 5 points, in the same way."""


class ArmDifference(Part):
    """A figure of an arm less that of the first arm, paired by seed and question."""

    arm: str
    figure: str
    after: str | None = None
    """The attack after which it is measured; None: the runs' own tests."""
    rates: tuple[float | None, float | None]
    """Of the arm, and of the first one, over the same seeds."""
    difference: float | None
    ci95: Interval95 | None
    pairs: int
    """Seeds that are finished and tested in both arms."""
    questions: int | None
    p: float | None
    p_holm: float | None
    """Adjusted for all comparisons of the table."""
    seeds_needed: SeedsNeeded | None
    """None where nothing shows how much it varies with the seed."""
    because: str | None = Field(default=None, exclude_if=_is_none)
    """Why there is no difference, or no interval of it."""


class ArmDifferences(Part):
    """Each arm of a sweep less the first one: comparisons that were not declared."""

    first: str
    compared: tuple[ArmDifference, ...]
    declared: int
    """Further ones that were declared; `DeclaredResults` has them."""


class HypothesisOutcome(Part):
    """What came of a hypothesis."""

    says: str
    primary: bool
    figure: str
    after: str | None
    rates: tuple[float | None, float | None]
    """Of both arms, or of the arm and the number in the place of the other."""
    difference: float | None
    ci95: Interval95 | None
    pairs: int
    """Of runs that are finished and tested; against a number, so many runs."""
    questions: int | None
    p: float | None
    """Two-sided; of a number that is to be above or below, one-sided."""
    p_holm: float | None
    alpha: float
    margin: float | None = Field(default=None, exclude_if=_is_none)
    """Of an equality, in which the difference is to lie on both sides of 0."""
    interval_of_tests: Interval95 | None = Field(default=None, exclude_if=_is_none)
    """Of an equality the interval of 1 - 2 alpha: both one-sided tests hold where it lies within
    the margin."""
    number: float | None = Field(default=None, exclude_if=_is_none)
    """What the arm is compared with, where that is no arm."""
    trials: float | None = Field(default=None, exclude_if=_is_none)
    """Against a number, how many independent trials the verdicts are worth."""
    at_most: float | None = Field(default=None, exclude_if=_is_none)
    """Of an arm that is to be lower than a number, what its rate is at most, at 1 - alpha."""
    at_least: float | None = Field(default=None, exclude_if=_is_none)
    """Of one that is to be higher, what it is at least."""
    gate: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether no other was tested unless this one is shown."""
    worst: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)
    """By run the attack that left the least, where that one counts."""
    outcome: Finding
    because: str | None = Field(default=None, exclude_if=_is_none)
    """Why it was not tested."""


class DeclaredResults(Part):
    """What was declared of a sweep, and what came of it."""

    sha256: str
    declared_at: str
    code_version: str
    stopping: str
    outcomes: tuple[HypothesisOutcome, ...]
    departures: tuple[str, ...]
    """What is not as declared, a line each."""


class CellsWritten(Part):
    """What is in ``cells.parquet``."""

    verdicts: int
    left_out: tuple[str, ...]
    """What could not be read, a sentence each."""


class SweepResults(Part):
    """The results of a sweep."""

    sweep: str
    axes: tuple[str, ...]
    arms: tuple[ArmResult, ...]
    runs: tuple[RunResult, ...]
    baselines: BaselineFindings
    differences: ArmDifferences | None = Field(default=None, exclude_if=_is_none)
    """No key with a single arm."""
    declared: DeclaredResults | None = Field(default=None, exclude_if=_is_none)
    """No key where nothing was declared."""
    cells: CellsWritten | None = Field(default=None, exclude_if=_is_none)
    """No key in results of versions that wrote none."""

    @property
    def attacks(self) -> list[AttackResult]:
        """Return the attacks on all runs."""
        return [attack for run in self.runs for attack in run.attacks.values()]

    @property
    def played(self) -> list[RunResult | AttackResult]:
        """Return each run with the attacks on it behind it."""
        entries: list[RunResult | AttackResult] = []
        for run in self.runs:
            entries += [run, *run.attacks.values()]
        return entries
