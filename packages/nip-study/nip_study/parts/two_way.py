"""Intervals over seeds and questions at once: would another seed, and other questions, say so?"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nip_core.evaluation.confidence_intervals import Z_95, Interval
from nip_core.evaluation.statistics.distributions import t_cdf, t_quantile

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

Spread = Literal["robust", "calibrated"]
"""How the error of a mean, and its degrees of freedom, are computed.

``robust``: the two-way variance of Cameron, Gelbach and Miller, never below that of seeds or of
questions alone. ``calibrated``: the noise of cells by analysis of variance, and the parts of seeds
and of questions made larger where there are few, so that few which are alike by chance are not
taken at their word.
"""

RESAMPLES = 4_000
_MORE_VARIANCE, _LESS_FREEDOM = 2.4, 4.0
"""Over the square of a side's degrees of freedom: by how much its part of the variance is made
larger, and its share of the degrees of freedom smaller. Found by simulation, as the next two."""
_NOISE_LEFT_OUT, _LEAST = 0.3, 0.6
"""How much of the noise is left out of a side's part, and how much of either part and of the noise
the variance has at least: in truth it has all of each."""
NO_ERROR = 1e-12
"""A standard error that is rounding and nothing else."""
_AT_ONCE = 2_000_000  # numbers drawn at once; keeps memory under about 50 MB


@dataclass(frozen=True)
class TwoWay:
    """A mean over seeds and questions."""

    value: float
    error: float | None
    """Its standard error; None where there is one seed or one question."""
    df: float
    ci95: Interval | None
    """None without an error, and where all seeds and questions agree: nothing shows the spread."""
    seeds: int
    questions: int
    seed_variance: float = 0.0
    """The part of the error's square that falls with the number of seeds."""
    widened: float = 0.0
    """The part that was added as there are few seeds, or few questions."""
    spread: Spread = "calibrated"
    """How the error was computed."""


def two_way(
    sums: Floats, counts: Floats, seed: int, spread: Spread = "calibrated"
) -> TwoWay | None:
    """Average values by training seed and question, with the 95 % interval of the mean.

    Args:
        sums: seeds x questions, the sum of the values of each cell. For a comparison the values are
            differences, paired by problem.
        counts: seeds x questions, how many values; 0 where there are none.
        seed: of the bootstrap.
        spread: how the error is computed.

    Seeds and questions are drawn with replacement, each independently of the other, after Owen and
    Eckles, "Bootstrapping data arrays of arbitrary order", Annals of Applied Statistics 6 (2012).
    Such draws vary too much where cells have noise of their own (Owen, "The pigeonhole bootstrap",
    same journal, 1, 2007), and too little for few seeds. So their distances from the mean are
    scaled: to a two-way variance, and by Student's t with Satterthwaite's degrees of freedom over
    the normal quantile. The variance is that of Cameron, Gelbach and Miller, "Robust inference with
    multiway clustering", Journal of Business and Economic Statistics 29 (2011), or what `Spread`
    says; docs/decisions/0056-calibrated-intervals.md has what either covers.

    None without values. Raises ValueError for a shape that is not two-way, or values that are not
    numbers.
    """
    if sums.ndim != 2 or sums.shape != counts.shape:
        raise ValueError(
            "sums and counts must both be seeds x questions (got the shapes "
            f"{sums.shape} and {counts.shape})"
        )
    if not (np.isfinite(sums).all() and np.isfinite(counts).all() and (counts >= 0).all()):
        raise ValueError("sums and counts must be finite, and counts not below 0")
    rows, columns = counts.sum(axis=1) > 0, counts.sum(axis=0) > 0
    sums, counts = sums[rows][:, columns], counts[rows][:, columns]
    seeds, questions = sums.shape
    if 0 in (seeds, questions):
        return None
    value = math.fsum(sums.ravel().tolist()) / math.fsum(counts.ravel().tolist())
    if 1 in (seeds, questions):
        return TwoWay(value, None, 0.0, None, seeds, questions)
    compute_error = _compute_robust_error if spread == "robust" else _compute_calibrated_error
    estimate = compute_error(sums - value * counts, counts)
    error, df = estimate.error, estimate.df
    both = (seeds, questions, estimate.seed_variance, estimate.widened, spread)
    draws = _draws(sums, counts, seed)
    width = float(draws.std())
    if error <= NO_ERROR or width <= NO_ERROR:
        return TwoWay(value, error, df, None, *both)
    scale = error / width * t_quantile(0.975, df) / Z_95
    low, high = (value + scale * (np.quantile(draws, (0.025, 0.975)) - value)).tolist()
    interval = (min(low, value), max(high, value))
    return TwoWay(value, error, df, interval, *both)


def two_sided_p(mean: TwoWay) -> float | None:
    """Compute the two-sided p-value of a mean that is 0 in truth; None without an error."""
    if mean.error is None:
        return None
    if mean.error <= NO_ERROR:
        # All seeds and all questions say the same: the df is by how many of the fewer there are.
        return 1.0 if abs(mean.value) <= NO_ERROR else 2 * 0.5 ** min(mean.seeds, mean.questions)
    return min(1.0, 2 * t_cdf(-abs(mean.value) / mean.error, mean.df))


@dataclass(frozen=True)
class _Error:
    """The standard error of a mean, with its degrees of freedom, and two parts of its square."""

    error: float
    df: float
    seed_variance: float
    widened: float = 0.0


