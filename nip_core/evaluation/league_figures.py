"""How training went against the models of each iteration.

figures_by_opponent  the metrics of a split's episodes, by who was played with an earlier model
opponent_words       one of them in words
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.evaluation.metrics import evaluate
from nip_core.evaluation.split_metrics import Opponent, OpponentMetrics
from nip_core.evaluation.spread import find_questions


def figures_by_opponent(
    episodes: pa.Table,
    models: Mapping[str, Mapping[int, str]],
    seed: int,
    split_by: Sequence[str] = (),
) -> tuple[OpponentMetrics, ...]:
    """Measure the episodes of each opponent, an earlier model, and those with present models alone.

    Each has ``opponent``, the agent that the earlier model played, ``opponent_iteration``, the
    first iteration that this model has played, and its name as ``model`` (by agent and iteration in
    `models`), all None for the present ones; and what `evaluate` gives of the episodes, with
    intervals by question. Other agents had present models. () where nobody played with an earlier
    model.
    """
    columns = [episodes[name].to_pylist() for name in ("opponent", "opponent_iteration")]
    pairs = {*zip(*columns, strict=True)}
    if pairs <= {(None, None)}:
        return ()
    rows = []
    for agent, iteration in sorted(pairs, key=lambda pair: (pair[0] or "", pair[1] or 0)):
        same = _equals(episodes["opponent"], agent)
        played = episodes.filter(pc.and_(same, _equals(episodes["opponent_iteration"], iteration)))
        questions = find_questions(played, split_by)
        rows.append(
            OpponentMetrics(
                opponent=agent,
                opponent_iteration=iteration,
                model=models.get(agent, {}).get(iteration),
                **dict(evaluate(played, None, seed=seed, questions=questions)),
            )
        )
    return tuple(rows)


def opponent_words(opponent: Opponent) -> str:
    """Say who the opponent of some episodes was, as "prover of iteration 2"."""
    if opponent.opponent is None:
        return "present models"
    return f"{opponent.opponent} of iteration {opponent.opponent_iteration}"


def _equals(column: pa.ChunkedArray, value: str | int | None) -> pa.ChunkedArray:
    return pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
