"""The settings of a game, as far as a game reads them. No class of settings is imported for it.

GameSettings         a run's settings, as protocols, scenarios and prompts are given them
CommonSettings       rewards and order, for every protocol
RoundSettings        how many rounds, in the group that a protocol's `rounds_setting` names
TwoProverSettings    and in which order two provers speak
SilentProverSettings who is paid in merlin_arthur
SecrecySettings      the pay of zero-knowledge games
AgentSettings        of an agent, with a model or without; ModelAgentSettings: of one with a model

`nip_core.parameters` has the classes with defaults, bounds and explanations. They look up the
protocol and the scenario that they name, so neither of these may import them, for types either.
"""

import typing
from collections.abc import Mapping

from nip_core.protocols.scales import ScaleName

# All are properties: settings are frozen, and an attribute would have to be one that can be set.


class CommonSettings(typing.Protocol):
    """The settings of every protocol: the block `protocol_common`."""

    @property
    def verifier_first(self) -> bool: ...
    @property
    def randomize_prover_stance(self) -> bool: ...
    @property
    def prover_reward(self) -> float: ...
    @property
    def verifier_reward(self) -> float: ...
    @property
    def verifier_incorrect_penalty(self) -> float: ...
    @property
    def verifier_terminated_penalty(self) -> float: ...
    @property
    def verifier_no_guess_reward(self) -> float: ...
    @property
    def verifier_neither_accept_nor_reject_reward(self) -> float | None: ...
    @property
    def verifier_decision_scale(self) -> ScaleName: ...
    @property
    def prover_invalid_response_penalty(self) -> float | None: ...
    @property
    def shared_reward(self) -> bool: ...
    @property
    def force_guess(self) -> typing.Literal["zero", "one", "y"] | None: ...
    @property
    def zero_knowledge(self) -> bool: ...
    @property
    def reward_function(self) -> str | None: ...
    @property
    def reward_range(self) -> tuple[float, float] | None: ...


class RoundSettings(typing.Protocol):
    """How many rounds a protocol has."""

    @property
    def max_message_rounds(self) -> int: ...
    @property
    def min_message_rounds(self) -> int: ...


class TwoProverSettings(RoundSettings, typing.Protocol):
    """In which order two provers speak and are read."""

    @property
    def sequential(self) -> bool: ...
    @property
    def prover0_first(self) -> bool: ...
    @property
    def randomize_channel_order(self) -> bool: ...


class SilentProverSettings(typing.Protocol):
    """The block `merlin_arthur_protocol`."""

    @property
    def pay_silent_prover(self) -> bool: ...


class SecrecySettings(typing.Protocol):
    """The block `zk_protocol`."""

    @property
    def simulator_reward_coefficient(self) -> float: ...
    @property
    def aux_prover_reward_coefficient(self) -> float: ...
    @property
    def similarity(self) -> typing.Literal["text", "log_probs"]: ...


class AgentSettings(typing.Protocol):
    """One agent, with a model or without."""

    @property
    def is_random(self) -> bool: ...


class ModelAgentSettings(AgentSettings, typing.Protocol):
    """One agent that reads a prompt, as its system prompt tells of it."""

    @property
    def max_response_words(self) -> int: ...
    @property
    def system_prompt_template_path(self) -> str | None: ...


class GameSettings(typing.Protocol):
    """A run's settings, as far as a game reads them by name.

    Two groups are read by an address that a class states: `Protocol.rounds_setting` and
    `Scenario.settings_block`.
    """

    @property
    def interaction_protocol(self) -> str: ...
    @property
    def protocol_common(self) -> CommonSettings: ...
    @property
    def merlin_arthur_protocol(self) -> SilentProverSettings: ...
    @property
    def zk_protocol(self) -> SecrecySettings: ...
    @property
    def scenario(self) -> str: ...
    @property
    def agents(self) -> Mapping[str, AgentSettings]: ...
    @property
    def prompted_agents(self) -> Mapping[str, ModelAgentSettings]: ...
    def max_tokens(self, agent: str) -> int: ...
