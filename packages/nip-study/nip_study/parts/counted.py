"""How often the verifier of a run was right, question by question.

Verdicts       of a sweep, by run and test, from the table of `cells`
Counted        by run and figure, from the episodes of its last test
count_plays    of a test, by question
share_right    over runs
average_halves wrong and right problems, each half with the same weight
weigh_alike    runs of other sizes, so that each counts the same
average_runs   the same as a mean over seeds and questions, with its interval
subtract_runs  the difference of two arms, run by run, in the same way
tally          of plays, by question
make_episodes  plays as a table of episodes
Play           one of them
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from nip_core.evaluation.any_of import count_right_choices
from nip_core.hashing import derive_seed
from nip_core.protocols import ACCEPT, REJECT
from nip_study.parts.two_way import Spread, TwoWay, two_way
from nip_study.plan.planned import PlannedRun, find_attack

Figure = Literal["accuracy", "completeness", "soundness"]
WORST = "worst"
"""In the place of an attack's name: the attack that left a run the least soundness."""
After = str | Sequence[str] | None
"""The attack after which a figure is measured, the `WORST` of all, or the worst of several by name;
None: none."""
Counts = Mapping[str, tuple[float, float]]
"""By question, how many plays were right, and how many there are; weighted, where two tests count
as one."""
Definitions = Literal[1, 2]
"""By which definitions attacked figures and baselines are counted (docs/decisions/0057).

1: all figures after an attack from the attack's test, runs weighted by their plays, baselines as
trained. 2: completeness from the own test with the honest prover, soundness from the attack,
accuracy the mean of both; a mean over runs; a verifier alone as trained or untrained, the better.
"""
Balance = Literal["attacked", "honest"]
"""With whose play completeness after an attack is counted: the attacker's, or the own test's."""

LABELS: Mapping[Figure, tuple[int, ...]] = {
    "accuracy": (0, 1),
    "completeness": (1,),
    "soundness": (0,),
}


@dataclass(frozen=True)
class LastTest:
    """The place of a test of a run, the last one as a rule."""

    iteration: int
    n: int | None = None
    """Of an attack by best-of-n, the number of messages that counts; None: a test as usual."""


class Play(NamedTuple):
    """The counted values of an episode."""

    problem: str
    question: str
    y: int
    decision: int
    believed: int | None = None
    """The decision of believing the prover; None where none has spoken."""

    @property
    def is_right(self) -> bool:
        """Return whether the episode ended with the right verdict."""
        return self.decision == (ACCEPT if self.y else REJECT)


class Verdicts:
    """The verdicts of a sweep: the counted values of each episode, by run, attacks too, and test.

    `spread` says how the intervals of counts are computed.
    """

    def __init__(self, table: pa.Table, spread: Spread = "calibrated"):
        self.spread: Spread = spread
        self._by_run: dict[str, dict[LastTest, list[Play]]] = {}
        names = ("run", "attack", "iteration", "n", *Play._fields)
        rows = zip(*(table[name].to_pylist() for name in names), strict=True)
        for run, attack, iteration, n, *play in rows:
            tests = self._by_run.setdefault(run if attack is None else f"{run}-{attack}", {})
            tests.setdefault(LastTest(iteration, n), []).append(Play(*play))

    def tests(self, run: str) -> Mapping[LastTest, Sequence[Play]]:
        """Return the plays of each test of a run, in the order of tests; {} without any."""
        return self._by_run.get(run, {})


@dataclass(frozen=True)
class WorstTest:
    """The test of an attack that left a run the least soundness."""

    attack: str
    place: LastTest
    plays: Sequence[Play]

    @property
    def words(self) -> str:
        """Name the attack, with its n or its step."""
        n, iteration = self.place.n, self.place.iteration
        return f"{self.attack}, {f'step {iteration}' if n is None else f'n {n}'}"


