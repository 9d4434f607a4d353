"""How often the verifier of a run was right, question by question.

Counted       by run and figure, from the episodes of its last test
share_right   over runs
average_runs  the same as a mean over seeds and questions, with its interval
subtract_runs the difference of two arms, run by run, in the same way
tally         of plays, by question
Play          one of them
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from nip_core.evaluation.attack_figures import choose_episodes
from nip_core.evaluation.statistics.two_way import TwoWay, two_way
from nip_core.hashing import derive_seed
from nip_core.protocols import ACCEPT, REJECT
from nip_core.rollouts.plan import ATTACK, TEST
from nip_core.rollouts.table_rows import read_rows
from nip_core.rollouts.tables import StoredRollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import Store

Figure = Literal["accuracy", "completeness", "soundness"]
Counts = Mapping[str, tuple[float, int]]
"""By question, how many plays were right, and how many there are."""

_LABELS: Mapping[Figure, tuple[int, ...]] = {
    "accuracy": (0, 1),
    "completeness": (1,),
    "soundness": (0,),
}


@dataclass(frozen=True)
class LastTest:
    """The place of a run's last test."""

    iteration: int
    n: int | None = None
    """Of an attack by best-of-n, the number of messages that counts; None: a test as usual."""


class Play(NamedTuple):
    """What is counted of an episode."""

    problem: str
    question_id: str
    y: int
    decision: int
    outcome: str

    @property
    def is_right(self) -> bool:
        """Return whether the episode ended with the right verdict."""
        # A failed episode has no verdict, and nobody is right without one.
        return self.outcome != "failed" and self.decision == (ACCEPT if self.y else REJECT)


class Counted:
    """Counts right verdicts by question in the last test of each run, and keeps what it counted."""

    def __init__(self, store: Store, tests: Mapping[str, LastTest]):
        self._store, self._tests = store, tests
        self._known: dict[tuple[str, Figure], Counts] = {}

    def count(self, run: str | None, figure: Figure) -> Counts | None:
        """Count right plays and all plays by question, for one rate of a run.

        None without a run, and for one that is not finished and tested.
        """
        if run is None or run not in self._tests:
            return None
        if (run, figure) not in self._known:
            self._known[run, figure] = self._read(run, figure)
        return self._known[run, figure]

    def _read(self, name: str, figure: Figure) -> Counts:
        """Count the plays of the last test of a run, of problems with the labels of a rate."""
        return tally(
            (play.question_id, play.is_right)
            for play in read_rows(self._episodes(name), Play)
            if play.y in _LABELS[figure]
        )

    def _episodes(self, name: str) -> pa.Table:
        columns = ["key", "branch_path", *Play._fields]
        tree, test = RunStore(self._store, name), self._tests[name]
        split = TEST if test.n is None else ATTACK
        stored = StoredRollouts(self._store, [tree.rollouts(test.iteration, split)])
        episodes = stored.episodes(columns)
        return episodes if test.n is None else choose_episodes(episodes, stored.choices(), test.n)


def tally(plays: Iterable[tuple[str, bool]]) -> Counts:
    """Count by question the right plays and all plays."""
    counts: dict[str, tuple[float, int]] = {}
    for question, right in plays:
        hits, count = counts.get(question, (0.0, 0))
        counts[question] = (hits + right, count + 1)
    return counts


def share_right(runs: Sequence[Counts]) -> float | None:
    """Return the share of right plays over all runs, in [0, 1]; None without plays."""
    plays = sum(n for counts in runs for _, n in counts.values())
    return sum(hits for counts in runs for hits, _ in counts.values()) / plays if plays else None


def average_runs(runs: Sequence[Counts], name: str) -> TwoWay | None:
    """Average right plays over runs and questions, with the interval over both.

    `name` seeds the bootstrap. None without plays.
    """
    questions = sorted({question for counts in runs for question in counts})
    if not questions:
        return None
    cells = np.array([[counts.get(q, (0.0, 0)) for q in questions] for counts in runs], float)
    return two_way(cells[..., 0], cells[..., 1], derive_seed("arm", name))


def subtract_runs(pairs: Sequence[tuple[Counts, Counts]], seed: int) -> TwoWay | None:
    """Average over pairs and questions how much more often the first run was right.

    Both runs of a pair have the same questions. `seed` is that of the bootstrap. None without
    questions.
    """
    questions = sorted({question for first, _ in pairs for question in first})
    # A question weighs as much as it was played, in the arm that played it less often.
    weights = np.zeros((len(pairs), len(questions)))
    sums = np.zeros_like(weights)
    for row, (first, second) in enumerate(pairs):
        for column, question in enumerate(questions):
            if question in first:
                (hits, plays), (other_hits, other_plays) = first[question], second[question]
                weight = min(plays, other_plays)
                weights[row, column] = weight
                sums[row, column] = weight * (hits / plays - other_hits / other_plays)
    return two_way(sums, weights, seed)
