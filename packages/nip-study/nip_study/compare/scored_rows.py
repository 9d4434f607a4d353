"""Scores of other programs, from JSON Lines: one row for each answer to a question."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nip_base.formats.bounds import ReadError, parse_json
from nip_core.errors import DatasetError

LARGEST = 1e100
"""Of a score, either way: the squares of many such are numbers, too."""


@dataclass(frozen=True)
class ScoredRow:
    """A score of an arm on a question."""

    question: str
    cluster: str
    """Questions of one cluster are alike: variants of one problem, or all about one passage."""
    score: float
    place: str
    """The file with the line or the sample, for messages."""
    text: str | None = None
    """Of the question, where the file has it."""


@dataclass(frozen=True)
class Columns:
    """The keys of a row, by their meaning; a dot leads into an object, as in `meta.topic`."""

    question: str = "id"
    score: str | None = None
    """None: `score`; of a log of Inspect its only scorer."""
    arm: str | None = None
    """None: a file is an arm, named by its name."""
    cluster: str | None = None
    """None: each question by itself."""
    missing_score: float | None = None
    """The score of an answer that has none; None: that is an error."""


@dataclass(frozen=True)
class ScoredFile:
    """The rows of a file, by arm, in the order in which arms come."""

    path: str
    arms: Mapping[str, Sequence[ScoredRow]]
    status: str = ""
    """Of a log that is not finished."""


def read_jsonl(path: Path, columns: Columns) -> ScoredFile:
    """Read the rows of a file in JSON Lines; empty lines are passed over.

    Raises DatasetError for a line that is no such row; it names file and line.
    """
    arms: dict[str, list[ScoredRow]] = {}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                place = f"{path}:{number}"
                data = _parse(line, place)
                arm = _find_name(data, columns.arm, place) if columns.arm else path.stem
                arms.setdefault(arm, []).append(_read_row(data, columns, place))
    except OSError as error:
        raise DatasetError(f"{path}: can't be read ({error.strerror})") from None
    if not arms:
        raise DatasetError(f"{path}: has no rows; each line must be one JSON object")
    return ScoredFile(str(path), arms)


def _parse(line: bytes, place: str) -> Mapping[str, Any]:
    try:
        data = parse_json(line)
    except ReadError as error:
        raise DatasetError(f"{place}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise DatasetError(f"{place}: must be a JSON object (got {shorten(data)})")
    return data


def _read_row(data: Mapping[str, Any], columns: Columns, place: str) -> ScoredRow:
    question = _find_name(data, columns.question, place)
    cluster = question
    if columns.cluster:
        cluster = name_cluster(_find_name(data, columns.cluster, place))
    key = columns.score or "score"
    is_there, value = look_up(data, key)
    if not is_there:
        raise DatasetError(f"{place}: has no {key!r}; {_list_keys(data)}, name one by --score")
    return ScoredRow(question, cluster, find_score(value, columns.missing_score, place, key), place)


def find_score(value: Any, missing_score: float | None, place: str, key: str) -> float:
    """Read a score: a number up to `LARGEST`, or true (1) or false (0); null is `missing_score`.

    Raises DatasetError for anything else.
    """
    if value is None and missing_score is not None:
        return missing_score
    if value is None:
        raise DatasetError(
            f"{place}: {key!r} is null; --missing NUMBER gives such answers a score, such as 0"
        )
    if isinstance(value, bool | int | float) and abs(value) <= LARGEST:  # which NaN is not
        return float(value)
    raise DatasetError(f"{place}: {key!r} must be a number, true or false (got {shorten(value)})")


def _find_name(data: Mapping[str, Any], key: str, place: str) -> str:
    is_there, value = look_up(data, key)
    if not is_there:
        raise DatasetError(f"{place}: has no {key!r}; {_list_keys(data)}")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DatasetError(
            f"{place}: {key!r} must be a text or a whole number (got {shorten(value)})"
        )
    return str(value)


def look_up(data: Any, key: str) -> tuple[bool, Any]:
    """Find the value of a key, or of `a.b` in the object under `a`; say whether it is there."""
    if not isinstance(data, dict):
        return False, None
    if key in data:
        return True, data[key]
    first, dot, rest = key.partition(".")
    return look_up(data.get(first), rest) if dot else (False, None)


def name_cluster(value: str | int) -> str:
    """Name a cluster by its text, with one space for any white space, as Inspect sums texts up."""
    return " ".join(str(value).split())


def _list_keys(data: Mapping[str, Any]) -> str:
    return f"there are {', '.join(map(repr, list(data)[:12]))}" if data else "the object is empty"


def shorten(value: Any) -> str:
    """Show a value in at most 60 characters."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
