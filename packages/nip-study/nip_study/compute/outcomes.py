"""The outcomes of declared hypotheses: arms compared over seeds and questions, or with a number.

judge_hypotheses  a hypothesis each: the difference, its interval, its p-value, and the conclusion
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from nip_core.errors import SettingsError
from nip_core.evaluation.confidence_intervals import Interval
from nip_core.evaluation.statistics.clustered import Mean
from nip_core.evaluation.statistics.differences import Equivalence, equivalence
from nip_core.hashing import derive_seed
from nip_study.compute.given_rate import RateBounds, bound_rate
from nip_study.declare.hypotheses import Hypothesis, list_compared
from nip_study.documents.results_document import Finding, HypothesisOutcome
from nip_study.documents.swept_facts import RunFacts
from nip_study.parts.counted import (
    WORST,
    Counted,
    Counts,
    Figure,
    average_halves,
    average_runs,
    share_right,
    subtract_runs,
    weigh_alike,
)
from nip_study.parts.document_parts import adjust, clip_interval
from nip_study.parts.two_way import NO_ERROR, TwoWay, two_sided_p
from nip_study.plan.planned import PlannedRun, PlannedSweep


@dataclass(frozen=True)
class ArmsCompared:
    """Two arms, run by run."""

    rates: tuple[float | None, float | None] = (None, None)
    """Of both arms, or of the arm and the number."""
    difference: TwoWay | None = None
    pairs: int = 0
    """Of runs that are finished and tested; with a number, so many runs."""
    because: str | None = None
    """Why nothing can be said of the hypothesis."""
    worst: tuple[str, ...] = ()
    """By run, where the worst attack counts, which it is."""
    alone: tuple[float | None, float | None] | None = None
    """Where the other arm is a verifier alone: its rate untrained, and trained."""
    bounds: RateBounds | None = None
    """With a number: of the arm's rate, one-sided at 1 - alpha."""


def judge_hypotheses(
    counter: Counted, sweep: PlannedSweep, hypotheses: Sequence[Hypothesis]
) -> list[HypothesisOutcome]:
    """Compare the arms of each hypothesis, in their order.

    `counter` knows the runs that are finished. Differences are paired by run and question, their
    intervals and p-values count seeds and questions as drawn (`two_way`). p-values are adjusted
    after Holm among the hypotheses that are not primary. "shown", "contradicted" or "not shown"
    follow from them; "not tested" says why in ``because``. If one of them is the gate and is not
    shown, no other is tested.
    """
    compared = [_compare_arms(counter, sweep, hypothesis) for hypothesis in hypotheses]
    compared = _wait_for_gate(hypotheses, compared)
    p_values = [
        None if both.because else _p_value(hypothesis, both)
        for hypothesis, both in zip(hypotheses, compared, strict=True)
    ]
    adjusted = _adjust_p_values(hypotheses, p_values)
    return [
        _judge(hypothesis, both, p, p_holm)
        for hypothesis, both, p, p_holm in zip(
            hypotheses, compared, p_values, adjusted, strict=True
        )
    ]


def _wait_for_gate(
    hypotheses: Sequence[Hypothesis], compared: Sequence[ArmsCompared]
) -> list[ArmsCompared]:
    """Leave all but the gate untested where there is one and it is not shown."""
    for gate, both in zip(hypotheses, compared, strict=True):
        if not gate.gate:
            continue
        # It is the primary one, so its p-value is not adjusted.
        p = None if both.because else _p_value(gate, both)
        outcome, _ = _find_outcome(gate, both, p)
        if outcome != "shown":
            because = f"the gate is {outcome} ({gate.says})"
            return [
                one if one is both else replace(one, because=one.because or because)
                for one in compared
            ]
    return [*compared]


