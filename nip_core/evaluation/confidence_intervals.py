"""Intervals around rates and means: how sure a number is.

wilson            95 % interval of a rate over independent trials
wilson_of_rate    the same where trials are not counted but estimated
bootstrap_rate    95 % interval of a rate of trials in groups (several plays of a problem)
bootstrap_ratio   the same for a mean of values that come in groups
bootstrap_mean    95 % interval of a mean over problems, one value each
rate_interval     picks between the first two

All are deterministic: the bootstraps take a seed, and the order of their input does not matter.
Where more than 4,000 problems differ from each other, the bootstraps give the normal interval with
the standard error between problems instead: the same for so many, and quick.
Not covered: problems count as independent of each other, also where they are variants of
one question; for those see `nip_core.evaluation.statistics`.
"""

import math

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]

Z_95 = 1.959963984540054
RESAMPLES = 2_000
_DRAWN_AT_ONCE = 2_000_000  # keeps the bootstrap's memory under about 50 MB
_MANY = 4_000  # different problems; resampling these would take seconds


def wilson(successes: float, trials: int) -> Interval | None:
    """Compute Wilson's score interval (95 %) of `successes` in `trials`; None without trials.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference",
    JASA 22 (1927). Unlike the textbook interval it keeps its width at rates of 0 and 1.
    """
    if trials == 0:
        return None
    return wilson_of_rate(successes / trials, trials)


def wilson_of_rate(rate: float, trials: float) -> Interval:
    """Compute Wilson's interval of a rate in [0, 1]; `trials`, above 0, may be no whole number."""
    z2 = Z_95 * Z_95
    denominator = 1 + z2 / trials
    centre = (rate + z2 / (2 * trials)) / denominator
    half = Z_95 / denominator * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    # Rounding may leave the bound of a rate of 0 or 1 an ulp on the wrong side of the rate.
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return (0.0 if rate == 0 else low, 1.0 if rate == 1 else high)


def bootstrap_rate(
    successes: NDArray[np.float64], trials: NDArray[np.float64], seed: int
) -> Interval | None:
    """Bootstrap the 95 % interval of sum(successes) / sum(trials), resampling whole problems.

    `successes` and `trials` have one entry per problem, trials above 0; None without problems.
    Where every problem has the same rate (one problem, or all right) resampling can't show any
    spread, and an interval of width 0 would claim too much: then it is Wilson's interval with
    the number of problems as the number of trials.
    """
    if len(trials) == 0:
        return None
    rates = successes / trials
    if np.all(rates == rates[0]):
        return wilson(float(rates[0]) * len(rates), len(rates))
    interval = bootstrap_ratio(successes, trials, seed)
    assert interval is not None  # there are problems
    return max(0.0, interval[0]), min(1.0, interval[1])


def bootstrap_ratio(
    sums: NDArray[np.float64], counts: NDArray[np.float64], seed: int
) -> Interval | None:
    """Bootstrap the 95 % interval of sum(sums) / sum(counts), resampling whole problems.

    Per problem, `sums` is the sum of `counts` values, above 0; None without problems. Equal
    means give an interval of width 0.
    """
    if len(counts) == 0:
        return None
    return _percentiles(np.stack([sums, counts], axis=1), seed)


def bootstrap_mean(values: NDArray[np.float64], seed: int) -> Interval | None:
    """Bootstrap the 95 % interval of the mean of `values`, one per problem; None without any.

    Equal values give an interval of width 0.
    """
    return bootstrap_ratio(np.asarray(values), np.ones(len(values)), seed)


def rate_interval(
    successes: NDArray[np.float64], trials: NDArray[np.float64], seed: int
) -> Interval | None:
    """Compute Wilson's interval where each problem was tried once, else bootstrap by problem.

    A tree of responses is one trial that may succeed in part, which the bootstrap is for.
    """
    # The shares of the leaves of a tree sum to 1 but for rounding.
    if _close(trials, np.ones(len(trials))) and _close(successes, np.round(successes)):
        return wilson(int(np.round(successes).sum()), len(trials))
    return bootstrap_rate(successes, trials, seed)


def _close(values: NDArray[np.float64], targets: NDArray[np.float64]) -> bool:
    """Compare finite values as numpy's allclose does, much faster for a few."""
    return bool((np.abs(values - targets) <= 1e-8 + 1e-5 * np.abs(targets)).all())


def _percentiles(rows: NDArray[np.float64], seed: int) -> Interval:
    """Resample the ratio of the two columns' sums, and give its 2.5th and 97.5th percentile.

    Equal rows are exchangeable, so how often each distinct row is drawn is multinomial: the same
    bootstrap as drawing the rows one by one, at a cost that grows with the distinct rows only.
    """
    kinds, counts = _distinct(rows)
    if len(kinds) == 1:  # every resample is the same
        sums, weights = len(rows) * kinds[0]
        return float(sums / weights), float(sums / weights)
    # Of so many the bootstrap is the normal interval but for noise, and takes seconds.
    if len(kinds) > _MANY:
        return _normal(kinds, counts)
    generator = np.random.Generator(np.random.PCG64(seed))
    at_once = max(1, _DRAWN_AT_ONCE // len(kinds))
    rates: list[NDArray[np.float64]] = []
    for start in range(0, RESAMPLES, at_once):
        size = min(at_once, RESAMPLES - start)
        draws = generator.multinomial(len(rows), counts / len(rows), size=size)
        sums = draws @ kinds
        rates.append(sums[:, 0] / sums[:, 1])
    low, high = np.quantile(np.concatenate(rates), [0.025, 0.975])
    return float(low), float(high)


def _distinct(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """List the different rows of two columns, sorted, and count how often each occurs."""
    ordered = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    starts = np.flatnonzero(np.append(True, np.any(ordered[1:] != ordered[:-1], axis=1)))
    return ordered[starts], np.diff(np.append(starts, len(rows)))


def _normal(kinds: NDArray[np.float64], counts: NDArray[np.int64]) -> Interval:
    """Compute the ratio, plus and minus 1.96 standard errors of its linear part, by problem."""
    rows = counts.sum()
    whole = float(counts @ kinds[:, 1])
    ratio = float(counts @ kinds[:, 0]) / whole
    residuals = kinds[:, 0] - ratio * kinds[:, 1]
    error = math.sqrt(float(counts @ residuals**2) * rows / (rows - 1)) / whole
    return ratio - Z_95 * error, ratio + Z_95 * error
