"""Rates, paired changes and agreement of verdicts, each with its interval by question.

Rate, count_rate          a share of rows with its 95 % interval
Change, compare_rows      a paired change of a share, with the interval and p-value that agree
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
from nip_core.evaluation.statistics.clustered import clustered_rate, effective_trials, totals_by
from nip_core.evaluation.statistics.differences import at_most
from nip_core.evaluation.statistics.paired import compare_pairs

_Z_999 = 3.29
EARLY_Z = _Z_999
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
        """Whether the interval holds 0, or lies below it."""
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

    None without rows. Where all rows change alike nothing shows a spread: the interval then reaches
    as far as an event that was never seen may be frequent (`at_most`, 97.5 % on each side).
    """
    if not new:
        return None
    clusters = number_questions(questions)
    differences = np.array(new, dtype=np.float64) - np.array(old, dtype=np.float64)
    changes = np.bincount(clusters, differences).astype(np.float64)
    found = compare_pairs(differences, clusters, changes)
    low, high = (None, None) if found.interval is None else found.interval
    mean = float(differences.mean())
    unseen = at_most(0, len(set(questions)), 0.975)
    if low is not None and low == high and unseen is not None:
        low, high = max(-1.0, mean - unseen), min(1.0, mean + unseen)
    return Change(mean, low, high, found.p, found.p, len(new), len(set(questions)))


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
    where a share is 0 or 1. Both shares count as independent, which is wide rather than short where
    questions have rows of both labels. None where one label has no rows.
    """
    if not right_accepted or not wrong_accepted:
        return None
    right, (right_low, right_high) = _share(right_accepted, right_questions, z)
    wrong, (wrong_low, wrong_high) = _share(wrong_accepted, wrong_questions, z)
    value = right - wrong
    low = value - math.hypot(right - right_low, wrong_high - wrong)
    high = value + math.hypot(right_high - right, wrong - wrong_low)
    return Estimate(value, max(-1.0, low), min(1.0, high))


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
    same = [one == other for one, other in zip(first, second, strict=True)]
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