def _compare_arms(counter: Counted, sweep: PlannedSweep, hypothesis: Hypothesis) -> ArmsCompared:
    """Compare both arms over their finished pairs of runs, or the runs of one with a number."""
    try:
        compared_runs = list_compared(sweep, hypothesis)
    except SettingsError as error:  # the sweep is not as it was when this was declared
        return ArmsCompared(because=str(error))
    if hypothesis.number is not None:
        return _compare_with_number(counter, compared_runs, hypothesis, hypothesis.number)
    alone_rates = _find_alone(counter, hypothesis, [against for _, against in compared_runs])
    against_counted = counter if alone_rates is None else alone_rates.counted
    of_pairs = (_count_pair(counter, against_counted, hypothesis, pair) for pair in compared_runs)
    both = [pair for pair in of_pairs if pair is not None]
    worst: tuple[str, ...] = ()
    if hypothesis.is_of_worst:
        attack_names = (
            run
            for pair in compared_runs
            for run in (pair if hypothesis.any_of is None else pair[:1])
        )
        worst = tuple(_name_worst(counter, hypothesis, attack_names))
    if counter.definitions > 1:
        sides = [weigh_alike([pair[side] for pair in both]) for side in (0, 1)]
        both = [*zip(*sides, strict=True)]
    rates = (share_right([first for first, _ in both]), share_right([second for _, second in both]))
    rates_alone = None if alone_rates is None else alone_rates.rates
    undecided = ArmsCompared(rates, worst=worst, alone=rates_alone)
    if not any(first for first, _ in both):
        reason = "no pair of runs is finished and tested"
        if both and hypothesis.is_of_worst:
            reason = "the worst attacks of no pair were tested on a question in common"
        return replace(undecided, because=reason)
    if any(first.keys() != second.keys() for first, second in both):
        return replace(
            undecided, worst=(), because="the arms were not tested on the same questions"
        )
    seed = derive_seed(hypothesis.figure, hypothesis.arm, hypothesis.against)
    compared = subtract_runs(both, seed, counter.spread)
    assert compared is not None  # there are questions
    because = "one run or one question shows no spread" if compared.error is None else None
    because = because or _find_unmet(counter, against_counted, compared_runs, hypothesis)
    return replace(undecided, difference=compared, pairs=len(both), because=because)


@dataclass(frozen=True)
class _Alone:
    """A verifier alone as a baseline: the better of untrained and trained, by its mean rate."""

    counted: Counted
    rates: tuple[float | None, float | None]


def _find_alone(
    counter: Counted, hypothesis: Hypothesis, runs: Sequence[PlannedRun]
) -> _Alone | None:
    """Choose between the untrained and the trained verifier alone.

    None for other arms, and by definitions 1. An arm that is to be lower, or equal, is compared
    with the better one, too.
    """
    is_alone = hypothesis.any_of is not None or all(map(_plays_alone, runs))
    if not is_alone or counter.definitions == 1:
        return None

    def average(of_tests: Counted) -> float | None:
        counts = [_count(of_tests, hypothesis, run, True, hypothesis.figure) for run in runs]
        return share_right(weigh_alike([one for one in counts if one is not None]))

    untrained = counter.find_untrained(runs)
    rate_before, rate_after = None if untrained is None else average(untrained), average(counter)
    is_better = rate_before is not None and rate_after is not None and rate_before > rate_after
    # Without a test of the untrained one the page shows that the trained one counts.
    return _Alone(
        untrained if untrained is not None and is_better else counter, (rate_before, rate_after)
    )


def _plays_alone(run: PlannedRun) -> bool:
    return isinstance(run, RunFacts) and run.game.kind == "alone"


def _count(
    counter: Counted, hypothesis: Hypothesis, run: PlannedRun, is_against: bool, figure: Figure
) -> Counts | None:
    """Count right plays of a run of one arm or of the other, as the hypothesis takes them."""
    if is_against and hypothesis.any_of is not None:
        return counter.count_any_of(run, hypothesis.any_of, figure)
    return counter.count_after(run, hypothesis.after, figure, hypothesis.balanced)


def _count_pair(
    counter: Counted,
    against_counted: Counted,
    hypothesis: Hypothesis,
    pair: tuple[PlannedRun, ...],
) -> tuple[Counts, Counts] | None:
    """Count right plays of both runs of a pair; None unless both are finished and tested."""
    first, second = pair

    def count(figure: Figure) -> tuple[Counts, Counts] | None:
        plays = _count(counter, hypothesis, first, False, figure)
        other_counts = _count(against_counted, hypothesis, second, True, figure)
        if plays is None or other_counts is None:
            return None
        # The worst attacks of two runs may have been tested on more problems, or fewer.
        return (
            _keep_common(plays, other_counts) if hypothesis.is_of_worst else (plays, other_counts)
        )

    is_attacked = hypothesis.after is not None
    if not (
        is_attacked and hypothesis.figure == "accuracy" and counter.is_honest(hypothesis.balanced)
    ):
        return count(hypothesis.figure)
    # Halves are put together last: wrong problems that one of them lacks would weigh less.
    wrong, right = count("soundness"), count("completeness")
    if wrong is None or right is None:
        return None
    return average_halves(wrong[0], right[0]), average_halves(wrong[1], right[1])


