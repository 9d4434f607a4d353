"""From the arrays of a batch to the turns of an episode, which everything else works on.

turns_of          message and raw message history -> turns
situation_of      one place of a batch -> what its episode is about
final_timesteps   the last timestep of each rollout
ACTIONS           what an agent does in a round, by the keys of its arrays
no_actions        the arrays of a round in which nobody did anything
present           whether a place of a string array holds a text
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from nip_core.agents.nested_array_dict import STRING, Array, NestedArrayDict
from nip_core.agents.protocol_handler import ProtocolHandler
from nip_core.game.decisions import InvalidResponse
from nip_core.game.render import Situation, Turn
from nip_core.protocols import NO_DECISION, Move

NO_STANCE = -1  # in an array, where none was drawn
HISTORIES = ("message_history", "message_agent_id", "raw_message_history")
_NOTHING_DONE: dict[str, Any] = {
    "message": None,
    "raw_message": None,
    "decision": NO_DECISION,
    "continuous_decision": np.nan,
    "retry_count": 0,
    "token_limit": False,
}
ACTIONS = tuple(_NOTHING_DONE)
_BY_CHANNEL = ("message", "retry_count", "token_limit")


def no_actions(shape: tuple[int, ...], channels: int) -> dict[str, Array]:
    """The arrays of a round in which no agent acts, by key; some have a place per channel."""
    arrays = {}
    for name, nothing in _NOTHING_DONE.items():
        wide = (*shape, channels) if name in _BY_CHANNEL else shape
        arrays[name] = np.full(wide, nothing, STRING if nothing is None else type(nothing))
    return arrays


def present(value: Any) -> bool:
    """Return True if the place holds a text.

    An empty one is none: no answer that counts is empty, and arrays of strings that can't hold None
    have nothing else for a missing one.
    """
    return isinstance(value, str) and value != ""


def situation_of(place: NestedArrayDict) -> Situation:
    """Return the situation of the episode at one place (a batch of size ()).

    The seed, which decides the order of channels and whatever else the protocol draws, is 0 where
    the batch has none.
    """
    stance = place.get("prover_stance")
    drawn = NO_STANCE if stance is None else int(stance)
    return Situation(
        str(place["question"][()]),
        str(place["solution"][()]),
        None if drawn == NO_STANCE else drawn,
        int(place.get("seed", 0)),
    )


def turns_of(handler: ProtocolHandler, histories: Iterable[Array], seed: int) -> list[Turn]:
    """The turns of an episode, by round and agent.

    Messages are what the first of the `HISTORIES` (round, channel) says and the second attributes
    to an agent; what an agent wrote, and whether it decided, is read from the third (round, agent).
    A message without a raw one counts as written as it stands.

    Raises ValueError for arrays of another protocol's channels or agents.
    """
    message_history, message_agent_id, raw_message_history = histories
    channels, agents = message_history.shape[1:], raw_message_history.shape[1:]
    if channels != (handler.num_message_channels,) or agents != (handler.num_agents,):
        raise ValueError(
            f"histories of {handler.num_message_channels} channels and {handler.num_agents} agents "
            f"are needed, got {message_history.shape} (round, channel) and "
            f"{raw_message_history.shape} (round, agent)"
        )
    turns: list[Turn] = []
    for round_ in range(min(len(message_history), handler.max_message_rounds)):
        # Agents of a round don't see each other's turns.
        before = list(turns)
        for index, agent in enumerate(handler.agent_names):
            messages = {
                channel: str(message_history[round_, c])
                for c, channel in enumerate(handler.message_channel_names)
                if message_agent_id[round_, c] == index and present(message_history[round_, c])
            }
            raw = raw_message_history[round_, index]
            if not messages and not present(raw):
                continue
            text = str(raw) if present(raw) else "\n".join(messages.values())
            move = Move(messages=messages)
            if not messages:
                move = _decided(handler, agent, round_, seed, text, before)
            turns.append(Turn(round_, agent, text, move))
    return turns


def _decided(
    handler: ProtocolHandler, agent: str, round_: int, seed: int, text: str, before: list[Turn]
) -> Move:
    """The move of an agent that sent no message: a decision, or nothing that is one."""
    try:
        return handler.game.parse(agent, round_, seed, text, before)
    except (InvalidResponse, KeyError):  # KeyError: not its turn
        return Move()


def final_timesteps(rollouts: NestedArrayDict) -> NestedArrayDict:
    """The last timestep of each rollout that is no padding: batch size (batch, round) -> (batch,).

    Raises ValueError for a batch without rounds.
    """
    if len(rollouts.batch_size) != 2 or not rollouts.batch_size[1]:
        raise ValueError(
            f"rollouts of batch size (batch, round) are needed, got {rollouts.batch_size}"
        )
    count, rounds = rollouts.batch_size
    last = np.full(count, rounds - 1)
    if "padding" in rollouts:
        last = (~rollouts["padding"]).sum(axis=1) - 1
    timesteps = rollouts[np.arange(count), np.maximum(last, 0)]
    assert isinstance(timesteps, NestedArrayDict)
    return timesteps
