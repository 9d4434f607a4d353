"""Intervals of rates and means of rows that come by question.

clustered_rate   95 % interval of a rate: Wilson's, of as many trials as the rows are worth
clustered_mean   a mean with its standard error and degrees of freedom
difference_interval  95 % interval of a mean of differences
Mean             a mean with its error, and its intervals
effective_trials how many independent trials the rows of some questions are worth
totals_by        sums of rows by question

Where every question has one row, a rate's interval is Wilson's, digit for digit.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nip_core.evaluation.confidence_intervals import (
    Z_95,
    Interval,
    bootstrap_mean,
    wilson,
    wilson_of_rate,
)
from nip_core.evaluation.statistics.distributions import log_gamma, t_quantile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_RATES, _LIKENESSES = 96, 32  # points of the grids; more change no interval by a tenth of a point


def clustered_rate(
    hits: NDArray[np.bool_], clusters: Ints, weights: Floats | None = None
) -> Interval | None:
    """Compute the 95 % interval of the share of `hits`, with rows by question in `clusters`.

    All arrays have one entry per row, `weights` above 0 (1 where left out). None without rows. One
    question alone counts as one trial, with any number of rows.

    Wilson's interval of `effective_trials`. Raises ValueError for a weight that is not a number.
    """
    successes, trials = totals_by(clusters, hits, weights)
    if len(trials) == 0:
        return None
    whole = np.round(successes)
    if np.all(np.abs(trials - 1) < 1e-9) and np.all(np.abs(successes - whole) < 1e-9):
        return wilson(int(whole.sum()), len(trials))
    rate = min(1.0, float(successes.sum() / trials.sum()))
    return wilson_of_rate(rate, effective_trials(successes, trials))


def effective_trials(successes: Floats, trials: Floats) -> float:
    """Estimate how many independent trials would show a rate as surely as `trials` by question.

    Both arrays have one entry per question, trials above 0. The smaller of two estimates:

    - trials / (1 + (m - 1) ρ), the design effect of Kish, "Survey Sampling" (1965), m being the
      mean number of rows that a row has around it, itself included. How alike the rows of a
      question are, ρ, is the posterior mean under a beta-binomial model with Jeffreys' prior of a
      proportion for the rate and for ρ. An estimate by moments calls ρ small whenever few rows
      went wrong, by chance in few questions, and intervals near 0 and 1 are then too short.
    - rate (1 - rate) / V, with the cluster-robust variance V of `clustered_mean`, which assumes no
      model; divided by (t / z)² for its degrees of freedom, after Korn and Graubard, "Confidence
      intervals for proportions with small expected number of positive counts estimated from
      survey data", Survey Methodology 24 (1998).

    Where all rows agree, or there is one question, a question is worth one trial at most: nothing
    shows how alike its rows are.
    """
    whole, questions = float(trials.sum()), len(trials)
    rate = float(successes.sum()) / whole
    if questions == 1 or rate <= 0 or rate >= 1:
        return min(whole, float(questions))
    size = float((trials**2).sum()) / whole
    worth = whole / max(1.0, 1 + (size - 1) * _likeness(successes, trials))
    mean = _mean_of(successes, trials)
    if mean.error:  # every question may have the very same rate
        scale = (t_quantile(0.975, mean.df) / Z_95) ** 2
        worth = min(worth, rate * (1 - rate) / mean.error**2 / scale)
    return worth


def _likeness(successes: Floats, trials: Floats) -> float:
    """Estimate the correlation within questions, in (0, 1), by its posterior mean."""
    pairs, counts = np.unique(np.stack([successes, trials], axis=1), axis=0, return_counts=True)
    likelihood = np.zeros((_RATES, _LIKENESSES))
    for (hit, tried), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        likelihood += count * _beta_binomial(hit, tried)
    posterior = np.exp(likelihood - likelihood.max())
    return float((posterior @ _grid(_LIKENESSES)).sum() / posterior.sum())


def _grid(points: int) -> Floats:
    """List proportions between 0 and 1, equally likely under Jeffreys' prior."""
    return np.asarray(np.sin((np.arange(points) + 0.5) / points * math.pi / 2) ** 2)


