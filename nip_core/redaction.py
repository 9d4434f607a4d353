"""Keys and addresses of the environment; and texts of a server, without keys or commands.

read_key             a key as a header can carry it check_address        before an address of the
environment is asked; is_address, is_host: the rules for one show_address        an address as it
may be printed remove_users        a text without the user names and passwords in its addresses
redact, redact_all   before a text becomes an error, a row or a record: a server may send back a
                     request with its key, in its error pages too
printable            before a text, or JSON, goes to a terminal, which obeys control codes
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import Any
from urllib.parse import urlsplit

from nip_core.errors import SettingsError

HIDDEN = "***"
_BEARER = re.compile(r"(?i)\bbearer\s+[^\s\"',;}\]]+")
_AFTER_SCHEME = re.compile(r"(?<=://)[^\s'\"<>]+")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_LONGEST_HOST = 253
_UNPLAIN = re.compile(r"[^\n\t -~]")
_SHORT = 8  # a key this short may be part of a harmless word, and counts as a whole word only


def read_key(environment: Mapping[str, str], variable: str) -> str:
    """Read the key in an environment variable, "" if it has none.

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


def is_host(name: str) -> bool:
    """Tell whether a name can be a machine's: labels and dots, or an address without [ ]."""
    try:
        if ":" in name:
            address, _, zone = name.partition("%")
            return bool(IPv6Address(address) and _LABEL.fullmatch(zone or "0"))
        name = name.encode("idna").decode().removesuffix(".")
    except ValueError:
        return False
    return len(name) <= _LONGEST_HOST and all(map(_LABEL.fullmatch, name.split(".")))


def is_address(text: str, schemes: tuple[str, ...] = ("http", "https")) -> bool:
    """Tell whether a server can be asked at an address."""
    try:
        parts = urlsplit(text)
        can_be = parts.scheme in schemes and is_host(parts.hostname or "") and parts.port != 0
    except ValueError:
        return False
    return can_be and text.isprintable() and " " not in text


def check_address(subject: str, text: str) -> None:
    """Raise SettingsError if a text is no address; it names `subject`, and not the text."""
    if not is_address(text):
        raise SettingsError(
            f"{subject}: what it is set to is no address like http://host:8000 (not shown: it may "
            "hold a password); set it anew or unset it"
        )


def show_address(address: str) -> str:
    """Write an address with ``***`` for user and password, and without its query.

    They end at the last @: a password may have any letter. An unreadable address is ``***`` whole.
    """
    scheme = _SCHEME.match(address)
    if scheme is None:
        return HIDDEN
    users, sign, place = address[scheme.end() :].rpartition("@")
    place = re.split(r"[?#]", place, maxsplit=1)[0]
    plain = f"{scheme[0]}{HIDDEN if users else ''}{sign}{place}"
    try:
        urlsplit(plain).port  # noqa: B018 (read for its error)
    except ValueError:
        return HIDDEN
    return plain


def remove_users(text: str) -> str:
    """Replace user and password, before the last @ in each address, by ``***``."""
    return _AFTER_SCHEME.sub(_without_user, text)


def _without_user(match: re.Match[str]) -> str:
    _, sign, place = match[0].rpartition("@")
    return f"{HIDDEN}@{place}" if sign else place


def redact(text: str, *keys: str) -> str:
    """Replace each of `keys`, words after "Bearer", and users in addresses by ``***``."""
    for key in keys:
        if key:
            pattern = re.escape(key)
            if len(key) < _SHORT:
                pattern = rf"(?<![\w-]){pattern}(?![\w-])"
            text = re.sub(pattern, HIDDEN, text)
    return remove_users(_BEARER.sub(f"Bearer {HIDDEN}", text))


def redact_all(value: Any, *keys: str) -> Any:
    """Redact every text in a JSON value, names included; tuples and sets become lists."""
    if isinstance(value, str):
        return redact(value, *keys)
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_all(item, *keys) for item in value]
    if isinstance(value, dict):
        return {redact(str(name), *keys): redact_all(item, *keys) for name, item in value.items()}
    return value


def printable(text: str) -> str:
    """Escape invisible characters as JSON does, but not tabs, line ends and spaces.

    ESC is ``\\u001b``; so are control codes, signs that turn letters around, and halves of pairs.
    """
    return _UNPLAIN.sub(lambda match: _visible(match[0]), text)


def _visible(character: str) -> str:
    is_seen = character.isprintable() or unicodedata.category(character) == "Zs"
    return character if is_seen else json.dumps(character)[1:-1]
