"""Interaction protocols as data. One module each.

base                what a protocol is
reward_function     a function of a user's own that pays in the protocol's place
settings_checks     which settings make a game
scales              what a verifier may answer when it decides
settings            what a game reads of a run's settings, as a type
two_provers         what `debate` and `mnip` share
zero_knowledge      a protocol around another one, with an adversarial verifier and a simulator

`find_protocol` finds a protocol by the name of its module here, or anywhere by
``path/to/file.py:Class`` or ``package.module:Class``; there is no list to keep. Protocols import
no settings (the settings look up the protocol that they name).
"""

import sys

from nip_base.importing import find_line, import_object
from nip_core.importing import find_class, find_classes
from nip_core.nearest import did_you_mean, nearest_first
from nip_core.protocols.base import (
    ACCEPT,
    NEITHER,
    NO_DECISION,
    REJECT,
    AgentSpec,
    Exchange,
    Move,
    Protocol,
    RoundResult,
    TokenChoice,
    Turn,
)
from nip_core.protocols.reward_function import EndedEpisode
from nip_core.protocols.settings import GameSettings
from nip_core.protocols.zero_knowledge import EXTRA_AGENTS, ZeroKnowledgeProtocol

__all__ = [
    "ACCEPT",
    "NEITHER",
    "NO_DECISION",
    "REJECT",
    "AgentSpec",
    "EndedEpisode",
    "Exchange",
    "Move",
    "Protocol",
    "RoundResult",
    "TokenChoice",
    "Turn",
    "find_protocol",
    "list_agent_names",
    "make_protocol",
    "protocol_names",
]


def protocol_names() -> tuple[str, ...]:
    """The names of the protocols in this package."""
    return find_classes(__name__, Protocol)


def find_protocol(name: str) -> type[Protocol]:
    """The protocol of this name, or at ``package.module:Class`` or ``path/to/file.py:Class``.

    Raises ValueError if there is none.
    """
    if ":" in name:
        return _imported(name)
    protocol = find_class(__name__, name, Protocol)
    if protocol is not None:
        return protocol
    names = protocol_names()
    raise ValueError(
        f"there is no protocol {name!r}{did_you_mean(name, names)}; there are "
        f"{', '.join(nearest_first(name, names))}, and one of your own is named like "
        '"package.module:Class" or "path/to/file.py:Class"'
    )


def make_protocol(parameters: GameSettings) -> Protocol:
    """Make the protocol of the settings. Raises ValueError for settings without a game."""
    kind = find_protocol(parameters.interaction_protocol)
    try:
        protocol = kind(parameters)
        protocol.check()
    except ValueError:
        raise
    except Exception as error:  # any error that a user's class raises
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
        line = find_line(error, file)
        raise ValueError(
            f"protocol {kind.name!r} raised {type(error).__name__}: {' '.join(str(error).split())}"
            f"{line and f' ({file}{line})'}; it is asked for {kind.max_message_rounds} rounds, the "
            "first is 0"
        ) from error
    if not parameters.protocol_common.zero_knowledge:
        return protocol
    wrapped = ZeroKnowledgeProtocol(parameters, protocol)
    wrapped.check()
    return wrapped


def list_agent_names(name: str, zero_knowledge: bool) -> tuple[str, ...]:
    """The agents of a protocol in index order. Raises ValueError if there is no such protocol."""
    agents = tuple(find_protocol(name).agents)
    return (*agents, *EXTRA_AGENTS) if zero_knowledge else agents


def _imported(address: str) -> type[Protocol]:
    protocol = import_object(address)
    if not (isinstance(protocol, type) and issubclass(protocol, Protocol)):
        raise ValueError(f"{address!r} is not a subclass of nip_core.protocols.Protocol")
    return protocol
