"""`refereed`: two provers answer the game's own questions, and then the verifier decides."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from nip_core.protocols.base import ACCEPT, REJECT, AgentSpec, Protocol
from nip_core.protocols.two_provers import CHANNELS, VERIFIER


class RefereedProtocol(Protocol):
    """In every round but the last both provers speak; the verifier asks nothing and has the last.

    All agents see both channels. prover0 argues for reject, prover1 for accept. The question to
    provers before a turn is the scenario's (`Scenario.announce`).
    """

    name = "refereed"
    uses_seed = False
    agents: ClassVar[Mapping[str, AgentSpec]] = {
        "prover0": AgentSpec("Expert_1", stance=REJECT),
        "prover1": AgentSpec("Expert_2", stance=ACCEPT),
        "verifier": replace(VERIFIER, last_round_message=False),  # it is told from the start
    }
    channels: ClassVar[tuple[str, ...]] = tuple(CHANNELS.values())
    rounds_setting = "refereed_protocol"

    def active(self, round_: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """Let each prover write to its own channel, and the verifier in the last round to both."""
        if self.is_last_round(round_):
            return {"verifier": tuple(CHANNELS.values())}
        return {agent: (channel,) for agent, channel in CHANNELS.items()}

    def channel_order(self, agent: str, round_: int, seed: int) -> tuple[str, ...]:
        """A prover is shown its own channel last."""
        return tuple(sorted(self.channels, key=lambda channel: channel == CHANNELS.get(agent)))