def _compare_with_number(
    counter: Counted,
    compared_runs: Sequence[tuple[PlannedRun, ...]],
    hypothesis: Hypothesis,
    number: float,
) -> ArmsCompared:
    """Compare the rate of an arm over its finished runs with a number."""
    runs = [run for (run,) in compared_runs]
    of_runs = [_count(counter, hypothesis, run, False, hypothesis.figure) for run in runs]
    tested_counts = [counts for counts in of_runs if counts]
    verdicts = round(sum(plays for counts in tested_counts for _, plays in counts.values()))
    tested_counts = weigh_alike(tested_counts) if counter.definitions > 1 else tested_counts
    worst = tuple(_name_worst(counter, hypothesis, runs)) if hypothesis.is_of_worst else ()
    rates = (share_right(tested_counts), number)
    # The coverage of these bounds was measured with this error.
    mean = average_runs(tested_counts, f"{hypothesis.arm} {hypothesis.figure}", "robust")
    if mean is None:
        return ArmsCompared(rates, because="no run is finished and tested", worst=worst)
    bounds = bound_rate(mean, verdicts, 1 - hypothesis.alpha)
    because = "one run or one question shows no spread" if bounds is None else None
    because = because or _find_unmet(counter, counter, compared_runs, hypothesis)
    # Seeds of an interval by a bootstrap have no part in it: the bounds are exact ones.
    difference = replace(mean, value=mean.value - number, ci95=None)
    if (wide := bound_rate(mean, verdicts, 0.975)) is not None:
        low, high = wide.interval
        difference = replace(difference, ci95=(low - number, high - number))
    return ArmsCompared(rates, difference, len(tested_counts), because, worst, bounds=bounds)


def _keep_common(first: Counts, second: Counts) -> tuple[Counts, Counts]:
    """Keep the questions that both have."""
    return (
        {question: plays for question, plays in first.items() if question in second},
        {question: plays for question, plays in second.items() if question in first},
    )


def _name_worst(
    counter: Counted, hypothesis: Hypothesis, runs: Iterable[PlannedRun]
) -> Iterator[str]:
    """Name the worst attack on each run that has one."""
    for run in runs:
        if (worst := counter.find_worst(run, hypothesis.after or WORST)) is not None:
            yield f"{run.name}: {worst.words}"


def _find_unmet(
    counter: Counted,
    against_counted: Counted,
    compared_runs: Sequence[tuple[PlannedRun, ...]],
    hypothesis: Hypothesis,
) -> str | None:
    """Name in words the first unmet condition of the hypothesis; None if all are met."""
    for figure, minimum in hypothesis.where.items():
        for runs, side in zip(zip(*compared_runs, strict=True), ("arm", "against"), strict=False):
            is_against = side == "against"
            tests = against_counted if is_against else counter
            plays = (_count(tests, hypothesis, run, is_against, figure) for run in runs)
            measured_runs = [counts for counts in plays if counts is not None]
            reached = share_right(
                weigh_alike(measured_runs) if counter.definitions > 1 else measured_runs
            )
            if reached is None or reached < minimum:
                value = "unknown" if reached is None else f"{reached:.3f}"
                return f"{figure} of {side} is {value}, below {minimum:g}"
    return None


def _p_value(hypothesis: Hypothesis, both: ArmsCompared) -> float:
    """Compute the two-sided p-value of a difference, or of an equality within its margin.

    Of an arm that is to be above or below a number, it is one-sided.
    """
    if both.bounds is not None and hypothesis.number is not None:
        return _p_against_number(hypothesis, both.bounds, hypothesis.number)
    difference = both.difference
    assert difference is not None and difference.error is not None
    value, error, margin = difference.value, difference.error, hypothesis.margin
    if margin is None:
        p = two_sided_p(difference)
        assert p is not None  # it has an error
        return p
    if error <= NO_ERROR:
        # As for a difference: the number of seeds or questions remains.
        fewer = min(difference.seeds, difference.questions)
        return 1.0 if abs(value) >= margin else 2 * 0.5**fewer
    equivalence = _test_equivalence(hypothesis, difference)
    assert equivalence is not None  # it has an error
    return equivalence.p


