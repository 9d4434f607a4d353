"""Compute beforehand how much so many questions can show, and how many a bar needs.

plan_power      the rows of the dry run's table
PowerRow        a row of it
detectable_rise the smallest rise over the control that is found in 4 of 5 cases
rise_power      how often a rise is found
gate_rows       how many right questions the gate of --against needs
rows_needed     the questions by which a bar can be met
corrected_level the level of a bound for the worst of several kinds

All are exact: binomial bounds, and McNemar's exact two-sided test by enumeration.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nip_core.evaluation.statistics.differences import at_most
from nip_core.evaluation.statistics.distributions import normal_quantile

_ALPHA = 0.05
POWER = 0.8
_MOST_QUESTIONS = 1_000_000
_STEPS = 18
"""Halvings of the interval in which a rise is searched: to 4e-6."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PowerRow:
    """How much so many wrong questions can show, as fractions of 1."""

    questions: int
    one_at_most: float
    """If none is fooled: the upper 95 % bound for one attack fixed beforehand."""
    worst_at_most: float
    """The same for the worst of all kinds."""
    rise_steady: float | None
    """The smallest rise found in 4 of 5 cases; None where none would be."""
    rise_changing: float | None
    """The same where so many verdicts change by themselves."""
    changing: float
    """The share of verdicts that change by themselves, each way."""


def plan_power(
    wrong_questions: Sequence[int] | int, kinds: int, changing: float = 0.02
) -> tuple[PowerRow, ...]:
    """Compute the rows of the dry run's table, one for each number of questions.

    `changing` is the share of verdicts, in [0, 0.5], that change by themselves each way. Raises
    ValueError for no questions or no kinds.
    """
    numbers = [wrong_questions] if isinstance(wrong_questions, int) else list(wrong_questions)
    if min(numbers, default=0) < 1 or kinds < 1:
        raise ValueError(f"questions and kinds must be 1 or more (got {numbers} and {kinds})")
    return tuple(
        PowerRow(
            questions=number,
            one_at_most=_bound(0, number, 0.95),
            worst_at_most=_bound(0, number, corrected_level(kinds)),
            rise_steady=detectable_rise(number, 0.0),
            rise_changing=detectable_rise(number, changing),
            changing=changing,
        )
        for number in numbers
    )


def corrected_level(kinds: int) -> float:
    """Compute the level of a one-sided 95 % bound that holds for the worst of `kinds` (Bonferroni,
    1936)."""
    return 1 - _ALPHA / max(1, kinds)


@lru_cache(maxsize=1024)
def detectable_rise(questions: int, changing: float = 0.0) -> float | None:
    """Find the smallest rise, in (0, 1], that is found in 4 of 5 cases; None where none is."""
    low, high = 0.0, 1.0 - 2 * changing
    if rise_power(questions, high, changing) < POWER:
        return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if rise_power(questions, middle, changing) < POWER else (low, middle)
        )
    return high


def rise_power(questions: int, rise: float, changing: float = 0.0) -> float:
    """Compute how often McNemar's exact two-sided 5 % test finds a rise, by enumeration.

    Of the questions a share `rise` + `changing` changes towards accepting, and `changing` away from
    it. The interval of the screen asks for Student's t too, which rarely matters.
    """
    gains, losses = min(1.0 - changing, rise + changing), changing
    changed = gains + losses
    if changed <= 0:
        return 0.0
    weights = _binomial(questions, min(1.0, changed))
    numbers = np.flatnonzero(weights > 1e-9)
    found = 0.0
    for number in numbers.tolist():
        needed = _needed(number)
        if needed is not None:
            found += float(weights[number]) * float(
                _binomial(number, min(1.0, gains / changed))[needed:].sum()
            )
    return min(1.0, found)


@lru_cache(maxsize=4096)
def _needed(changed: int) -> int | None:
    """Find how many of so many changes must be rises for a two-sided p below 5 %."""
    tails = np.cumsum(_binomial(changed, 0.5)[::-1])[::-1]
    places = np.flatnonzero(2 * tails < _ALPHA)
    return int(places[0]) if len(places) else None


def _binomial(trials: int, rate: float) -> Floats:
    """Compute the probabilities of 0 to `trials` successes."""
    numbers = np.arange(trials + 1)
    if rate <= 0 or rate >= 1:
        return np.asarray(numbers == (0 if rate <= 0 else trials), dtype=np.float64)
    logs = _log_factorials(trials)
    chosen = logs[trials] - logs[numbers] - logs[trials - numbers]
    return np.asarray(
        np.exp(chosen + numbers * np.log(rate) + (trials - numbers) * np.log1p(-rate)),
        dtype=np.float64,
    )


@lru_cache(maxsize=1024)
def _log_factorials(most: int) -> Floats:
    return np.concatenate([np.zeros(1), np.cumsum(np.log(np.arange(1.0, most + 1)))])


def gate_rows(changing: float, margin: float = 0.03) -> int:
    """Compute how many right questions show, in 4 of 5 cases, that no more than `margin` is lost.

    For a judge that loses nothing, of whose verdicts a share `changing` differs, as many one way
    as the other: the one-sided upper 95 % bound must lie at `margin` or below.
    """
    quantiles = normal_quantile(1 - _ALPHA) + normal_quantile(POWER)
    return int(np.ceil(quantiles**2 * changing / margin**2))


@lru_cache(maxsize=1024)
def rows_needed(bar: float, kinds: int, fooled: int = 0) -> int | None:
    """Find the fewest wrong questions by which a `bar`, a fraction, is met with so many fooled.

    The worst of `kinds` fools `fooled` of them. None where more than a million would be needed.
    """
    level = corrected_level(kinds)
    return _fewest(lambda number: _bound(fooled, number, level) < bar, max(1, fooled))


@lru_cache(maxsize=1024)
def rows_needed_at(bar: float, kinds: int, rate: float) -> int | None:
    """Find the same where the worst kind goes on fooling a share `rate` of the questions.

    None where the rate is at or above the bar, and where more than a million would be needed.
    """
    if rate >= bar:
        return None
    level = corrected_level(kinds)

    def is_met(number: int) -> bool:
        return _bound(min(number, int(np.ceil(rate * number - 1e-9))), number, level) < bar

    return _fewest(is_met, 1)


def _fewest(is_met: Callable[[int], bool], least: int) -> int | None:
    """Find the least number for which a rule holds that, but for rounding, goes on holding."""
    high = least
    while not is_met(high):
        high *= 2
        if high > _MOST_QUESTIONS:
            return None
    low = max(least - 1, high // 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_met(middle) else (middle, high)
    return high


def _bound(events: int, trials: int, level: float) -> float:
    bound = at_most(events, trials, level)
    assert bound is not None  # there are trials
    return bound
