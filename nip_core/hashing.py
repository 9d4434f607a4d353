"""Stable identities: every key and every seed is derived here, none is drawn.

Python's ``hash()`` is salted per process, so nothing here uses it. Two processes, two machines and
two values of PYTHONHASHSEED give the same results. `half_pair` names the letter that keeps a text
from being hashed or written.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from json.encoder import encode_basestring
from typing import Any

KEY_CHARACTERS = 16
# Made once: json.dumps would make an encoder for each call, which takes longer than its work.
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


def canonical_json(value: Any) -> bytes:
    """Encode `value` as JSON with sorted keys and no spaces; equal values give equal bytes."""
    return _ENCODER.encode(value).encode()


def digest(value: Any) -> str:
    """Compute the SHA-256 (64 hex characters) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def derive_key(*parts: Any) -> str:
    """Derive a key of 16 URL-safe characters (96 bits) from JSON-encodable `parts`.

    Short because two of them stand in every row of the generations table.
    """
    return _as_key(hashlib.sha256(canonical_json(parts)))


def numbered_keys(count: int, *parts: Any) -> list[str]:
    """Derive ``derive_key(*parts, n)`` for each n below `count`; the parts are hashed once."""
    beginning = hashlib.sha256(canonical_json(parts)[:-1])
    keys = []
    for number in range(count):
        whole = beginning.copy()
        whole.update(b",%d]" % number)
        keys.append(_as_key(whole))
    return keys


def named_keys(names: Iterable[str], *parts: Any) -> list[str]:
    """Derive ``derive_key(*parts, name)`` for each name; the parts are hashed once."""
    beginning = hashlib.sha256(canonical_json(parts)[:-1])
    keys = []
    for name in names:
        whole = beginning.copy()
        whole.update(f",{encode_basestring(name)}]".encode())
        keys.append(_as_key(whole))
    return keys


def _as_key(hashed: "hashlib._Hash") -> str:
    raw = hashed.digest()[: KEY_CHARACTERS * 6 // 8]
    return base64.urlsafe_b64encode(raw).decode()


def derive_seed(*parts: Any) -> int:
    """Derive a seed in [0, 2**31) from JSON-encodable `parts`; every engine accepts this range."""
    raw = hashlib.sha256(canonical_json(parts)).digest()
    return int.from_bytes(raw[:4], "big") & 0x7FFFFFFF


def half_pair(text: str) -> str:
    """Name the half of a surrogate pair in a text; "" where there is none.

    JSON can have one, UTF-8 and Parquet can't.
    """
    if text.isascii():
        return ""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"half a surrogate pair ({text[error.start]!r} at character {error.start})"
    return ""
