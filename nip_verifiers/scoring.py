"""The record of an episode in the traces of its agents.

record   rewards, metrics and rows; marks of the trainable calls

Rewards are nip's. Tokens that nip's trainers leave out reach no trainer of verifiers: a failed
episode is untrainable as a whole, and an answer in an invalid form has no sampled token.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import verifiers.v1 as vf

from nip_core.scenarios import RULE_MODEL

Row = Mapping[str, Any]
_TEXTS = ("question", "solution", "columns")  # which stand in the task


def is_right(row: Row) -> bool:
    """Say whether an episode's verdict equals the label; a failed episode is never right."""
    return bool(row["outcome"] != "failed" and row["decision"] == row["y"])


def metrics_of(row: Row, rows: Sequence[Row]) -> dict[str, float]:
    """The figures of an episode, and of the answers of an agent, `rows`."""
    right = float(is_right(row))
    metrics = {
        "accuracy": right,
        "verdict": float(row["decision"]),
        "failed": float(row["outcome"] == "failed"),
        "rounds": float(row["rounds"]),
        "invalid_answers": float(sum(r["invalid_reason"] is not None for r in rows)),
    }
    # Means leave out the traces that lack a metric.
    if row["y"] == 1:
        metrics["completeness"] = right
    elif row["y"] == 0:
        metrics["soundness"] = right
    return metrics


def record(
    trace: vf.Trace, agent: str, group: str, row: Row, rows: Sequence[Row], nodes: Sequence[int]
) -> None:
    """Put into an agent's trace what came of an episode.

    `row` is the episode's, `rows` are those of the agent's answers, and `nodes` the node of each
    that its model gave.
    """
    # 1. Its rewards, and its problem.
    [paid] = [entry["reward"] for entry in row["rewards"] if entry["agent"] == agent]
    trace.record_reward("protocol", paid)
    trace.record_metrics(metrics_of(row, rows))
    trace.info["nip"] = {
        "model_group": group,
        "episode": {name: value for name, value in row.items() if name not in _TEXTS},
        "generations": list(rows),
    }
    # 2. The calls that are not trained.
    if row["outcome"] == "failed":
        trace.agent.trainable = False
    asked = [generation for generation in rows if generation["model_asked"] != RULE_MODEL]
    for generation, number in zip(asked, nodes, strict=True):
        if generation["invalid_reason"] is not None:
            node = trace.nodes[number]
            node.mask, node.logprobs = [False] * len(node.mask), []
