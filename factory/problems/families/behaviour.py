"""Runs a member's code on the test inputs of its family.

Covered: equality of behaviour on fixed inputs, exceptions included. Not covered: any protection.
The code runs in this process, without limits, because it comes from the fixed templates of
`catalogue` and from nowhere else. Code from any other source must not come here.
"""

import hashlib
import random
from collections.abc import Callable
from functools import cache
from typing import Any

from factory.problems.families.structure import LETTERS


@cache
def inputs_for(takes: str) -> tuple[tuple[Any, ...], ...]:
    """Make the argument lists for comparing functions of one kind.

    Whole numbers from -20 through 60; pairs of them; lists of 20 to 28 numbers, some of them all
    small or all large; strings of 20 to 26 letters. Fixed: drawn with a fixed seed.
    """
    draw = random.Random(f"test inputs {takes}")  # a str seed does not use hash()
    if takes == "x":
        return tuple((x,) for x in range(-20, 61))
    if takes == "xy":
        return tuple((x, y) for x in range(-15, 40, 6) for y in range(-9, 20, 4))
    if takes == "xs":
        spans = [(-5, 40)] * 16 + [(0, 12)] * 8 + [(low, low + 3) for low in range(-1, 30)]
        return tuple(
            ([draw.randint(low, high) for _ in range(draw.randint(20, 28))],) for low, high in spans
        )
    if takes == "s":
        return tuple(
            ("".join(draw.choice(LETTERS) for _ in range(draw.randint(20, 26))),) for _ in range(60)
        )
    raise ValueError(f"no test inputs for functions of {takes!r}")


def behaviour(code: str, takes: str) -> str:
    """SHA-256 over the outcomes of ``f``, as `code` defines it, on its test inputs.

    Equal exactly when two functions give equal results, or exceptions of the same type, on all
    of them. ``True`` and ``1`` count as different.
    """
    namespace: dict[str, Any] = {}
    exec(compile(code, "<family>", "exec"), namespace)  # noqa: S102  our own templates only
    function: Callable[..., Any] = namespace["f"]
    digest = hashlib.sha256(takes.encode())
    for arguments in inputs_for(takes):
        fresh = tuple(list(a) if isinstance(a, list) else a for a in arguments)
        try:
            outcome = repr(function(*fresh))
        except Exception as error:
            outcome = f"raises {type(error).__name__}"
        digest.update(outcome.encode() + b"\n")
    return digest.hexdigest()
