"""From members to rows: which split, which questions, which bugs, which label.

The members of a family are split by block (see `Member.block`), by a stable hash. A behaviour
belongs to the split of the first member that has it; a member of another split with the same
behaviour is used nowhere, neither as a question nor as a bug. So any code in a split, right or
wrong, behaves like no question and no code of another split.

Half of the questions of each family and split get their own code and half the code of a
variant. The label of a row comes from running its code and the first form of the question's own
code. A variant that behaves like the question is no bug and is not used.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from factory.problems.families.behaviour import behaviour
from factory.problems.families.catalogue import FAMILIES
from factory.problems.families.structure import Family, Member

# Share of the blocks, in percent, and number of questions per family (even: half get a bug).
SPLITS = {"train": (74, 130), "validation": (10, 10), "test": (16, 16)}


@dataclass(frozen=True)
class Row:
    """One problem: a question and a solution to it, right (`y` 1) or wrong (0)."""

    split: str
    member: Member
    code_member: Member
    question: str
    solution: str
    y: int
    mutation: str | None


@dataclass(frozen=True)
class Selection:
    """The rows of all splits, and the members that may stand in each of them."""

    rows: tuple[Row, ...]
    behaviours: dict[str, str]  # identity of a usable member to its behaviour
    split_of: dict[str, str]  # identity of a usable member to its split

    def bugs(self, member: Member) -> Iterator[tuple[str, Member]]:
        """Find variants of `member` in its split with another behaviour, each with the kind."""
        yield from self._bugs(member, member.variants())

    def _bugs(
        self, member: Member, variants: Iterable[tuple[str, Member]]
    ) -> Iterator[tuple[str, Member]]:
        own = member.identity
        for kind, variant in variants:
            name = variant.identity
            usable = self.split_of.get(name) == self.split_of[own]
            if usable and self.behaviours[name] != self.behaviours[own]:
                yield kind, variant


def order(*parts: str) -> str:
    """A stable pseudo-random sort key."""
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def split_of_block(block: str) -> str:
    """The split of a block of members: a stable hash of its name, nothing else."""
    point = int(order("split", block)[:8], 16) % 100
    for split, (share, _) in SPLITS.items():
        if point < share:
            return split
        point -= share
    raise AssertionError("the shares of the splits do not add up to 100")


@cache
def select(families: tuple[Family, ...] = FAMILIES) -> Selection:
    """Choose the rows of the problem set; takes a few seconds."""
    behaviours: dict[str, str] = {}
    split_of: dict[str, str] = {}
    owners: dict[str, str] = {}
    questions: dict[tuple[str, str], list[Member]] = {}
    for family in families:
        for member in family.members():
            split, does = split_of_block(member.block), behaviour(member.code(0), family.takes)
            new = does not in owners
            if owners.setdefault(does, split) != split:
                continue
            behaviours[member.identity], split_of[member.identity] = does, split
            if new:
                questions.setdefault((split, family.name), []).append(member)
    selection = Selection((), behaviours, split_of)
    rows: list[Row] = []
    for split, (_, count) in SPLITS.items():
        for family in families:
            members = questions.get((split, family.name), [])
            rows += _family_rows(selection, split, sorted(members, key=_by_identity)[:count])
    return Selection(tuple(rows), behaviours, split_of)


def _by_identity(member: Member) -> str:
    return order("question", member.identity)


def _family_rows(selection: Selection, split: str, members: list[Member]) -> Iterator[Row]:
    bugs = {member.identity: _choose_bug(selection, member) for member in members}
    with_bug = [member.identity for member in members if bugs[member.identity] is not None]
    pairs = min(len(with_bug), len(members) // 2)
    wrong = set(with_bug[:pairs])
    right = [member.identity for member in members if member.identity not in wrong][:pairs]
    for member in members:
        if member.identity in wrong:
            yield _row(split, member, bugs[member.identity])
        elif member.identity in right:
            yield _row(split, member, None)


def _choose_bug(selection: Selection, member: Member) -> tuple[str, Member] | None:
    by_kind: dict[str, list[Member]] = {}
    for kind, variant in selection.bugs(member):
        by_kind.setdefault(kind, []).append(variant)
    if not by_kind:
        return None
    kind = min(by_kind, key=lambda kind: order("kind", member.identity, kind))
    key = {v.identity: order("bug", member.identity, v.identity) for v in by_kind[kind]}
    return kind, min(by_kind[kind], key=lambda variant: key[variant.identity])


def _row(split: str, member: Member, bug: tuple[str, Member] | None) -> Row:
    kind, code_member = bug or (None, member)
    family = member.family
    question = member.question(_form("question", member, len(family.questions)))
    solution = code_member.code(_form("code", member, len(family.codes)))
    same = behaviour(solution, family.takes) == behaviour(member.code(0), family.takes)
    if same != (bug is None):
        # The test inputs tell two forms of one code, or of a bug, apart: a family is wrong.
        raise ValueError(
            f"{member.identity}: the code of {code_member.identity} gives y={int(same)}"
        )
    return Row(split, member, code_member, question, solution, int(same), kind)


def _form(part: str, member: Member, forms: int) -> int:
    return int(order(part, member.identity)[:8], 16) % forms
