"""Tests of differences, and the bound of a rate from no case in n trials.

mcnemar       exact test of paired verdicts that changed one way and the other
sign_flips    the same where several verdicts are of one question: whole questions are flipped
holm          p-values of several comparisons, adjusted
equivalence   two one-sided tests against a margin that was declared
at_most       the highest rate that so many events in n trials leave possible
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nip_core.evaluation.confidence_intervals import Interval
from nip_core.evaluation.statistics.clustered import Mean
from nip_core.evaluation.statistics.distributions import beta_quantile, log_gamma, t_cdf


def mcnemar(gained: int, losses: int) -> float:
    """Compute the exact two-sided p-value of `gained` right verdicts against `losses` ones.

    After McNemar, "Note on the sampling error of the difference between correlated proportions or
    percentages", Psychometrika 12 (1947), by the binomial distribution. 1 where none changed.
    """
    if gained < 0 or losses < 0:
        raise ValueError(f"verdicts that changed can't be fewer than 0 (got {gained} and {losses})")
    return sign_flips(np.repeat([1, -1], [gained, losses]))


def sign_flips(changes: Sequence[int] | NDArray[np.int64] | NDArray[np.float64]) -> float:
    """Compute the exact two-sided p-value of `changes`, one whole number per question.

    A question's change is how many of its verdicts became right, less how many became wrong. If
    nothing changed but by chance, each question's change is as likely with the other sign
    (Fisher, "The design of experiments", 1935, section 21); the p-value is the probability that the
    changes then add up to as much. With one verdict per question it is McNemar's exact test. 1
    where nothing changed, and for no questions.

    Raises ValueError for a change that is no whole number.
    """
    numbers = np.asarray(changes, dtype=np.float64)
    whole = np.round(numbers)
    if not np.isfinite(numbers).all() or np.abs(numbers - whole).max(initial=0.0) > 1e-9:
        raise ValueError("changes of questions must be whole numbers: compare play by play")
    sizes, counts = np.unique(np.abs(whole[whole != 0]).astype(np.int64), return_counts=True)
    reached = abs(int(whole.sum()))
    if reached == 0:
        return 1.0
    # The distribution of the sum with signs drawn at random, from -total to total.
    distribution = np.ones(1)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        sums = np.zeros(2 * size * count + 1)
        sums[:: 2 * size] = _binomial(count)
        distribution = np.convolve(distribution, sums)
    middle = len(distribution) // 2
    return min(1.0, 2 * float(distribution[middle + reached :].sum()))


def _binomial(tosses: int) -> NDArray[np.float64]:
    """Compute the probability of 0 to `tosses` heads of fair coins."""
    heads = np.arange(tosses + 1.0)
    logs = (
        log_gamma(np.array([tosses + 1.0])) - log_gamma(heads + 1) - log_gamma(tosses - heads + 1)
    )
    return np.asarray(np.exp(logs - tosses * math.log(2)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values so as to keep all below α true together with probability 1 - α.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
    Statistics 6 (1979). In the order given. Raises ValueError for one outside of [0, 1].
    """
    wrong = [p for p in p_values if not 0 <= p <= 1]
    if wrong:
        raise ValueError(f"p-values must be in [0, 1] (got {wrong[0]})")
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


@dataclass(frozen=True)
class Equivalence:
    """Whether a difference is as good as none."""

    p: float
    """The larger of both one-sided p-values."""
    is_equivalent: bool
    interval: Interval
    """Of 1 - 2α, 90 % as a rule: within the margin exactly if they are equivalent."""
    margin: float


def equivalence(difference: Mean, margin: float, alpha: float = 0.05) -> Equivalence | None:
    """Test whether a difference lies within `margin` of 0, declared beforehand.

    By two one-sided tests: Schuirmann, "A comparison of the two one-sided tests procedure and the
    power approach for assessing the equivalence of average bioavailability", Journal of
    Pharmacokinetics and Biopharmaceutics 15 (1987). None where the difference has no spread, of one
    question or because every question has the same: nothing can be said then.

    Raises ValueError for a margin that is not above 0.
    """
    if not (margin > 0 and math.isfinite(margin)):
        raise ValueError(f"the margin of an equivalence must be above 0 (got {margin})")
    if not difference.error:
        return None
    interval = difference.interval(1 - 2 * alpha)
    assert interval is not None  # it has an error
    upper, lower = ((side * difference.value + margin) / difference.error for side in (1, -1))
    p = max(1 - t_cdf(upper, difference.df), 1 - t_cdf(lower, difference.df))
    return Equivalence(p, p <= alpha, interval, margin)


def at_most(events: int, trials: int, level: float = 0.95) -> float | None:
    """Bound a rate, in [0, 1], from above by `events` in independent `trials`, one-sided.

    The one-sided bound of Clopper and Pearson, "The use of confidence or fiducial limits",
    Biometrika 26 (1934). Without events it is 1 - (1 - level)^(1/n), about 3/n: the rule of three,
    see Hanley and Lippman-Hand, "If nothing goes wrong, is everything all right?", JAMA 249 (1983).
    Of rows by question, count questions. None without trials.

    Raises ValueError for events that are not between 0 and the trials.
    """
    if not 0 <= events <= trials:
        raise ValueError(f"events must be between 0 and {trials} (got {events})")
    if trials == 0:
        return None
    if events == trials:
        return 1.0
    if events == 0:
        return -math.expm1(math.log1p(-level) / trials)
    return beta_quantile(level, events + 1, trials - events)
