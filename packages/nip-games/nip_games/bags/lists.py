"""Two lists of digits: how they are written, read, compared and drawn.

write_lists, read_lists   two lists in a text; a ValueError names an unreadable part
write_digits, read_digits    one list
in_order                     a list as a bag, in which the order of digits does not count
draw_bags                    two different bags, either as likely as the other to be the first
draw_bags_without_repeats    the same, of digits that stand once in a bag
is_of_split                  whether a bag belongs to a split, in whatever order it is written
"""

import re
from collections.abc import Sequence
from random import Random

from nip_core.hashing import derive_seed

Digits = tuple[int, ...]
NAMES = ("A", "B")
TENTHS = {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}
"""Of all bags, by split: so no list stands in two, in any order."""
_LIST = r"\d(?: \d)+"
_LINE = re.compile(rf"([AB]): ({_LIST})")


def write_lists(first: Sequence[int], second: Sequence[int]) -> str:
    """Two lists, each in a line with its name."""
    lists = zip(NAMES, (first, second), strict=True)
    return "\n".join(f"{name}: {write_digits(digits)}" for name, digits in lists)


def write_digits(digits: Sequence[int]) -> str:
    """A list: `3 1 4`."""
    return " ".join(map(str, digits))


def read_digits(text: str) -> Digits:
    """The list in the words of `write_digits`."""
    return tuple(map(int, text.split()))


def read_lists(question: str) -> tuple[Digits, Digits]:
    """The two lists of a question. Raises ValueError if they are not written as by nip."""
    lines = [_LINE.fullmatch(line.strip()) for line in question.strip().splitlines()]
    if tuple(line and line[1] for line in lines) != NAMES:
        raise ValueError(
            'the question must be two lines of digits, "A: 3 1 4" and "B: 1 5 3" (got '
            f"{question!r:.80})"
        )
    first, second = (read_digits(line[2]) for line in lines if line is not None)
    if len(first) != len(second):
        raise ValueError(
            f"list A has {len(first)} digits and list B has {len(second)}; make them equally "
            "long, as their lengths would tell the label"
        )
    return first, second


def in_order(digits: Sequence[int]) -> Digits:
    """The bag of a list: its digits in order."""
    return tuple(sorted(digits))


def draw_bags(draw: Random, length: int, digits: int, differences: int) -> tuple[Digits, Digits]:
    """Draw two bags of `length` digits below `digits` that differ in `differences` digits each.

    The two bags have all other digits in common. They are exchangeable: a pair and its reverse have
    the same probability. So the first bag alone has the same distribution as the second alone, and
    one bag does not tell whether it is the first or the second.
    """
    common = draw.choices(range(digits), k=length - differences)
    names = draw.sample(range(digits), digits)
    cut = draw.randrange(1, digits)
    own = (draw.choices(part, k=differences) for part in (names[:cut], names[cut:]))
    first, second = (in_order([*common, *digits_of_one]) for digits_of_one in own)
    return first, second


def draw_bags_without_repeats(
    draw: Random, length: int, digits: int, differences: int
) -> tuple[Digits, Digits]:
    """Two bags as `draw_bags` has them, in which no digit stands twice.

    `length` and `differences` together are at most `digits`.
    """
    digits_drawn = draw.sample(range(digits), length + differences)
    common, own = digits_drawn[: length - differences], digits_drawn[length - differences :]
    first, second = own[:differences], own[differences:]
    return in_order([*common, *first]), in_order([*common, *second])


def is_of_split(bag: Digits, split: str) -> bool:
    """Tell whether a bag belongs to a split."""
    return derive_seed("split of bags", *bag) % 10 in TENTHS[split]
