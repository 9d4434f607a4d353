"""`debate`: two provers who see each other argue for opposite verdicts."""

from collections.abc import Mapping
from typing import ClassVar

from nip_core.protocols.base import ACCEPT, REJECT, AgentSpec
from nip_core.protocols.two_provers import VERIFIER, TwoProversProtocol


class DebateProtocol(TwoProversProtocol):
    """All agents see both channels. prover0 argues for reject, prover1 for accept."""

    name = "debate"
    uses_seed = False
    agents: ClassVar[Mapping[str, AgentSpec]] = {
        "prover0": AgentSpec("Expert_1", stance=REJECT),
        "prover1": AgentSpec("Expert_2", stance=ACCEPT),
        "verifier": VERIFIER,
    }
    rounds_setting = "debate_protocol"
    can_be_zero_knowledge = True
