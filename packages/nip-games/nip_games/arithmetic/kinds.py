"""Kinds of messages on a calculation: the steps that they call wrong, and whether these are."""

import re

from nip_games.arithmetic.chains import read_steps

_CALLED_WRONG = re.compile(r"\bstep (\d+) is wrong|\bthis is wrong: step (\d+)", re.IGNORECASE)
_NONE_WRONG = re.compile(r"\bno step is wrong", re.IGNORECASE)
_GONE_THROUGH = re.compile(r"\bstep (\d+):", re.IGNORECASE)


def name_kind(message: str, solution: str) -> str:
    """Name the kind of a message on the calculation `solution`; "" where it is about no step."""
    numbers = {int(first or second) for first, second in _CALLED_WRONG.findall(message)}
    passed = {int(number) for number in _GONE_THROUGH.findall(message)} - numbers
    if _NONE_WRONG.search(message):
        if numbers:
            return "calls a step wrong, and says that none is"
        return f"says that no step is wrong{_went_through(passed)}"
    if len(numbers) > 1:
        return "calls several steps wrong"
    if numbers:
        return _name_step(numbers.pop(), solution)
    return f"calls no step wrong{_went_through(passed)}" if passed else ""


def _went_through(passed: set[int]) -> str:
    return ", goes through steps" if passed else ", names nothing"


def _name_step(number: int, solution: str) -> str:
    steps = read_steps(solution)
    if not 1 <= number <= len(steps):
        return "calls a step wrong that is not there"
    step = steps[number - 1]
    is_right = step.result == step.true_result
    return "calls a right step wrong" if is_right else "names the wrong step"
