"""Chains of steps, what is said of them, and drills: all of `arithmetic` that needs no game.

Step, Case                  a problem of the scenario
check, statement, decision  what a player says that checks a step, argues, or decides
reading, checks, sums       conversations in which one is told what to do
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

    The scenario has such steps too, but nobody outside of the scenarios imports one.
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


# What players say.


def check(steps: Sequence[Step], number: int) -> str:
    """Write a player's check of a step."""
    step = steps[number - 1]
    return _claim(number, step, step.true_result)


def _claim(number: int, step: Step, result: int) -> str:
    """Restate a step and say what it should give."""
    verdict = "right" if result == step.result else "wrong"
    written = f"{step.left} {step.sign} {step.right} = {step.result}"
    return f"Step {number}: {written}? {result}, {verdict}."


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
            named = f"So this is wrong: Step {number}: {step.left} {step.sign} {step.right}."
            return "Answer: " + " ".join([*checked, named])
    return "Answer: " + " ".join([*checked, "So no step is wrong."])


def decision(steps: Sequence[Step], number: int) -> str:
    """Write the verifier's check of a step, and its decision by the step."""
    text = check(steps, number)
    return f"{text}\nDecision: {ACCEPT if text.endswith('right.') else REJECT}"


# Drills.


def reading(draw: random.Random) -> list[Message]:
    """Make a drill: the player is told lines to read, and reads them. They are random, so nothing
    else helps.
    """
    lines = [
        f"{number}: {draw.randint(2, 99)} {draw.choice('+-')} {draw.randint(2, 9)} "
        f"= {draw.randint(2, 99)}"
        for number in range(1, STEPS + 1)
    ]
    asked = [draw.randint(1, STEPS) for _ in range(8)]
    return _drilled("\n".join(lines), "Read", asked, [f"Step {lines[n - 1]}." for n in asked])


def checks(case: Case, draw: random.Random, near: bool = False) -> list[Message]:
    """Make a drill: the player is told steps to check, and checks them. Half of the results are
    replaced.

    Without it, and without `sums`, to repeat the result that stands there would be a good guess.
    And without those that are `near`, one more or less than before, it would be for such mistakes.
    """
    lines = case.solution.split("\n")
    for place, line in enumerate(lines):
        if draw.random() < 0.5:
            before, _, result = line.partition(" = ")
            wrong = (
                int(result) + draw.choice((-1, 1))
                if near and draw.random() < 0.6
                else draw.choice([n for n in range(2, 100) if n != int(result)])
            )
            lines[place] = f"{before} = {wrong}"
    asked = [draw.randint(1, STEPS) for _ in range(draw.randint(1, STEPS))]
    solution = "\n".join(lines)
    steps = Case(case.question, solution, 0).steps
    problem = f"{case.question}\n{solution}"
    return _drilled(problem, "Check", asked, [check(steps, number) for number in asked])


def _drilled(problem: str, verb: str, asked: list[int], said: list[str]) -> list[Message]:
    numbers = ", ".join(str(number) for number in asked)
    text = f"You are the verifier.\n{problem}\n{verb} step {numbers}."
    return [{"role": "system", "content": text}, own(" ".join(said))]


def sums(draw: random.Random) -> list[Message]:
    """Calculate, and nothing else."""
    asked: list[str] = []
    results: list[str] = []
    while len(asked) < 8:
        left, sign, right = draw.randint(2, 99), draw.choice("+-"), draw.randint(2, 9)
        step = Step(left, sign, right, 0)
        if 2 <= step.true_result < 100:
            asked.append(f"{left} {sign} {right}")
            results.append(f"{left} {sign} {right}? {step.true_result}")
    told = {"role": "system", "content": f"Calculate {', '.join(asked)}."}
    return [told, own(f"{', '.join(results)}.")]
