"""Attacks on a verifier as objects. One module each.

base        the class of all attacks, and the turns that they are given
best_of_n   of several messages the best is played
script      a function writes the provers' messages
trained     provers are trained against the verifier; course: how that goes on and ends

`find_attack` finds one by its name, or one of the user's by ``path/to/file.py:Class`` or
``package.module:Class``. `nip_core.attack_figures` has the outcome of an attack.
"""

import inspect
from pathlib import Path

from pydantic import ValidationError

from nip_base.importing import import_object
from nip_core.attacks.base import (
    MOST_CONTINUATIONS,
    MOST_MESSAGES,
    Attack,
    AttackOptions,
    AttackSettings,
    AttackTurn,
    NoOptions,
    PlayableMessage,
)
from nip_core.attacks.best_of_n import BestOfN
from nip_core.attacks.script import Script
from nip_core.attacks.trained import Trained
from nip_core.nearest import did_you_mean

__all__ = [
    "ATTACKS",
    "USUAL_ATTACK",
    "Attack",
    "AttackOptions",
    "AttackTurn",
    "NoOptions",
    "PlayableMessage",
    "find_attack",
    "find_attack_file",
    "list_options_of_others",
    "make_attack",
]

ATTACKS: tuple[type[Attack], ...] = (BestOfN, Trained, Script)
USUAL_ATTACK = BestOfN.name
"""The one that is made where none is named."""


def find_attack(name: str) -> type[Attack]:
    """Find the attack of this name, or at ``path/to/file.py:Class`` or ``package.module:Class``.

    Raises ValueError if there is none.
    """
    for kind in ATTACKS:
        if kind.name == name:
            return kind
    if ":" not in name:
        names = tuple(kind.name for kind in ATTACKS)
        raise ValueError(
            f"there is no attack {name!r}{did_you_mean(name, names)}; there are "
            f"{', '.join(names)}, "
            'and one of your own is named like "path/to/file.py:Class" or "package.module:Class"'
        )
    kind = import_object(name)
    if not (isinstance(kind, type) and issubclass(kind, Attack)):
        raise ValueError(f"{name!r} is not a subclass of nip_core.attacks.Attack")
    if not (isinstance(kind.Options, type) and issubclass(kind.Options, NoOptions)):
        raise ValueError(f"{name!r}: its Options are no subclass of nip_core.attacks.AttackOptions")
    plays = kind.choose is not Attack.choose
    if not (kind.trains or plays) or not inspect.iscoroutinefunction(kind.choose):
        raise ValueError(
            f"{name!r} has no `async def choose(self, turn)`; write it (docs/attack.md)"
        )
    try:
        inspect.signature(kind.choose).bind(None, None)
    except TypeError as error:
        raise ValueError(f"{name!r} has to have `async def choose(self, turn)` ({error})") from None
    return kind


def find_attack_file(name: str) -> Path | None:
    """Find the file in which an attack of the user's stands; None for one of nip's."""
    return Path(inspect.getfile(find_attack(name))) if ":" in name else None


def list_options_of_others(kind: type[Attack]) -> tuple[str, ...]:
    """List the options of `nip attack` that mean nothing for an attack."""
    options = (option for attack in ATTACKS for option in attack.command_options)
    return tuple(dict.fromkeys(option for option in options if option not in kind.command_options))


def _check_numbers(attack: Attack) -> None:
    """Raise ValueError for numbers of messages, or of continuations, that make no sense."""
    counts, continuations = attack.counts, attack.continuations
    ascends = all(a < b for a, b in zip((0, *counts), counts, strict=False))
    if not counts or not ascends or counts[-1] > MOST_MESSAGES:
        raise ValueError(
            f"options.n: the numbers of messages have to ascend, from 1 to {MOST_MESSAGES} (got "
            f"{[*counts]})"
        )
    if not 0 <= continuations <= MOST_CONTINUATIONS:
        raise ValueError(f"options.continuations: 0 to {MOST_CONTINUATIONS} (got {continuations})")


def make_attack(settings: AttackSettings) -> Attack:
    """Make the attack of the block `attack`. Raises ValueError for a fault in it."""
    kind = find_attack(settings.by)
    try:
        attack = kind(settings)
        attack.check()
        _check_numbers(attack)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["options", *map(str, first["loc"])])
        names = ", ".join(kind.Options.model_fields) or f"none for by: {settings.by}"
        is_unknown = first["type"] == "extra_forbidden"
        reason = f"unknown setting; there are {names}" if is_unknown else first["msg"]
        raise ValueError(f"{place}: {reason}") from None
    except ValueError:
        raise
    except Exception as error:  # any error that a user's class raises
        raise ValueError(
            f"{settings.by} raised {type(error).__name__}: {error}; mend it"
        ) from error
    return attack
