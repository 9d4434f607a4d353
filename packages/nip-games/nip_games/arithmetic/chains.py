"""Chains of steps: how they are written, read, checked and drawn.

Question                   a number, and the steps to take from it
ChainStep                  a line of a calculation
read_question, read_steps  of texts; a ValueError names an unreadable part
is_right                   whether a calculation is the one that is asked for, without a mistake
draw_chain                 a question with its calculation; one step may be wrong (see `pairs`)
list_operands              the numbers that a step may have
list_mistakes              the wrong results that a kind of mistake can give
"""

import operator
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Operator = Literal["+", "-", "*"]
Form = Literal["chain", "words"]
Mistake = Literal["off_by_one", "carry", "swapped_digits", "wrong_operator"]

CALCULATE: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
LOWEST = 2  # of the values of a chain, so that no step is trivial
_TIMES = "Then it becomes {} times as much."


@dataclass(frozen=True)
class Wording:
    """How questions are worded, a sentence each; each has a number, but for the end."""

    start: str
    steps: Mapping[str, str]
    end: str = ""


CHAIN = Wording("Start with {}.", {"+": "Add {}.", "-": "Subtract {}.", "*": "Multiply by {}."})
STORIES = (
    Wording(
        "Ann has {} marbles.",
        {"+": "She is given {}.", "-": "She loses {}.", "*": _TIMES},
        "How many marbles has she at the end?",
    ),
    Wording(
        "A bus leaves with {} people.",
        {"+": "At a stop {} get on.", "-": "At a stop {} get off.", "*": _TIMES},
        "How many people arrive?",
    ),
    Wording(
        "A tank holds {} litres.",
        {"+": "It is filled with {} more.", "-": "A leak costs {}.", "*": _TIMES},
        "How many litres are left?",
    ),
    Wording(
        "Tom begins with {} points.",
        {"+": "He wins {}.", "-": "He pays {}.", "*": _TIMES},
        "How many points has he at the end?",
    ),
)
_LINE = re.compile(r"(\d+): (-?\d+) ([-+*]) (\d+) = (-?\d+)")


@dataclass(frozen=True)
class Question:
    """A number to start with, and an operator and a number for each step."""

    start: int
    steps: tuple[tuple[str, int], ...]

    def text(self, wording: Wording) -> str:
        """The question in words."""
        steps = [wording.steps[sign].format(number) for sign, number in self.steps]
        return " ".join([wording.start.format(self.start), *steps, wording.end]).strip()


@dataclass(frozen=True)
class ChainStep:
    """``left sign right = result``, the result as it is written."""

    left: int
    sign: str
    right: int
    result: int

    @property
    def true_result(self) -> int:
        """The result as it should be."""
        return CALCULATE[self.sign](self.left, self.right)

    @property
    def text(self) -> str:
        """The step as a line of a calculation has it behind its number."""
        return f"{self.left} {self.sign} {self.right} = {self.result}"


def write_steps(steps: Sequence[ChainStep]) -> str:
    """The calculation, a numbered line for each step."""
    return "\n".join(f"{number}: {step.text}" for number, step in enumerate(steps, 1))


def read_question(text: str) -> Question:
    """Return the question. Raises ValueError if it is not worded as `Wording.text` words it."""
    sentences = re.split(r"(?<=[.?])\s+", text.strip())
    for wording in (CHAIN, *STORIES):
        start = _number_in(sentences[0], wording.start)
        if start is None:
            continue
        rest = sentences[1:]
        if wording.end:
            if not rest or rest[-1] != wording.end:
                raise ValueError(f"a question that does not end with {wording.end!r}")
            rest = rest[:-1]
        return Question(start, tuple(_read_step(sentence, wording) for sentence in rest))
    raise ValueError(
        f"a question that begins with {sentences[0][:60]!r}, which is no known wording"
    )


