"""The result of a proof, and the exit status of its command.

Kind         the kinds of results
Verdict      the result for one name, with a sentence, notes and figures
exit_status  the exit status for several names
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "adapter",  # the adapter of the directory, by all answers
    "base",  # the base model
    "another",  # another adapter, which is named
    "unknown",  # neither the adapter nor another known model
    "mixed",  # replicas disagree
    "stale_cache",  # the adapter is loaded, but answers from a cache that other weights have filled
    "not_served",  # the server has no such name
    "cannot_tell",  # there is no result, and the sentence says why
]
PROVED, WRONG, UNTOLD = 0, 8, 9
"""Exit statuses: every name agrees with its files; one is another model; one can't be told."""


@dataclass(frozen=True)
class Verdict:
    """The result of a proof for one name."""

    name: str
    kind: Kind
    says: str
    """A sentence for people."""
    who: tuple[str, ...] = ()
    """The models that it may be, where it is not the adapter alone."""
    answers: int = 0
    agreeing: int = 0
    """Answers that agree with the adapter's files."""
    way: str | None = None
    ranks: int | None = None
    """Replicas that could be asked one by one; None: the server can't do that."""
    notes: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """The exit status of all verdicts: a wrong name counts more than an uncertain one."""
    kinds = {verdict.kind for verdict in verdicts}
    if kinds - {"adapter", "cannot_tell"}:
        return WRONG
    return UNTOLD if "cannot_tell" in kinds or not kinds else PROVED


def list_names(names: Iterable[str]) -> str:
    """List names for a message: eight at most, and the number of the rest."""
    listed = list(names)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return (", ".join(map(repr, listed[:8])) or "none") + more