@lru_cache(maxsize=512)
def _beta_binomial(hit: float, tried: float) -> Floats:
    """Compute the log-likelihood of so many hits in a question, by rate (rows) and likeness
    (columns)."""
    rate, likeness = _grid(_RATES)[:, None], _grid(_LIKENESSES)[None, :]
    a, b = rate * (1 - likeness) / likeness, (1 - rate) * (1 - likeness) / likeness
    risen = log_gamma(a + hit) - log_gamma(a) + log_gamma(b + max(0.0, tried - hit)) - log_gamma(b)
    return risen - log_gamma(a + b + tried) + log_gamma(a + b)


@dataclass(frozen=True)
class Mean:
    """A mean over rows of several questions."""

    value: float
    error: float | None
    """Its standard error; None with one question, which shows no spread."""
    df: float
    """Degrees of freedom of the error."""
    questions: int

    def interval(self, level: float = 0.95) -> Interval | None:
        """Compute the value, plus and minus so many errors by Student's t; None without an error.

        Where every question has the same mean its width is 0, and nothing is known of the spread.
        """
        if self.error is None:
            return None
        half = t_quantile(0.5 + level / 2, self.df) * self.error if self.error else 0.0
        return self.value - half, self.value + half


def clustered_mean(values: Floats, clusters: Ints, weights: Floats | None = None) -> Mean | None:
    """Average `values` with rows by question in `clusters`; None without rows.

    All arrays have one entry per row, `weights` above 0 (1 where left out). The error is the
    cluster-robust one with the correction, and the degrees of freedom, of Bell and McCaffrey, "Bias
    reduction in standard errors for linear regression with multi-stage samples", Survey
    Methodology 28 (2002): for questions of one size the standard error between questions' means,
    with one degree of freedom less than there are questions.

    Raises ValueError for a value or weight that is not a number.
    """
    sums, sizes = totals_by(clusters, values, weights)
    return None if len(sizes) == 0 else _mean_of(sums, sizes)


def difference_interval(differences: Floats, clusters: Ints, seed: int) -> Interval | None:
    """Compute the 95 % interval of the mean of `differences`, one per problem, by question.

    A bootstrap from `seed` where every question has one problem, else `clustered_mean`. None
    without problems, and with several of one question.
    """
    if int(clusters.max(initial=-1)) + 1 == len(differences):
        return bootstrap_mean(differences, seed)
    mean = clustered_mean(differences, clusters)
    return None if mean is None else mean.interval()


def _mean_of(sums: Floats, sizes: Floats) -> Mean:
    questions, whole = len(sizes), float(sizes.sum())
    value = math.fsum(sums.tolist()) / whole
    if questions == 1:
        return Mean(value, None, 0.0, 1)
    share = sizes / whole
    inflation = 1 / (1 - share)
    residuals = sums - value * sizes
    # A rest by rounding of equal means is no spread.
    residuals[np.abs(residuals) <= 1e-12 * (np.abs(sums) + np.abs(value) * sizes)] = 0.0
    variance = float((residuals**2 * inflation).sum()) / whole**2
    # Satterthwaite's degrees of freedom: of residuals of independent rows, the trace of their
    # scaled covariance squared, over that of its square.
    variances = share * (1 - share) * inflation
    cross = inflation * share**2
    squares = float((variances**2).sum() + cross.sum() ** 2 - (cross**2).sum())
    return Mean(value, math.sqrt(variance), float(variances.sum()) ** 2 / squares, questions)


def totals_by(
    clusters: Ints, values: NDArray[np.float64] | NDArray[np.bool_], weights: Floats | None = None
) -> tuple[Floats, Floats]:
    """Add up the weighted values, and the weights, of each question with rows.

    Raises ValueError for a value or weight that is not a number, or arrays of several lengths.
    """
    numbers = np.asarray(values, dtype=np.float64)
    weights = np.ones(len(numbers)) if weights is None else weights
    if not len(clusters) == len(numbers) == len(weights):
        raise ValueError(
            f"rows must be as many as questions and weights (got {len(numbers)}, {len(clusters)} "
            f"and {len(weights)})"
        )
    if not (np.isfinite(numbers).all() and np.isfinite(weights).all() and (weights > 0).all()):
        raise ValueError(
            "statistics need finite numbers and weights above 0 (got NaN, an infinity, or a weight "
            "of 0 or less); leave such rows out"
        )
    # Sums in one order, for any order of the rows.
    order = np.lexsort((weights, numbers, clusters))
    clusters, numbers, weights = clusters[order], numbers[order], weights[order]
    sums: Floats = np.bincount(clusters, numbers * weights).astype(np.float64)
    sizes: Floats = np.bincount(clusters, weights).astype(np.float64)
    present = sizes > 0
    return sums[present], sizes[present]
