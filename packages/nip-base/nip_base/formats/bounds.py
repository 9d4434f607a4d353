"""JSON from any sender: limits on its size, and its reading.

loads            what is sent -> value: by a fast parser, or if it has many values by a patient one
parse_json       what is in a file, which may have many values -> value
check_depth      for a value that something else has read
JsonBoundsError  what they raise for too many values, and for values nested too deeply, a ReadError

A value takes up to thirty times the memory that it takes as JSON, and a parser in C lets no other
thread run until it has come to the end. So the characters that make values are counted first.
Those inside of texts count too: the limits leave room for a million tokens of code.
"""

import json
import math
from collections.abc import Callable
from json import scanner
from typing import Any

MAX_DEPTH = 64
MAX_DIGITS = 4_300
"""Of an integer: more are not turned into text again, and so into no message and no record."""
MAX_CONTAINERS = 250_000
MAX_VALUES = 2_000_000
_FAST_CONTAINERS, _FAST_VALUES = 20_000, 200_000
_SLICE_BYTES = 1 << 20


class ReadError(ValueError):
    """A file or a text is refused."""


class JsonBoundsError(ReadError):
    """JSON is refused for the cost of reading or using it."""


def loads(raw: bytes, fast: Callable[[bytes], Any], *, surrogates: bool) -> Any:
    """Parse `raw`, in UTF-8, by `fast` or by an equally strict parser with more patience.

    `surrogates`: whether halves of surrogate pairs are taken. Raises ValueError, JsonBoundsError
    and RecursionError.
    """
    # 1. The memory and time that it would take.
    containers, values = _weigh(raw)
    if containers > MAX_CONTAINERS:
        raise JsonBoundsError(f"it has {containers} of [ and {{, at most {MAX_CONTAINERS} are read")
    if values > MAX_VALUES:
        raise JsonBoundsError(f"it has {values} of , and :, at most {MAX_VALUES} are read")
    # 2. The value.
    is_light = containers <= _FAST_CONTAINERS and values <= _FAST_VALUES
    value = fast(raw) if is_light else _Patient(surrogates).decode(raw.decode())
    # 3. Its depth.
    if containers > MAX_DEPTH:
        check_depth(value)
    return value


def _weigh(raw: bytes) -> tuple[int, int]:
    """Count the openings of lists and objects, and the separators before values."""
    containers = values = 0
    for start in range(0, len(raw), _SLICE_BYTES):
        part = raw[start : start + _SLICE_BYTES]
        containers += part.count(b"[") + part.count(b"{")
        values += part.count(b",") + part.count(b":")
    return containers, values


def parse_json(raw: bytes | str, *, max_depth: int | None = MAX_DEPTH) -> Any:
    """The value of JSON, as `json.loads` reads it.

    Raises ReadError for a text that is not JSON, is nested deeper than `max_depth` (None: than
    Python can read), or has a number of more than MAX_DIGITS digits.
    """
    try:
        value = json.loads(raw)
    except RecursionError:
        raise ReadError(f"it is nested more than {max_depth or 'some hundred'} deep") from None
    except json.JSONDecodeError as error:
        raise ReadError(str(error)) from None
    except UnicodeDecodeError:
        raise ReadError("it is not UTF-8 text") from None
    except ValueError:
        raise ReadError(f"it has a number of more than {MAX_DIGITS} digits") from None
    if max_depth is not None:
        check_depth(value, max_depth)
    return value


def check_depth(value: Any, max_depth: int = MAX_DEPTH) -> None:
    """Raise JsonBoundsError for a value nested deeper than `max_depth`."""
    level = [value]
    for _ in range(max_depth):
        level = [child for item in level for child in _inside(item)]
        if not level:
            return
    raise JsonBoundsError(f"it is nested more than {max_depth} deep")


_NESTS = (list, dict)  # as a tuple it is asked twice as fast


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return []
    return [child for child in value if isinstance(child, _NESTS)]


class _Patient(json.JSONDecoder):
    """The standard library's parser written in Python: slow, and others run beside it."""

    def __init__(self, surrogates: bool):
        super().__init__(
            parse_constant=_no_number, parse_float=None if surrogates else _finite_float
        )
        if not surrogates:
            self.parse_string = _text
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def _text(text: str, start: int, strict: bool) -> tuple[str, int]:
    value, end = json.decoder.scanstring(text, start, strict)  # type: ignore[attr-defined]
    if not value.isascii():
        value.encode()  # raises a ValueError
    return value, end


def _finite_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:20]} is too large a number")
    return value


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
