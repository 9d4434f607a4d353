"""Graded rows of a log of Inspect, `.eval` or `.json`, read without inspect_ai.

is_log         whether a value of JSON is such a log
read_log_json  its samples as rows; read_log_zip: of a file that ends in .eval

A row has the columns input, output, target, id, epoch, a scorer's name with its value, and
metadata.NAME. Only texts are read: one message of the user, and the last reply.
"""

import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nip_base.formats.bounds import ReadError, parse_json

LOG_COLUMNS = {"question": "input", "response": "output", "reference": "target"}
_ZSTANDARD = 93  # which zipfile does not know before Python 3.14, and pyarrow does
_LOCAL_HEADER_BYTES = 30
_MOST_SAMPLE_BYTES = 1 << 28
_DEPTH = 1000


def is_log(value: Any) -> bool:
    """Return whether a value is a log with samples."""
    return isinstance(value, dict) and "eval" in value and isinstance(value.get("samples"), list)


def read_log_json(log: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Read the samples of a log. Raises ValueError for one that is not plain text."""
    return [_read_sample(sample) for sample in log["samples"]]


def read_log_zip(path: Path) -> list[Mapping[str, Any]]:
    """Read the samples of an `.eval` file, in its order.

    Raises ValueError for a file that is none, or a sample that is not plain text.
    """
    import pyarrow as pa

    rows = []
    try:
        with zipfile.ZipFile(path) as archive:
            members = [one for one in archive.infolist() if _is_sample(one.filename)]
            if not members or "header.json" not in archive.namelist():
                raise ValueError("has no samples, or was not finished")
            for member in members:
                rows.append(_read_sample(_read_member(path, archive, member)))
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        RuntimeError,
        pa.ArrowException,
    ) as error:
        raise ValueError(f"can't be read as a log of Inspect ({error})") from None
    return rows


def _is_sample(name: str) -> bool:
    return name.startswith("samples/") and name.endswith(".json")


def _read_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    if member.file_size > _MOST_SAMPLE_BYTES:
        raise ValueError(f"{member.filename} has {member.file_size:,} bytes, which is too many")
    is_packed = member.compress_type == _ZSTANDARD
    data = _decompress(path, member) if is_packed else archive.read(member)
    try:
        return parse_json(data, max_depth=_DEPTH)
    except ReadError as error:
        raise ValueError(f"{member.filename}: not JSON ({error})") from None


def _decompress(path: Path, member: zipfile.ZipInfo) -> bytes:
    import pyarrow as pa

    with path.open("rb") as file:
        file.seek(member.header_offset)
        name_bytes, extra_bytes = struct.unpack("<26xHH", file.read(_LOCAL_HEADER_BYTES))
        file.seek(name_bytes + extra_bytes, 1)
        packed = file.read(member.compress_size)
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        data: bytes = stream.read(member.file_size + 1)
    if len(data) != member.file_size:
        raise ValueError(f"{member.filename} has another size than the archive says")
    return data


def _read_sample(sample: Any) -> Mapping[str, Any]:
    if not isinstance(sample, dict) or not isinstance(sample.get("id"), str | int):
        raise ValueError("a sample has no id, so this is no log of Inspect")
    place = f"sample {sample['id']!r}, epoch {sample.get('epoch', 1)}"
    metadata = sample.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    scores = sample.get("scores")
    scores = scores if isinstance(scores, dict) else {}
    target = sample.get("target")
    if isinstance(target, list) and len(target) == 1:
        target = target[0]
    return {
        **{f"metadata.{name}": value for name, value in metadata.items()},
        **{name: _find_value(score) for name, score in scores.items()},
        "id": sample["id"],
        "epoch": sample.get("epoch", 1),
        "input": _read_input(sample.get("input"), place),
        "output": _read_output(sample.get("output"), place),
        "target": target or None,
    }


def _find_value(score: Any) -> Any:
    return score.get("value") if isinstance(score, dict) else None


def _read_input(question: Any, place: str) -> str | None:
    """Read the one message of the user; a system prompt before it is no part of the question."""
    if question is None or isinstance(question, str):
        return question
    messages = (
        [one for one in question if isinstance(one, dict)] if isinstance(question, list) else []
    )
    spoken = [message for message in messages if message.get("role") != "system"]
    if len(spoken) != 1 or spoken[0].get("role") != "user":
        raise ValueError(
            f"{place}: its input has {len(spoken)} turns; one question of a user is what is read"
        )
    return _join_parts(spoken[0].get("content"), place, "input")


def _read_output(output: Any, place: str) -> str | None:
    """Read the last reply. A log of today has it as `completion`."""
    if not isinstance(output, dict):
        return None
    choices = output.get("choices")
    message = choices[0].get("message") if isinstance(choices, list) and choices else None
    message = message if isinstance(message, dict) else {}
    text = output.get("completion")
    if not isinstance(text, str):
        text = _join_parts(message.get("content"), place, "output")
    if not (text or "").strip() and message.get("tool_calls"):
        raise ValueError(
            f"{place}: its output is a call of a tool; the last reply as text is what is attacked"
        )
    return text


def _join_parts(content: Any, place: str, name: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    kinds = [part.get("type") if isinstance(part, dict) else None for part in parts]
    foreign_kinds = [str(kind) for kind in kinds if kind not in ("text", "reasoning")]
    if foreign_kinds:
        raise ValueError(
            f"{place}: its {name} has a part of the kind {foreign_kinds[0]}; text is read"
        )
    return "\n".join(str(part.get("text", "")) for part in parts if part["type"] == "text")
