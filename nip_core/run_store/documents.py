"""Small JSON documents that notice damage: the last key of each is the SHA-256 of all others.

encode  a document as it is written
decode  what was written, or CorruptionError with the file's name

A document of an earlier version has no such key, and is read as it is.
"""

import json
from typing import Any

from nip_core.errors import CorruptionError
from nip_core.hashing import digest
from nip_lm_server.client import parse_json

CHECKSUM = "sha256"
_REMEDY = (
    "nothing is repaired: restore the file from a copy, or do its part of the run again (nip train "
    "--rerun-from), or start a new one"
)


def encode(value: dict[str, Any]) -> bytes:
    """JSON for people, with a checksum. Raises ValueError for NaN."""
    plain = json.loads(json.dumps(value, allow_nan=False))
    value = {**plain, CHECKSUM: digest(plain)}
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def decode(data: bytes, path: str, remedy: str = _REMEDY) -> dict[str, Any]:
    """The document without its checksum.

    Raises CorruptionError, which tells the `remedy`, if it is damaged.
    """
    try:
        value = parse_json(data)
    except ValueError as error:
        how = f"not JSON: {error}" if data else "it is empty"
        raise _damaged(path, how, remedy) from error
    if not isinstance(value, dict):
        raise _damaged(path, "not a JSON object", remedy)
    checksum = value.pop(CHECKSUM, None)
    if checksum is None and any(_is_nearly_the_key(key) for key in value):
        raise _damaged(path, "the name of its checksum is not what it was", remedy)
    if checksum is not None and not _is_digest_of(checksum, value):
        raise _damaged(path, "its own checksum does not match", remedy)
    return value


def _is_digest_of(checksum: Any, value: dict[str, Any]) -> bool:
    try:
        return bool(checksum == digest(value))
    except ValueError:  # a number that damage has made infinite has none
        return False


def _is_nearly_the_key(key: str) -> bool:
    same_length = len(key) == len(CHECKSUM)
    return same_length and sum(a != b for a, b in zip(key, CHECKSUM, strict=True)) == 1


def _damaged(path: str, how: str, remedy: str) -> CorruptionError:
    return CorruptionError(f"{path}: damaged, {how}; {remedy}")
