"""`solo_verifier`: the verifier decides alone, at once. The baseline for every protocol."""

from collections.abc import Mapping
from typing import ClassVar

from nip_core.protocols.base import AgentSpec, Protocol


class SoloVerifierProtocol(Protocol):
    """No prover, one round: no verdict in it ends the episode without one."""

    name = "solo_verifier"
    uses_seed = False
    agents: ClassVar[Mapping[str, AgentSpec]] = {"verifier": AgentSpec("Verifier", decides=True)}

    def active(self, round_: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """The verifier in the only round."""
        return {"verifier": ("main",)}
