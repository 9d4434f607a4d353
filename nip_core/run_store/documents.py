"""Small JSON documents, each with the SHA-256 of all other keys as its last one.

A document of an earlier version has no such key, and is read as it is. Each kind of document has
one frozen model, which stands where the document is written. `nip_core.run_store.run.read_document`
reads one.
"""

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from nip_base.formats.bounds import parse_json
from nip_core.errors import CorruptionError
from nip_core.hashing import digest

_Document = TypeVar("_Document", bound=BaseModel)

CHECKSUM = "sha256"
_REMEDY = (
    "nothing is repaired: restore the file from a copy, or do its part of the run again (nip train "
    "--rerun-from), or start a new one"
)


def encode(value: dict[str, Any]) -> bytes:
    """Write a document as JSON for people, with its checksum. Raises ValueError for NaN."""
    # As it will be read back, tuples as lists: the checksum is of the same value then.
    plain = json.loads(json.dumps(value, allow_nan=False))
    value = {**plain, CHECKSUM: digest(plain)}
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def decode(data: bytes, path: str, remedy: str = _REMEDY) -> dict[str, Any]:
    """Read a document, without its checksum.

    Raises CorruptionError, which tells the `remedy`, if it is damaged.
    """
    try:
        value = parse_json(data)
    except ValueError as error:
        fault = f"not JSON: {error}" if data else "it is empty"
        raise _unreadable(path, fault, remedy) from error
    if not isinstance(value, dict):
        raise _unreadable(path, "not a JSON object", remedy)
    checksum = value.pop(CHECKSUM, None)
    # A bit that flips in the key itself would else make it a document of before checksums.
    if checksum is None and any(_is_nearly_the_key(key) for key in value):
        raise _unreadable(path, "the name of its checksum is not what it was", remedy)
    if checksum is not None and not _is_digest_of(checksum, value):
        raise _unreadable(path, "its own checksum does not match", remedy)
    return value


def validate_document(value: object, kind: type[_Document], place: str) -> _Document:
    """Read a JSON value as a document of its `kind`.

    Raises CorruptionError with the `place` (the file) and the first key at fault.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        faults = error.errors()
        absent_keys = [".".join(map(str, e["loc"])) for e in faults if e["type"] == "missing"]
        if absent_keys:
            raise CorruptionError(
                f"{place}: damaged, {', '.join(absent_keys)} is missing"
            ) from error
        raise damaged(place, first_fault(error)) from error


def first_fault(error: ValidationError) -> str:
    """Name the first key at fault, with the rule and its value."""
    fault = error.errors()[0]
    place = ".".join(map(str, fault["loc"]))
    words = f"{fault['msg']} (got {repr(fault['input'])[:40]})"
    return f"{place}: {words}" if place else words


def damaged(place: str, error: Exception | str) -> CorruptionError:
    """Make the error for a file with other content than nip writes there."""
    words = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return CorruptionError(f"{place}: damaged, not what nip writes there ({words})")


def _is_digest_of(checksum: Any, value: dict[str, Any]) -> bool:
    try:
        return bool(checksum == digest(value))
    except ValueError:  # a number that damage has made infinite has none
        return False


def _is_nearly_the_key(key: str) -> bool:
    same_length = len(key) == len(CHECKSUM)
    return same_length and sum(a != b for a, b in zip(key, CHECKSUM, strict=True)) == 1


def _unreadable(path: str, fault: str, remedy: str) -> CorruptionError:
    return CorruptionError(f"{path}: damaged, {fault}; {remedy}")
