"""How the verdicts on some episodes differ from those on the same problems elsewhere.

Only episodes that both sides have are counted, paired by problem, play and branch. The verifier
follows a prover where its verdict is the one that the prover argued for: the claim of its last
valid message, or without a claim the verdict that was drawn for it to argue. Episodes without
either, and failed ones, say nothing of whom the verifier follows. A verdict that a prover always
argues for doesn't count: how often it is followed would be the rate of acceptance once more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.evaluation.baseline_verifiers import read_last_claims
from nip_core.evaluation.confidence_intervals import Interval
from nip_core.evaluation.spread import Bools, Ints, find_questions, number_questions
from nip_core.evaluation.statistics.paired import compare_pairs
from nip_core.protocols import ACCEPT, NO_DECISION, Protocol
from nip_core.rollouts.trees import TREE_COLUMNS
from nip_core.scenarios import NO_LABEL

JUDGED = ("key", "problem", "sample", "branch_path", "y", "decision", "outcome", "prover_stance")
EPISODE_COLUMNS = tuple(dict.fromkeys((*JUDGED, "question_id", "columns", *TREE_COLUMNS)))
"""The columns of episodes that `read_judged` needs."""
GENERATION_COLUMNS = (
    *("episode", "branch_path", "round", "agent", "exchange", "attempt"),
    *("text", "invalid_reason"),
)
"""The columns of generations that it needs."""
_NAMES = ["problem", "sample", "branch_path"]


@dataclass(frozen=True)
class JudgedEpisodes:
    """Episodes with their verdicts, and the verdicts that provers argued for."""

    table: pa.Table
    """The columns of `JUDGED`."""
    argued: Mapping[str, Mapping[str, int]]
    """By prover and key of the episode, the verdict that it argued for."""
    questions: Mapping[str, str]
    """By problem, the text that it shares with its variants."""


@dataclass(frozen=True)
class RateChange:
    """A rate on both sides, over the same episodes."""

    before: float
    after: float
    ci95: Interval | None
    """Of the difference; None with one question, which shows no spread."""
    episodes: int

    @property
    def difference(self) -> float:
        """Return how much higher it is after than before."""
        return self.after - self.before


@dataclass(frozen=True)
class VerdictChanges:
    """The changes between two sides, on the episodes that both have."""

    episodes: int
    problems: int
    questions: int
    accuracy: RateChange | None
    """None where no solution has a label."""
    acceptance: RateChange
    follows: Mapping[str, RateChange]
    """By prover, how often the verdict is the one that it argued for."""
    mended: int
    """Verdicts that were not right before and are."""
    broken: int
    """Verdicts that were right before and are not."""
    other: int
    """Others that changed: they are as wrong as before, or it is not known."""


def read_judged(
    episodes: pa.Table,
    generations: pa.Table | None,
    protocol: Protocol | None,
    claims: Mapping[str, int],
    split_by: Sequence[str],
) -> JudgedEpisodes:
    """Read the verdicts on these episodes; without generations, or a protocol, no prover argues.

    `claims` are `Scenario.claims`, `split_by` is `Scenario.split_by`.
    """
    table = episodes.select(JUDGED)
    argued: dict[str, dict[str, int]] = {}
    if protocol is not None and generations is not None and protocol.provers:
        argued = _find_argued(episodes, generations, protocol, claims)
    return JudgedEpisodes(table, argued, find_questions(episodes, split_by))


def _find_argued(
    episodes: pa.Table, generations: pa.Table, protocol: Protocol, claims: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Find by prover and episode what it argued for; those who argued for nothing are left out."""
    claimed = read_last_claims(episodes, generations, claims, protocol.provers)
    stances = dict(zip(*(episodes[c].to_pylist() for c in ("key", "prover_stance")), strict=True))
    argued: dict[str, dict[str, int]] = {prover: {} for prover in protocol.provers}
    for (episode, prover), claim in claimed.items():
        is_drawn = claim == NO_DECISION and stances[episode] is not None
        verdict = protocol.stance(prover, stances[episode]) if is_drawn else claim
        if verdict != NO_DECISION:
            argued[prover][episode] = verdict
    return argued


