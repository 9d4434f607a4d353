"""What one would score without the learned verifier: yardsticks for the real metrics.

believe_the_prover   a verifier that decides whatever the prover said last
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.evaluation.metrics import ACCEPT, NO_DECISION, REJECT, evaluate


def believe_the_prover(
    episodes: pa.Table,
    generations: pa.Table,
    claims: Mapping[str, int],
    *,
    prover: str = "prover",
    seed: int = 0,
) -> dict[str, Any]:
    """Metrics of a verifier that decides what the prover's last valid message claims.

    `claims` maps a regular expression, searched without regard to case, to the decision it
    stands for (0 or 1). Where several match, the one that ends last in the text counts, and of
    those the longest ("do not match" before "match"). Without a match, or without a message,
    there is no decision. Episodes that failed stay failed. Rewards are left out: they were paid
    for the real verdicts. Each generation belongs to the episode that its column `episode`
    names; trees are not walked.

    Raises:
        ValueError: a claim stands for something else than 0 or 1, or is no regular expression.
    """
    patterns = _compile(claims)
    spoken = generations.select(["episode", "agent", "round", "attempt", "text", "invalid_reason"])
    spoken = spoken.filter(
        pc.and_(pc.equal(spoken["agent"], prover), pc.is_null(spoken["invalid_reason"]))
    ).sort_by([("round", "ascending"), ("attempt", "ascending")])
    # Later rows overwrite earlier ones: what remains is each episode's last message.
    last = dict(
        zip(spoken["episode"].to_pylist(), range(spoken.num_rows), strict=True),
    )
    texts = spoken["text"].take(pa.array(list(last.values()), pa.int64())).to_pylist()
    decided = {episode: _claim(text, patterns) for episode, text in zip(last, texts, strict=True)}
    decisions = np.fromiter(
        (decided.get(key, NO_DECISION) for key in episodes["key"].to_pylist()),
        dtype=np.int8,
        count=episodes.num_rows,
    )
    rewards = episodes.schema.field("rewards")
    believed = episodes.set_column(
        episodes.schema.get_field_index("decision"),
        episodes.schema.field("decision"),
        pa.array(decisions),
    ).set_column(
        episodes.schema.get_field_index("rewards"),
        rewards,
        pa.array([[]] * episodes.num_rows, rewards.type),
    )
    return evaluate(believed, None, seed=seed)


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
