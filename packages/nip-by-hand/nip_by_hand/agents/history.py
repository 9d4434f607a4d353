"""From the arrays of a batch to the turns of an episode, which everything else works on.

read_turns        message and raw message history -> turns
read_situation    one place of a batch -> what its episode is about
final_timesteps   the last timestep of each rollout
Actions           agents' actions in a round, as arrays
ACTIONS           their keys
holds_text        whether a place of a string array holds a text
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from nip_by_hand.agents.nested_array_dict import STRING, Array, NestedArrayDict
from nip_by_hand.agents.protocol_handler import ProtocolHandler
from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.render import Situation, Turn
from nip_core.protocols import NO_DECISION, Move

NO_STANCE = -1  # in an array, where none was drawn
HISTORIES = ("message_history", "message_agent_id", "raw_message_history")


@dataclass(frozen=True)
class Actions:
    """Agents' actions in a round: arrays of one shape, of which three also have a place per
    channel.

    The names of the fields are the keys below "agents" in a batch.
    """

    message: Array  # by channel
    raw_message: Array
    decision: Array
    continuous_decision: Array  # NaN: none
    retry_count: Array  # by channel
    token_limit: Array  # by channel

    @classmethod
    def make_empty(cls, shape: tuple[int, ...], channels: int) -> Self:
        """Make the arrays of rounds in which no agent acts."""
        wide = (*shape, channels)
        return cls(
            message=np.full(wide, None, STRING),
            raw_message=np.full(shape, None, STRING),
            decision=np.full(shape, NO_DECISION, int),
            continuous_decision=np.full(shape, np.nan, float),
            retry_count=np.zeros(wide, int),
            token_limit=np.zeros(wide, bool),
        )

    def by_key(self) -> dict[str, Array]:
        """Give the arrays under their keys; they are not copied."""
        return {
            "message": self.message,
            "raw_message": self.raw_message,
            "decision": self.decision,
            "continuous_decision": self.continuous_decision,
            "retry_count": self.retry_count,
            "token_limit": self.token_limit,
        }


ACTIONS = tuple(field.name for field in fields(Actions))


def holds_text(value: Any) -> bool:
    """Return True if the place holds a text.

    An empty one is none: no answer that counts is empty, and arrays of strings that can't hold None
    have nothing else for a missing one.
    """
    return isinstance(value, str) and value != ""


def read_situation(place: NestedArrayDict) -> Situation:
    """Return the situation of the episode at one place (a batch of size ()).

    The seed, which decides the order of channels and the protocol's other draws, is 0 where
    the batch has none.
    """
    stance = place.get("prover_stance")
    stance_number = NO_STANCE if stance is None else int(stance)
    return Situation(
        str(place["question"][()]),
        str(place["solution"][()]),
        None if stance_number == NO_STANCE else stance_number,
        int(place.get("seed", 0)),
    )


def read_turns(handler: ProtocolHandler, histories: Iterable[Array], seed: int) -> list[Turn]:
    """The turns of an episode, by round and agent.

    Messages stand in the first of the `HISTORIES` (round, channel); the second attributes them
    to an agent; an agent's text, and whether it decided, is read from the third (round, agent).
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
        earlier_turns = list(turns)
        for index, agent in enumerate(handler.agent_names):
            messages = {
                channel: str(message_history[round_, c])
                for c, channel in enumerate(handler.message_channel_names)
                if message_agent_id[round_, c] == index and holds_text(message_history[round_, c])
            }
            raw = raw_message_history[round_, index]
            if not messages and not holds_text(raw):
                continue
            text = str(raw) if holds_text(raw) else "\n".join(messages.values())
            move = Move(messages=messages)
            if not messages:
                move = _read_decision(handler, agent, round_, seed, text, earlier_turns)
            turns.append(Turn(round_, agent, text, move))
    return turns


def _read_decision(
    handler: ProtocolHandler,
    agent: str,
    round_: int,
    seed: int,
    text: str,
    earlier_turns: list[Turn],
) -> Move:
    """Read the move of an agent without a message: a decision, or no valid one."""
    try:
        return handler.game.parse(agent, round_, seed, text, earlier_turns)
    except (InvalidResponse, KeyError):  # KeyError: not its turn
        return Move()


def final_timesteps(rollouts: NestedArrayDict) -> NestedArrayDict:
    """Take the last timestep of each rollout before padding: batch size (batch, round) -> (batch,).

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