def _compute_robust_error(residuals: Floats, counts: Floats) -> _Error:
    """Compute the error after Cameron, Gelbach and Miller."""
    whole, (seeds, questions) = float(counts.sum()), residuals.shape
    by_seed = float((residuals.sum(axis=1) ** 2).sum()) / whole**2 * seeds / (seeds - 1)
    by_question = float((residuals.sum(axis=0) ** 2).sum()) / whole**2
    by_question *= questions / (questions - 1)
    noise = float((residuals**2).sum()) / whole**2  # of cells, which both contain
    variance = max(by_seed + by_question - noise, by_seed, by_question)
    freedom = by_seed**2 / (seeds - 1) + by_question**2 / (questions - 1)
    # The approximation can fall below what the shorter side has by itself.
    min_df = float(min(seeds, questions) - 1)
    df = max(variance**2 / freedom, min_df) if freedom else min_df
    # The questions' own share stays however many seeds there are; the noise of cells does not.
    return _Error(math.sqrt(variance), df, variance - max(by_question - noise, 0.0))


def _compute_calibrated_error(residuals: Floats, counts: Floats) -> _Error:
    """Compute the error by the formula of docs/decisions/0056-calibrated-intervals.md."""
    by_seed = _compute_variance(residuals.sum(axis=1), counts.sum(axis=1))
    by_question = _compute_variance(residuals.sum(axis=0), counts.sum(axis=0))
    noise, noise_df = _compute_noise(residuals, counts)
    sides = (by_seed, by_question)
    parts = [part for part, _ in sides]
    variance = max(sum(parts) - noise, _LEAST * max(*parts, noise))
    widened, freedom = 0.0, noise**2 / noise_df
    for part, df in sides:
        # The variance of this side beyond the noise of cells; some noise stays: it may be chance.
        excess = max(part - _NOISE_LEFT_OUT * noise, 0.0)
        more, less = widen(excess, df)
        freedom += less
        widened += more
    whole = variance + widened
    min_df = min(df for _, df in sides)
    return _Error(
        math.sqrt(whole),
        max(whole**2 / freedom, min_df) if freedom else min_df,
        max(variance - max(by_question[0] - noise, 0.0), 0.0),
        widened,
    )


def widen(part: float, df: float) -> tuple[float, float]:
    """Make one side's part of the variance larger where there are few of it.

    Returns what is added, and the side's term of Satterthwaite's formula.
    """
    more = _MORE_VARIANCE / df**2 * part
    return more, (1 + _LESS_FREEDOM / df**2) * (part + more) ** 2 / df


def _compute_variance(residuals: Floats, counts: Floats) -> tuple[float, float]:
    """Compute the variance of a ratio from the residuals of one side, and its df, at least 1.

    The variance is unbiased, and the degrees of freedom are Satterthwaite's, where all of this side
    have the same variance and are independent, however often each was counted. (0, 1) where one of
    them was counted nearly always: the others show nothing of it.
    """
    shares = counts / counts.sum()
    p2, p3, p4, p5 = (float((shares**k).sum()) for k in (2, 3, 4, 5))
    # Traces of the quadratic form that the residuals of a weighted mean are, and of its square.
    trace = p2 - 2 * p3 + p2**2
    of_square = p2**4 + 2 * p4 * p2 + 2 * p3**2 - 4 * p2**2 * p3 + p4 * (1 + 2 * p2) - 4 * p5
    if min(trace, of_square) <= NO_ERROR**2:
        return 0.0, 1.0
    variance = float((residuals**2).sum()) / float(counts.sum()) ** 2
    return variance * p2 / trace, max(trace**2 / of_square, 1.0)


def _compute_noise(residuals: Floats, counts: Floats) -> tuple[float, float]:
    """Compute the variance of a ratio that neither seed nor question explains, and its df.

    Of a full table that is equally often counted it is the noise of its analysis of variance; of
    others nearly.
    """
    of_seeds = residuals.sum(axis=1, keepdims=True) / counts.sum(axis=1, keepdims=True)
    of_questions = residuals.sum(axis=0, keepdims=True) / counts.sum(axis=0, keepdims=True)
    unexplained = residuals - (of_seeds + of_questions) * counts
    cells, (seeds, questions) = int((counts > 0).sum()), residuals.shape
    df = max(cells - seeds - questions + 1, 1)
    return float((unexplained**2).sum()) / float(counts.sum()) ** 2 * cells / df, float(df)


def _draws(sums: Floats, counts: Floats, seed: int) -> Floats:
    """Compute the means of all resamples; where cells are missing, one without values is left."""
    draws: list[Floats] = []
    seeds, questions = sums.shape
    for rows, columns in _resample(seeds, questions, seed):
        numbers = ((rows @ counts) * columns).sum(axis=1)
        draws.append((((rows @ sums) * columns).sum(axis=1))[numbers > 0] / numbers[numbers > 0])
    return np.concatenate(draws)


def _resample(seeds: int, questions: int, seed: int) -> Iterator[tuple[Counts, Counts]]:
    """Draw how often each seed and each question is in a resample, some resamples at once."""
    generator = np.random.Generator(np.random.PCG64(seed))
    at_once = max(1, _AT_ONCE // questions)
    for start in range(0, RESAMPLES, at_once):
        size = min(at_once, RESAMPLES - start)
        rows = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=size)
        columns = generator.multinomial(questions, np.full(questions, 1 / questions), size=size)
        yield rows, columns
