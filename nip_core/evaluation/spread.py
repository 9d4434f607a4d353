"""How sure the numbers of a batch are: which rows count as independent of each other.

Where each question has one problem that is played once, `ByProblem` and `ByQuestion` say the same.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nip_core.evaluation.confidence_intervals import (
    Interval,
    bootstrap_rate,
    bootstrap_ratio,
    rate_interval,
)
from nip_core.evaluation.statistics.clustered import clustered_mean, clustered_rate

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class ByProblem:
    """Intervals from the differences between problems; bootstraps draw from `seed`."""

    def __init__(self, seed: int):
        self.seed = seed

    def rate(self, problem: Ints, hit: Bools, weight: Floats) -> Interval | None:
        """Compute the interval of the share of `hit`; the others are by entry."""
        trials = sums_by(problem, weight)
        successes = sums_by(problem[hit], weight[hit], len(trials))
        tried = trials > 0
        return rate_interval(successes[tried], trials[tried], self.seed)

    def mean(self, problem: Ints, values: Floats, weight: Floats) -> Interval | None:
        """Compute the interval of the mean of `values`; the others are by entry."""
        counts, sums = sums_by(problem, weight), sums_by(problem, values * weight)
        is_played = counts > 0
        return bootstrap_ratio(sums[is_played], counts[is_played], self.seed)

    def mean_share(self, problem: Ints, shares: Floats) -> Interval | None:
        """Compute the interval of the mean of one share in [0, 1] for each problem."""
        return bootstrap_rate(shares, np.ones(len(shares)), self.seed)


class ByQuestion(ByProblem):
    """Intervals from the differences between questions: `question` has the one of each problem.

    Where no question has been tried twice it is as by problem.
    """

    def __init__(self, seed: int, question: Ints):
        super().__init__(seed)
        self.question = question

    def rate(self, problem: Ints, hit: Bools, weight: Floats) -> Interval | None:
        """Compute the interval of the share of `hit`; the others are by entry."""
        # As by problem where nothing is alike, so that both kinds of interval are the same there.
        if self._is_each_tried_once(problem, weight):
            return super().rate(problem, hit, weight)
        return clustered_rate(hit, self.question[problem], weight)

    def mean(self, problem: Ints, values: Floats, weight: Floats) -> Interval | None:
        """Compute the interval of the mean of `values`; the others are by entry."""
        if self._is_each_tried_once(problem, weight):
            return super().mean(problem, values, weight)
        return self._mean(problem, values, weight)

    def mean_share(self, problem: Ints, shares: Floats) -> Interval | None:
        """Compute the interval of the mean of one share in [0, 1] for each problem."""
        if self._is_each_tried_once(problem, np.ones(len(problem))):
            return super().mean_share(problem, shares)
        if np.all((shares == 0) | (shares == 1)):
            return clustered_rate(shares == 1, self.question[problem])
        interval = self._mean(problem, shares, None)
        return interval and (max(0.0, interval[0]), min(1.0, interval[1]))

    def _mean(self, problem: Ints, values: Floats, weight: Floats | None) -> Interval | None:
        mean = clustered_mean(values, self.question[problem], weight)
        return None if mean is None else mean.interval()

    def _is_each_tried_once(self, problem: Ints, weight: Floats) -> bool:
        return bool(sums_by(self.question[problem], weight).max(initial=0.0) <= 1 + 1e-9)


@dataclass(frozen=True)
class Resampling:
    """How intervals are to be made: by question, where `questions` has the one of each problem."""

    seed: int
    questions: Mapping[str, str] | None

    def spread(self, problem_ids: Sequence[str]) -> ByProblem:
        """Choose how intervals of a batch of these problems are made."""
        if self.questions is None:
            return ByProblem(self.seed)
        return ByQuestion(self.seed, number_questions(problem_ids, self.questions))


def number_questions(problem_ids: Sequence[str], questions: Mapping[str, str]) -> Ints:
    """Give the question of each problem a number from 0 on."""
    numbers = {text: k for k, text in enumerate(sorted({questions[id_] for id_ in problem_ids}))}
    return np.array([numbers[questions[id_]] for id_ in problem_ids], dtype=np.int64)


def sums_by(problem: Ints, values: Floats, size: int | None = None) -> Floats:
    """Add up the values of each problem, from 0 to the highest or, if given, `size` less one.

    Rows may be in any order.
    """
    size = int(problem.max(initial=-1)) + 1 if size is None else size
    order = np.lexsort((values, problem))  # a sum in one order, for any order of the rows
    sums = np.bincount(problem[order], weights=values[order], minlength=size)
    return np.asarray(sums, dtype=np.float64)


def find_questions(episodes: pa.Table, split_by: Sequence[str] = ()) -> dict[str, str]:
    """Map the id of each problem to a text that the problem shares with its variants.

    If the problem has a column that `split_by` lists (see `Scenario.split_by`), the text names the
    first such column and its value, so all questions about one passage count as one. Otherwise the
    text names the id of the problem's question.
    """
    by_problem: dict[str, str] = {}
    names = ("problem", "question_id", "columns")
    rows = zip(*(episodes[name].to_pylist() for name in names), strict=True)
    for problem, question, columns in rows:
        if problem not in by_problem:
            texts = json.loads(columns) if columns and split_by else {}
            by_problem[problem] = shared_text(question, texts, split_by)
    return by_problem


def shared_text(question_id: str, columns: Mapping[str, str], split_by: Sequence[str]) -> str:
    """Name what a problem shares with its variants; `columns` are its further ones by name."""
    shared = [name for name in split_by if name in columns]
    return f"{shared[0]} {columns[shared[0]]}" if shared else f"id {question_id}"
