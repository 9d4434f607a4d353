"""Compute beforehand how much so many questions can show, and how many a bar needs.

plan_power      the rows of the dry run's table
PowerRow        a row of it
detectable_rise the smallest rise over the control that is found in 4 of 5 cases
rise_power      how often a rise is found
missed_rise     the rise below which a wording may be passed over in choosing
gate_rows       how many right questions the gate of --against needs
rows_needed     the questions by which a bar can be met
corrected_level the level of a bound for the worst of several kinds

All but gate_rows are exact: binomial bounds, and McNemar's exact two-sided test by enumeration.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nip_core.evaluation.statistics.differences import at_most
from nip_core.evaluation.statistics.distributions import normal_quantile

_ALPHA = 0.05
POWER = 0.8
_CHOSEN = 0.95
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
    changes = gains + losses
    if changes <= 0:
        return 0.0
    weights = _binomial(questions, min(1.0, changes))
    numbers = np.flatnonzero(weights > 1e-9)
    power = 0.0
    for number in numbers.tolist():
        needed = _needed(number)
        if needed is not None:
            power += float(weights[number]) * float(
                _binomial(number, min(1.0, gains / changes))[needed:].sum()
            )
    return min(1.0, power)


@lru_cache(maxsize=1024)
def missed_rise(questions: int, wordings: int, flips: float = 0.0) -> float | None:
    """Find the rise below which a wording may be passed over in choosing, in (0, 1].

    A wording with this rise is the highest of so many of its kind in 19 of 20 cases, if the others
    have none. A share `flips` of verdicts changes by itself. Where none does it is `at_most`. None
    without questions, and where no rise would be found so often.
    """
    if questions < 1:
        return None
    changing = min(0.25, flips / 2)
    cumulated = np.cumsum(_net_changes(questions, changing, changing))
    highest_of_others = np.concatenate([np.zeros(1), cumulated[:-1]]) ** max(1, wordings - 1)
    low, high = 0.0, 1.0 - changing

    def is_found(rise: float) -> bool:
        gains = min(1.0 - changing, rise + changing)
        return (
            float(_net_changes(questions, gains, changing) @ highest_of_others) >= _CHOSEN - 1e-12
        )

    if not is_found(high):
        return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def _net_changes(questions: int, gains: float, losses: float) -> Floats:
    """Compute the probabilities of a net change of -questions to +questions."""
    one = np.array([losses, max(0.0, 1.0 - gains - losses), gains])
    total, power, remaining = np.ones(1), one, questions
    while remaining:
        if remaining & 1:
            total = np.convolve(total, power)
        power, remaining = np.convolve(power, power), remaining >> 1
    return np.asarray(total, dtype=np.float64)


@lru_cache(maxsize=4096)
def _needed(changes: int) -> int | None:
    """Find how many of so many changes must be rises for a two-sided p below 5 %."""
    tails = np.cumsum(_binomial(changes, 0.5)[::-1])[::-1]
    places = np.flatnonzero(2 * tails < _ALPHA)
    return int(places[0]) if len(places) else None


def _binomial(trials: int, rate: float) -> Floats:
    """Compute the probabilities of 0 to `trials` successes."""
    numbers = np.arange(trials + 1)
    if rate <= 0 or rate >= 1:
        return np.asarray(numbers == (0 if rate <= 0 else trials), dtype=np.float64)
    logs = _log_factorials(trials)
    combinations = logs[trials] - logs[numbers] - logs[trials - numbers]
    return np.asarray(
        np.exp(combinations + numbers * np.log(rate) + (trials - numbers) * np.log1p(-rate)),
        dtype=np.float64,
    )


@lru_cache(maxsize=1024)
def _log_factorials(largest: int) -> Floats:
    return np.concatenate([np.zeros(1), np.cumsum(np.log(np.arange(1.0, largest + 1)))])


def gate_rows(changing: float, margin: float = 0.03) -> int:
    """Compute how many right questions show, in 4 of 5 cases, that no more than `margin` is lost.

    For a judge that loses nothing, of whose verdicts a share `changing` differs, as many one way
    as the other: the one-sided upper 95 % bound must lie at `margin` or below. In large samples, of
    Tango's score test, which is asked where few verdicts change (`rates.bound_rise`).
    """
    half, spread = changing / 2, margin * (1 - margin)
    b = 2 * margin - changing
    # The share of losses less margin that fits best, were the true loss at the margin.
    share = (math.sqrt(b * b + 8 * half * spread) - b) / 4
    at_margin = normal_quantile(1 - _ALPHA) * math.sqrt(2 * share + spread)
    at_none = normal_quantile(POWER) * math.sqrt(changing)
    return math.ceil(((at_margin + at_none) / margin) ** 2)


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


def _fewest(is_met: Callable[[int], bool], smallest: int) -> int | None:
    """Find the least number for which a rule holds that, but for rounding, goes on holding."""
    high = smallest
    while not is_met(high):
        high *= 2
        if high > _MOST_QUESTIONS:
            return None
    low = max(smallest - 1, high // 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_met(middle) else (middle, high)
    return high


def _bound(events: int, trials: int, level: float) -> float:
    bound = at_most(events, trials, level)
    assert bound is not None  # there are trials
    return bound