def _p_against_number(hypothesis: Hypothesis, bounds: RateBounds, number: float) -> float:
    if hypothesis.margin is not None:
        return bounds.p_equal(number, hypothesis.margin)
    return bounds.p_lower(number) if hypothesis.expected == "lower" else bounds.p_higher(number)


def _test_equivalence(hypothesis: Hypothesis, difference: TwoWay | None) -> Equivalence | None:
    """Test an equality of arms by two one-sided tests; None without a spread, and for others."""
    if hypothesis.margin is None or difference is None or (difference.error or 0.0) <= NO_ERROR:
        return None
    mean = Mean(difference.value, difference.error, difference.df, difference.questions)
    return equivalence(mean, hypothesis.margin, hypothesis.alpha)


def _adjust_p_values(
    hypotheses: Sequence[Hypothesis], p_values: Sequence[float | None]
) -> list[float | None]:
    """Adjust p-values after Holm, among tested hypotheses but the primary one."""
    # The primary hypothesis is the only one of its kind, so nothing is to be shared with others.
    both = [*zip(hypotheses, p_values, strict=True)]
    adjusted = adjust([None if hypothesis.primary else p for hypothesis, p in both])
    return [
        p if hypothesis.primary else of_all
        for (hypothesis, p), of_all in zip(both, adjusted, strict=True)
    ]


def _judge(
    hypothesis: Hypothesis, both: ArmsCompared, p: float | None, p_holm: float | None
) -> HypothesisOutcome:
    """Put together the outcome of a hypothesis, by its p-values before and after Holm."""
    difference, bounds = both.difference, both.bounds
    interval = None if difference is None else difference.ci95
    outcome, because = _find_outcome(hypothesis, both, p_holm)
    of_tests = _find_interval_of_tests(hypothesis, both)
    return HypothesisOutcome(
        says=hypothesis.says,
        primary=hypothesis.primary,
        figure=hypothesis.figure,
        attack=tuple(after) if isinstance(after := hypothesis.after, list) else after,
        rates=both.rates,
        difference=None if difference is None else difference.value,
        ci95=None if interval is None else clip_interval(interval, lowest=-1.0),
        pairs=both.pairs,
        questions=None if difference is None else difference.questions,
        p=p,
        p_holm=p_holm,
        alpha=hypothesis.alpha,
        margin=hypothesis.margin,
        interval_of_tests=None if of_tests is None else clip_interval(of_tests, lowest=-1.0),
        number=hypothesis.number,
        any_of=hypothesis.any_of,
        trials=None if bounds is None else bounds.trials,
        at_most=None if bounds is None or hypothesis.expected != "lower" else bounds.high,
        at_least=None if bounds is None or hypothesis.expected != "higher" else bounds.low,
        gate=hypothesis.gate,
        worst=both.worst,
        alone=both.alone,
        outcome=outcome,
        because=because,
    )


def _find_interval_of_tests(hypothesis: Hypothesis, both: ArmsCompared) -> Interval | None:
    """Return the interval of both one-sided tests of an equality; None for other hypotheses."""
    if both.bounds is not None and hypothesis.number is not None:
        low, high = both.bounds.interval
        is_equality = hypothesis.margin is not None
        return (low - hypothesis.number, high - hypothesis.number) if is_equality else None
    equivalence = _test_equivalence(hypothesis, both.difference)
    return None if equivalence is None else equivalence.interval


def _find_outcome(
    hypothesis: Hypothesis, both: ArmsCompared, p: float | None
) -> tuple[Finding, str | None]:
    """Say the conclusion from the adjusted p-value, or why it was not tested."""
    if both.because is not None or p is None or both.difference is None:
        return "not tested", both.because or "no p-value"
    if p > hypothesis.alpha:
        return "not shown", None
    # The p-value of an equality is small where the difference is inside of the margin.
    # So is that of a one-sided test against a number where the rate is on the expected side.
    if hypothesis.expected == "equal" or hypothesis.number is not None:
        return "shown", None
    is_higher = both.difference.value > 0
    as_expected = is_higher == (hypothesis.expected == "higher")
    return ("shown" if as_expected else "contradicted"), None
