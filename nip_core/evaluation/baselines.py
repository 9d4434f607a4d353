"""What one would score without the learned verifier: yardsticks for the real metrics.

believe_the_prover   a verifier that decides whatever the provers said last
majority             a verifier that plays a problem several times and decides as it mostly did
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.evaluation.metrics import evaluate
from nip_core.protocols import ACCEPT, NO_DECISION, REJECT
from nip_core.rollouts.trees import for_each_episode


def believe_the_prover(
    episodes: pa.Table,
    generations: pa.Table,
    claims: Mapping[str, int],
    *,
    provers: Collection[str] = ("prover",),
    seed: int = 0,
    questions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Metrics of a verifier that decides what the last valid message of the `provers` claims.

    `claims` maps a regular expression, searched without regard to case, to the decision it
    stands for (0 or 1). Where several match, the one that ends last in the text counts, and of
    those the longest ("do not match" before "match"). Of several provers the last message of each
    counts. Without a claim, or with two that contradict each other, there is no decision. Episodes
    that failed stay failed. Rewards and decision values are left out: they belong to the real
    verdicts. In trees of responses every leaf has the messages on its way. `questions` are those of
    `evaluate`.

    Raises:
        ValueError: a claim stands for something else than 0 or 1, or is no regular expression.
    """
    decided = _decided(for_each_episode(episodes, generations), _compile(claims), provers)
    decisions = [decided.get(key, NO_DECISION) for key in episodes["key"].to_pylist()]
    replaced = _replaced(episodes, decision=decisions)
    return evaluate(replaced, None, seed=seed, questions=questions)


def majority(
    episodes: pa.Table, *, seed: int = 0, questions: Mapping[str, str] | None = None
) -> dict[str, Any] | None:
    """Metrics of a verifier that plays each problem several times and decides by their majority.

    Self-consistency, after Wang et al., "Self-consistency improves chain of thought reasoning in
    language models" (ICLR 2023): with as many plays as make its tokens those of a protocol, it is
    what the protocol has to beat. Each problem counts once; as many acceptances as rejections are
    no decision, and failed plays have none. None where no problem was played more than once.
    `questions` are those of `evaluate`.
    """
    plays: dict[str, list[int]] = {}
    rows = episodes.select(["problem", "decision", "outcome"]).to_pylist()
    for row in rows:
        decision = NO_DECISION if row["outcome"] == "failed" else row["decision"]
        plays.setdefault(row["problem"], []).append(decision)
    if len(plays) == len(rows):
        return None
    decided = {}
    for problem, decisions in plays.items():
        lead = decisions.count(ACCEPT) - decisions.count(REJECT)
        decided[problem] = NO_DECISION if lead == 0 else ACCEPT if lead > 0 else REJECT
    first = {row["problem"]: place for place, row in reversed([*enumerate(rows)])}
    once = episodes.take(pa.array([first[problem] for problem in plays], pa.int64()))
    finished, errors = ["finished"] * len(decided), [None] * len(decided)
    verdicts = _replaced(once, decision=[*decided.values()], outcome=finished, error=errors)
    return evaluate(verdicts, None, seed=seed, questions=questions)


def _replaced(episodes: pa.Table, **columns: list[Any]) -> pa.Table:
    """Replace columns of the episodes, and what belongs to the verdicts that were real."""
    rows = episodes.num_rows
    replaced = {**columns, "decision_value": [None] * rows, "rewards": [[]] * rows}
    for name, values in replaced.items():
        field = episodes.schema.field(name)
        index = episodes.schema.get_field_index(name)
        episodes = episodes.set_column(index, field, pa.array(values, field.type))
    return episodes


def _decided(
    generations: pa.Table, patterns: list[tuple[re.Pattern[str], int]], provers: Collection[str]
) -> dict[str, int]:
    """By episode, the one decision that all claims there stand for."""
    spoken = generations.select(["episode", "agent", "round", "attempt", "text", "invalid_reason"])
    spoken = spoken.filter(
        pc.and_(
            pc.is_in(spoken["agent"], value_set=pa.array(sorted(provers), pa.string())),
            pc.is_null(spoken["invalid_reason"]),
        )
    ).sort_by([("round", "ascending"), ("attempt", "ascending")])
    speakers = zip(spoken["episode"].to_pylist(), spoken["agent"].to_pylist(), strict=True)
    # Later rows overwrite earlier ones: what remains is each prover's last message.
    last = {speaker: row for row, speaker in enumerate(speakers)}
    texts = spoken["text"].take(pa.array(list(last.values()), pa.int64())).to_pylist()
    claimed: dict[str, set[int]] = {}
    for (episode, _), text in zip(last, texts, strict=True):
        claimed.setdefault(episode, set()).add(_claim(text, patterns))
    certain = {episode: found - {NO_DECISION} for episode, found in claimed.items()}
    return {episode: found.pop() for episode, found in certain.items() if len(found) == 1}


def _compile(claims: Mapping[str, int]) -> list[tuple[re.Pattern[str], int]]:
    patterns = []
    for source, decision in claims.items():
        if decision not in (REJECT, ACCEPT):
            raise ValueError(f"the claim {source!r} stands for {decision!r}; it must be 0 or 1")
        try:
            patterns.append((re.compile(source, re.IGNORECASE), decision))
        except re.error as error:
            raise ValueError(f"the claim {source!r} is no regular expression: {error}") from error
    return patterns


def _claim(text: str, patterns: list[tuple[re.Pattern[str], int]]) -> int:
    found = [
        (match.end(), match.end() - match.start(), decision)
        for pattern, decision in patterns
        for match in pattern.finditer(text)
    ]
    return max(found)[2] if found else NO_DECISION
