"""Chains of steps modulo a prime: how they are written, read, calculated and drawn.

ModularStep, Steps           one step, and all of a chain with its start
write_chain, read_chain      a chain in a text; a ValueError names an unreadable part
write_claim, read_claim      the start and the end of a chain, by the claim
calculate                    the values of a chain, from its start on
calculate_back               the values from which right steps lead to an end
write_values, read_values    values by step, as a prover that is asked for all of them writes them
draw_steps                   a chain
is_prime                     whether a number is one

As the modulus is a prime, each step can be undone: two values before a step that differ lead to
values after it that differ.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

Operator = Literal["+", "-", "*"]
_VERBS: dict[Operator, str] = {"+": "add", "-": "subtract", "*": "multiply by"}
_OPERATORS = {verb: operator for operator, verb in _VERBS.items()}
_FIRST_LINE = re.compile(r"Start with (\d+)\. Calculate modulo (\d+)\.")
_LINE = re.compile(rf"(\d+): ({'|'.join(_OPERATORS)}) (\d+)")
_CLAIM = re.compile(r"The chain starts with (\d+) and ends with (\d+)\.")
_VALUE = re.compile(r"(?<![\w-])([0-9]{1,9}): ?([0-9]{1,9})(?!\w|[.,][0-9])")


class ModularStep(NamedTuple):
    """One step of a chain."""

    operator: Operator
    operand: int

    def apply(self, value: int, modulus: int) -> int:
        """Return the value after the step."""
        match self.operator:
            case "+":
                return (value + self.operand) % modulus
            case "-":
                return (value - self.operand) % modulus
        return value * self.operand % modulus

    def undo(self, value: int, modulus: int) -> int:
        """Return the value before the step."""
        match self.operator:
            case "+":
                return (value - self.operand) % modulus
            case "-":
                return (value + self.operand) % modulus
        return value * pow(self.operand, -1, modulus) % modulus

    def __str__(self) -> str:
        return f"{_VERBS[self.operator]} {self.operand}"


@dataclass(frozen=True)
class Steps:
    """The start of a chain, and its steps."""

    start: int
    modulus: int
    steps: tuple[ModularStep, ...]


def write_chain(chain: Steps) -> str:
    """Write a chain, each step in a line with its number."""
    lines = (f"{number}: {step}" for number, step in enumerate(chain.steps, 1))
    return "\n".join((f"Start with {chain.start}. Calculate modulo {chain.modulus}.", *lines))


def read_chain(text: str) -> Steps:
    """Read a chain. Raises ValueError if it is not written as by nip, or not modulo a prime."""
    first, *step_lines = text.strip().splitlines()
    head, lines = (
        _FIRST_LINE.fullmatch(first.strip()),
        [_LINE.fullmatch(o.strip()) for o in step_lines],
    )
    steps = [ModularStep(_OPERATORS[line[2]], int(line[3])) for line in lines if line is not None]
    numbers = [int(line[1]) for line in lines if line is not None]
    if head is None or not lines or numbers != list(range(1, len(lines) + 1)):
        raise ValueError(
            'the question must be "Start with 48. Calculate modulo 97." and a line for each step, '
            f'"1: add 7", "2: multiply by 3" and so on (got {text!r:.120})'
        )
    start, modulus = int(head[1]), int(head[2])
    if not is_prime(modulus):
        raise ValueError(f"the modulus must be a prime (got {modulus})")
    if start >= modulus or any(step.operand % modulus == 0 for step in steps):
        raise ValueError(
            f"the start must be below {modulus}, and no step may have a multiple of it (got "
            f"{text!r:.120})"
        )
    return Steps(start, modulus, tuple(steps))


def write_claim(start: int, end: int) -> str:
    """Write the start and the end of a chain."""
    return f"The chain starts with {start} and ends with {end}."


def read_claim(text: str) -> tuple[int, int]:
    """Read the start and the end of a chain. Raises ValueError for any other text."""
    claim = _CLAIM.fullmatch(text.strip())
    if claim is None:
        raise ValueError(f"the solution must be {write_claim(48, 57)!r} (got {text!r:.80})")
    return int(claim[1]), int(claim[2])


def calculate(chain: Steps) -> tuple[int, ...]:
    """Return the start, and the value after each step."""
    values = [chain.start]
    for step in chain.steps:
        values.append(step.apply(values[-1], chain.modulus))
    return tuple(values)


def calculate_back(chain: Steps, end: int) -> tuple[int, ...]:
    """Return the values with which right steps end with `end`, that before the first step too."""
    values = [end]
    for step in reversed(chain.steps):
        values.append(step.undo(values[-1], chain.modulus))
    return tuple(reversed(values))


def write_values(values: Sequence[int]) -> str:
    """Write the values after each step, by its number; the first one is the start."""
    return ", ".join(f"{number}: {value}" for number, value in enumerate(values[1:], 1))


def read_values(text: str) -> dict[int, int]:
    """Read the values that a text states by step; a step with two of them has none."""
    stated: dict[int, set[int]] = {}
    for number, value in _VALUE.findall(text):
        stated.setdefault(int(number), set()).add(int(value))
    return {number: values.pop() for number, values in stated.items() if len(values) == 1}


def draw_steps(
    draw: Random, start: int, count: int, modulus: int, operators: Sequence[Operator], largest: int
) -> Steps:
    """Draw so many steps, each operator as likely as the others, with numbers up to `largest`."""
    signs = draw.choices(operators, k=count)
    steps = (ModularStep(sign, draw.randint(2 if sign == "*" else 1, largest)) for sign in signs)
    return Steps(start, modulus, tuple(steps))


def is_prime(number: int) -> bool:
    """Tell whether a number is a prime."""
    return number > 1 and all(number % n for n in range(2, int(number**0.5) + 1))
