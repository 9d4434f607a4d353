"""The outcomes of declared hypotheses: differences between arms over seeds and questions.

judge_hypotheses  a hypothesis each: the difference, its interval, its p-value, and what follows
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nip_core.errors import SettingsError
from nip_core.evaluation.statistics.clustered import Mean
from nip_core.evaluation.statistics.differences import equivalence, holm
from nip_core.evaluation.statistics.two_way import NO_ERROR, TwoWay, two_sided_p
from nip_core.hashing import derive_seed
from nip_core.sweep.counted import Counted, share_right, subtract_runs
from nip_core.sweep.declaration import Hypothesis, pair_runs
from nip_core.sweep.results_document import Finding, HypothesisOutcome, clip_interval
from nip_core.sweep.swept_runs import Sweep, SweptRun


@dataclass(frozen=True)
class ArmsCompared:
    """Two arms, run by run."""

    rates: tuple[float | None, float | None] = (None, None)
    """Of both arms."""
    difference: TwoWay | None = None
    pairs: int = 0
    """Of runs that are finished and tested."""
    because: str | None = None
    """Why nothing can be said of the hypothesis."""


def judge_hypotheses(
    counted: Counted, sweep: Sweep, hypotheses: Sequence[Hypothesis]
) -> list[HypothesisOutcome]:
    """Compare the arms of each hypothesis, in their order.

    `counted` knows the runs that are finished. Differences are paired by run and question, their
    intervals and p-values count seeds and questions as drawn (`two_way`). p-values are adjusted
    after Holm among the hypotheses that are not primary. "shown", "contradicted" or "not shown"
    follow from them; "not tested" says why in ``because``.
    """
    compared = [_compare_arms(counted, sweep, hypothesis) for hypothesis in hypotheses]
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


def _compare_arms(counted: Counted, sweep: Sweep, hypothesis: Hypothesis) -> ArmsCompared:
    """Compare both arms over their finished pairs of runs."""
    try:
        named = pair_runs(sweep, hypothesis)
    except SettingsError as error:  # the sweep is not as it was when this was declared
        return ArmsCompared(because=str(error))
    of_pairs = [
        [counted.count(run.name_after(hypothesis.after), hypothesis.figure) for run in pair]
        for pair in named
    ]
    both = [(a, b) for a, b in of_pairs if a is not None and b is not None]
    rates = (share_right([first for first, _ in both]), share_right([second for _, second in both]))
    if not any(first for first, _ in both):
        return ArmsCompared(rates, because="no pair of runs is finished and tested")
    if any(first.keys() != second.keys() for first, second in both):
        return ArmsCompared(rates, because="the arms were not tested on the same questions")
    seed = derive_seed(hypothesis.figure, hypothesis.arm, hypothesis.against)
    compared = subtract_runs(both, seed)
    assert compared is not None  # there are questions
    because = "one run or one question shows no spread" if compared.error is None else None
    return ArmsCompared(
        rates, compared, len(both), because or _find_unmet(counted, named, hypothesis)
    )


def _find_unmet(
    counted: Counted, named: Sequence[tuple[SweptRun, SweptRun]], hypothesis: Hypothesis
) -> str | None:
    """Name in words the first unmet condition of the hypothesis; None if all are met."""
    for figure, least in hypothesis.where.items():
        for side, which in enumerate(("arm", "against")):
            plays = (
                counted.count(pair[side].name_after(hypothesis.after), figure) for pair in named
            )
            reached = share_right([counts for counts in plays if counts is not None])
            if reached is None or reached < least:
                measured = "unknown" if reached is None else f"{reached:.3f}"
                return f"{figure} of {which} is {measured}, below {least:g}"
    return None


def _p_value(hypothesis: Hypothesis, both: ArmsCompared) -> float:
    """Compute the two-sided p-value of a difference, or of an equality within its margin."""
    difference = both.difference
    assert difference is not None and difference.error is not None
    value, error, margin = difference.value, difference.error, hypothesis.margin
    if margin is None:
        p = two_sided_p(difference)
        assert p is not None  # it has an error
        return p
    if error <= NO_ERROR:
        # As for a difference: what is left is how many seeds or questions there are.
        fewer = min(difference.seeds, difference.questions)
        return 1.0 if abs(value) >= margin else 2 * 0.5**fewer
    tested = equivalence(
        Mean(value, error, difference.df, difference.questions), margin, hypothesis.alpha
    )
    assert tested is not None  # it has an error
    return tested.p


def _adjust_p_values(
    hypotheses: Sequence[Hypothesis], p_values: Sequence[float | None]
) -> list[float | None]:
    """Adjust p-values after Holm, among tested hypotheses but the primary one."""
    adjusted: list[float | None] = list(p_values)
    # The primary hypothesis is the only one of its kind, so nothing is to be shared with others.
    places = [
        place
        for place, (hypothesis, p) in enumerate(zip(hypotheses, p_values, strict=True))
        if p is not None and not hypothesis.primary
    ]
    values = [p for p in (p_values[place] for place in places) if p is not None]
    for place, p in zip(places, holm(values), strict=True):
        adjusted[place] = p
    return adjusted


def _judge(
    hypothesis: Hypothesis, both: ArmsCompared, p: float | None, p_holm: float | None
) -> HypothesisOutcome:
    """Put together what came of a hypothesis, by its p-values before and after Holm."""
    difference = both.difference
    interval = None if difference is None else difference.ci95
    outcome, because = _find_outcome(hypothesis, both, p_holm)
    return HypothesisOutcome(
        says=hypothesis.says,
        primary=hypothesis.primary,
        figure=hypothesis.figure,
        after=hypothesis.after,
        rates=both.rates,
        difference=None if difference is None else difference.value,
        ci95=None if interval is None else clip_interval(interval, lowest=-1.0),
        pairs=both.pairs,
        questions=None if difference is None else difference.questions,
        p=p,
        p_holm=p_holm,
        alpha=hypothesis.alpha,
        outcome=outcome,
        because=because,
    )


def _find_outcome(
    hypothesis: Hypothesis, both: ArmsCompared, p: float | None
) -> tuple[Finding, str | None]:
    """Say what follows from the adjusted p-value, and why it was not tested if it was not."""
    if both.because is not None or p is None or both.difference is None:
        return "not tested", both.because or "no p-value"
    if p > hypothesis.alpha:
        return "not shown", None
    # The p-value of an equality is small where the difference is inside of the margin.
    if hypothesis.expected == "equal":
        return "shown", None
    is_higher = both.difference.value > 0
    as_expected = is_higher == (hypothesis.expected == "higher")
    return ("shown" if as_expected else "contradicted"), None
