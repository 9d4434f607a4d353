"""Agents that take their turns over a batch of episodes.

PureTextWholeAgent     the base of every agent: its keys, its channels, one turn of a whole batch
RandomWholeAgent       an agent without a model
_ParsedChatCompletion  the result of one turn
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nip_by_hand.agents.experiment_settings import ExperimentSettings
from nip_by_hand.agents.history import ACTIONS, HISTORIES, Actions, read_situation, read_turns
from nip_by_hand.agents.nested_array_dict import Array, NestedArrayDict
from nip_by_hand.agents.protocol_handler import CodeValidationProtocolHandler, ProtocolHandler
from nip_by_hand.agents.states import AgentState, PlainState
from nip_by_hand.agents.synchronous import synchronous
from nip_core.concurrency import gather_or_cancel
from nip_core.errors import SettingsError
from nip_core.game.render import Situation, Turn
from nip_core.parameters import HyperParameters, PureTextAgentParameters, RandomAgentParameters
from nip_core.protocols import NO_DECISION, REJECT
from nip_core.rollouts.model_call import random_answer

if TYPE_CHECKING:
    from nip_by_hand.agents.environment import PureTextEnvironment
    from nip_by_hand.agents.shared_model_group import PureTextSharedModelGroup

Seeds = Callable[[int], int]
"""Number of the attempt -> seed of that call."""


@dataclass(frozen=True)
class _ParsedChatCompletion:
    """The outcome of one turn of an agent."""

    messages: dict[str, str] = field(default_factory=dict)
    """By channel; none beside a decision."""
    raw_message: str | None = None
    """The answer before parsing; None: the agent had no turn, or was silent."""
    decision: int = NO_DECISION
    """0 reject, 1 accept, 2 none, 3 neither."""
    continuous_decision: float | None = None
    """The decision on its scale, from -1 to 1."""
    retry_count: int = 0
    """Answers in an invalid form before this one."""
    token_limit: bool = False
    """Whether the answer was cut at the most tokens that a message may have."""


_Turn = tuple[tuple[str, ...], _ParsedChatCompletion]


class PureTextWholeAgent(ABC):
    """An agent: it sees the messages that the protocol shows it and speaks in its turns.

    The synchronous methods are for code without an event loop; where one is running they raise a
    RuntimeError that names the coroutine to await.
    """

    agent_level_in_keys: tuple[str, ...] = ()
    """Keys below "agents" that a turn reads."""
    agent_level_out_keys: tuple[str, ...] = ACTIONS
    """Keys that a turn gives, as they stand below "agents" in a batch."""
    env_level_in_keys = ("round", "seed", *HISTORIES, "question", "solution", "prover_stance")
    """Keys of the state that a turn reads."""
    env_level_out_keys: tuple[str, ...] = ()
    """Keys of the state that a turn gives."""

    def __init__(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        agent_name: str,
        protocol_handler: ProtocolHandler | CodeValidationProtocolHandler,
    ):
        """Raises SettingsError if the protocol has no agent of this name."""
        if agent_name not in protocol_handler.agent_names:
            raise SettingsError(
                f"there is no agent {agent_name!r} in protocol {protocol_handler.protocol.name!r}; "
                f"there are {', '.join(protocol_handler.agent_names)}"
            )
        self.hyper_params, self.settings = hyper_params, settings
        self.agent_name, self.protocol_handler = agent_name, protocol_handler
        self.shared_model_group: PureTextSharedModelGroup | None = None

    # Identity.

    @property
    def agent_params(self) -> PureTextAgentParameters | RandomAgentParameters:
        """The agent's settings."""
        return self.hyper_params.agents[self.agent_name]

    @property
    def agent_id(self) -> int:
        """The agent's place in the order of the protocol's agents."""
        return self.protocol_handler.agent_names.index(self.agent_name)

    @property
    def in_keys(self) -> tuple[str, ...]:
        """List the keys a turn reads."""
        return self.env_level_in_keys + self.agent_level_in_keys

    @property
    def out_keys(self) -> tuple[str, ...]:
        """List the keys a turn gives."""
        return self.env_level_out_keys + self.agent_level_out_keys

    @property
    def is_prover(self) -> bool:
        """True if it argues for a verdict."""
        return self.protocol_handler.protocol.is_prover(self.agent_name)

    @property
    def is_verifier(self) -> bool:
        """True if the verdict of the game is its own."""
        return self.agent_name == "verifier"

    @property
    def max_message_rounds(self) -> int:
        """The most rounds of an episode."""
        return self.protocol_handler.max_message_rounds

    @property
    def required_pretrained_models(self) -> tuple[str, ...]:
        """Models whose embeddings the agent needs: none."""
        return ()

    @property
    def visible_message_channel_names(self) -> tuple[str, ...]:
        """List the channels open to it for reading, in index order."""
        return self.protocol_handler.protocol.visible_channels(self.agent_name)

    @property
    def visible_message_channel_mask(self) -> Array:
        """Booleans of shape (channel,)."""
        visible = self.visible_message_channel_names
        return np.array([c in visible for c in self.protocol_handler.message_channel_names])

    @property
    def visible_message_channel_indices(self) -> Array:
        """List the places of the channels open to it for reading."""
        return np.flatnonzero(self.visible_message_channel_mask)

    @property
    def num_visible_message_channels(self) -> int:
        """Count the channels open to it for reading."""
        return len(self.visible_message_channel_names)

    # Its state, which is the group's where it has a model.

    def get_state_dict(self) -> PlainState:
        """Give its state as plain values, for `set_state`."""
        return AgentState().to_dict()

    def set_state(self, checkpoint: AgentState | PlainState) -> None:  # noqa: B027 - not every agent has one
        """Restore a state of `get_state_dict`: an empty one, unless a subclass keeps a state."""

    # Its turns.

    def __call__(self, data: NestedArrayDict, environment: "PureTextEnvironment") -> Any:
        """See `forward`."""
        return self.forward(data, environment)

    async def aforward(
        self, data: NestedArrayDict, environment: "PureTextEnvironment"
    ) -> NestedArrayDict:
        """The agent's turn in every episode of the batch, all at once.

        `data` has the keys `in_keys`, and may have "done" and "terminated"; `environment` is the
        one that plays them. The batch that comes back has the same batch size and, per episode,
        "message" (channel), "raw_message", "decision", "continuous_decision" (NaN: none),
        "retry_count" (channel) and "token_limit"
        (channel). Where the agent has no turn, or the episode is over, it says nothing.

        Raises GenerationError for an answer that stays unusable after all retries, except where
        `protocol_common.prover_invalid_response_penalty` lets a prover be silent then.
        """
        places = list(np.ndindex(data.batch_size))
        async with self._client_for_calls() as client:
            turns = await gather_or_cancel(
                self._turn(data[place], environment, client) for place in places
            )
        return self._as_arrays(places, turns, data.batch_size)

    forward = synchronous(aforward, "forward")

    async def _turn(
        self, place: NestedArrayDict, environment: "PureTextEnvironment", client: Any
    ) -> "_Turn":
        """Take the agent's turn in one episode: the channels written to, and its answer."""
        round_, seed, situation = int(place["round"]), int(place["seed"]), read_situation(place)
        if bool(place.get("done", False)) or bool(place.get("terminated", False)):
            return (), _ParsedChatCompletion()
        turns = read_turns(self.protocol_handler, (place[key] for key in HISTORIES), seed)
        # The agent on turn may depend on earlier messages.
        movers = self.protocol_handler.protocol.movers(round_, seed, turns)
        if self.agent_name not in movers:
            return (), _ParsedChatCompletion()
        if self.is_verifier and self.protocol_handler.game.rejects(situation, turns, round_):
            text = f"Decision: {self.protocol_handler.protocol.scale.lowest}"
            return movers[self.agent_name], _ParsedChatCompletion({}, text, REJECT, -1.0)
        seeds = partial(environment.generation_seed, seed, round_, self.agent_name)
        answer = await self._answer(turns, round_, situation, seeds, client)
        return movers[self.agent_name], answer

    @abstractmethod
    async def _answer(
        self,
        turns: Sequence[Turn],
        round_: int,
        situation: Situation,
        seeds: Seeds,
        client: Any,
    ) -> _ParsedChatCompletion:
        """Give the agent's answer in `round_` after `turns`."""

    def _client_for_calls(self) -> AbstractAsyncContextManager[Any]:
        """Open the `client` of `_answer`, for one batch."""
        return nullcontext()

    def _as_arrays(
        self,
        places: Sequence[tuple[int, ...]],
        turns: Sequence["_Turn"],
        size: tuple[int, ...],
    ) -> NestedArrayDict:
        channels = self.protocol_handler.message_channel_names
        out = Actions.make_empty(size, len(channels))
        for place, (channels_written, turn) in zip(places, turns, strict=True):
            out.raw_message[place] = turn.raw_message
            out.decision[place] = turn.decision
            if turn.continuous_decision is not None:
                out.continuous_decision[place] = turn.continuous_decision
            for c, channel in enumerate(channels):
                if channel in channels_written:
                    out.message[(*place, c)] = turn.messages.get(channel)
                    out.retry_count[(*place, c)] = turn.retry_count
                    out.token_limit[(*place, c)] = turn.token_limit
        return NestedArrayDict(out.by_key(), size)


class RandomWholeAgent(PureTextWholeAgent):
    """An agent without a model: its messages follow from the seeds alone."""

    async def _answer(
        self,
        turns: Sequence[Turn],
        round_: int,
        situation: Situation,
        seeds: Seeds,
        client: Any,
    ) -> _ParsedChatCompletion:
        game = self.protocol_handler.game
        text = random_answer(game.form(self.agent_name, round_, situation.seed, turns), seeds(0))
        move = game.parse(self.agent_name, round_, situation.seed, text, turns)
        return _ParsedChatCompletion(dict(move.messages), text, move.decision, move.value)
