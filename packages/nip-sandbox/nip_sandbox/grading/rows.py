"""The rows that are graded: code, with tests of three kinds.

Row                               code and its tests, with limits
OutputTest, CallTest, AssertTest  the kinds of tests
make_row                          from a JSON object, checked
read_rows                         the rows of a file in JSON Lines, one by one
RowError                          a row, or a file of them, is wrong
"""

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeAlias

from nip_base.errors import NipError
from nip_base.formats.bounds import check_depth

JsonValue: TypeAlias = Any
"""None, a boolean, a number, a text, a list or an object, as `json` reads them."""

SECONDS, MEMORY_MB = 10.0, 512
_MOST_SECONDS, _LEAST_MEMORY_MB, _MOST_MEMORY_MB = 3600, 64, 1 << 16
OUTPUT_BYTES = 4_000_000
"""The most that a test may write on stdout, and on stderr."""
_ROW_KEYS = ("id", "code", "tests", "seconds", "memory_mb", "meta")


class RowError(NipError, ValueError):
    """A row, or a file of rows or grades, is wrong; the message begins with its place."""


@dataclass(frozen=True)
class OutputTest:
    """A program is run; it passes if it prints `stdout`, and ends with exit code 0."""

    stdin: str
    stdout: str
    exact: bool = False
    """Character by character; else as `outputs.explain_output` says."""
    tolerance: float | None = None
    """Numbers may differ by so much, absolutely or in relation to the expected one."""


@dataclass(frozen=True)
class CallTest:
    """A function is called; it passes if it returns `expected`."""

    call: str
    """The function's name, or `Class.method` of an object that is made without arguments."""
    args: tuple[JsonValue, ...]
    kwargs: Mapping[str, JsonValue]
    expected: JsonValue
    tolerance: float | None = None


@dataclass(frozen=True)
class AssertTest:
    """Assertions about a function, as source; it passes if they run to their end."""

    source: str
    """May also define `check(candidate)`, as the tests of HumanEval do."""
    call: str


Test = OutputTest | CallTest | AssertTest


