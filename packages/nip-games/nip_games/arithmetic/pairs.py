"""Chains in pairs: neither a question nor the results that are shown tell the label.

Two steps from the same number part: 48 - 8 = 40 and 48 - 7 = 41, of which either result is a
likely mistake for the other. A fair coin says which of the two the question asks for, another one
which of the two results is shown; the label is whether the coins agree. So it is independent of
all that a question says, its true values included, and of all results together: only who holds a
step against its own result learns anything. Later steps are possible after both results, so the
right values and those that are shown stay in the same range.
"""

import random
from collections.abc import Sequence

from nip_games.arithmetic.chains import (
    CALCULATE,
    ChainStep,
    Mistake,
    list_mistakes,
    list_operands,
)

_Way = tuple[str, int]  # from a value to the next: the operator and its number


def draw_pair(
    draw: random.Random,
    start: int,
    length: int,
    bound: int,
    signs: Sequence[str],
    mistakes: Sequence[Mistake],
) -> tuple[list[ChainStep], list[ChainStep], Mistake] | None:
    """The right calculation of a question, a wrong one, and the kind of its mistake.

    The wrong one has the result of another step in one place, and goes on with it. All values of
    both stay from 2 to `bound` - 1. None: the chains that were begun can't go on, or the step that
    was to be wrong allows none of these mistakes.
    """
    part_at = draw.randrange(length)
    kind: Mistake | None = None
    right: list[ChainStep] = []
    wrong: list[ChainStep] = []
    values = (start, start)
    for place in range(length):
        # 1. A step that is possible in both.
        right_way = _draw_way(draw, values, bound, signs)
        if right_way is None:
            return None
        wrong_way = right_way
        # 2. In one place the result of another one; either may be the asked one.
        if place == part_at:
            other_ways = {
                mistake: _others(start, right_way, mistake, bound, signs) for mistake in mistakes
            }
            kinds = [mistake for mistake in mistakes if other_ways[mistake]]
            if not kinds:
                return None
            mistake = draw.choice(kinds)
            ways, kind = [right_way, draw.choice(other_ways[mistake])], mistake
            draw.shuffle(ways)
            right_way, wrong_way = ways
        # 3. Both lines say the asked step.
        results = (_result(values[0], right_way), _result(values[1], wrong_way))
        right.append(ChainStep(values[0], *right_way, results[0]))
        wrong.append(ChainStep(values[1], *right_way, results[1]))
        values, start = results, results[0]
    return None if kind is None else (right, wrong, kind)


def _draw_way(
    draw: random.Random, values: Sequence[int], bound: int, signs: Sequence[str]
) -> _Way | None:
    choices = {
        sign: min((list_operands(sign, v, bound) for v in values), key=len) for sign in signs
    }
    possible = [sign for sign in signs if choices[sign]]
    if not possible:
        return None
    sign = draw.choice(possible)
    return sign, draw.choice(choices[sign])


def _result(value: int, way: _Way) -> int:
    sign, number = way
    return CALCULATE[sign](value, number)


def _others(
    value: int, way: _Way, mistake: Mistake, bound: int, signs: Sequence[str]
) -> list[_Way]:
    """The ways from `value` whose result this mistake makes of the result of `way`."""
    (sign, number), right = way, _result(value, way)
    names = dict.fromkeys(signs)
    if mistake == "wrong_operator":
        ways = [(other_sign, number) for other_sign in names]
    else:
        results = list_mistakes(ChainStep(value, sign, number, right), mistake, bound)
        ways = [
            (other_sign, operand)
            for other_sign in names
            for operand in _numbers(other_sign, value, results)
        ]
    if mistake == "off_by_one" and sign == "*":
        ways += [("*", number - 1), ("*", number + 1)]  # once too seldom, or too often
    return [
        candidate
        for candidate in dict.fromkeys(ways)
        if candidate[1] in list_operands(candidate[0], value, bound)
        and _result(value, candidate) != right
    ]


def _numbers(sign: str, value: int, results: Sequence[int]) -> list[int]:
    """List the numbers for the operator leads from `value` to one of the results."""
    if sign == "+":
        return [result - value for result in results]
    if sign == "-":
        return [value - result for result in results]
    return [result // value for result in results if result % value == 0]
