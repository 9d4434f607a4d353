"""`adp`: one message from the prover, then the verdict."""

from collections.abc import Mapping
from typing import ClassVar

from nip_core.protocols.base import ACCEPT, AgentSpec, Protocol


class AdpProtocol(Protocol):
    """Assistant-directed proof: the prover speaks once and the verifier must decide."""

    name = "adp"
    uses_seed = False
    agents: ClassVar[Mapping[str, AgentSpec]] = {
        "prover": AgentSpec("Expert", stance=ACCEPT),
        "verifier": AgentSpec("Verifier", decides=True),
    }
    max_message_rounds = 2
    stance_can_be_randomized = True
    can_be_zero_knowledge = True

    def active(self, round_: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """The prover in round 0, the verifier in round 1."""
        return {"prover" if round_ == 0 else "verifier": ("main",)}
