"""How many seeds or questions show a difference, by the spread that was seen."""

import math
from collections.abc import Callable

from nip_core.evaluation.statistics.clustered import Mean
from nip_core.evaluation.statistics.distributions import t_quantile
from nip_core.evaluation.statistics.power import ALPHA, POWER
from nip_study.parts.two_way import NO_ERROR, TwoWay, widen

LEAST = 3
"""Of seeds, and of questions."""
_MOST = 1 << 30  # more than any study has; it ends a search


def seeds_needed(difference: float, estimate: TwoWay) -> int | None:
    """Compute how many seeds show a true `difference` of two arms in 80 % of the cases.

    `estimate` is the paired difference of these arms over seeds and questions, which says how much
    it varies with both. More seeds lower the part of the variance that is theirs; the questions
    stay the same ones, and so does their part. The test's addition for few seeds (`two_way`) is
    added here, too. None where no number of seeds is enough: the questions alone vary too much, or
    the difference is 0. At least 3: two seeds show by themselves how much seeds differ by one
    number, and then how often a test finds a difference hangs on that more than on the difference.

    Raises ValueError for one seed or one question, and where nothing shows the spread.
    """
    if not estimate.error or estimate.error <= NO_ERROR:
        raise ValueError("one seed, one question or no spread at all says nothing of more seeds")
    # The widening of the error for few seeds says nothing of more of them.
    of_questions = max(estimate.error**2 - estimate.widened - estimate.seed_variance, 0.0)

    def is_enough(seeds: int) -> bool:
        of_seeds = estimate.seed_variance * estimate.seeds / seeds
        whole, freedom = 0.0, 0.0
        for part, df in ((of_seeds, seeds - 1), (of_questions, estimate.questions - 1)):
            if estimate.spread == "calibrated":
                more, term = widen(part, df)
            else:
                more, term = 0.0, part**2 / df
            whole, freedom = whole + part + more, freedom + term
        # Satterthwaite's, as for the interval.
        degrees = float(min(seeds, estimate.questions) - 1)
        of_both = max(whole**2 / freedom, degrees) if freedom else degrees
        quantiles = t_quantile(1 - ALPHA / 2, of_both) + t_quantile(POWER, of_both)
        return abs(difference) >= quantiles * math.sqrt(whole)

    return _find_fewest(is_enough)


def detectable_mean(estimate: Mean) -> float | None:
    """Compute the smallest true difference that as many questions show in 80 % of the cases.

    `estimate` is the mean of paired differences by question. None where nothing shows the spread:
    with one question, or without any difference between them.
    """
    if not estimate.error or estimate.error <= NO_ERROR:
        return None
    return _quantiles(estimate.df) * estimate.error


def questions_needed(difference: float, estimate: Mean) -> int | None:
    """Compute how many questions show a true `difference` in 80 % of the cases.

    `estimate` is the mean of paired differences by question: further questions are taken to vary as
    much, and to have as many rows each. At least 3. None for a difference of 0, and where nothing
    shows the spread.
    """
    if not estimate.error or estimate.error <= NO_ERROR or difference == 0:
        return None
    # The variance of one question's mean, and the share of the questions that the error's degrees
    # of freedom come from, which stay as they are.
    variance, share = (
        estimate.error**2 * estimate.questions,
        estimate.df / max(1, estimate.questions - 1),
    )

    def is_enough(questions: int) -> bool:
        quantiles = _quantiles(share * (questions - 1))
        return abs(difference) >= quantiles * math.sqrt(variance / questions)

    return _find_fewest(is_enough)


def _find_fewest(is_enough: Callable[[int], bool]) -> int | None:
    """Find the least number from 3 on that is enough, where all above it are; None without one."""
    low, high = LEAST - 1, LEAST
    while not is_enough(high):
        if high >= _MOST:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _quantiles(df: float) -> float:
    """Add up Student's quantiles of a two-sided test and of its power."""
    return t_quantile(1 - ALPHA / 2, df) + t_quantile(POWER, df)
