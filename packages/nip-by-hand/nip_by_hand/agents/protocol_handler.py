"""A protocol with its prompts, as agents, groups and the environment look at it.

ProtocolHandler                its agents and channels, numbered as in the batch's arrays
CodeValidationProtocolHandler  the same with the parts of an agent's prompts
CodeValidationAgentSpec        that, for one agent

Nothing is decided here: `game` (`nip_core.game.render.Game`) and `protocol`
(`nip_core.protocols.Protocol`) are the ones that the loop plays with.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.parameters import HyperParameters


@dataclass(frozen=True)
class CodeValidationAgentSpec:
    """How an agent appears to the others, and the parts of its prompts."""

    name: str
    human_name: str
    response_channel_headers: Mapping[str, str]  # by channel; empty where it writes to one
    channel_order: tuple[str, ...]  # in which it is shown the messages of a round
    anonymous: bool  # its messages carry no name
    last_round_system_message: str | None  # the instruction of its last turn
    use_raw_message_for_self_prompt: bool = True  # it sees its own answers as they were generated
    default_stance: int | None = None  # the verdict it argues for; None: it argues for none


class ProtocolHandler:
    """A protocol as its agents see it. Agents and channels are numbered in their order."""

    def __init__(self, hyper_params: HyperParameters):
        """Make the game. Raises SettingsError or ValueError for settings without a valid game, and
        for problems with texts beside question and solution.
        """
        self.hyper_params = hyper_params
        self.game = Game(hyper_params)
        self.protocol = self.game.protocol
        further = [c.name for c in self.game.scenario.columns[2:] if not c.drawn]
        if further:
            raise SettingsError(
                f"scenario: {hyper_params.scenario} can't be played by hand, as a batch has "
                f"question and solution alone and its problems also have {', '.join(further)}; "
                "train or play it with nip"
            )

    @property
    def agent_names(self) -> tuple[str, ...]:
        """All agents, in index order."""
        return self.protocol.agent_names

    @property
    def message_channel_names(self) -> tuple[str, ...]:
        """All channels, in index order."""
        return tuple(self.protocol.channels)

    @property
    def num_agents(self) -> int:
        """The number of agents."""
        return len(self.agent_names)

    @property
    def num_message_channels(self) -> int:
        """The number of channels."""
        return len(self.protocol.channels)

    @property
    def max_message_rounds(self) -> int:
        """Count the rounds of the longest episode."""
        return self.protocol.max_message_rounds

    def may_be_silent(self, agent_name: str) -> bool:
        """True if the game goes on, at a price, when the agent has no valid answer."""
        return self.protocol.may_be_silent(agent_name)


class CodeValidationProtocolHandler(ProtocolHandler):
    """A protocol with the prompts of code validation."""

    def agent_spec(self, agent_name: str, seed: int = 0) -> CodeValidationAgentSpec:
        """The agent as it appears in an episode of this seed. Raises KeyError for no agent."""
        protocol = self.protocol
        spec = protocol.agents[agent_name]
        headers: dict[str, str] = {}
        for round_ in range(protocol.max_message_rounds):
            channels = protocol.active(round_, seed).get(agent_name, ())
            headers |= protocol.headers(agent_name, channels, seed)
        return CodeValidationAgentSpec(
            name=agent_name,
            human_name=protocol.human_name(agent_name, seed),
            response_channel_headers=headers,
            channel_order=protocol.visible_channels(agent_name),
            anonymous=spec.anonymous,
            last_round_system_message=(
                self.game.prompts.last_round_message if spec.last_round_message else None
            ),
            default_stance=spec.stance,
        )
