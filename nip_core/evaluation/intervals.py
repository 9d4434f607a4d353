"""Intervals around rates and means: how sure a number is.

wilson            95 % interval of a rate over independent trials
bootstrap_rate    95 % interval of a rate whose trials come in groups (several plays of a problem)
bootstrap_mean    95 % interval of a mean over problems, one value each
rate_interval     picks between the first two

All are deterministic: the bootstraps take a seed, and the order of their input does not matter.
What is not covered: problems count as independent of each other, also where they are variants of
one question.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]

Z_95 = 1.959963984540054
RESAMPLES = 2_000
_DRAWN_AT_ONCE = 2_000_000  # keeps the bootstrap's memory under about 50 MB


def wilson(successes: float, trials: int) -> Interval | None:
    """Wilson's score interval (95 %) of `successes` in `trials`; None without trials.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference",
    JASA 22 (1927). Unlike the textbook interval it keeps its width at rates of 0 and 1.
    """
    if trials == 0:
        return None
    rate = successes / trials
    z2 = Z_95 * Z_95
    denominator = 1 + z2 / trials
    centre = (rate + z2 / (2 * trials)) / denominator
    half = Z_95 / denominator * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    # Rounding may leave the bound of a rate of 0 or 1 an ulp on the wrong side of the rate.
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return (0.0 if successes == 0 else low, 1.0 if successes == trials else high)


def bootstrap_rate(
    successes: NDArray[np.int64], trials: NDArray[np.int64], seed: int
) -> Interval | None:
    """95 % percentile bootstrap of sum(successes) / sum(trials), resampling whole problems.

    `successes` and `trials` have one entry per problem, trials at least 1; None without problems.
    Where every problem has the same rate (one problem, or all right) resampling can't show any
    spread, and an interval of width 0 would claim too much: then it is Wilson's interval with
    the number of problems as the number of trials.
    """
    if len(trials) == 0:
        return None
    rates = successes / trials
    if np.all(rates == rates[0]):
        return wilson(float(rates[0]) * len(rates), len(rates))
    pairs = np.stack([successes, trials], axis=1).astype(np.float64)

    def rate(counts: NDArray[np.int64], kinds: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = counts @ kinds
        return np.asarray(sums[:, 0] / sums[:, 1], dtype=np.float64)

    return _percentiles(pairs, rate, seed)


def bootstrap_mean(values: NDArray[np.float64], seed: int) -> Interval | None:
    """95 % percentile bootstrap of the mean of `values`, one per problem; None without any.

    Equal values give an interval of width 0.
    """
    if len(values) == 0:
        return None
    problems = len(values)

    def mean(counts: NDArray[np.int64], kinds: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((counts @ kinds)[:, 0] / problems, dtype=np.float64)

    return _percentiles(np.asarray(values, dtype=np.float64)[:, None], mean, seed)


def rate_interval(
    successes: NDArray[np.int64], trials: NDArray[np.int64], seed: int
) -> Interval | None:
    """Wilson's interval where each problem was tried once, else the bootstrap by problem."""
    if np.all(trials == 1):
        return wilson(int(successes.sum()), len(trials))
    return bootstrap_rate(successes, trials, seed)


def _percentiles(
    rows: NDArray[np.float64],
    statistic: Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.float64]],
    seed: int,
) -> Interval:
    """The 2.5th and 97.5th percentile of `statistic` over resamples of `rows`.

    Equal rows are exchangeable, so how often each distinct row is drawn is multinomial: the same
    bootstrap as drawing the rows one by one, at a cost that grows with the distinct rows only.
    """
    kinds, counts = np.unique(rows, axis=0, return_counts=True)
    generator = np.random.Generator(np.random.PCG64(seed))
    at_once = max(1, _DRAWN_AT_ONCE // len(kinds))
    found: list[NDArray[np.float64]] = []
    for start in range(0, RESAMPLES, at_once):
        size = min(at_once, RESAMPLES - start)
        drawn = generator.multinomial(len(rows), counts / len(rows), size=size)
        found.append(statistic(drawn, kinds))
    low, high = np.quantile(np.concatenate(found), [0.025, 0.975])
    return float(low), float(high)
