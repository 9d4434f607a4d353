"""Rates, paired changes and agreement of verdicts, each with its interval by question.

Rate, count_rate          a share of rows with its 95 % interval
Change, compare_rows      a paired change of a share, with the interval and p-value that agree
bound_rise                the upper 95 % bound of a paired change, one-sided
score_limits              the limits of a paired change by Tango's score test
Estimate                  a number with an interval
youden_index              how much better than chance a judge tells right from wrong
agreement                 Cohen's kappa of two askings of the same rows
number_questions          questions as whole numbers from 0, which the statistics take

Questions count as independent of each other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nip_core.evaluation.confidence_intervals import Z_95, Interval, wilson_of_rate
from nip_core.evaluation.statistics.clustered import (
    clustered_mean,
    clustered_rate,
    effective_trials,
    totals_by,
)
from nip_core.evaluation.statistics.differences import at_most
from nip_core.evaluation.statistics.paired import compare_pairs

_Z_995, _Z_ONE_SIDED = 2.807033768343811, 1.6448536269514722
_HALVINGS = 40
EARLY_Z = _Z_995
"""Normal quantile of the intervals that may end an attack after its first rows."""


@dataclass(frozen=True)
class Rate:
    """A share of rows, all as fractions of 1."""

    rate: float
    low: float
    high: float
    """95 %, by question."""
    events: int
    rows: int
    questions: int
    hit_questions: int
    """Questions with an event in any of their rows."""


@dataclass(frozen=True)
class Change:
    """A paired change of a share: new less old, as a fraction of 1."""

    change: float
    low: float | None
    high: float | None
    """95 %, by question; None with one question."""
    p: float
    p_holm: float
    """Among all that were tested beside the primary one; of the primary one, `p` itself."""
    rows: int
    questions: int


@dataclass(frozen=True)
class Estimate:
    """A number with an interval."""

    value: float
    low: float
    high: float

    @property
    def holds_zero(self) -> bool:
        """Tell whether the interval holds 0, or lies below it."""
        return self.low <= 0


def number_questions(questions: Sequence[str]) -> NDArray[np.int64]:
    """Number questions from 0 in the order of their names: one number a row."""
    places = {name: place for place, name in enumerate(sorted(set(questions)))}
    return np.array([places[name] for name in questions], dtype=np.int64)


def count_rate(hits: Sequence[bool], questions: Sequence[str]) -> Rate | None:
    """Count the share of `hits` with rows by question; None without rows."""
    if not hits:
        return None
    clusters = number_questions(questions)
    values = np.array(hits, dtype=np.bool_)
    interval = clustered_rate(values, clusters)
    assert interval is not None  # there are rows
    hit_questions = {name for hit, name in zip(hits, questions, strict=True) if hit}
    return Rate(
        rate=sum(hits) / len(hits),
        low=interval[0],
        high=interval[1],
        events=sum(hits),
        rows=len(hits),
        questions=len(set(questions)),
        hit_questions=len(hit_questions),
    )


def compare_rows(
    new: Sequence[bool], old: Sequence[bool], questions: Sequence[str]
) -> Change | None:
    """Compare two verdicts on each row, paired by row and clustered by question.

    None without rows. The interval is that of `compare_pairs`, made wider where `score_limits`
    reach further: Student's is too short where few verdicts changed. Where all rows change alike
    nothing shows a spread: it then reaches as far as an event that was never seen may be frequent
    (`at_most`, 97.5 % on each side). It excludes 0 exactly if p is below 0.05.
    """
    if not new:
        return None
    clusters = number_questions(questions)
    differences = np.array(new, dtype=np.float64) - np.array(old, dtype=np.float64)
    changes = np.bincount(clusters, differences).astype(np.float64)
    comparison = compare_pairs(differences, clusters, changes)
    low, high = (None, None) if comparison.interval is None else comparison.interval
    mean, trials = float(differences.mean()), len(set(questions))
    if low is not None and high is not None:
        gained, losses = int((changes > 0).sum()), int((changes < 0).sum())
        lowest, highest = score_limits(gained, losses, trials, Z_95)
        unseen = at_most(0, trials, 0.975)
        if low == high and unseen is not None:
            lowest, highest = min(lowest, mean - unseen), max(highest, mean + unseen)
        # The test decides whether 0 is excluded, and the limits how far the interval reaches.
        low = low if lowest <= 0 < low else max(-1.0, min(low, lowest))
        high = high if high < 0 <= highest else min(1.0, max(high, highest))
    return Change(mean, low, high, comparison.p, comparison.p, len(new), trials)


def bound_rise(differences: Sequence[float], questions: Sequence[str]) -> float | None:
    """Bound the mean of differences of -1, 0 or 1 a row from above, one-sided at 95 %.

    The higher one of Student's bound by question and of `score_limits`; where no question changed,
    at least the bound of an event that was never seen. None without rows, and with one question.
    """
    values, clusters = np.array(differences, dtype=np.float64), number_questions(questions)
    mean = clustered_mean(values, clusters)
    interval = None if mean is None else mean.interval(0.90)
    if mean is None or interval is None:
        return None
    changes = np.bincount(clusters, values)
    gained, losses, trials = int((changes > 0).sum()), int((changes < 0).sum()), len(changes)
    highest = max(interval[1], score_limits(gained, losses, trials, _Z_ONE_SIDED)[1])
    if not mean.error:
        highest = max(highest, mean.value + (at_most(0, trials) or 0.0))
    return min(1.0, highest)


def score_limits(gained: int, losses: int, trials: int, z: float) -> Interval:
    """Find the limits of (gained - losses) / trials in the population, by Tango's score test.

    Of paired verdicts; z is the normal quantile of each side. Tango, "Equivalence test and
    confidence interval for the difference in proportions for the paired-sample design", Statistics
    in Medicine 17 (1998). It keeps its width where few verdicts changed, or none.
    """
    return -_upper_limit(losses, gained, trials, z), _upper_limit(gained, losses, trials, z)


def _upper_limit(gained: int, lost_count: int, trials: int, z: float) -> float:
    low, high = (gained - lost_count) / trials, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        b = (2 * trials - gained + lost_count) * middle - gained - lost_count
        variance = middle * (1 - middle)
        losses = (math.sqrt(max(0.0, b * b + 8 * trials * lost_count * variance)) - b) / (
            4 * trials
        )
        error = math.sqrt(max(0.0, trials * (2 * losses + variance)))
        is_held = gained - lost_count - trials * middle >= -z * error
        low, high = (middle, high) if is_held else (low, middle)
    return high


def youden_index(
    right_accepted: Sequence[bool],
    right_questions: Sequence[str],
    wrong_accepted: Sequence[bool],
    wrong_questions: Sequence[str],
    z: float = Z_95,
) -> Estimate | None:
    """Compute Youden's J: the share of right answers accepted, less that of wrong ones.

    It is sensitivity + specificity - 1. The interval is the hybrid score one of Newcombe,
    "Interval estimation for the difference between independent proportions", Statistics in
    Medicine 17 (1998), method 10, of both shares' Wilson intervals by question: it keeps its width
    where a share is 0 or 1. Where verdicts on both labels of a question are opposed, as those of a
    judge that compares pairs, the shares are further apart by chance than independent ones: their
    correlation is then taken in, in intervals of 95 %, as in the paper's sequel on paired data
    (pages 2635 to 2650 of the same volume). A correlation above 0 is not, which is wide rather than
    short. None where one label has no rows.
    """
    if not right_accepted or not wrong_accepted:
        return None
    right, (right_low, right_high) = _share(right_accepted, right_questions, z)
    wrong, (wrong_low, wrong_high) = _share(wrong_accepted, wrong_questions, z)
    value = right - wrong
    opposed = 0.0
    if z <= Z_95:
        opposed = _opposition(right_accepted, right_questions, wrong_accepted, wrong_questions)

    def reach(one: float, other: float) -> float:
        return math.sqrt(one * one + other * other + 2 * opposed * one * other)

    low = value - reach(right - right_low, wrong_high - wrong)
    high = value + reach(right_high - right, wrong - wrong_low)
    return Estimate(value, max(-1.0, low), min(1.0, high))


def _opposition(
    right: Sequence[bool],
    right_questions: Sequence[str],
    wrong: Sequence[bool],
    wrong_questions: Sequence[str],
) -> float:
    """Estimate how far verdicts on both labels of a question are opposed: 0, up to 1 for always.

    It is the correlation of both shares, over questions, without its sign; 0 if it is positive.
    """
    sides = []
    for hits, questions in ((right, right_questions), (wrong, wrong_questions)):
        share = sum(hits) / len(hits)
        rests: dict[str, float] = {}
        for hit, question in zip(hits, questions, strict=True):
            rests[question] = rests.get(question, 0.0) + (hit - share)
        sides.append(rests)
    of_right, of_wrong = sides
    together = math.fsum(of_right[name] * of_wrong[name] for name in of_right if name in of_wrong)
    squares = [math.fsum(rest * rest for rest in side.values()) for side in sides]
    spread = math.sqrt(squares[0] * squares[1])
    return min(1.0, max(0.0, -together / spread)) if spread else 0.0


def agreement(
    first: Sequence[str], second: Sequence[str], questions: Sequence[str], z: float = Z_95
) -> Estimate | None:
    """Compute Cohen's kappa of two askings of the same rows, by their verdicts.

    The interval is Wilson's of the share that agrees, by question, with chance agreement held
    fixed; about 0 it has the standard error of Cohen, "A coefficient of agreement for nominal
    scales", Educational and Psychological Measurement 20 (1960). None without rows, and where all
    verdicts are the same: chance then agrees as often.
    """
    if not first:
        return None
    rows = len(first)
    chance = sum(
        first.count(verdict) * second.count(verdict) / rows**2 for verdict in sorted(set(first))
    )
    if chance >= 1:
        return None
    same = [one == second_verdict for one, second_verdict in zip(first, second, strict=True)]
    share, (low, high) = _share(same, questions, z)
    return Estimate(*((value - chance) / (1 - chance) for value in (share, low, high)))


def _share(hits: Sequence[bool], questions: Sequence[str], z: float) -> tuple[float, Interval]:
    """Compute a share with Wilson's interval of quantile z, by question."""
    values = np.array(hits, dtype=np.bool_)
    successes, trials = totals_by(number_questions(questions), values)
    share = sum(hits) / len(hits)
    # As `clustered_rate`: rows of different questions are trials.
    worth = len(hits) if len(trials) == len(hits) else effective_trials(successes, trials)
    # Wilson's interval depends on z²/n alone.
    return share, wilson_of_rate(share, worth * (Z_95 / z) ** 2)
