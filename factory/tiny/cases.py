"""Draws cases for conversations from the `families` problem set.

Training cases use the questions of the training split only, each with its own code or with any
of the bugs that may stand in that split; evaluation cases are the rows of a split as they are.
"""

import random

from factory.problems.families import Member, select
from factory.tiny.conversations import Case


class TrainingCases:
    """An endless supply of cases over the training questions, half of them with a bug."""

    def __init__(self) -> None:
        selection = select()
        self.questions = [row.member for row in selection.rows if row.split == "train"]
        self._bugs: list[dict[str, list[Member]]] = []
        for member in self.questions:
            kinds: dict[str, list[Member]] = {}
            for kind, variant in selection.bugs(member):
                kinds.setdefault(kind, []).append(variant)
            self._bugs.append(kinds)

    def draw(self, draw: random.Random) -> Case:
        """Draw one case; all of a question's kinds of bugs are equally likely."""
        place = draw.randrange(len(self.questions))
        member, kinds = self.questions[place], self._bugs[place]
        code_member = member
        if kinds and draw.random() < 0.5:
            code_member = draw.choice(kinds[draw.choice(sorted(kinds))])
        question = member.question(draw.randrange(len(member.family.questions)))
        solution = code_member.code(draw.randrange(len(member.family.codes)))
        return _case(question, solution, member, code_member)


def split_cases(split: str) -> list[Case]:
    """The rows of a split as cases, in the order of the data set."""
    return [
        _case(row.question, row.solution, row.member, row.code_member)
        for row in select().rows
        if row.split == split
    ]


def _case(question: str, solution: str, member: Member, code_member: Member) -> Case:
    conclusion = "match" if member == code_member else "differ"
    return Case(question, solution, code_member.compare(member), conclusion)
