"""`mnip`: two provers who can't see each other argue for the same verdict."""

from collections.abc import Collection, Mapping
from typing import ClassVar

from nip_core.protocols.base import ACCEPT, AgentSpec
from nip_core.protocols.two_provers import CHANNELS, VERIFIER, TwoProversProtocol


class MnipProtocol(TwoProversProtocol):
    """Multi-prover interactive proof. Both provers are paid for the verdict they argue for."""

    name = "mnip"
    uses_seed = False
    agents: ClassVar[Mapping[str, AgentSpec]] = {
        "prover0": AgentSpec("Expert_1", stance=ACCEPT),
        "prover1": AgentSpec("Expert_2", stance=ACCEPT),
        "verifier": VERIFIER,
    }
    hidden: ClassVar[Collection[tuple[str, str]]] = frozenset(
        {("prover0", CHANNELS["prover1"]), ("prover1", CHANNELS["prover0"])}
    )
    rounds_setting = "mnip_protocol"
    stance_can_be_randomized = True
    can_be_zero_knowledge = True
