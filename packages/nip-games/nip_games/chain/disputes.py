"""Bisection: which steps two provers dispute, by the values that they state.

Dispute         some steps, with the values at their ends
find_dispute    the dispute that remains after the stated values
read_value      the value that a message states
read_stated     by round, the values that both provers state

The prover that argues for the claim *asserts*, the other one *denies*. The value before the steps
in dispute is always undisputed, and the first of them asserts the one after them. In each
round both state the value in their middle. If it is the same, the later half is in dispute from
then on, otherwise the earlier one. So if the one on the right side is honest:

- The value before is true: the honest one has stated it, or it is the start.
- If the claim is false, and who denies it is honest, the value asserted after is false.
- If the claim is true, and who asserts it is honest, the value asserted after is true.

In the end one step is left, and it leads from the one value to the other exactly if the claim is
true (Canetti, Riva and Rothblum, "Practical delegation of computation using multiple servers",
2011). A prover without a value gives way: the other one's assertion stands, or the claim has failed
for good.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nip_core.protocols import Turn

_NUMBER = r"([0-9]{1,9})(?!\w|[.,][0-9])"
_VALUE = re.compile(rf"\bvalue[*_ ]{{0,4}}:[*_ ]{{0,4}}{_NUMBER}", re.IGNORECASE)
_BARE = re.compile(rf"(?:answer: *)?{_NUMBER}\.?", re.IGNORECASE)


class Dispute(NamedTuple):
    """The steps after `first`, up to `last`; the values after both."""

    first: int
    last: int
    before: int
    """After `first`, undisputed."""
    asserted: int | None
    """After `last`; None: the prover for the claim has once stated none."""
    denied: int | None
    """The other one's value after `last`; None: none, or nothing but that it is another."""

    @property
    def middle(self) -> int:
        """Return the step after which both are asked for the value."""
        return (self.first + self.last) // 2

    @property
    def is_one_step(self) -> bool:
        """Tell whether there is nothing to halve any more."""
        return self.last == self.first + 1


Stated = tuple[int | None, int | None]
"""By the prover that asserts, and by the one that denies; None: no value."""


def find_dispute(start: int, end: int, count: int, stated: Iterable[Stated]) -> Dispute:
    """Find the steps in dispute of `count` steps from `start` to `end`, after these rounds."""
    dispute = Dispute(0, count, start, end, None)
    for asserted, denied in stated:
        if dispute.is_one_step:
            break
        if asserted is not None and denied in (asserted, None):
            dispute = dispute._replace(first=dispute.middle, before=asserted)
        else:
            claim = None if dispute.asserted is None else asserted  # who has lost stays so
            dispute = dispute._replace(last=dispute.middle, asserted=claim, denied=denied)
    return dispute


def read_value(message: str, modulus: int) -> int | None:
    """Read the value that a message states; None: none below the modulus, or several."""
    bare = _BARE.fullmatch(message.strip())
    stated = [bare[1]] if bare else _VALUE.findall(message)
    values = {int(value) for value in stated}
    return values.pop() if len(values) == 1 and max(values) < modulus else None


def read_stated(
    turns: Sequence[Turn], rounds: int, asserting: str, denying: str, modulus: int
) -> list[Stated]:
    """Read by round the values of both provers; a silent one states nothing."""
    texts = {(turn.round, turn.agent): join_messages(turn) for turn in turns}
    return [
        (
            read_value(texts.get((round_, asserting), ""), modulus),
            read_value(texts.get((round_, denying), ""), modulus),
        )
        for round_ in range(rounds)
    ]


def join_messages(turn: Turn) -> str:
    """Return the texts of a turn, to all readers, each text once."""
    return "\n".join(dict.fromkeys(turn.move.messages.values()))
