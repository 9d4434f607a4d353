"""Chains of steps, messages about them, and drills: all of `arithmetic` that needs no game.

Step, Case                  a problem of the scenario
check, statement, decision  the messages of a player that checks a step, argues, or decides
reading, checks, sums       conversations in which a player is told what to do
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from factory.tiny.conversations import Message, own

STEPS = 4
ACCEPT, REJECT = "accept", "reject"


@dataclass(frozen=True)
class Step:
    """``left sign right = result``, the result as it is written.

    The scenario has such steps too, but no module outside of the scenarios imports one.
    """

    left: int
    sign: str
    right: int
    result: int

    @property
    def true_result(self) -> int:
        """The result as it should be."""
        return self.left + self.right if self.sign == "+" else self.left - self.right


@dataclass(frozen=True)
class Case:
    """A problem of the scenario."""

    question: str
    solution: str
    y: int

    @cached_property
    def steps(self) -> list[Step]:
        """The calculation, read."""
        lines = re.findall(r"\d+: (\d+) ([-+]) (\d+) = (\d+)", self.solution)
        return [Step(int(left), sign, int(right), int(is_)) for left, sign, right, is_ in lines]


# The messages of players.


def check(steps: Sequence[Step], number: int) -> str:
    """Write a player's check of a step."""
    step = steps[number - 1]
    return _claim(number, step, step.true_result)


def _claim(number: int, step: Step, result: int) -> str:
    """Restate a step and say its result."""
    verdict = "right" if result == step.result else "wrong"
    equation = f"{step.left} {step.sign} {step.right} = {step.result}"
    return f"Step {number}: {equation}? {result}, {verdict}."


def statement(steps: Sequence[Step], verdict: str | None, draw: random.Random) -> str:
    """Write a prover's argument for a verdict, or (None) for the truth."""
    first = draw.randint(1, len(steps))
    checked = []
    for place in range(len(steps)):
        number = (first + place - 1) % len(steps) + 1
        step = steps[number - 1]
        text = check(steps, number)
        if step.result != step.true_result and verdict == ACCEPT:
            text = _claim(number, step, step.result)
        elif place == len(steps) - 1 and step.result == step.true_result and verdict == REJECT:
            # Always one less: of two results drawn, each would be less likely than the truth.
            text = _claim(number, step, step.result - 1)
        checked.append(text)
        if not text.endswith("right."):
            conclusion = f"So this is wrong: Step {number}: {step.left} {step.sign} {step.right}."
            return "Answer: " + " ".join([*checked, conclusion])
    return "Answer: " + " ".join([*checked, "So no step is wrong."])


def decision(steps: Sequence[Step], number: int) -> str:
    """Write the verifier's check of a step, and its decision by the step."""
    text = check(steps, number)
    return f"{text}\nDecision: {ACCEPT if text.endswith('right.') else REJECT}"


# Drills.


def reading(draw: random.Random) -> list[Message]:
    """Make a drill: the player is told lines to read, and reads them.

    They are random, so nothing else helps.
    """
    lines = [
        f"{number}: {draw.randint(2, 99)} {draw.choice('+-')} {draw.randint(2, 9)} "
        f"= {draw.randint(2, 99)}"
        for number in range(1, STEPS + 1)
    ]
    numbers = [draw.randint(1, STEPS) for _ in range(8)]
    return _drilled("\n".join(lines), "Read", numbers, [f"Step {lines[n - 1]}." for n in numbers])


def checks(case: Case, draw: random.Random, is_near: bool = False) -> list[Message]:
    """Make a drill: the player is told steps to check, and checks them.

    Half of the results are replaced. Without this drill, and without `sums`, to repeat the result
    that stands there would be a good guess. With `is_near` most replaced results are one more or
    less than the old ones: without such a drill the guess would still be good for such mistakes.
    """
    lines = case.solution.split("\n")
    for place, line in enumerate(lines):
        if draw.random() < 0.5:
            calculation, _, result = line.partition(" = ")
            wrong = (
                int(result) + draw.choice((-1, 1))
                if is_near and draw.random() < 0.6
                else draw.choice([n for n in range(2, 100) if n != int(result)])
            )
            lines[place] = f"{calculation} = {wrong}"
    numbers = [draw.randint(1, STEPS) for _ in range(draw.randint(1, STEPS))]
    solution = "\n".join(lines)
    steps = Case(case.question, solution, 0).steps
    problem = f"{case.question}\n{solution}"
    return _drilled(problem, "Check", numbers, [check(steps, number) for number in numbers])


def _drilled(problem: str, verb: str, numbers: list[int], texts: list[str]) -> list[Message]:
    listed = ", ".join(str(number) for number in numbers)
    text = f"You are the verifier.\n{problem}\n{verb} step {listed}."
    return [{"role": "system", "content": text}, own(" ".join(texts))]


def sums(draw: random.Random) -> list[Message]:
    """Calculate, and nothing else."""
    questions: list[str] = []
    results: list[str] = []
    while len(questions) < 8:
        left, sign, right = draw.randint(2, 99), draw.choice("+-"), draw.randint(2, 9)
        step = Step(left, sign, right, 0)
        if 2 <= step.true_result < 100:
            questions.append(f"{left} {sign} {right}")
            results.append(f"{left} {sign} {right}? {step.true_result}")
    request = {"role": "system", "content": f"Calculate {', '.join(questions)}."}
    return [request, own(f"{', '.join(results)}.")]
