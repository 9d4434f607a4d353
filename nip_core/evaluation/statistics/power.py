"""How small a change a test batch would show, and how many seeds show a difference of arms.

detectable_change       of paired verdicts: the same problems before and after
detectable_difference   between two batches that share no problem
seeds_needed            by the spread over seeds that was seen
questions_needed        by the spread over questions that was seen
detectable_mean         the smallest difference that the questions seen would show

The first two are asked before anything is played. Both are the smallest true difference that a
two-sided test at 5 % shows in 80 % of the cases. How much alike the rows of a question are, and how
many verdicts change, nobody knows beforehand: both are assumptions, to be printed with the number.
"""

import math
from collections.abc import Sequence

from nip_core.evaluation.statistics.clustered import Mean
from nip_core.evaluation.statistics.distributions import normal_quantile, t_quantile
from nip_core.evaluation.statistics.two_way import NO_ERROR, TwoWay, widen

POWER, ALPHA = 0.8, 0.05
CHANGED = 0.2
"""The share of verdicts that differ between two iterations, either way: an assumption."""
LIKENESS = 0.2
"""The correlation between rows of a question: an assumption."""
LEAST_SEEDS = 3
_MOST_SEEDS = 1 << 30  # nobody trains as many; it ends a search


def detectable_change(
    sizes: Sequence[int], *, changed: float = CHANGED, likeness: float = LIKENESS
) -> float | None:
    """Compute the smallest change of a rate, in (0, 1), to be seen on the same problems again.

    `sizes` has the number of problems of each question. With n rows, the design effect
    D = 1 + (m - 1) ρ of Kish (see `nip_core.evaluation.statistics.clustered`) and quantiles k of
    Student's t for a test and its power added up, the change δ solves
    δ = k √((changed - δ²) D / n): the variance of McNemar's test. A change larger than `changed`
    needs as many verdicts that change, all in its direction. None with fewer than two questions.
    """
    scaled = _scaled(sizes, likeness)
    if scaled is None:
        return None
    change = math.sqrt(changed * scaled / (1 + scaled))
    return change if change <= changed else scaled / (1 + scaled)


def detectable_difference(
    sizes: Sequence[int], rate: float, *, likeness: float = LIKENESS
) -> float | None:
    """Compute the smallest difference to be seen between two batches without a shared question.

    `sizes` are those of each batch, `rate` in [0, 1] is that of one; the other one's lies so much
    nearer to 1/2 or, from 1/2, further from it. None with fewer than two questions, and where no
    difference would be large enough.
    """
    scaled = _scaled(sizes, likeness)
    if scaled is None:
        return None
    room = max(rate, 1 - rate)
    direction = 1 if rate <= 0.5 else -1
    low, high = 0.0, room

    def excess(difference: float) -> float:
        other = rate + direction * difference
        return difference**2 - scaled * (rate * (1 - rate) + other * (1 - other))

    if excess(high) < 0:
        return None
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return high


def seeds_needed(difference: float, seen: TwoWay) -> int | None:
    """Compute how many seeds show a true `difference` of two arms in 80 % of the cases.

    `seen` is the paired difference of these arms over seeds and questions, which says how much it
    varies with both. More seeds lower the part of the variance that is theirs; the questions stay
    the same ones, and so does their part. What the test adds for few seeds (`two_way`) is added
    here, too. None where no number of seeds is enough: the questions alone vary too much, or the
    difference is 0. At least 3: two seeds show by themselves how much seeds differ by one number,
    and then how often a test finds a difference hangs on that more than on the difference.

    Raises ValueError for one seed or one question, and where nothing shows the spread.
    """
    if not seen.error or seen.error <= NO_ERROR:
        raise ValueError("one seed, one question or no spread at all says nothing of more seeds")
    # What the error was widened by for few seeds says nothing of more of them.
    of_questions = max(seen.error**2 - seen.widened - seen.seed_variance, 0.0)

    def is_enough(seeds: int) -> bool:
        of_seeds = seen.seed_variance * seen.seeds / seeds
        whole, freedom = 0.0, 0.0
        for part, df in ((of_seeds, seeds - 1), (of_questions, seen.questions - 1)):
            if seen.spread == "calibrated":
                more, term = widen(part, df)
            else:
                more, term = 0.0, part**2 / df
            whole, freedom = whole + part + more, freedom + term
        # Satterthwaite's, as for the interval.
        least = float(min(seeds, seen.questions) - 1)
        of_both = max(whole**2 / freedom, least) if freedom else least
        quantiles = t_quantile(1 - ALPHA / 2, of_both) + t_quantile(POWER, of_both)
        return abs(difference) >= quantiles * math.sqrt(whole)

    if is_enough(LEAST_SEEDS):
        return LEAST_SEEDS
    low, high = LEAST_SEEDS, 2 * LEAST_SEEDS
    while not is_enough(high):
        if high >= _MOST_SEEDS:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def detectable_mean(seen: Mean) -> float | None:
    """Compute the smallest true difference that as many questions show in 80 % of the cases.

    `seen` is the mean of paired differences by question. None where nothing shows the spread: with
    one question, or without any difference between them.
    """
    if not seen.error or seen.error <= NO_ERROR:
        return None
    return _quantiles(seen.df) * seen.error


def questions_needed(difference: float, seen: Mean) -> int | None:
    """Compute how many questions show a true `difference` in 80 % of the cases.

    `seen` is the mean of paired differences by question: further questions are taken to vary as
    much, and to have as many rows each. At least 3. None for a difference of 0, and where nothing
    shows the spread.
    """
    if not seen.error or seen.error <= NO_ERROR or difference == 0:
        return None
    # The variance of one question's mean, and the share of the questions that the error's degrees
    # of freedom come from, which stay as they are.
    variance, share = seen.error**2 * seen.questions, seen.df / max(1, seen.questions - 1)

    def is_enough(questions: int) -> bool:
        quantiles = _quantiles(share * (questions - 1))
        return abs(difference) >= quantiles * math.sqrt(variance / questions)

    low, high = 2, 3
    while not is_enough(high):
        if high >= _MOST_SEEDS:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _quantiles(df: float) -> float:
    """Add up Student's quantiles of a two-sided test and of its power."""
    return t_quantile(1 - ALPHA / 2, df) + t_quantile(POWER, df)


def _scaled(sizes: Sequence[int], likeness: float) -> float | None:
    """Multiply the square of the quantiles by the variance of a mean of unit variances."""
    sizes = [size for size in sizes if size > 0]
    if len(sizes) < 2:
        return None
    rows = sum(sizes)
    effect = 1 + (sum(size**2 for size in sizes) / rows - 1) * likeness
    levels = (1 - ALPHA / 2, POWER)
    if max(sizes) == 1:
        quantiles = sum(normal_quantile(level) for level in levels)
    else:
        quantiles = sum(t_quantile(level, len(sizes) - 1) for level in levels)
    return quantiles**2 * effect / rows
