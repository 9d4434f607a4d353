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
        self.questions = [row.asked for row in selection.rows if row.split == "train"]
        self._bugs: list[dict[str, list[Member]]] = []
        for asked in self.questions:
            kinds: dict[str, list[Member]] = {}
            for kind, variant in selection.bugs(asked):
                kinds.setdefault(kind, []).append(variant)
            self._bugs.append(kinds)

    def draw(self, draw: random.Random) -> Case:
        """Draw one case; all of a question's kinds of bugs are equally likely."""
        place = draw.randrange(len(self.questions))
        asked, kinds = self.questions[place], self._bugs[place]
        written = asked
        if kinds and draw.random() < 0.5:
            written = draw.choice(kinds[draw.choice(sorted(kinds))])
        question = asked.question(draw.randrange(len(asked.family.questions)))
        solution = written.code(draw.randrange(len(asked.family.codes)))
        return _case(question, solution, asked, written)


def split_cases(split: str) -> list[Case]:
    """The rows of a split as cases, in the order of the data set."""
    return [
        _case(row.question, row.solution, row.asked, row.written)
        for row in select().rows
        if row.split == split
    ]


def _case(question: str, solution: str, asked: Member, written: Member) -> Case:
    conclusion = "match" if asked == written else "differ"
    return Case(question, solution, written.compare(asked), conclusion)
