"""`merlin_arthur`: one of two opposed provers, drawn by the seed, speaks once; then the verdict."""

from collections.abc import Mapping
from typing import ClassVar

from nip_core.protocols.base import ACCEPT, REJECT, AgentSpec, Protocol
from nip_core.protocols.settings import GameSettings


class MerlinArthurProtocol(Protocol):
    """The verifier does not know which prover spoke, and so not what it was paid to say."""

    name = "merlin_arthur"
    agents: ClassVar[Mapping[str, AgentSpec]] = {
        "prover0": AgentSpec("Expert_1", stance=REJECT, anonymous=True),
        "prover1": AgentSpec("Expert_2", stance=ACCEPT, anonymous=True),
        "verifier": AgentSpec("Verifier", decides=True),
    }
    max_message_rounds = 2
    can_be_zero_knowledge = True

    def __init__(self, parameters: GameSettings):
        super().__init__(parameters)
        self.pay_silent_prover = parameters.merlin_arthur_protocol.pay_silent_prover

    def speaker(self, seed: int) -> str:
        """Name the prover to speak in an episode of this seed."""
        return f"prover{seed % 2}"

    def active(self, round_: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """The drawn prover in round 0, the verifier in round 1."""
        return {self.speaker(seed) if round_ == 0 else "verifier": ("main",)}

    def earns(self, agent: str, seed: int) -> bool:
        """Pay the silent prover only if the settings say so."""
        return self.pay_silent_prover or agent == self.speaker(seed)
