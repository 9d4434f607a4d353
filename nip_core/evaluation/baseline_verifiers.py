"""The scores of simpler verifiers than the learned one: yardsticks for the real metrics.

believe_the_prover   a verifier that decides by the last claims of the provers
decide_as_claimed    these decisions
read_last_claims     the last claim of each prover, by episode
majority             a verifier that plays a problem several times and decides as it mostly did
majority_decisions   these decisions
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.evaluation.metrics import evaluate
from nip_core.evaluation.split_metrics import BatchMetrics, BelievedMetrics
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
    counts_silence: bool = False,
) -> BelievedMetrics:
    """Measure a verifier deciding as the last valid message of the `provers` claims.

    Episodes in which no prover had spoken when the verifier decided are left out: there was no
    claim to believe. Beside the metrics, ``without_prover`` is their number. With `counts_silence`,
    as in ``metrics-<split>.json`` ever since, they are undecided, so wrong, and nothing is beside.

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
    patterns = _compile(claims)
    spoken = _spoken(for_each_episode(episodes, generations), provers)
    decided, left_out = _decided(spoken, patterns), 0
    if not counts_silence:
        heard = spoken["episode"].combine_chunks()
        with_prover = episodes.filter(pc.is_in(episodes["key"], value_set=heard))
        left_out, episodes = episodes.num_rows - with_prover.num_rows, with_prover
    decisions = [decided.get(key, NO_DECISION) for key in episodes["key"].to_pylist()]
    replaced = _replaced(episodes, decision=decisions)
    believed = evaluate(replaced, None, seed=seed, questions=questions)
    if counts_silence:
        return BelievedMetrics(**dict(believed))
    return BelievedMetrics(**dict(believed), without_prover=left_out)


def decide_as_claimed(
    episodes: pa.Table,
    generations: pa.Table,
    claims: Mapping[str, int],
    provers: Collection[str],
) -> dict[str, int]:
    """Decide each episode in which a prover spoke as the last messages claim, by its key.

    `NO_DECISION` without a claim, with two that contradict each other, and in failed episodes.
    Raises ValueError as `believe_the_prover` does.
    """
    spoken = _spoken(for_each_episode(episodes, generations), provers)
    decided = _decided(spoken, _compile(claims))
    heard, outcomes = {*spoken["episode"].to_pylist()}, episodes["outcome"].to_pylist()
    return {
        key: NO_DECISION if outcome == "failed" else decided.get(key, NO_DECISION)
        for key, outcome in zip(episodes["key"].to_pylist(), outcomes, strict=True)
        if key in heard
    }


def read_last_claims(
    episodes: pa.Table,
    generations: pa.Table,
    claims: Mapping[str, int],
    provers: Collection[str],
) -> dict[tuple[str, str], int]:
    """Read by episode and prover the verdict that its last valid message claims.

    `claims` are those of `believe_the_prover`. A message without a claim has `NO_DECISION`, and a
    prover without a message is not there. Raises ValueError as `believe_the_prover` does.
    """
    spoken = _spoken(for_each_episode(episodes, generations), provers)
    return _find_last_claims(spoken, _compile(claims))


def majority(
    episodes: pa.Table, *, seed: int = 0, questions: Mapping[str, str] | None = None
) -> BatchMetrics | None:
    """Measure a verifier with several plays of each problem, deciding by their majority.

    Self-consistency, after Wang et al., "Self-consistency improves chain of thought reasoning in
    language models" (ICLR 2023): a protocol has to beat it with plays that take as many tokens as
    the protocol. Each problem counts once; as many acceptances as rejections are no decision, and
    failed plays have none. None where no problem was played more than once.
    `questions` are those of `evaluate`.
    """
    decided = majority_decisions(episodes)
    if len(decided) == episodes.num_rows:
        return None
    problems = episodes["problem"].to_pylist()
    first = {problem: place for place, problem in reversed([*enumerate(problems)])}
    once = episodes.take(pa.array([first[problem] for problem in decided], pa.int64()))
    finished, errors = ["finished"] * len(decided), [None] * len(decided)
    verdicts = _replaced(once, decision=[*decided.values()], outcome=finished, error=errors)
    return evaluate(verdicts, None, seed=seed, questions=questions)


def majority_decisions(episodes: pa.Table) -> dict[str, int]:
    """Decide each problem as most of its plays did, in the order of first plays."""
    plays: dict[str, list[int]] = {}
    for row in episodes.select(["problem", "decision", "outcome"]).to_pylist():
        decision = NO_DECISION if row["outcome"] == "failed" else row["decision"]
        plays.setdefault(row["problem"], []).append(decision)
    decided = {}
    for problem, decisions in plays.items():
        lead = decisions.count(ACCEPT) - decisions.count(REJECT)
        decided[problem] = NO_DECISION if lead == 0 else ACCEPT if lead > 0 else REJECT
    return decided


def _replaced(episodes: pa.Table, **columns: list[Any]) -> pa.Table:
    """Replace columns of the episodes, and drop the rewards and values of the real verdicts."""
    rows = episodes.num_rows
    replaced = {**columns, "decision_value": [None] * rows, "rewards": [[]] * rows}
    for name, values in replaced.items():
        field = episodes.schema.field(name)
        index = episodes.schema.get_field_index(name)
        episodes = episodes.set_column(index, field, pa.array(values, field.type))
    return episodes


def _spoken(generations: pa.Table, provers: Collection[str]) -> pa.Table:
    """Filter the valid messages of the `provers`, in the order of rounds."""
    names = ["episode", "agent", "round", "exchange", "attempt", "text", "invalid_reason"]
    spoken = generations.select(names)
    return spoken.filter(
        pc.and_(
            pc.is_in(spoken["agent"], value_set=pa.array(sorted(provers), pa.string())),
            pc.is_null(spoken["invalid_reason"]),
        )
    ).sort_by([(name, "ascending") for name in ("round", "exchange", "attempt")])


def _decided(spoken: pa.Table, patterns: list[tuple[re.Pattern[str], int]]) -> dict[str, int]:
    """Decide each episode as all claims in it say; those without one answer are left out."""
    claimed: dict[str, set[int]] = {}
    for (episode, _), claim in _find_last_claims(spoken, patterns).items():
        claimed.setdefault(episode, set()).add(claim)
    certain = {episode: decisions - {NO_DECISION} for episode, decisions in claimed.items()}
    return {
        episode: decisions.pop() for episode, decisions in certain.items() if len(decisions) == 1
    }


def _find_last_claims(
    spoken: pa.Table, patterns: list[tuple[re.Pattern[str], int]]
) -> dict[tuple[str, str], int]:
    """Find by episode and prover what its last message claims, `NO_DECISION` for nothing."""
    speakers = zip(spoken["episode"].to_pylist(), spoken["agent"].to_pylist(), strict=True)
    # Later rows overwrite earlier ones: each prover's last message remains.
    last = {speaker: row for row, speaker in enumerate(speakers)}
    texts = spoken["text"].take(pa.array(list(last.values()), pa.int64())).to_pylist()
    return {speaker: _claim(text, patterns) for speaker, text in zip(last, texts, strict=True)}


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
    claims = [
        (match.end(), match.end() - match.start(), decision)
        for pattern, decision in patterns
        for match in pattern.finditer(text)
    ]
    return max(claims)[2] if claims else NO_DECISION
