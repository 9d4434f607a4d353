"""Lines of JSON and back, and how a broken rule is told.

read_jsonl               bytes or a file -> (line number, value), one line at a time
check_jsonl              what an upload must satisfy: UTF-8, not empty, an object on every line
to_jsonl                 the other direction: examples or plain objects -> bytes
Problem                  one broken rule, with its line
JsonlError, FormatError  what readers raise
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nip_base.formats import bounds

MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_LINES = 4_000_000
"""Blank ones count."""
MISSING = object()
"""In the place of the value of a key that isn't there."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonlError(ValueError):
    """A line is not JSON, or the file has no lines. `line` counts from 1; 0 is the whole file."""

    def __init__(self, line: int, message: str):
        super().__init__(line, message)
        self.line, self.message = line, message

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


class FormatError(ValueError):
    """The content breaks the rules of its method; `problems` has the first ones."""

    def __init__(self, problems: Sequence["Problem"]):
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return describe_problems(self.problems)


@dataclass(frozen=True)
class Problem:
    """One broken rule. `line` counts from 1; 0 means the file as a whole."""

    line: int
    code: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


Broken = tuple[str, str]
"""A broken rule of a line that is known: its code and its message."""


class Example:
    """An example of a method, or a part of one; a dataclass."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as in a JSONL line, without None and without empty ones."""
        return {
            name: value for name, value in vars(self).items() if value is not None and value != ()
        }


def to_jsonl(rows: Iterable[Example | Mapping[str, Any]]) -> bytes:
    """Encode one object per line as UTF-8. With sorted keys, equal rows give equal bytes."""
    lines = [
        json.dumps(
            dict(row) if isinstance(row, Mapping) else row.to_dict(),
            default=lambda part: part.to_dict(),
            ensure_ascii=False,
            sort_keys=True,
            separators=(",", ":"),
            allow_nan=False,
        )
        for row in rows
    ]
    return "".join(line + "\n" for line in lines).encode()


def read_jsonl(source: bytes | str | Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number from 1, parsed value) of every line but blank ones.

    `source` is the content itself when bytes, otherwise the path of a file, which is read line
    by line. Raises JsonlError at the first line that is not UTF-8 or not JSON, is longer than
    MAX_LINE_BYTES or holds more than `bounds` allows. NaN and Infinity, which some writers emit,
    are not JSON.
    """
    if isinstance(source, bytes):
        yield from _parse_lines(io.BytesIO(source))
    else:
        with Path(source).open("rb") as file:
            yield from _parse_lines(file)


def _parse_lines(file: BinaryIO) -> Iterator[tuple[int, Any]]:
    # One byte beyond the limit is read of a line, to know that it is longer.
    lines = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        if number > MAX_LINES:
            raise JsonlError(number, f"only {MAX_LINES} lines are read")
        if not line.strip():
            continue
        if len(line) > MAX_LINE_BYTES:
            raise JsonlError(number, f"longer than {MAX_LINE_BYTES} bytes")
        content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        try:
            yield number, bounds.loads(content, _loads, surrogates=True)
        except bounds.JsonBoundsError as error:
            raise JsonlError(number, str(error)) from None
        except UnicodeDecodeError as error:
            raise JsonlError(number, f"not UTF-8 at byte {error.start}") from None
        except (ValueError, RecursionError) as error:
            start = line[:60].decode("utf-8", "replace").strip()
            raise JsonlError(number, f"not JSON ({error}): got {start!r}") from None


def _loads(line: bytes) -> Any:
    return json.loads(line.decode(), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def check_jsonl(source: bytes | str | Path, max_rows: int | None = None) -> int:
    """Check what an upload must satisfy and return the number of objects in it.

    Raises JsonlError if the file has no line or a line is not a JSON object. Reads no further than
    to the first object beyond `max_rows`.
    """
    count = 0
    for number, value in read_jsonl(source):
        if not isinstance(value, dict):
            raise JsonlError(number, f"expected a JSON object, got {name_kind(value)}")
        count += 1
        if max_rows is not None and count > max_rows:
            break
    if count == 0:
        raise JsonlError(0, "the file is empty: expected at least one JSON object per line")
    return count


def describe_problems(problems: Sequence[Problem], limit: int = 5) -> str:
    """One sentence for people: the first problems with their lines, and how many more."""
    more = len(problems) - limit
    text = "; ".join(str(problem) for problem in problems[:limit])
    return f"{text}; and {more} more" if more > 0 else text


def find_unknown_keys(
    place: str, keys: Iterable[str], known_keys: Sequence[str]
) -> Iterator[Broken]:
    """Name every unknown key. `place` begins the message."""
    for key in keys:
        if key not in known_keys:
            yield "unknown_key", f"{place} has the unknown key {key!r}; known: {list(known_keys)}"


def describe_wrong(code: str, place: str, expected: str, value: Any) -> Broken:
    """Describe a wrong value: its place, the expected kind, the kind found."""
    return code, f"{place} must be {expected}, got {name_kind(value)}"


def name_kind(value: Any) -> str:
    """Name a value's kind in words, for messages; `MISSING` is nothing."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    if value is MISSING:
        return "nothing"
    if isinstance(value, list) and not value:
        return "an empty list"
    return names.get(type(value), f"{value!r}"[:60])