class Counted:
    """Counts right verdicts by question in the last test of each run, and keeps the counts."""

    def __init__(
        self, verdicts: Verdicts, tests: Mapping[str, LastTest], definitions: Definitions = 2
    ):
        self._verdicts, self._tests = verdicts, tests
        self.spread, self.definitions = verdicts.spread, definitions
        self._known: dict[tuple[str, Figure], Counts] = {}

    def count(self, run: str | None, figure: Figure) -> Counts | None:
        """Count right plays and all plays by question, for one rate of a run.

        None without a run, and for one that is not finished and tested.
        """
        if run is None or run not in self._tests:
            return None
        if (run, figure) not in self._known:
            self._known[run, figure] = self._count(run, figure)
        return self._known[run, figure]

    def _count(self, name: str, figure: Figure) -> Counts:
        """Count the plays of the last test of a run, of problems with the labels of a rate."""
        return count_plays(self.plays(name), figure)

    def count_after(
        self, run: PlannedRun, attack: After, figure: Figure, balance: Balance | None = None
    ) -> Counts | None:
        """Count as `count` does for a run, for an attack on it, or for the worst of several.

        `balance` says with whose play completeness is counted then; None: by the definitions.
        """
        if attack is None or figure == "soundness":
            return self._count_attacked(run, attack, figure)
        if not self.is_honest(balance):
            return self._count_attacked(run, attack, figure)
        honest = self.count(run.name, "completeness")
        attack_counts = self._count_attacked(run, attack, "soundness")
        if honest is None or attack_counts is None:
            return None
        return honest if figure == "completeness" else average_halves(attack_counts, honest)

    def is_honest(self, balance: Balance | None) -> bool:
        """Return whether completeness after an attack is that of the own test."""
        return (balance or ("attacked" if self.definitions == 1 else "honest")) == "honest"

    def _count_attacked(self, run: PlannedRun, attack: After, figure: Figure) -> Counts | None:
        if attack is None or (isinstance(attack, str) and attack != WORST):
            return self.count(find_attack(run, attack), figure)
        worst = self.find_worst(run, attack)
        return None if worst is None else count_plays(worst.plays, figure)

    def find_untrained(self, runs: Iterable[PlannedRun]) -> "Counted | None":
        """Count the first tests of these runs, of untrained models; None where one has none."""
        first: dict[str, LastTest] = {}
        for run in runs:
            place = next(iter(self._verdicts.tests(run.name)), None)
            if place != LastTest(0) or self._tests.get(run.name) in (None, place):
                return None
            first[run.name] = LastTest(0)
        return self._at(first) if first else None

    def _at(self, tests: Mapping[str, LastTest]) -> "Counted":
        """Count other tests in the same way."""
        return Counted(self._verdicts, tests, self.definitions)

    def count_any_of(self, run: PlannedRun, k: int, figure: Figure) -> Counts | None:
        """Count the problems of each question that k plays of a run's last test are right on.

        k plays reject where any of them does; a problem counts with the share of all choices of k
        of its plays. None for a run that is not finished and tested with as many plays.
        """
        if run.name not in self._tests:
            return None
        by_problem = count_right_choices(make_episodes(self.plays(run.name))).values()
        counts: dict[str, tuple[float, float]] = {}
        for plays in by_problem:
            if len(plays.right) < k:
                return None
            if plays.y in LABELS[figure]:
                right, problems = counts.get(plays.question_id, (0.0, 0))
                counts[plays.question_id] = (right + float(plays.right[k - 1]), problems + 1)
        return counts

    def find_worst(self, run: PlannedRun, among: Sequence[str] = WORST) -> WorstTest | None:
        """Find the test of an attack on a run that left the least soundness, the first of equals.

        All tests of the attacks `among` which it is count, of all on its test problems by default:
        every step, every n. So it is a minimum over tests, lower than that attack leaves on other
        problems. Tests are compared on the questions that all of them have, where there are some
        (not by definitions 1). None unless all these attacks are finished.
        """
        attacks = run.tested_by if among == WORST else among
        names = [(attack, find_attack(run, attack)) for attack in attacks]
        if any(name not in self._tests for _, name in names):
            return None
        tests = [
            WorstTest(attack, place, plays)
            for attack, name in names
            if name is not None
            for place, plays in self._verdicts.tests(name).items()
        ]
        counts_of_tests = [count_plays(test.plays, "soundness") for test in tests]
        if self.definitions > 1:
            # The lowest of a few hundred problems and of fewer: fewer would be the lower by luck.
            shared = (
                set.intersection(*(set(counts) for counts in counts_of_tests))
                if counts_of_tests
                else set()
            )
            if shared:
                counts_of_tests = [
                    {q: counts[q] for q in counts if q in shared} for counts in counts_of_tests
                ]
        sound = [
            (share_right([one]), test) for one, test in zip(counts_of_tests, tests, strict=True)
        ]
        return min(
            ((soundness, test) for soundness, test in sound if soundness is not None),
            key=lambda pair: pair[0],
            default=(0.0, None),
        )[1]

    def plays(self, name: str) -> Sequence[Play]:
        """Return the plays of the last test of a run that is finished and tested."""
        return self._verdicts.tests(name).get(self._tests[name], ())


