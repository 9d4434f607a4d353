"""The documents of a measured split: ``metrics-<split>.json`` and ``intervals-<split>.json``.

Versions before and after this one may lack fields, and may have others. So every field that not all
of them write has a default, and unknown ones are kept. The fields have the order of the keys
in the files. `nip_core.evaluation.metrics.evaluate` computes the figures, and defines each of
them; `nip_core.stages.measuring` calls it and writes the documents. `nip_core.records.iterations`
reads them for all who show them: summary and report (`nip_core.showing.summary`), tables
(`run_tables` beside it), the viewer, trackers and sweeps.
"""

from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_serializer,
)

Interval95 = tuple[StrictFloat, StrictFloat]


class Figures(BaseModel):
    """A document of figures, or a part of one."""

    # Fields of a later version stay where a document is read and written again, as in the
    # blocks of finished iterations.
    # Built at the first use: most of these kinds are parts of another one, which has its own.
    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    def as_json(self) -> dict[str, Any]:
        """Encode the figures as they stand in a file: absent keys stay absent."""
        return self.model_dump(mode="json", exclude_unset=True)


BREAKDOWNS = ("by_difficulty", "by_mutation", "by_tool_calls")


class AgentMeasures(Figures):
    """The figures of one agent."""

    mean_reward: StrictFloat | None = None
    mean_reward_ci95: Interval95 | None = None
    std_reward: StrictFloat | None = None
    generations: StrictInt | None = None
    retry_rate: StrictFloat | None = None
    retry_rate_ci95: Interval95 | None = None
    token_limit_rate: StrictFloat | None = None
    token_limit_rate_ci95: Interval95 | None = None
    prompt_tokens: StrictInt | None = None
    completion_tokens: StrictInt | None = None
    by_rule: StrictInt | None = None
    tool_calls: StrictInt | None = None


class Measures(Figures):
    """The figures of some episodes, and of the generations that they are made of."""

    episodes: StrictInt | None = None
    distinct_problems: StrictInt | None = None
    accuracy: StrictFloat | None = None
    accuracy_ci95: Interval95 | None = None
    completeness: StrictFloat | None = None
    completeness_ci95: Interval95 | None = None
    soundness: StrictFloat | None = None
    soundness_ci95: Interval95 | None = None
    precision: StrictFloat | None = None
    precision_ci95: Interval95 | None = None
    acceptance_rate: StrictFloat | None = None
    acceptance_rate_ci95: Interval95 | None = None
    neither_rate: StrictFloat | None = None
    neither_rate_ci95: Interval95 | None = None
    no_decision_rate: StrictFloat | None = None
    no_decision_rate_ci95: Interval95 | None = None
    terminated_rate: StrictFloat | None = None
    terminated_rate_ci95: Interval95 | None = None
    failed_rate: StrictFloat | None = None
    failed_rate_ci95: Interval95 | None = None
    mean_decision_value: StrictFloat | None = None
    mean_decision_value_ci95: Interval95 | None = None
    always_fail_rate: StrictFloat | None = None
    always_fail_rate_ci95: Interval95 | None = None
    worst_problem_accuracy: StrictFloat | None = None
    agreement: StrictFloat | None = None
    agreement_ci95: Interval95 | None = None
    mean_rounds: StrictFloat | None = None
    mean_rounds_ci95: Interval95 | None = None
    generations: StrictInt | None = None
    retry_rate: StrictFloat | None = None
    retry_rate_ci95: Interval95 | None = None
    token_limit_rate: StrictFloat | None = None
    token_limit_rate_ci95: Interval95 | None = None
    prompt_tokens: StrictInt | None = None
    completion_tokens: StrictInt | None = None
    agents: dict[str, AgentMeasures] = Field(default_factory=dict)

    @property
    def rates(self) -> dict[str, float | None]:
        """Give by name the three rates of a verifier."""
        return {
            "accuracy": self.accuracy,
            "completeness": self.completeness,
            "soundness": self.soundness,
        }


class AcceptanceMeasures(Figures):
    """The figures of the verdicts' P(accept), see `acceptance_figures`."""

    episodes: StrictInt
    """How many have one: the others are in none of these figures."""
    mean_if_right: StrictFloat | None = None
    """The mean of right solutions."""
    mean_if_right_ci95: Interval95 | None = None
    mean_if_wrong: StrictFloat | None = None
    mean_if_wrong_ci95: Interval95 | None = None
    brier: StrictFloat | None = None
    """The mean squared distance to the label: 0 is perfect, always one half gives 0.25."""
    brier_ci95: Interval95 | None = None
    calibration_error: StrictFloat | None = None
    """The mean distance, in tenths of the range, between what was said and how often it was so."""
    auroc: StrictFloat | None = None
    """How often a right solution has a higher one than a wrong one."""


