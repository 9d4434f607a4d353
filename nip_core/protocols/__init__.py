"""Interaction protocols as data. One module each; `base` says what a protocol is.

Protocols know settings and nothing else of nip. Other protocols go beside these, as subclasses
of `base.Protocol`, and into `PROTOCOLS`.
"""

from nip_core.parameters import HyperParameters
from nip_core.protocols.adp import AdpProtocol
from nip_core.protocols.base import (
    ACCEPT,
    NO_DECISION,
    REJECT,
    AgentSpec,
    Move,
    Protocol,
    RoundResult,
)
from nip_core.protocols.nip import NipProtocol
from nip_core.protocols.solo_verifier import SoloVerifierProtocol

PROTOCOLS: dict[str, type[Protocol]] = {
    protocol.name: protocol for protocol in (NipProtocol, AdpProtocol, SoloVerifierProtocol)
}

__all__ = [
    "ACCEPT",
    "NO_DECISION",
    "PROTOCOLS",
    "REJECT",
    "AgentSpec",
    "Move",
    "Protocol",
    "RoundResult",
    "make_protocol",
]


def make_protocol(parameters: HyperParameters) -> Protocol:
    """The protocol that the settings name."""
    return PROTOCOLS[parameters.interaction_protocol](parameters)