def make_episodes(plays: Sequence[Play]) -> pa.Table:
    """Make a table of the columns of episodes that verdicts are counted from."""
    columns = {
        "problem": pa.array([play.problem for play in plays], pa.string()),
        "question_id": pa.array([play.question for play in plays], pa.string()),
        "y": pa.array([play.y for play in plays], pa.int8()),
        "decision": pa.array([play.decision for play in plays], pa.int8()),
        # A failed play has no decision here, so it counts as one that ended without.
        "outcome": pa.array(["finished"] * len(plays), pa.string()),
    }
    return pa.table(columns)


def count_plays(plays: Iterable[Play], figure: Figure) -> Counts:
    """Count by question the right plays and all plays, of problems with the labels of a rate."""
    return tally((play.question, play.is_right) for play in plays if play.y in LABELS[figure])


def tally(plays: Iterable[tuple[str, bool]]) -> Counts:
    """Count by question the right plays and all plays."""
    counts: dict[str, tuple[float, int]] = {}
    for question, right in plays:
        hits, count = counts.get(question, (0.0, 0))
        counts[question] = (hits + right, count + 1)
    return counts


def average_halves(wrong: Counts, right: Counts) -> Counts:
    """Put plays on wrong and on right problems together, each half with the same weight."""
    plays = [sum(count for _, count in half.values()) for half in (wrong, right)]
    if not all(plays):
        return {}
    counts = dict(wrong)
    scale = plays[0] / plays[1]
    for question, (hits, count) in right.items():
        other_hits, other_count = counts.get(question, (0.0, 0.0))
        counts[question] = (other_hits + scale * hits, other_count + scale * count)
    return counts


def weigh_alike(runs: Sequence[Counts]) -> list[Counts]:
    """Weigh the plays of each run so that all runs count the same; a run without plays stays."""
    plays = [sum(count for _, count in counts.values()) for counts in runs]
    if len({*plays} - {0}) < 2:
        return [*runs]
    max_plays = max(plays)
    return [
        {q: (hits * max_plays / n, count * max_plays / n) for q, (hits, count) in counts.items()}
        if n
        else counts
        for counts, n in zip(runs, plays, strict=True)
    ]


def share_right(runs: Sequence[Counts]) -> float | None:
    """Return the share of right plays over all runs, in [0, 1]; None without plays."""
    plays = sum(n for counts in runs for _, n in counts.values())
    return sum(hits for counts in runs for hits, _ in counts.values()) / plays if plays else None


def average_runs(runs: Sequence[Counts], name: str, spread: Spread) -> TwoWay | None:
    """Average right plays over runs and questions, with the interval over both.

    `name` seeds the bootstrap, `spread` says how the error is computed. None without plays.
    """
    questions = sorted({question for counts in runs for question in counts})
    if not questions:
        return None
    cells = np.array([[counts.get(q, (0.0, 0)) for q in questions] for counts in runs], float)
    return two_way(cells[..., 0], cells[..., 1], derive_seed("arm", name), spread)


def subtract_runs(
    pairs: Sequence[tuple[Counts, Counts]], seed: int, spread: Spread
) -> TwoWay | None:
    """Average over pairs and questions how much more often the first run was right.

    Both runs of a pair have the same questions. `seed` is that of the bootstrap, `spread` says how
    the error is computed. None without questions.
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
    return two_way(sums, weights, seed, spread)
