"""Rejecting where any of k plays of a problem rejects: the gain of asking a verifier again.

Where a verifier may err in one direction alone, as one that checks a step of a calculation does,
a protocol has to beat this at as many tokens, rather than the majority of the plays: a verifier
that sees a mistake once has seen it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb

import numpy as np
import pyarrow as pa

from nip_core.evaluation.confidence_intervals import Interval
from nip_core.evaluation.split_metrics import AnyOfRow
from nip_core.evaluation.spread import Floats, Resampling
from nip_core.protocols import ACCEPT, NO_DECISION, REJECT

_RATES: Mapping[str, tuple[int, ...]] = {
    "accuracy": (0, 1),
    "completeness": (1,),
    "soundness": (0,),
}


@dataclass(frozen=True)
class Shares:
    """The plays of one problem."""

    question_id: str
    y: int
    right: Floats
    """For k = 1, 2, ... the share of all choices of k plays that lead to the right verdict."""
    voted: Floats
    """The same of choices whose more frequent verdict is right; a tie is none."""


def any_of(
    episodes: pa.Table,
    generations: pa.Table | None = None,
    *,
    seed: int = 0,
    questions: Mapping[str, str] | None = None,
) -> tuple[AnyOfRow, ...] | None:
    """Measure a verifier with k plays of a problem, rejecting it where any play does.

    One row for each ``k`` from 1 to the number of plays: ``accuracy``, ``completeness`` and
    ``soundness`` in [0, 1], each problem counting once, with 95 % intervals under ``…_ci95``; and,
    with the `generations` of these episodes, ``prompt_tokens`` and ``generated_tokens``: of all
    agents, a problem, in the mean. Each is the mean over all choices of k of a problem's plays, so
    without bias by their order. None where no problem was played more than once.
    `questions` are as for `evaluate`.
    """
    by_problem = count_right_choices(episodes)
    if len(by_problem) == episodes.num_rows:
        return None
    spread = Resampling(seed, questions).spread(ids := sorted(by_problem))
    labels = np.array([by_problem[problem].y for problem in ids])
    right = np.array([by_problem[problem].right for problem in ids])
    tokens = _tokens_a_play(episodes, generations)
    rows = []
    for k in range(1, right.shape[1] + 1):
        rates: dict[str, float | Interval | None] = {}
        for rate, among in _RATES.items():
            places = np.flatnonzero(np.isin(labels, among))
            values = right[places, k - 1]
            interval = spread.mean_share(places, values) if len(places) else None
            rates |= {rate: float(values.mean()) if len(places) else None, f"{rate}_ci95": interval}
        totals = {name: k * count for name, count in tokens.items()}
        rows.append(AnyOfRow.model_validate({"k": k, **rates, **totals}))
    return tuple(rows)


def count_right_choices(episodes: pa.Table) -> dict[str, Shares]:
    """Count by problem how many choices of k of its plays lead to the right verdict.

    k plays reject where one of them does; else they accept where one of them does. A failed play
    has no decision.
    """
    decisions: dict[str, list[int]] = {}
    facts: dict[str, tuple[str, int]] = {}
    columns = ["problem", "question_id", "y", "decision", "outcome"]
    for row in episodes.select(columns).to_pylist():
        decided = NO_DECISION if row["outcome"] == "failed" else row["decision"]
        decisions.setdefault(row["problem"], []).append(decided)
        facts[row["problem"]] = row["question_id"], row["y"]
    max_plays = min((len(plays) for plays in decisions.values()), default=0)
    return {
        problem: Shares(
            *facts[problem],
            _right(plays, facts[problem][1], max_plays),
            _voted(plays, facts[problem][1], max_plays),
        )
        for problem, plays in decisions.items()
    }


def _right(plays: list[int], y: int, max_plays: int) -> Floats:
    """Compute for k = 1 to `max_plays` the share of right choices among all choices of k plays."""
    count, rejecting, accepting = len(plays), plays.count(REJECT), plays.count(ACCEPT)
    shares = []
    for k in range(1, max_plays + 1):
        none_rejects = comb(count - rejecting, k) / comb(count, k)
        none_decides = comb(count - rejecting - accepting, k) / comb(count, k)
        shares.append(none_rejects - none_decides if y else 1 - none_rejects)
    return np.array(shares)


def _voted(plays: list[int], y: int, max_plays: int) -> Floats:
    """Compute for k = 1 to `max_plays` the share of choices of k plays with a right majority."""
    right, wrong = plays.count(ACCEPT if y else REJECT), plays.count(REJECT if y else ACCEPT)
    undecided = len(plays) - right - wrong
    shares = []
    for k in range(1, max_plays + 1):
        ways = sum(
            comb(right, i) * comb(wrong, j) * comb(undecided, k - i - j)
            for i in range(1, min(right, k) + 1)
            for j in range(min(i - 1, wrong, k - i) + 1)
        )
        shares.append(ways / comb(len(plays), k))
    return np.array(shares)


def _tokens_a_play(episodes: pa.Table, generations: pa.Table | None) -> dict[str, float]:
    """Compute the tokens of a play, read and written by all agents, in the mean."""
    if generations is None:
        return {}
    columns = {"prompt_tokens": "prompt_tokens", "generated_tokens": "completion_tokens"}
    return {
        name: int(np.sum(generations[column].to_numpy(), dtype=np.int64)) / episodes.num_rows
        for name, column in columns.items()
    }
