"""Scores out of logs of Inspect, `.eval` or `.json`, read without inspect_ai.

A log in the form `.eval` is a ZIP of JSON: `header.json` says which model and task it was,
`summaries.json` has the score of each sample, and its texts, of which long ones are cut: those are
read whole from `samples/ID_epoch_N.json`, which have the whole conversations and can be large. New
versions of Inspect compress with Zstandard, which Python's `zipfile` does not know before 3.14;
pyarrow does.
"""

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from nip_base.formats.bounds import ReadError, parse_json
from nip_core.errors import DatasetError
from nip_study.compare.scored_rows import (
    Columns,
    ScoredFile,
    ScoredRow,
    find_score,
    look_up,
    name_cluster,
    shorten,
)

_ZSTANDARD = 93
_LOCAL_HEADER = 30
_MOST_BYTES = 1 << 30
_DEPTH = 1000
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    OSError,
    ValueError,
    EOFError,
    RuntimeError,  # encrypted, or compressed in an unknown way
    pa.ArrowException,
)
_CUT = ("...", "...\n(content truncated)", "Key removed from summary (> 1k)")
"""Ends of texts that a summary has cut, or of a few that it has not: those are read twice."""
_LETTERS = {
    "C": 1.0,
    "I": 0.0,
    "P": 0.5,
    "N": 0.0,
    "yes": 1.0,
    "true": 1.0,
    "no": 0.0,
    "false": 0.0,
}
"""Scores in letters and words, as Inspect's `value_to_float` reads them."""


def read_log(path: Path, columns: Columns) -> ScoredFile:
    """Read a log; an epoch of a sample is a row of the question, its id.

    Raises DatasetError for a file that is no such log, or a sample without the score.
    """
    header, samples = (
        _read_json(path) if path.suffix == ".json" else _read_zip(path, columns.cluster)
    )
    _, model = look_up(header, "eval.model")
    name = str(model) if isinstance(model, str) and model else path.stem
    status = header.get("status")
    rows = [_read_sample(sample, columns, path) for sample in samples]
    if not rows:
        raise DatasetError(f"{path}: the log has no samples")
    return ScoredFile(str(path), {name: rows}, "" if status == "success" else str(status))


def _read_json(path: Path) -> tuple[Mapping[str, Any], list[Any]]:
    try:
        data = _parse(path.read_bytes(), str(path))
    except OSError as error:
        raise DatasetError(f"{path}: can't be read ({error.strerror})") from None
    if not (isinstance(data, dict) and isinstance(data.get("samples"), list) and "eval" in data):
        raise DatasetError(
            f"{path}: is no log of Inspect with samples; rows of other programs are read from "
            "files whose names end in .jsonl"
        )
    return data, data["samples"]


