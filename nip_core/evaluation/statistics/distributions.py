"""Quantiles and probabilities of the distributions that intervals and tests need.

normal_quantile   of the standard normal distribution
beta_cdf          the regularised incomplete beta function
beta_quantile     its inverse
t_cdf, t_quantile Student's t, for degrees of freedom that need not be whole
log_gamma         ln Γ of an array

All agree with scipy to seven digits or more, which tests/evaluation checks.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_TINY = 1e-300  # keeps a continued fraction from dividing by 0
_MOST_TERMS = 10_000
_MANY = 1e7  # degrees of freedom from which Student's t is the normal distribution


def normal_quantile(probability: float) -> float:
    """Find z with this probability, in (0, 1), of a standard normal number below it."""
    return NormalDist().inv_cdf(probability)


def beta_cdf(x: float, a: float, b: float) -> float:
    """Compute P(X <= x) for a beta distribution with the shapes a and b, both above 0.

    By the continued fraction of Press et al., "Numerical Recipes" (third edition, 2007), section
    6.4, evaluated after Lentz.
    """
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # where the other side converges quickly
        return 1.0 - beta_cdf(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    return min(1.0, math.exp(log_front) * _continued_fraction(x, a, b) / a)


def _continued_fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1.0 / _not_zero(1.0 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for numerator in (even, odd):
            d = 1.0 / _not_zero(1.0 + numerator * d)
            c = _not_zero(1.0 + numerator / c)
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return fraction


def _not_zero(value: float) -> float:
    return _TINY if abs(value) < _TINY else value


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Find x in [0, 1] with `beta_cdf(x, a, b)` = `probability`."""
    if probability <= 0 or probability >= 1:
        return 0.0 if probability <= 0 else 1.0
    return _root(lambda x: beta_cdf(x, a, b) - probability, 0.0, 1.0)


def t_cdf(t: float, df: float) -> float:
    """Compute P(T <= t) for Student's t with `df` degrees of freedom, above 0."""
    if df > _MANY:
        return NormalDist().cdf(t)
    if t == 0:
        return 0.5
    tail = beta_cdf(df / (df + t * t), df / 2, 0.5) / 2
    return 1.0 - tail if t > 0 else tail


@lru_cache(maxsize=4096)
def t_quantile(probability: float, df: float) -> float:
    """Find t with this probability, in (0, 1), of Student's t below it; `df` is above 0."""
    if probability < 0.5:
        return -t_quantile(1 - probability, df)
    if df > _MANY:
        return normal_quantile(probability)
    if probability == 0.5:
        return 0.0
    high = 2.0
    while t_cdf(high, df) < probability:
        high *= 2
    return _root(lambda t: t_cdf(t, df) - probability, 0.0, high)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Find where a rising function is 0, by halving as often as a float allows."""
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def log_gamma(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute ln Γ(x) for x above 0, any shape.

    Stirling's series at x + 8 (Abramowitz and Stegun, 1964, 6.1.41), brought back by the
    recurrence of Γ.
    """
    product = np.ones_like(x)
    for step in range(8):
        product = product * (x + step)
    y = x + 8
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * y * y)) / (y * y)) / (y * y)) / y
    whole = (y - 0.5) * np.log(y) - y + 0.5 * math.log(2 * math.pi) + series - np.log(product)
    return np.asarray(whole, dtype=np.float64)
