"""How training went against the models of each iteration.

figures_by_opponent  the metrics of a split's episodes, by who was played with an earlier model
league_rows          the part of them that is shown
opponent_words       one of them in words
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.evaluation.metrics import evaluate
from nip_core.evaluation.spread import questions_of

BY_OPPONENT = "by_opponent"
"""Where the figures stand among the metrics of a split that has any."""
_SHOWN = (
    *("opponent", "opponent_iteration", "model", "episodes", "accuracy", "accuracy_ci95"),
    *("completeness", "completeness_ci95", "soundness", "soundness_ci95"),
)


def figures_by_opponent(
    episodes: pa.Table,
    models: Mapping[str, Mapping[int, str]],
    seed: int,
    split_by: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Measure the episodes in which all played with present models, and by each earlier model those
    that were played with it; [] where there was none.

    Each has ``opponent``, the agent that the earlier model played, ``opponent_iteration``, the
    first iteration that this model has played, and its name as ``model`` (by agent and iteration in
    `models`), all null for the present ones; and what `evaluate` gives of the episodes, with
    intervals by question. Other agents had present models.
    """
    columns = [episodes[name].to_pylist() for name in ("opponent", "opponent_iteration")]
    pairs = {*zip(*columns, strict=True)}
    if pairs <= {(None, None)}:
        return []
    rows = []
    for agent, iteration in sorted(pairs, key=lambda pair: (pair[0] or "", pair[1] or 0)):
        same = _equals(episodes["opponent"], agent)
        played = episodes.filter(pc.and_(same, _equals(episodes["opponent_iteration"], iteration)))
        questions = questions_of(played, split_by)
        rows.append(
            {
                "opponent": agent,
                "opponent_iteration": iteration,
                "model": models.get(agent, {}).get(iteration),
                **evaluate(played, None, seed=seed, questions=questions),
            }
        )
    return rows


def league_rows(metrics: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The figures that are shown, from the metrics of a split; [] where there was no league."""
    rows = (metrics or {}).get(BY_OPPONENT) or ()
    return [{key: row[key] for key in _SHOWN} for row in rows]


def opponent_words(row: Mapping[str, Any]) -> str:
    """The opponent of some episodes in words, as "prover of iteration 2"."""
    if row["opponent"] is None:
        return "present models"
    return f"{row['opponent']} of iteration {row['opponent_iteration']}"


def _equals(column: pa.ChunkedArray, value: Any) -> pa.ChunkedArray:
    return pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
