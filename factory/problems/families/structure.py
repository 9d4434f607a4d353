"""Families of very small functions.

Option   one value of a slot: its words (in questions and summaries) and its code
Slot     a hole in the templates of a family, with the options that fit into it
Family   templates for the question, the code and the summary, and the slots they share
Member   a family with one option chosen for each slot: one function, and one question

A bug in a member is another member of the same family: the code of one under the question of
the other. Which members may stand together is decided in `selection`, not here.
"""

import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product


@dataclass(frozen=True)
class Option:
    """One value of a slot."""

    words: str
    code: str


@dataclass(frozen=True)
class Slot:
    """A hole in a family's templates.

    `kind` names the bug that a wrong option makes (constant, comparison, operator, ...). Members
    that differ only in slots that are not `spread` always stand in the same split, so that a
    ``<`` for a ``<=`` is possible in each of them.
    """

    name: str
    kind: str
    options: tuple[Option, ...]
    spread: bool


def numbers(name: str, low: int, high: int, kind: str = "constant") -> Slot:
    """A slot for the whole numbers from `low` through `high`."""
    options = tuple(Option(str(n), str(n)) for n in range(low, high + 1))
    return Slot(name, kind, options, spread=True)


def letters(name: str) -> Slot:
    """Make a slot for one of the test inputs' letters."""
    return Slot(name, "letter", tuple(Option(c, f"'{c}'") for c in LETTERS), spread=True)


def choice(name: str, kind: str, options: dict[str, str]) -> Slot:
    """A slot for one of a few `options`, words to code."""
    return Slot(name, kind, tuple(Option(w, c) for w, c in options.items()), spread=False)


LETTERS = string.ascii_lowercase[:16]


@dataclass(frozen=True)
class Family:
    """A family of functions. The templates have the slots' names in braces.

    `questions` and `codes` are different ways to say the same; each member reads in one of them.
    `summary` says in few words what a member does.
    `takes` names the kind of test inputs: ``x``, ``xy``, ``xs`` or ``s``, the arguments of ``f``.
    """

    name: str
    takes: str
    slots: tuple[Slot, ...]
    questions: tuple[str, ...]
    codes: tuple[str, ...]
    summary: str
    allowed: Callable[[dict[str, str]], bool] = field(default=lambda words: True)

    def members(self) -> Iterator["Member"]:
        """All members, in the order of the slots' options."""
        for indices in product(*(range(len(slot.options)) for slot in self.slots)):
            member = Member(self, indices)
            if self.allowed(member.words):
                yield member


@dataclass(frozen=True)
class Member:
    """A family with one option chosen for each slot."""

    family: Family
    indices: tuple[int, ...]

    @cached_property
    def words(self) -> dict[str, str]:
        """The words in each slot."""
        pairs = zip(self.family.slots, self.indices, strict=True)
        return {slot.name: slot.options[index].words for slot, index in pairs}

    @property
    def identity(self) -> str:
        """For example ``families/linear/3-plus-7``; unique over all families."""
        values = "-".join(word.replace(" ", "_") for word in self.words.values())
        return f"families/{self.family.name}/{values}"

    @property
    def block(self) -> str:
        """Name the members' common part; members with the same one must stand in one split."""
        spread = (
            w for s, w in zip(self.family.slots, self.words.values(), strict=True) if s.spread
        )
        return f"{self.family.name}/{'-'.join(spread)}"

    @property
    def summary(self) -> str:
        """Say in few words what the member does."""
        return self.family.summary.format(**self.words)

    def compare(self, question_member: "Member") -> str:
        """Set the words that a member of the same family asks for beside this one's, by slot.

        For example ``times 3 code 3 ok, plus code minus wrong, 7 code 7 ok``.
        """
        parts = []
        for words, slot, _, _ in string.Formatter().parse(self.family.summary):
            if slot is not None:
                wanted_words, own_words = question_member.words[slot], self.words[slot]
                verdict = "ok" if wanted_words == own_words else "wrong"
                parts.append(f"{words.strip()} {wanted_words} code {own_words} {verdict}".strip())
        return ", ".join(parts)

    def question(self, form: int) -> str:
        """The question, in one of the family's ways to ask it."""
        return self.family.questions[form].format(**self.words)

    def code(self, form: int) -> str:
        """The source of ``f``, in one of the family's ways to write it."""
        pairs = zip(self.family.slots, self.indices, strict=True)
        code = {slot.name: slot.options[index].code for slot, index in pairs}
        # An option's code may itself name slots, for example the slice "[:{n}]".
        body = self.family.codes[form].format(**code).format(**code)
        arguments = ", ".join(self.family.takes) if self.family.takes == "xy" else self.family.takes
        lines = "".join(f"\n    {line}" for line in body.split("\n"))
        return f"def f({arguments}):{lines}"

    def variants(self) -> Iterator[tuple[str, "Member"]]:
        """Make members with one other slot, or with two slots exchanged, each with the kind."""
        for position, slot in enumerate(self.family.slots):
            for index in range(len(slot.options)):
                if index != self.indices[position]:
                    yield slot.kind, self._with({position: index})
        yield from (("exchange", member) for member in self._exchanges())

    def _exchanges(self) -> Iterator["Member"]:
        slots = [place for place, slot in enumerate(self.family.slots) if slot.spread]
        for first, second in combinations(slots, 2):
            first_index = self._place(first, self.indices[second], second)
            second_index = self._place(second, self.indices[first], first)
            if (
                first_index is not None
                and second_index is not None
                and first_index != self.indices[first]
            ):
                yield self._with({first: first_index, second: second_index})

    def _place(self, slot: int, index: int, source_slot: int) -> int | None:
        """Find option `index` of `source_slot` among the options of `slot`; None: not there."""
        option = self.family.slots[source_slot].options[index]
        options = self.family.slots[slot].options
        return options.index(option) if option in options else None

    def _with(self, changes: dict[int, int]) -> "Member":
        indices = tuple(changes.get(place, index) for place, index in enumerate(self.indices))
        return Member(self.family, indices)
