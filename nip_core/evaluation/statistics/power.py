"""How small a change a test batch would show.

Asked before anything is played: the smallest true difference that a two-sided test at 5 % shows in
80 % of the cases. How much alike the rows of a question are, and how many verdicts change, is not
known beforehand: both are assumptions, to be printed with the number.
"""

import math
from collections.abc import Sequence

from nip_core.evaluation.statistics.distributions import normal_quantile, t_quantile

POWER, ALPHA = 0.8, 0.05
CHANGED = 0.2
"""The share of verdicts that differ between two iterations, either way: an assumption."""
LIKENESS = 0.2
"""The correlation between rows of a question: an assumption."""


def detectable_change(
    sizes: Sequence[int], *, change_rate: float = CHANGED, likeness: float = LIKENESS
) -> float | None:
    """Compute the smallest change of a rate, in (0, 1), to be seen on the same problems again.

    `sizes` has the number of problems of each question. With n rows, the design effect
    D = 1 + (m - 1) ρ of Kish (see `nip_core.evaluation.statistics.clustered`) and quantiles k of
    Student's t for a test and its power added up, the change δ solves
    δ = k √((c - δ²) D / n): the variance of McNemar's test, c being `change_rate`. A change larger
    than c needs as many verdicts that change, all in its direction. None with fewer than two
    questions.
    """
    scaled = _scaled(sizes, likeness)
    if scaled is None:
        return None
    change = math.sqrt(change_rate * scaled / (1 + scaled))
    return change if change <= change_rate else scaled / (1 + scaled)


def detectable_difference(
    sizes: Sequence[int], rate: float, *, likeness: float = LIKENESS
) -> float | None:
    """Compute the smallest difference to be seen between two batches without a shared question.

    `sizes` has the sizes of each batch, `rate` in [0, 1] is the rate of one; the other's lies so
    much nearer to 1/2 or, from 1/2, further from it. None with fewer than two questions, and where
    no difference would be large enough.
    """
    scaled = _scaled(sizes, likeness)
    if scaled is None:
        return None
    room = max(rate, 1 - rate)
    direction = 1 if rate <= 0.5 else -1
    low, high = 0.0, room

    def excess(difference: float) -> float:
        second = rate + direction * difference
        return difference**2 - scaled * (rate * (1 - rate) + second * (1 - second))

    if excess(high) < 0:
        return None
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return high


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