def _read_step(sentence: str, wording: Wording) -> tuple[str, int]:
    for sign, words in wording.steps.items():
        number = _number_in(sentence, words)
        if number is not None:
            return sign, number
    raise ValueError(f"the sentence {sentence[:60]!r}, which is no known wording of a step")


def _number_in(sentence: str, words: str) -> int | None:
    prefix, _, suffix = words.partition("{}")
    number = re.fullmatch(rf"{re.escape(prefix)}(\d+){re.escape(suffix)}", sentence)
    return None if number is None else int(number[1])


def read_steps(text: str) -> list[ChainStep]:
    """Read the lines of a calculation. Raises ValueError for any other line or number."""
    steps: list[ChainStep] = []
    for number, line in enumerate(text.strip().splitlines(), 1):
        match = _LINE.fullmatch(line.strip())
        if match is None or int(match[1]) != number:
            raise ValueError(f"the line {line[:60]!r}; expected a step like '{number}: 4 + 3 = 7'")
        steps.append(ChainStep(int(match[2]), match[3], int(match[4]), int(match[5])))
    return steps


def is_right(question: Question, steps: Sequence[ChainStep]) -> bool:
    """Tell whether each step does the asked one, with the result before it, and rightly."""
    value = question.start
    for step in steps:
        if step.left != value or step.result != step.true_result:
            return False
        value = step.result
    return question.steps == tuple((step.sign, step.right) for step in steps)


def draw_chain(
    draw: random.Random,
    start: int,
    length: int,
    bound: int,
    signs: Sequence[str],
    mistakes: Sequence[Mistake],
) -> tuple[list[ChainStep], Mistake | None] | None:
    """Steps from `start`, one wrong if there are `mistakes`, and the kind of the mistake.

    All values stay from 2 to `bound` - 1; later steps go on with a wrong result. None: the chain
    that was begun can't go on, or allows none of these mistakes. The question tells of some
    labels: where its own values leave the range, the calculation that is shown must be wrong.
    """
    wrong_at = draw.randrange(length) if mistakes else -1
    kind: Mistake | None = None
    steps: list[ChainStep] = []
    for place in range(length):
        choices = {sign: list_operands(sign, start, bound) for sign in signs}
        possible = [sign for sign in signs if choices[sign]]
        if not possible:
            return None
        sign = draw.choice(possible)
        step = ChainStep(start, sign, draw.choice(choices[sign]), 0)
        step = replace(step, result=step.true_result)
        if place == wrong_at:
            results = {mistake: list_mistakes(step, mistake, bound) for mistake in mistakes}
            kinds = [mistake for mistake in mistakes if results[mistake]]
            if not kinds:
                return None
            mistake = draw.choice(kinds)
            step, kind = replace(step, result=draw.choice(results[mistake])), mistake
        steps.append(step)
        start = step.result
    return steps, kind


def list_operands(sign: str, value: int, bound: int) -> range:
    """List the numbers a step may add, subtract or multiply by: a digit shorter than values."""
    largest = {
        "+": min(bound // 10 - 1, bound - 1 - value),
        "-": min(bound // 10 - 1, value - LOWEST),
        "*": min(9, (bound - 1) // value),
    }
    return range(2, largest[sign] + 1)


def list_mistakes(step: ChainStep, mistake: Mistake, bound: int) -> list[int]:
    """List the wrong results of this mistake."""
    right = step.result
    if mistake == "off_by_one":
        results = [right - 1, right + 1]
    elif mistake == "carry":
        powers = [10**place for place in range(1, len(str(right)) + 1)]
        results = [right + sign * power for power in powers for sign in (-1, 1)]
    elif mistake == "swapped_digits":
        digits = str(right)
        swapped = [
            digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :] for i in range(len(digits) - 1)
        ]
        results = [int(number) for number in swapped if number[0] != "0"]
    else:
        other_signs = [sign for sign in CALCULATE if sign not in (step.sign, "*")]
        results = [CALCULATE[sign](step.left, step.right) for sign in other_signs]
    return [result for result in results if LOWEST <= result < bound and result != right]