def join_judged(parts: Sequence[JudgedEpisodes]) -> JudgedEpisodes:
    """Join the episodes of several shards."""
    argued: dict[str, dict[str, int]] = {}
    questions: dict[str, str] = {}
    for part in parts:
        questions |= part.questions
        for prover, verdicts in part.argued.items():
            argued.setdefault(prover, {}).update(verdicts)
    return JudgedEpisodes(pa.concat_tables([of.table for of in parts]), argued, questions)


def measure_changes(earlier: JudgedEpisodes, later: JudgedEpisodes) -> VerdictChanges | None:
    """Measure what differs on the episodes that both sides have; None where there are none."""
    joined = earlier.table.join(
        later.table, _NAMES, join_type="inner", right_suffix=" after", use_threads=False
    ).sort_by([(name, "ascending") for name in _NAMES])
    if not joined.num_rows:
        return None
    problems = joined["problem"].to_pylist()
    question = number_questions(problems, earlier.questions)
    pairs = _Pairs(_number(problems), question)
    sides = [_read_side(joined, suffix) for suffix in ("", " after")]
    y = np.asarray(joined["y"])
    rights = [side.decision == y for side in sides]
    has_label = y != NO_LABEL
    is_changed = sides[0].decision != sides[1].decision
    return VerdictChanges(
        episodes=joined.num_rows,
        problems=len({*problems}),
        questions=len({*question.tolist()}),
        accuracy=pairs.compare(rights[0], rights[1], has_label) if has_label.any() else None,
        acceptance=pairs.compare(sides[0].decision == ACCEPT, sides[1].decision == ACCEPT),
        follows=_compare_followed(earlier, later, sides, pairs),
        mended=int((~rights[0] & rights[1]).sum()),
        broken=int((rights[0] & ~rights[1]).sum()),
        other=int((is_changed & (rights[0] == rights[1])).sum()),
    )


@dataclass(frozen=True)
class _Side:
    keys: list[str]
    decision: Ints  # none where the episode failed
    failed: Bools


def _read_side(joined: pa.Table, suffix: str) -> _Side:
    failed = np.asarray(pc.equal(joined[f"outcome{suffix}"], "failed"))
    decision = np.asarray(joined[f"decision{suffix}"]).astype(np.int64)
    keys = joined[f"key{suffix}"].to_pylist()
    return _Side(keys, np.where(failed, NO_DECISION, decision), failed)


def _compare_followed(
    earlier: JudgedEpisodes, later: JudgedEpisodes, sides: Sequence[_Side], pairs: "_Pairs"
) -> dict[str, RateChange]:
    followed: dict[str, RateChange] = {}
    for prover in earlier.argued:
        if prover not in later.argued:
            continue
        stances = [
            np.array([episodes.argued[prover].get(key, NO_DECISION) for key in side.keys])
            for episodes, side in zip((earlier, later), sides, strict=True)
        ]
        among = np.ones(len(stances[0]), dtype=bool)
        for stance, side in zip(stances, sides, strict=True):
            among &= (stance != NO_DECISION) & ~side.failed
        if among.any():
            hits = [stance == side.decision for stance, side in zip(stances, sides, strict=True)]
            followed[prover] = pairs.compare(hits[0], hits[1], among)
    return followed


@dataclass(frozen=True)
class _Pairs:
    """Which pairs of episodes are of one problem, and which problems of one question."""

    problem: Ints
    question: Ints

    def compare(self, earlier: Bools, later: Bools, among: Bools | None = None) -> RateChange:
        """Compare how often both sides hit, in the pairs of `among`."""
        among = np.ones(len(earlier), dtype=bool) if among is None else among
        change = later[among].astype(np.float64) - earlier[among]
        # Plays of one problem are averaged first, so that a problem counts once in the interval.
        _, first, number = np.unique(self.problem[among], return_index=True, return_inverse=True)
        means = np.bincount(number, weights=change) / np.bincount(number)
        _, question = np.unique(self.question[among][first], return_inverse=True)
        changes = np.bincount(question[number], weights=change).astype(np.float64)
        interval = compare_pairs(means, question.astype(np.int64), changes).interval
        return RateChange(
            float(earlier[among].mean()), float(later[among].mean()), interval, int(among.sum())
        )


def _number(names: Sequence[str]) -> Ints:
    return np.unique(np.array(names), return_inverse=True)[1].astype(np.int64)
