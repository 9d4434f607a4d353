"""How training went against the models of each iteration."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.evaluation.metrics import evaluate
from nip_core.evaluation.split_metrics import Opponent, OpponentMetrics
from nip_core.evaluation.spread import find_questions
from nip_core.parameters.blocks.opponents import split_agents
from nip_core.rollouts.plan import OpponentKey

_OPPONENT = ("opponent_run", "opponent", "opponent_iteration")


def figures_by_opponent(
    episodes: pa.Table,
    models: Mapping[str, Mapping[OpponentKey, str]],
    seed: int,
    split_by: Sequence[str] = (),
) -> tuple[OpponentMetrics, ...]:
    """Measure the episodes of each opponent, an earlier model, and those with present models alone.

    Each has ``opponent``, the agent that the earlier model played, ``opponent_iteration``, the
    first iteration that this model has played, and its name as ``model`` (by agent and iteration in
    `models`), all None for the present ones; and the metrics by `evaluate` of the episodes, with
    intervals by question. An opponent of another run has its name as ``opponent_run``, its
    iteration there, and its models by that name; it may have played several agents. All others had
    present models. () where no agent played with another model.
    """
    columns = [episodes[name].to_pylist() for name in _OPPONENT]
    met = {*zip(*columns, strict=True)}
    if met <= {(None, None, None)}:
        return ()
    rows = []
    for run, agents, iteration in sorted(met, key=lambda m: (m[0] or "", m[1] or "", m[2] or 0)):
        values = zip(_OPPONENT, (run, agents, iteration), strict=True)
        table = episodes
        for name, value in values:
            table = table.filter(_equals(table[name], value))
        questions = find_questions(table, split_by)
        key = iteration if run is None else run
        names = [models.get(agent, {}).get(key) for agent in split_agents(agents)]
        rows.append(
            OpponentMetrics(
                opponent=agents,
                opponent_iteration=iteration,
                opponent_run=run,
                model=", ".join(name for name in names if name) or None,
                **dict(evaluate(table, None, seed=seed, questions=questions)),
            )
        )
    return tuple(rows)


def opponent_words(opponent: Opponent) -> str:
    """Say who the opponent of some episodes was, as "prover of iteration 2"."""
    if opponent.opponent is None:
        return "present models"
    agents = " and ".join(split_agents(opponent.opponent))
    if opponent.opponent_run is None:
        return f"{agents} of iteration {opponent.opponent_iteration}"
    if opponent.opponent_iteration is None:
        return f"{agents} of {opponent.opponent_run}"
    return f"{agents} of {opponent.opponent_run}, iteration {opponent.opponent_iteration}"


def _equals(column: pa.ChunkedArray, value: str | int | None) -> pa.ChunkedArray:
    return pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
