"""`nip`: prover and verifier take turns until the verifier decides."""

from collections.abc import Mapping
from typing import ClassVar

from nip_core.protocols.base import ACCEPT, AgentSpec, Protocol


class NipProtocol(Protocol):
    """Neural interactive proof. The verifier asks, the prover answers, the verifier decides."""

    name = "nip"
    uses_seed = False
    agents: ClassVar[Mapping[str, AgentSpec]] = {
        "prover": AgentSpec("Expert", stance=ACCEPT),
        "verifier": AgentSpec("Verifier", decides=True, last_round_message=True),
    }
    rounds_setting = "nip_protocol"
    stance_can_be_randomized = True
    can_be_zero_knowledge = True

    def active(self, round_: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """The verifier in even rounds if it is first, else in odd ones."""
        verifier_turn = (round_ % 2 == 0) == self.common.verifier_first
        return {"verifier" if verifier_turn else "prover": ("main",)}
