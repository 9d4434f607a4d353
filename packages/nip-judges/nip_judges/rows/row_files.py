"""Rows of a file as they stand there: JSONL, JSON, CSV, Parquet, or a log of Inspect.

RawRow     a row's values by column, and its place for errors
read_raw   the rows of a file, in their order
as_text    a value as text; None for one that is missing

Raises ValueError with the reason in words; the caller adds the place.
"""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nip_base.formats.bounds import ReadError, parse_json
from nip_judges.rows.inspect_rows import is_log, read_log_json, read_log_zip

_MOST_FIELD = 1 << 27  # characters of a field in CSV


class RawRow(NamedTuple):
    """A row as it stands in its file."""

    number: int
    """From 1."""
    values: Mapping[str, Any]


def read_raw(path: Path) -> tuple[list[RawRow], bool]:
    """Read a file's rows, and tell whether it is a log of Inspect.

    Raises ValueError for a file that can't be read, is another, or has no rows.
    """
    suffix, found_log = path.suffix.lower(), False
    try:
        if suffix == ".parquet":
            values = _read_parquet(path)
        elif suffix == ".eval":
            values, found_log = read_log_zip(path), True
        else:
            text = _read_text(path)
            if suffix == ".csv":
                values = list(_read_csv(text))
            elif suffix == ".jsonl":
                values = list(_read_jsonl(text))
            else:
                values, found_log = _read_json(text)
    except OSError as error:
        raise ValueError(f"can't be read ({error.strerror or error})") from None
    if not values:
        raise ValueError("has no rows")
    return [RawRow(number, row) for number, row in enumerate(values, start=1)], found_log


def _read_text(path: Path) -> str:
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("is UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"line {line}: the byte 0x{data[error.start]:02x} is no UTF-8; save it as UTF-8"
        ) from None


def _read_jsonl(text: str) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except ReadError as error:
            raise ValueError(f"line {number}: not JSON ({error})") from None
        yield _check_row(value, f"line {number}")


def _read_json(text: str) -> tuple[list[Mapping[str, Any]], bool]:
    try:
        value = parse_json(text, max_depth=1000)
    except ReadError as error:
        raise ValueError(f"not JSON ({error})") from None
    if is_log(value):
        return read_log_json(value), True
    if not isinstance(value, list):
        raise ValueError(f"a list of objects is needed, or a log of Inspect (got {_kind(value)})")
    return [_check_row(row, f"row {number}") for number, row in enumerate(value, start=1)], False


def _check_row(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{place}: an object is needed (got {_kind(value)})")
    return value


def _read_csv(text: str) -> Iterator[Mapping[str, Any]]:
    if "\0" in text:
        raise ValueError("has a zero byte; save it as CSV in UTF-8")
    csv.field_size_limit(max(csv.field_size_limit(), _MOST_FIELD))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        names = next(reader, [])
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f'line 1: the column "{doubled[0]}" stands twice')
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(names):
                raise ValueError(
                    f"line {reader.line_num}: {len(fields)} fields under {len(names)} columns; "
                    "commas are separators, and a field with one stands in quotes"
                )
            yield dict(zip(names, fields, strict=True))
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: not CSV ({error})") from None


def _read_parquet(path: Path) -> list[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"can't be read as Parquet ({reason})") from None
    plain = [name for name in table.column_names if not pa.types.is_binary(table[name].type)]
    rows: list[Mapping[str, Any]] = table.select(plain).to_pylist()
    return rows


def as_text(value: Any) -> str | None:
    """Write a value as text; None for one that is missing, as null and NaN are."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    return names.get(type(value), "a number")
