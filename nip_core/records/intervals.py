"""Figures of a committed split beside its metrics: intervals by question, and baselines.

read_shown_metrics  metrics with these intervals in the place of their own, and with baselines
measure_intervals   from the rollouts of a split, with `measure_baselines`
combine_metrics     the same, from both documents
find_split_columns  the columns by which the scenario of some settings splits problems
find_claims_on_record  the claims of its messages, and the agents that make them
find_rate_alone     how often their verifier would be right alone, where the scenario knows it
find_facets         how their scenario calls difficulty and mutation
find_help_on_record  the help that the agents of its settings have to keep the form

``intervals-<split>.json`` has the differences from ``metrics-<split>.json``, in which intervals
take problems as independent: none where each question has one problem that is played once. A test
is compared with its ``baselines``. Those of ``metrics-<split>.json``, which keep the count that
they had, give way to them.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from nip_core.evaluation.interval_parts import pick_intervals, replace_intervals
from nip_core.evaluation.invalid import NO_HELP, Help, find_help
from nip_core.evaluation.split_metrics import Baselines, RateBound, SplitIntervals, SplitMetrics
from nip_core.parameters.stored import read_settings
from nip_core.protocols import make_protocol
from nip_core.run_store.run import RunStore, read_document
from nip_core.scenarios import Scenario, find_scenario, make_scenario

if TYPE_CHECKING:  # Arrow and NumPy: a run that has its documents is shown without them
    import pyarrow as pa

    from nip_core.report.measured_rows import MeasuredRows


def read_shown_metrics(
    run: RunStore, iteration: int, split: str, metrics: SplitMetrics
) -> SplitMetrics:
    """Give the metrics of a split with the intervals and baselines that `combine_metrics` adds."""
    document = read_document(run, run.intervals(iteration, split), SplitIntervals)
    return metrics if document is None else combine_metrics(metrics, document)


def combine_metrics(metrics: SplitMetrics, document: SplitIntervals) -> SplitMetrics:
    """Put the intervals and the baselines of the document into the metrics.

    ``questions`` is how many there are, and ``bounds`` says by rate, where it is 0 or 1, the
    highest share of exceptions that so many questions without one leave possible.
    """
    figures = replace_intervals(metrics.as_json(), document.intervals)
    baselines = {} if document.baselines is None else document.baselines.as_json()
    return SplitMetrics.model_validate(
        {**figures, **baselines, "questions": document.questions, "bounds": document.bounds}
    )


def find_split_columns(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """List the columns by which the scenario of these settings splits problems; () if it is not
    here.
    """
    try:
        return tuple(find_scenario(parameters["scenario"]).split_by)
    # A user's module that has been changed or is gone raises any error. Figures are shown all the
    # same; then only the problems of one question count together, not those of one passage.
    except Exception:
        return ()


def find_rate_alone(parameters: Mapping[str, Any]) -> float | None:
    """Return `Scenario.rate_alone` for a game without provers on problems drawn by the scenario.

    None for other games and datasets, and where the scenario does not know it.
    """
    try:
        settings = read_settings(parameters)
        scenario = make_scenario(settings)
        if make_protocol(settings).provers or settings.dataset not in scenario.generated:
            return None
        return scenario.rate_alone()
    # Any error of a user's module, or settings of another version: a remark less is shown.
    except Exception:
        return None


def find_facets(parameters: Mapping[str, Any]) -> tuple[str, str]:
    """Return `Scenario.facets` of recorded settings; nip's own where the scenario is not here."""
    try:
        difficulty, mutation = find_scenario(str(parameters["scenario"])).facets
        return str(difficulty), str(mutation)
    except Exception:  # any error of a user's module
        return Scenario.facets


def find_help_on_record(parameters: Mapping[str, Any]) -> Help:
    """Return the `Help` with the form of answers that a run's recorded settings allow its agents.

    Returns `NO_HELP` if these settings can't be read.
    """
    try:
        return find_help(read_settings(parameters))
    # Settings of another version, or a user's module that is gone: some advice less is shown.
    except Exception:
        return NO_HELP


