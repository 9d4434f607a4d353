"""Keys, read from the environment; and texts that came from a server, without keys or commands.

read_key             a key as a header can carry it
without_users        addresses without the user names and passwords in them
redact, redact_all   before a text becomes an error, a row or a record: a server may send back what
                     it was sent, its own error pages included
printable            before a text, or JSON, goes to a terminal, which obeys control codes
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from nip_core.errors import SettingsError

HIDDEN = "***"
_BEARER = re.compile(r"(?i)\bbearer\s+[^\s\"',;}\]]+")
_USER = re.compile(r"(?<=://)[^/?#\s'\"<>]*@")
_UNPLAIN = re.compile(r"[^\n\t -~]")
_SHORT = 8  # a key this short may be part of a harmless word, and counts as a whole word only


def read_key(environment: Mapping[str, str], variable: str) -> str:
    """The key in an environment variable, "" if it has none.

    Spaces and line ends around it, as files of other systems have them, are no part of it. Raises
    SettingsError for a key that no header can carry: a server would log the header it refuses.
    """
    key = environment.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise SettingsError(
            f"environment variable {variable}: the key in it has a control character or is no "
            "ASCII; set it anew"
        )
    return key


def without_users(text: str) -> str:
    """`text` with ``***`` for what stands before the host in each address: user and password."""
    return _USER.sub(f"{HIDDEN}@", text)


def redact(text: str, *keys: str) -> str:
    """`text` with ``***`` for each of `keys`, for what follows "Bearer", and in addresses for users
    and passwords.
    """
    for key in keys:
        if key:
            pattern = re.escape(key)
            if len(key) < _SHORT:
                pattern = rf"(?<![\w-]){pattern}(?![\w-])"
            text = re.sub(pattern, HIDDEN, text)
    return without_users(_BEARER.sub(f"Bearer {HIDDEN}", text))


def redact_all(value: Any, *keys: str) -> Any:
    """A JSON value with every text in it redacted, names included."""
    if isinstance(value, str):
        return redact(value, *keys)
    if isinstance(value, list):
        return [redact_all(item, *keys) for item in value]
    if isinstance(value, dict):
        return {redact(str(name), *keys): redact_all(item, *keys) for name, item in value.items()}
    return value


def printable(text: str) -> str:
    """`text` with what is not seen, but tabs, line ends and spaces, as JSON escapes it.

    ESC is ``\\u001b``; so are control codes, what turns letters around, and halves of pairs.
    """
    return _UNPLAIN.sub(lambda match: _visible(match[0]), text)


def _visible(character: str) -> str:
    is_seen = character.isprintable() or unicodedata.category(character) == "Zs"
    return character if is_seen else json.dumps(character)[1:-1]