@dataclass(frozen=True)
class Row:
    """Untrusted code, and tests of it."""

    id: str | int
    code: str
    tests: tuple[Test, ...]
    seconds: float = SECONDS
    """The most that each test may take: of wall clock, and of processor."""
    memory_mb: int = MEMORY_MB
    """The most memory of each test, the interpreter's own 20 to 40 included."""
    meta: JsonValue = None
    """Anything that JSON holds; it stands in the grade as it is."""
    place: str = field(default="", compare=False)
    """The file and the line of the row, for messages."""

    @property
    def digest(self) -> str:
        """Return a digest of all that a grade depends on."""
        tests = [[type(test).__name__, vars(test)] for test in self.tests]
        text = json.dumps([self.code, tests, self.seconds, self.memory_mb], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_rows(lines: Iterable[bytes], name: str) -> Iterator[Row]:
    """Read rows from the lines of the file called `name`; empty lines are passed over.

    Raises:
        RowError: a line is no row, or has the id of an earlier one; it names file and line.
    """
    places: dict[str | int, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{name}:{number}"
        row = make_row(_parse(line, place), place)
        if row.id in places:
            raise RowError(
                f"{place}: the id {row.id!r} is also that of {places[row.id]}; give each its own"
            )
        places[row.id] = place
        yield row


def _parse(line: bytes, place: str) -> JsonValue:
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
        check_depth(value)
        return value
    except (ValueError, RecursionError) as error:
        raise RowError(
            f"{place}: not JSON in UTF-8 ({error}); each line must be one JSON object"
        ) from None


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def make_row(data: JsonValue, place: str = "row") -> Row:
    """Make a row of a JSON object.

    Raises:
        RowError: something is missing, unknown or of another type; it begins with `place`.
    """
    fields = _Fields(data, place, _ROW_KEYS)
    tests = fields.take("tests", _is_list, "a list of tests", needed=True)
    if not tests:
        raise RowError(f"{place}: 'tests' is empty, so nothing could fail; add a test")
    return Row(
        id=fields.take("id", _is_name, "a text or a whole number", needed=True),
        code=fields.take("code", _is_text, "source code as a text", needed=True),
        tests=tuple(_make_test(test, f"{place}: tests[{k}]") for k, test in enumerate(tests)),
        seconds=float(
            fields.take("seconds", _is_seconds, f"a number above 0, up to {_MOST_SECONDS}", SECONDS)
        ),
        memory_mb=fields.take(
            "memory_mb",
            _is_memory,
            f"a whole number from {_LEAST_MEMORY_MB} to {_MOST_MEMORY_MB}",
            MEMORY_MB,
        ),
        meta=fields.take("meta", _is_finite, "without numbers that no float holds", None),
        place=place,
    )


def _make_test(data: JsonValue, place: str) -> Test:
    """Make a test: which kind it is, one of three keys says."""
    if isinstance(data, dict) and "stdout" in data:
        fields = _Fields(data, place, ("stdin", "stdout", "exact", "tolerance"))
        stdout = fields.take("stdout", _is_text, "a text", needed=True)
        if len(stdout.encode("utf-8", "replace")) > OUTPUT_BYTES:
            raise RowError(
                f"{place}: 'stdout' has more than {OUTPUT_BYTES:,} bytes, and no more is read; "
                "leave the test out"
            )
        return OutputTest(
            stdin=fields.take("stdin", _is_text, "a text", ""),
            stdout=stdout,
            exact=fields.take("exact", _is_bool, "true or false", False),
            tolerance=fields.take("tolerance", _is_tolerance, "a number from 0", None),
        )
    if isinstance(data, dict) and "assert" in data:
        fields = _Fields(data, place, ("assert", "call"))
        source = fields.take("assert", _is_text, "source code as a text", needed=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes, which are for the tests' author
                compile(source, "assert", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise RowError(f"{place}: 'assert' is no Python ({error}); mend it") from None
        return AssertTest(source, fields.take("call", _is_call, _CALL, needed=True))
    if isinstance(data, dict) and "expected" in data:
        fields = _Fields(data, place, ("call", "args", "kwargs", "expected", "tolerance"))
        return CallTest(
            call=fields.take("call", _is_call, _CALL, needed=True),
            args=tuple(fields.take("args", _is_list, "a list", [])),
            kwargs=fields.take("kwargs", _is_object, "an object", {}),
            expected=fields.take("expected", lambda value: True, "", needed=True),
            tolerance=fields.take("tolerance", _is_tolerance, "a number from 0", None),
        )
    raise RowError(
        f"{place}: a test needs one of 'stdout' (of a program), 'expected' (of a call) or 'assert' "
        f"(got {_shorten(data)})"
    )


class _Fields:
    """The fields of a JSON object, each taken with a check."""

    def __init__(self, data: JsonValue, place: str, keys: tuple[str, ...]) -> None:
        if not isinstance(data, dict):
            raise RowError(f"{place}: must be a JSON object (got {_shorten(data)})")
        for key in data:
            if key not in keys:
                similar = get_close_matches(key, keys, n=1)
                hint = (
                    f"did you mean {similar[0]!r}?" if similar else f"there are {', '.join(keys)}"
                )
                raise RowError(f"{place}: unknown key {key!r}; {hint}")
        self._data: dict[str, JsonValue] = data
        self._place = place

    def take(
        self,
        key: str,
        is_right: Callable[[Any], bool],
        words: str,
        default: JsonValue = None,
        needed: bool = False,
    ) -> Any:
        if key not in self._data:
            if needed:
                raise RowError(f"{self._place}: {key!r} is missing; it must be {words}")
            return default
        value = self._data[key]
        if not is_right(value):
            raise RowError(f"{self._place}: {key!r} must be {words} (got {_shorten(value)})")
        return value


_CALL = "the name of a function, or Class.method"


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str)


def _is_bool(value: JsonValue) -> bool:
    return isinstance(value, bool)


def _is_list(value: JsonValue) -> bool:
    return isinstance(value, list)


def _is_object(value: JsonValue) -> bool:
    return isinstance(value, dict)


def _is_name(value: JsonValue) -> bool:
    return (isinstance(value, str) and bool(value)) or _is_whole(value)


def _is_whole(value: JsonValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_seconds(value: JsonValue) -> bool:
    return _is_number(value) and 0 < value <= _MOST_SECONDS


def _is_tolerance(value: JsonValue) -> bool:
    return _is_number(value) and 0 <= value < float("inf")


def _is_finite(value: JsonValue) -> bool:
    """Tell whether JSON can hold the value's numbers: of 1e999 Python makes an infinite one."""
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _is_memory(value: JsonValue) -> bool:
    return _is_whole(value) and _LEAST_MEMORY_MB <= value <= _MOST_MEMORY_MB


def _is_call(value: JsonValue) -> bool:
    return (
        isinstance(value, str)
        and value.count(".") <= 1
        and all(part.isidentifier() for part in value.split("."))
    )


def _shorten(value: JsonValue) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