def find_claims_on_record(
    parameters: Mapping[str, Any],
) -> tuple[Mapping[str, int], Collection[str]] | None:
    """Return the labels of a game's claims, and the agents that make them; None without it."""
    try:
        settings = read_settings(parameters)
        return make_scenario(settings).claims, make_protocol(settings).provers
    # Any error of a user's module, or settings of another version: the baselines then stay as
    # they were measured.
    except Exception:
        return None


def measure_baselines(
    rollouts: "MeasuredRows", metrics: SplitMetrics, seed: int, split_by: Sequence[str]
) -> Baselines:
    """Measure the baselines that these metrics have, as they are shown, without breakdowns."""
    from nip_core.evaluation.any_of import any_of
    from nip_core.evaluation.spread import find_questions

    baselines: dict[str, Any] = {}
    # Where the test has the counterpart alone: one measured without has nothing to be compared.
    episodes = rollouts.episodes
    questions = find_questions(episodes, split_by)
    if metrics.believe_the_prover is not None:
        believed = rollouts.believe(questions=questions)
        baselines["believe_the_prover"] = believed.without_breakdowns()
    if metrics.majority is not None:
        generations = rollouts.read_generations()
        baselines["any_of"] = any_of(episodes, generations, seed=seed, questions=questions)
    return Baselines(**baselines)


def measure_intervals(
    rollouts: "MeasuredRows", metrics: SplitMetrics, seed: int, split_by: Sequence[str]
) -> SplitIntervals:
    """Measure, from a split's rollouts, the intervals that take its questions as independent."""
    from nip_core.evaluation.acceptance_figures import measure_acceptance
    from nip_core.evaluation.baseline_verifiers import majority
    from nip_core.evaluation.metrics import evaluate
    from nip_core.evaluation.spread import find_questions

    episodes = rollouts.episodes
    questions = find_questions(episodes, split_by)
    count = len({*questions.values()})
    intervals: dict[str, JsonValue] = {}
    if count < episodes.num_rows:  # else no question was tried twice
        by_question = evaluate(
            episodes, rollouts.read_generations(), seed=seed, questions=questions
        )
        intervals = pick_intervals(by_question.as_json(), metrics.as_json())
        voted = majority(episodes, seed=seed, questions=questions)
        if voted is not None and metrics.majority is not None:
            intervals["majority"] = pick_intervals(voted.as_json(), metrics.majority.as_json())
        if (acceptance := metrics.p_accept_figures) is not None:
            verdicts = rollouts.read_verdicts()
            likely = measure_acceptance(episodes, verdicts, seed=seed, questions=questions)
            picked = pick_intervals(likely.as_json() if likely else {}, acceptance.as_json())
            intervals |= {"p_accept_figures": picked} if picked else {}
    bounds = _bounds(episodes, metrics, questions)
    return SplitIntervals(questions=count, intervals=intervals, bounds=bounds)


def _bounds(
    episodes: "pa.Table", metrics: SplitMetrics, questions: Mapping[str, str]
) -> dict[str, RateBound]:
    from nip_core.evaluation.statistics.differences import at_most

    rows = list(zip(episodes["problem"].to_pylist(), episodes["y"].to_pylist(), strict=True))
    bounds = {}
    # Each rate with the label of the problems that it is about.
    rates = (
        ("accuracy", metrics.accuracy, None),
        ("completeness", metrics.completeness, 1),
        ("soundness", metrics.soundness, 0),
    )
    for name, rate, label in rates:
        # The interval of such a rate has no width, as if nothing else were possible.
        if rate in (0.0, 1.0):
            among = len({questions[problem] for problem, y in rows if label in (None, y)})
            bounds[name] = RateBound(questions=among, at_most=at_most(0, among))
    return bounds
