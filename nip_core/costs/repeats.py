"""How often provers repeat themselves, by a run on record: an attack by best-of-n turns on it.

An attack asks for many messages and plays on after those that differ, so a prover with little to
choose from makes a small attack. How many differ is known only by its end; beforehand there are
the tests of the attacked run, in which each problem was played in several iterations.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from nip_core.records.iterations import Records
from nip_core.rollouts.plan import TEST
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.run_store.run import RunStore

_TESTS = 6  # of the run, the newest
Row = Mapping[str, Any]


def measure_repetition(run: RunStore, provers: Collection[str]) -> float | None:
    """Return the share of equal answers among pairs to the same chat, from 0 to 1.

    None where no attacker was asked the same twice. Raises StoreError for a record it can't read.
    """
    records = Records(run)
    iterations = [r.iteration for r in records.all() if r.stored_metrics(TEST) is not None]
    answers: defaultdict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for iteration in iterations[-_TESTS:]:
        rollouts = StoredRollouts(run.store, [run.rollouts(iteration, TEST)])
        problems = rollouts.episodes(["key", "problem"]).to_pylist()
        of_episode = {row["key"]: row["problem"] for row in problems}
        columns = ["episode", "round", "agent", "text", "invalid_reason"]
        rows = rollouts.generations(columns).to_pylist()
        _count(rows, of_episode, provers, answers)
    pairs = same = 0
    for texts in answers.values():
        total = texts.total()
        pairs += total * (total - 1)
        same += sum(count * (count - 1) for count in texts.values())
    return same / pairs if pairs else None


def _count(
    rows: Iterable[Row],
    problems: Mapping[str, str],
    provers: Collection[str],
    answers: Mapping[tuple[Any, ...], Counter[str]],
) -> None:
    """Count the provers' messages by the problem and everything said before."""
    by_episode: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["invalid_reason"] is None:
            by_episode[row["episode"]].append(row)
    for episode, messages in by_episode.items():
        for row in messages:
            if row["agent"] in provers:
                earlier = sorted(
                    (r["round"], r["agent"], r["text"])
                    for r in messages
                    if r["round"] < row["round"]
                )
                place = (problems[episode], row["agent"], row["round"], *earlier)
                answers[place][row["text"]] += 1
