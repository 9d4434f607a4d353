"""Solutions that a prover writes in play: taken from its first valid message, and labelled.

A label that the journal has is not made again. Only `y` and `mutation` stand in the tables; the
seconds of labelling stand in the manifest of the shard.
"""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from nip_core.errors import SettingsError, StageError
from nip_core.game.render import Game
from nip_core.protocols import Move, Turn
from nip_core.rollouts.plan import EpisodeSpec
from nip_core.rollouts.storage.table_rows import LabelRow
from nip_core.scenarios import NO_LABEL, Problem
from nip_core.scenarios.checked import find_solution, label_solution

NO_ANSWER = "no answer"
"""The kind of mistake of a prover that was silent where it should have written the solution."""


class Context(Protocol):
    """The part of a shard's context used by labelling, see `nip_core.rollouts.shard_context`."""

    @property
    def game(self) -> Game: ...

    @property
    def labels(self) -> MutableMapping[str, LabelRow]: ...

    @property
    def log(self) -> Any: ...


def make_objection(game: Game, problem: Problem, agent: str) -> Callable[[Move], str | None] | None:
    """Make a function from a move to the reason why it can't be the solution.

    None where no solution is awaited from the agent.
    """
    if problem.y != NO_LABEL or not game.protocol.is_prover(agent):
        return None

    def reason(move: Move) -> str | None:
        try:
            find_solution(game.scenario, _join_message(move), problem.texts)
        except SettingsError:
            raise
        except ValueError as error:
            return str(error)
        return None

    return reason


async def take_solution(
    context: Context, spec: EpisodeSpec, turns: Sequence[Turn], key: str | None
) -> EpisodeSpec:
    """Put the solution written by the last of `turns`, and its label, in the episode's problem.

    `key` is the generation's. A label in the journal is taken from there.

    Without turns the prover was silent, which is no solution to anything. Raises NoLabel, or
    StageError for a fault that would stop every episode.
    """
    scenario, problem = context.game.scenario, spec.problem
    if not turns or key is None:
        return replace(spec, problem=replace(problem, y=0, mutation=NO_ANSWER))
    try:
        solution = find_solution(scenario, _join_message(turns[-1].move), problem.texts)
    except SettingsError:
        raise
    except ValueError as error:
        raise StageError(
            f"generation {key}: an answer that counted as a solution when it was recorded is none "
            f"({error}); another version of nip has recorded it: go on with that one, or start a "
            "new run"
        ) from None
    row = context.labels.get(key)
    if row is None:
        label = await label_solution(scenario, {**problem.texts, "solution": solution})
        row = LabelRow(key, label.y, label.mutation, label.seconds)
        await context.log.append(row.to_json())
        context.labels[key] = row
    labelled = replace(problem, solution=solution, y=row.y, mutation=row.mutation)
    return replace(spec, problem=labelled)


def _join_message(move: Move) -> str:
    return "\n".join(move.messages.values())
