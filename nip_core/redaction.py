"""Keys taken out of texts that came from a server, before they become errors, rows or records.

A server may send back what it was sent, its own error pages included.
"""

import re
from typing import Any

HIDDEN = "***"
_BEARER = re.compile(r"(?i)\bbearer\s+[^\s\"',;}\]]+")
_SHORT = 8  # a key this short may be part of a harmless word, and counts as a whole word only


def redact(text: str, *keys: str) -> str:
    """`text` with each of `keys` and whatever follows "Bearer" replaced by ``***``."""
    for key in keys:
        if key:
            pattern = re.escape(key)
            if len(key) < _SHORT:
                pattern = rf"(?<![\w-]){pattern}(?![\w-])"
            text = re.sub(pattern, HIDDEN, text)
    return _BEARER.sub(f"Bearer {HIDDEN}", text)


def redact_all(value: Any, *keys: str) -> Any:
    """A JSON value with every text in it redacted, names included."""
    if isinstance(value, str):
        return redact(value, *keys)
    if isinstance(value, list):
        return [redact_all(item, *keys) for item in value]
    if isinstance(value, dict):
        return {redact(str(name), *keys): redact_all(item, *keys) for name, item in value.items()}
    return value