class BatchMetrics(Measures):
    """The figures of a batch, with breakdowns, which blocks of records leave out."""

    by_difficulty: dict[str, Measures] = Field(default_factory=dict)
    by_mutation: dict[str, Measures] = Field(default_factory=dict)
    by_tool_calls: dict[str, Measures] = Field(default_factory=dict)
    """By the number of calls in an episode; absent where nobody has called a tool."""

    @model_serializer(mode="wrap")
    def _leave_out_no_calls(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Documents of before there were tools stay as they are.
        values: dict[str, Any] = write(self)
        if not self.by_tool_calls:
            values.pop("by_tool_calls", None)
        return values


class BelievedMetrics(BatchMetrics):
    """The figures of a verifier that believes the prover."""

    without_prover: StrictInt | None = None
    """Episodes that are left out; None where an earlier version counted them as wrong."""

    def without_breakdowns(self) -> Self:
        """Leave out the breakdowns: no page shows them."""
        whole = self.model_dump(exclude_unset=True, exclude={*BREAKDOWNS})
        return self.model_validate(whole)


class AnyOfRow(Figures):
    """The figures of a verifier that plays a problem `k` times and rejects where any play does."""

    k: StrictInt
    accuracy: StrictFloat | None = None
    accuracy_ci95: Interval95 | None = None
    completeness: StrictFloat | None = None
    completeness_ci95: Interval95 | None = None
    soundness: StrictFloat | None = None
    soundness_ci95: Interval95 | None = None
    prompt_tokens: StrictFloat | None = None
    """Of all agents, a problem, in the mean; None where the generations were not at hand."""
    generated_tokens: StrictFloat | None = None


class Opponent(Figures):
    """An earlier model, or another run's, and the agent that it played."""

    opponent: StrictStr | None = None
    """The agent, or those of another run with "+" between them; None: all had present models."""
    opponent_iteration: StrictInt | None = None
    """The first iteration that the model has played; of another run, the iteration there."""
    opponent_run: StrictStr | None = None
    """The other run; None: this one."""
    model: StrictStr | None = None


class OpponentMetrics(BatchMetrics, Opponent):
    """The figures of the episodes that were played with one opponent."""


class InvalidCounts(Figures):
    """How many answers had no valid form."""

    first_answers: StrictInt
    """The first answers of turns, valid or not."""
    invalid: StrictInt
    """Of these, the invalid ones."""
    by_reason: dict[str, int]
    """The invalid first answers, by the kinds of `nip_core.game.answers.reasons`."""
    invalid_in_all: StrictInt
    """Invalid answers, retries included."""


class InvalidAnswers(InvalidCounts):
    """The counts of a batch, and of each agent that has any."""

    agents: dict[str, InvalidCounts]


class LabelledSolutions(Figures):
    """The solutions that were written and labelled in play."""

    solutions: StrictInt
    seconds: StrictFloat
    slowest_s: StrictFloat
    kinds: dict[str, int]
    """How many of each kind, as their tests say."""
    workers: StrictInt
    """How many were labelled at a time."""


class RateBound(Figures):
    """The bound of a rate of 0 or 1, from no opposite case in so many questions."""

    questions: StrictInt
    at_most: StrictFloat | None
    """The highest share of exceptions that is possible, 95 %, one-sided."""


class Baselines(Figures):
    """The baselines that a test is held against."""

    believe_the_prover: BelievedMetrics | None = None
    any_of: tuple[AnyOfRow, ...] | None = None
    """None where no problem was played more than once."""


class SplitMetrics(BatchMetrics):
    """``metrics-<split>.json``; the last three fields are added for showing."""

    believe_the_prover: BelievedMetrics | None = None
    majority: BatchMetrics | None = None
    p_accept_figures: AcceptanceMeasures | None = None
    """Absent where no verdict has a P(accept)."""
    by_opponent: tuple[OpponentMetrics, ...] = ()
    invalid_answers: InvalidAnswers | None = None
    problems_left_out: StrictInt | None = None
    rollouts: StrictStr | None = None
    """The canonical digest of the rollouts that were measured."""
    labels: LabelledSolutions | None = None
    any_of: tuple[AnyOfRow, ...] | None = None
    questions: StrictInt | None = None
    bounds: dict[str, RateBound] = Field(default_factory=dict)
    """By rate, where it is 0 or 1."""

    @property
    def believed_accuracy(self) -> float | None:
        """Look up how often a believer of the prover would be right."""
        return None if self.believe_the_prover is None else self.believe_the_prover.accuracy


class SplitIntervals(Figures):
    """``intervals-<split>.json``."""

    questions: StrictInt
    """How many questions the problems are variants of."""
    intervals: dict[str, JsonValue]
    """The intervals that are others by question, at their places in the metrics."""
    bounds: dict[str, RateBound]
    baselines: Baselines | None = None
    """None in documents of versions that wrote none."""
    rollouts: StrictStr | None = None


class PairedDifference(Figures):
    """How much better the second of two batches is on the same problems."""

    difference: StrictFloat | None
    ci95: Interval95 | None
    problems: StrictInt
    questions: StrictInt | None = None
    p: StrictFloat | None = None
    """Of no difference, below 0.05 exactly if the interval excludes 0 (see `statistics.paired`; of
    an earlier version McNemar's exact one); None where it can't be said."""
    because: StrictStr | None = None
    """Why there is no difference."""
