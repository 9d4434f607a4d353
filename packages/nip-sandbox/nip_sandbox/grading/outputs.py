"""Whether an output, or a value, is the expected one: compared here, and nowhere near the code.

explain_output   how the output of a program differs from the expected one
explain_value    how a returned value, as `in_sandbox` tells it, differs from the expected one

Both return "" where it does not differ. Outputs are compared as LiveCodeBench does it
(lcb_runner/evaluation/testing_util.py, `grade_stdio`): white space at both ends of the whole, and
of each line, says nothing, and lines of numbers are equal if the numbers are.
"""

import math
import re
from decimal import Decimal
from typing import Any

from nip_sandbox.grading.rows import JsonValue

# No digit may belong to either of two parts, or a long line of them takes quadratic time.
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_SHOWN = 80


def explain_output(actual: str, expected: str, exact: bool, tolerance: float | None) -> str:
    """Say how the output `actual` differs from the expected one, or return ""."""
    if exact:
        return "" if actual == expected else _differ(actual, expected)
    lines, expected_lines = actual.strip().split("\n"), expected.strip().split("\n")
    for number, (line, target) in enumerate(zip(lines, expected_lines, strict=False), 1):
        if not _is_same_line(line.strip(), target.strip(), tolerance):
            return f"line {number}: {_differ(line.strip(), target.strip())}"
    if len(lines) != len(expected_lines):
        return f"got {len(lines)} lines, expected {len(expected_lines)}"
    return ""


def _is_same_line(actual: str, expected: str, tolerance: float | None) -> bool:
    if actual == expected:
        return True
    words, expected_words = actual.split(), expected.split()
    if len(words) != len(expected_words):
        return False
    if tolerance is None and not all(_NUMBER.fullmatch(word) for word in expected_words):
        return False
    return all(
        word == target or _is_same_number(word, target, tolerance)
        for word, target in zip(words, expected_words, strict=True)
    )


def _is_same_number(actual: str, expected: str, tolerance: float | None) -> bool:
    if not (_NUMBER.fullmatch(actual) and _NUMBER.fullmatch(expected)):
        return False
    if Decimal(actual) == Decimal(expected):
        return True
    return tolerance is not None and _is_close(float(actual), float(expected), tolerance)


def _is_close(actual: float, expected: float, tolerance: float) -> bool:
    """Compare by the size of the expected number, as `actual` is of the code's making.

    Raises OverflowError if one is a whole number that no float holds.
    """
    if not (math.isfinite(actual) and math.isfinite(expected)):
        return False
    return abs(actual - expected) <= tolerance * max(1.0, abs(expected))


class _NoJson(Exception):
    """A value is none that JSON has."""


def explain_value(encoded: JsonValue, expected: JsonValue, tolerance: float | None) -> str:
    """Say how a value differs from the expected one, or return "".

    `encoded` comes from the process of the code: it may be anything.
    """
    try:
        value = _read_value(encoded)
    except _NoJson as kind:
        return f"returned a {kind}, which is no JSON value"
    except Exception:
        return "the answer is no value"
    if _is_same_value(value, expected, tolerance):
        return ""
    return _differ(value, expected)


def _read_value(encoded: Any) -> JsonValue:
    """Read what `in_sandbox.encode_value` wrote, as a JSON value; tuples are lists."""
    if encoded is None or isinstance(encoded, bool):
        return encoded
    kind, *content = encoded
    if kind == "int":
        return int(content[0], 16)
    if kind == "float":
        return float.fromhex(content[0])
    if kind == "str":
        return str(content[0])
    if kind in ("list", "tuple"):
        return [_read_value(item) for item in content[0]]
    if kind == "dict":
        return {_read_key(key): _read_value(item) for key, item in content[0]}
    raise _NoJson(str(kind)[:20])


def _read_key(encoded: Any) -> str:
    """Read a key; a whole number becomes its digits, as `json.dumps` writes it."""
    key = _read_value(encoded)
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise _NoJson("dict with other keys than texts and whole numbers")


def _is_same_value(actual: JsonValue, expected: JsonValue, tolerance: float | None) -> bool:
    """Compare as deep as `expected` is; 1 and 1.0 are the same number, and true is none."""
    if isinstance(expected, bool) or isinstance(actual, bool) or expected is None:
        return actual is expected
    if isinstance(expected, int | float):
        if not isinstance(actual, int | float):
            return False
        try:
            return actual == expected or (
                tolerance is not None and _is_close(actual, expected, tolerance)
            )
        except OverflowError:  # a whole number that no float holds
            return False
    if isinstance(expected, str):
        return isinstance(actual, str) and actual == expected
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(expected)
            and all(_is_same_value(a, b, tolerance) for a, b in zip(actual, expected, strict=True))
        )
    return (
        isinstance(actual, dict)
        and actual.keys() == expected.keys()
        and all(_is_same_value(actual[key], item, tolerance) for key, item in expected.items())
    )


def _differ(actual: JsonValue, expected: JsonValue) -> str:
    return f"got {_show(actual)}, expected {_show(expected)}"


def _show(value: JsonValue) -> str:
    if isinstance(value, int) and value.bit_length() > 1000:
        return "a whole number of more than 300 digits"
    try:
        text = ascii(value)
    except (ValueError, RecursionError):
        return "a value that is too large to be shown"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
