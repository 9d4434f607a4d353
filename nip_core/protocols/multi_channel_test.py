"""`multi_channel_test`: a protocol with everything in it, for testing; its rewards mean nothing."""

from collections.abc import Collection, Mapping
from typing import ClassVar

from nip_core.protocols.base import ACCEPT, AgentSpec, Protocol

_HEADERS = {
    "main": "To everyone:",
    "prover0_verifier": "To Expert_1 alone:",
    "prover_chat": "To the experts:",
}
_ROUNDS: tuple[Mapping[str, tuple[str, ...]], ...] = (
    {"prover0": ("prover_chat",), "prover1": ("main",)},
    {"prover0": ("prover0_verifier",), "prover1": ("prover_chat",), "prover2": ("main",)},
    {"prover2": ("prover_chat",), "verifier": ("main", "prover0_verifier")},
)


class MultiChannelTestProtocol(Protocol):
    """Three provers, three channels, and rounds in which several write to different ones."""

    name = "multi_channel_test"
    uses_seed = False
    agents: ClassVar[Mapping[str, AgentSpec]] = {
        "prover0": AgentSpec("Expert_1", stance=ACCEPT),
        "prover1": AgentSpec("Expert_2", stance=ACCEPT),
        "prover2": AgentSpec("Expert_3", stance=ACCEPT),
        "verifier": AgentSpec("Verifier", headers=_HEADERS, decides=True, last_round_message=True),
    }
    channels: ClassVar[tuple[str, ...]] = tuple(_HEADERS)
    hidden: ClassVar[Collection[tuple[str, str]]] = frozenset(
        {
            ("prover1", "prover0_verifier"),
            ("prover2", "prover0_verifier"),
            ("verifier", "prover_chat"),
        }
    )
    min_message_rounds = 2
    max_message_rounds = 8
    verifier_is_last = False  # its last turn is in round 5

    def active(self, round_: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """A cycle of three rounds, the verifier in the third."""
        return _ROUNDS[round_ % 3]

    def earns(self, agent: str, seed: int) -> bool:
        """No prover is paid."""
        return False
