"""What a proof came to, and how it ends a command.

Kind         what answers
Verdict      of one name, with a sentence, notes and figures
exit_status  of several names, for a program that goes by it
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "adapter",  # the adapter of the directory, by all answers
    "base",  # the base model
    "another",  # another adapter, which is named
    "unknown",  # neither the adapter nor anything that is known
    "mixed",  # replicas disagree
    "stale_cache",  # the adapter is loaded, and answers from what another left in a cache
    "not_served",  # the server has no such name
    "cannot_tell",  # nothing can be said, and the sentence says why
]
PROVED, WRONG, UNTOLD = 0, 8, 9
"""Exit statuses: every name is what its files say; one is something else; one can't be told."""


@dataclass(frozen=True)
class Verdict:
    """What answers under a name."""

    name: str
    kind: Kind
    says: str
    """A sentence for people."""
    who: tuple[str, ...] = ()
    """What else it may be, where it is not the adapter alone."""
    answers: int = 0
    agreeing: int = 0
    """Answers that are what the adapter's files say."""
    way: str | None = None
    ranks: int | None = None
    """Replicas that the server let itself be asked for one by one; None: it did not."""
    notes: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """The exit status of all of them: what is wrong counts before what can't be told."""
    kinds = {verdict.kind for verdict in verdicts}
    if kinds - {"adapter", "cannot_tell"}:
        return WRONG
    return UNTOLD if "cannot_tell" in kinds or not kinds else PROVED


def list_names(names: Iterable[str]) -> str:
    """List names for a message, the first of many."""
    listed = list(names)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return (", ".join(map(repr, listed[:8])) or "none") + more
