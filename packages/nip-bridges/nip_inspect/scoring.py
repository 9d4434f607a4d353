"""Verdicts and rewards as Inspect's scores, with nip's statistics.

verdict         a scorer: whether the verdict was right; accuracy, completeness, soundness
rewards         a scorer: each agent's reward; its mean
verdict_score, reward_score   the score of an episode's row, which exported logs have too
summary         the mean of some values with its standard error

The metrics see every play of every epoch, as nip's do. Standard errors are nip's cluster-robust
ones (`clustered_mean`): plays and variants of one question are alike.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from inspect_ai.scorer import (
    CORRECT,
    INCORRECT,
    Metric,
    SampleScore,
    Score,
    Scorer,
    Target,
    metric,
    scorer,
)
from inspect_ai.solver import TaskState

from nip_core.evaluation.episode_transcripts import DECISION_WORDS
from nip_core.evaluation.statistics.clustered import clustered_mean
from nip_core.rollouts.storage.table_rows import Generation
from nip_inspect.transcript import explanation

Row = Mapping[str, Any]
EPISODE, GENERATIONS = "nip:episode", "nip:generations"
"""Where the rows of the episode stand in the sample's store."""
QUESTION = "question"
"""Of a sample's metadata: the same for all variants of a question."""
RATES: Mapping[str, int | None] = {"accuracy": None, "completeness": 1, "soundness": 0}
"""With the label of the episodes that each is about; None: all."""


def is_right(row: Row) -> bool:
    """Say whether an episode's verdict equals the label; a failed episode is never right."""
    return bool(row["outcome"] != "failed" and row["decision"] == row["y"])


def verdict_score(row: Row, answers: Sequence[Generation]) -> Score:
    """The score of an episode: correct or not, the decision, and the last words."""
    words = DECISION_WORDS[row["decision"]]
    if row["outcome"] == "failed":
        words = f"failed: {row['error']}"
    elif row["decision_value"] is not None and abs(row["decision_value"]) not in (0, 1):
        words = f"{words}, {row['decision_value']:+g}"
    return Score(
        value=CORRECT if is_right(row) else INCORRECT,
        answer=DECISION_WORDS[row["decision"]],
        explanation=explanation(words, answers),
        metadata={name: row[name] for name in ("y", "outcome", "rounds", "decision_value")},
    )


def reward_score(row: Row) -> Score:
    """The score of an episode: each agent's reward."""
    return Score(value={entry["agent"]: entry["reward"] for entry in row["rewards"]})


def summary(
    values: Sequence[float], questions: Sequence[str], weights: Sequence[float] | None = None
) -> tuple[float | None, float | None]:
    """The mean and its standard error by question; None where there is no value, or no spread."""
    if not values:
        return None, None
    weights = weights if weights is not None else [1.0] * len(values)
    weighted = (value * weight for value, weight in zip(values, weights, strict=True))
    mean = math.fsum(weighted) / math.fsum(weights)  # rounds once, in any order
    if not all(map(math.isfinite, values)):
        return mean, None
    number = {question: k for k, question in enumerate(sorted({*questions}))}
    clusters = np.array([number[question] for question in questions], dtype=np.int64)
    clustered = clustered_mean(np.array(values), clusters, np.array(weights))
    return mean, None if clustered is None else clustered.error


@metric(scores="unreduced")
def verdicts() -> Metric:
    """Accuracy, completeness and soundness, each with its standard error by question."""

    def measure(scores: list[SampleScore]) -> dict[str, float]:
        measures: dict[str, float] = {}
        for name, label in RATES.items():
            among = [s for s in scores if label is None or (s.score.metadata or {})["y"] == label]
            right = [float(s.score.value in (CORRECT, 1)) for s in among]
            mean, error = summary(right, [_question(s) for s in among])
            if mean is not None:
                measures[name] = mean
            if error is not None:
                measures[f"{name}_stderr"] = error
        return measures

    return measure


@metric(scores="unreduced")
def mean_reward() -> Metric:
    """The mean of an agent's rewards."""

    def measure(scores: list[SampleScore]) -> float:
        return _paid(scores)[0] or 0.0

    return measure


@metric(scores="unreduced")
def stderr() -> Metric:
    """Compute the mean's standard error by question; 0 with one question, as there is no spread."""

    def measure(scores: list[SampleScore]) -> float:
        return _paid(scores)[1] or 0.0

    return measure


def _paid(scores: Sequence[SampleScore]) -> tuple[float | None, float | None]:
    return summary([s.score.as_float() for s in scores], [_question(s) for s in scores])


def _question(score: SampleScore) -> str:
    return str((score.sample_metadata or {}).get(QUESTION, score.sample_id))


@scorer(metrics=[verdicts()])
def verdict() -> Scorer:
    """Score whether the verdict of the episode is right."""

    async def score(state: TaskState, target: Target) -> Score:
        answers = [Generation(**row) for row in state.store.get(GENERATIONS)]
        return verdict_score(state.store.get(EPISODE), answers)

    return score


@scorer(metrics={"*": [mean_reward(), stderr()]})
def rewards() -> Scorer:
    """Score what the episode has paid each agent."""

    async def score(state: TaskState, target: Target) -> Score:
        return reward_score(state.store.get(EPISODE))

    return score