def _read_zip(path: Path, cluster: str | None) -> tuple[Mapping[str, Any], list[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            header = _read_member(path, archive, "header.json")
            samples = _read_member(path, archive, "summaries.json")
            if isinstance(samples, list):
                samples = [_complete(sample, cluster, path, archive) for sample in samples]
    except _UNREADABLE as error:
        raise DatasetError(f"{path}: can't be read as a log of Inspect ({error})") from None
    if not (isinstance(header, dict) and isinstance(samples, list)):
        raise DatasetError(f"{path}: is no log of Inspect: its header or its summaries are others")
    return header, samples


def _complete(sample: Any, cluster: str | None, path: Path, archive: zipfile.ZipFile) -> Any:
    """Give a summary the whole input and metadata of its sample, if it has cut what is compared."""
    if not isinstance(sample, dict):
        return sample
    messages = _list_texts(sample.get("input"))
    is_whole = not any(text.endswith(_CUT) for message in messages for text in message)
    if cluster:
        is_there, value = look_up(sample.get("metadata"), cluster)
        if not is_there:  # words may stand for the object in which it is
            _, value = look_up(sample.get("metadata"), cluster.partition(".")[0])
        is_whole &= not str(value).endswith(_CUT)
    if is_whole:
        return sample
    name = f"samples/{sample.get('id')}_epoch_{sample.get('epoch')}.json"
    whole = _read_member(path, archive, name)
    if not isinstance(whole, dict):
        raise DatasetError(f"{path}: {name} is no sample (got {shorten(whole)})")
    return {**sample, "input": whole.get("input"), "metadata": whole.get("metadata")}


def _read_member(path: Path, archive: zipfile.ZipFile, name: str) -> Any:
    try:
        member = archive.getinfo(name)
    except KeyError:
        raise DatasetError(
            f"{path}: has no {name}, so it is no log of Inspect, or one that was not finished; "
            "finish it with `inspect eval-retry`"
        ) from None
    if member.file_size > _MOST_BYTES:
        raise DatasetError(f"{path}: {name} has {member.file_size:,} bytes, which is too many")
    is_packed = member.compress_type == _ZSTANDARD
    data = _decompress(path, member) if is_packed else archive.read(member)
    return _parse(data, f"{path}: {name}")


def _decompress(path: Path, member: zipfile.ZipInfo) -> bytes:
    """Read a member that is compressed with Zstandard, in one frame or several."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        head = file.read(_LOCAL_HEADER)
        name_size, extra_size = struct.unpack("<HH", head[26:30])
        file.seek(name_size + extra_size, 1)
        packed = file.read(member.compress_size)
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        data: bytes = stream.read(member.file_size + 1)
    if len(data) != member.file_size:
        raise ValueError(f"{member.filename} has not the size that the archive says")
    return data


def _parse(data: bytes, place: str) -> Any:
    try:
        return parse_json(data, max_depth=_DEPTH)
    except ReadError as error:
        raise DatasetError(f"{place}: not JSON ({error})") from None


def _read_sample(sample: Any, columns: Columns, path: Path) -> ScoredRow:
    if not isinstance(sample, dict) or not isinstance(sample.get("id"), str | int):
        raise DatasetError(f"{path}: a sample has no id (got {shorten(sample)})")
    question = str(sample["id"])
    place = f"{path}: sample {question!r}, epoch {sample.get('epoch', 1)}"
    cluster = question
    if columns.cluster:
        is_there, value = look_up(sample.get("metadata"), columns.cluster)
        if not is_there or not isinstance(value, str | int):
            raise DatasetError(
                f"{place}: has no text or number {columns.cluster!r} in its metadata "
                f"(got {shorten(sample.get('metadata'))})"
            )
        cluster = name_cluster(value)
    text = json.dumps(_list_texts(sample.get("input")))
    return ScoredRow(question, cluster, _find_value(sample, columns, place), place, text)


def _list_texts(asked: Any) -> list[list[str]]:
    """List role and texts of each message of an input; a plain text is a message of the user."""
    if isinstance(asked, str):
        return [["user", asked]]
    return [_read_message(message) for message in asked] if isinstance(asked, list) else []


def _read_message(message: Any) -> list[str]:
    """Read the role and the texts of a message; its id is another one in each log."""
    if not isinstance(message, dict):
        return [ascii(message)]
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    return [str(message.get("role")), *(_read_part(part) for part in parts)]


def _read_part(part: Any) -> str:
    """Read a text; anything else is named by its kind, as summaries of Inspect have it."""
    if not isinstance(part, dict):
        return str(part)
    kind = str(part.get("type"))
    return str(part.get("text")) if kind == "text" else f"({kind.capitalize()})"


def _find_value(sample: Mapping[str, Any], columns: Columns, place: str) -> float:
    """Find the score of a sample: of its only scorer, or of the one that is named."""
    scores = sample.get("scores")
    scores = scores if isinstance(scores, dict) else {}
    if not scores and columns.missing_score is not None:
        return columns.missing_score
    if not scores:
        _, error = look_up(sample, "error.message")
        error = error or sample.get("error") or "no error is on record"
        raise DatasetError(
            f"{place}: has no score ({shorten(error)}); --missing NUMBER gives such samples a "
            "score, such as 0"
        )
    names = list(scores)
    scorer, key = columns.score or names[0], ""
    if scorer not in scores:
        scorer, _, key = scorer.partition(".")
    if scorer not in scores or (columns.score is None and len(names) > 1):
        raise DatasetError(f"{place}: has scores of {', '.join(names)}; name one by --score")
    value = scores[scorer].get("value") if isinstance(scores[scorer], dict) else None
    if isinstance(value, dict):
        if key not in value:
            keys = ", ".join(f"{scorer}.{name}" for name in value)
            raise DatasetError(
                f"{place}: the score has several values; name one by --score: {keys}"
            )
        value = value[key]
    elif key:
        raise DatasetError(f"{place}: the score {scorer!r} is one value, and has no {key!r}")
    if isinstance(value, str):
        value = _LETTERS.get(value, _LETTERS.get(value.lower(), _read_number(value)))
    if isinstance(value, float) and math.isnan(value):
        # Inspect writes so where a scorer has given none.
        if columns.missing_score is None:
            raise DatasetError(
                f"{place}: {scorer!r} is NaN, which is no score; --missing NUMBER gives such "
                "samples a score, such as 0"
            )
        return columns.missing_score
    return find_score(value, columns.missing_score, place, scorer)


def _read_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
