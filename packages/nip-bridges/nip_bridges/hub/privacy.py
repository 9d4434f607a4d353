"""The facts that must not leave this machine: places on its disks, addresses, its name, keys.

without_places       settings without them, for cards
hide_lineage         the same of a repository's lineage
find_secrets         keys and passwords of an environment, and the token of the Hub
hide_places          a text without addresses and paths, for columns that quote errors
check_nothing_leaks  the last look at a directory, before it is published
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from nip_base.formats.bounds import parse_json
from nip_bridges.hub.nip_json import Lineage
from nip_bridges.hub.repository import FACTS
from nip_core.errors import SettingsError
from nip_lm_server.client import is_secret_name

LEFT_OUT = "(left out: a place)"
_OF_A_MACHINE = frozenset(
    {"run_store", "url", "base_url", "tracking", "executable", "webhook_url", "on_finished_webhook"}
)
_BEHIND = r"(?:/[^\s\"'<>)]*)?"
_ADDRESS = re.compile(
    # with a scheme; IPv4, IPv6 in brackets, and a name with a port, which a file's line is not
    rf"""(?<![A-Za-z0-9+.-]) [A-Za-z0-9+.-]+://[^\s"'<>)]+
    | (?<![\w.]) \d{{1,3}}(?:\.\d{{1,3}}){{3}} (?::\d+)? (?![\w.]*\w) {_BEHIND}
    | \[ (?=[0-9A-Fa-f:.]*::) [0-9A-Fa-f:.]+ \] (?::\d+)? {_BEHIND}
    | (?<![\w:.-]) (?=[\w.-]*[A-Za-z]) \w[\w.-]*:(?:80|443|\d{{4,5}}) (?![\w:-]) {_BEHIND}""",
    re.VERBOSE,
)
_PATH = re.compile(
    # of the root, of a home, of a variable, upwards; of a drive, of another machine
    r"""(?<![\w/.]) (?: / | ~(?:[A-Za-z_][\w.-]*)?/ | \$\{?[A-Za-z_]\w*\}?[/\\] | (?:\.\./)+
        | %\w+%[/\\] | [A-Za-z]:\\ | \\\\[\w.-]+\\ )
    [\w.@+~$-]+ (?:[/\\][\w.@+~$-]+)* [/\\]?""",
    re.VERBOSE,
)
_PASSWORD = re.compile(r"://([^/\s:@]*):([^/\s@]+)@|()\b(?i:password|pwd)=([^\s&;]+)")
"""In values like those of DATABASE_URL: a user, if there is one, and a password."""
_USER_AND_PASSWORD = ("AUTH_STRING", "AUTH")
"""Names of variables that may have both, with a colon between them, end so; Prefect's do."""
_OF_NIP = ("files", "tables")
"""Facts whose words are nip's: names of files and columns."""
_TEXT_FILES = {".json", ".md", ".yaml", ".jinja", ".txt"}
_SHORTEST = 6
"""Host names and keys shorter than this may be part of a harmless word."""


def without_places(settings: Any) -> Any:
    """Leave out of settings all names of places on a machine or in a network."""
    if isinstance(settings, Mapping):
        shown: dict[str, Any] = {}
        for name, value in settings.items():
            if name in _OF_A_MACHINE or str(name).startswith(("language_model_server", "_")):
                continue
            key = without_places(str(name))
            if key in shown:  # another place, with a value of its own
                key = f"{key} {sum(other.startswith(key) for other in shown) + 1}"
            shown[key] = without_places(value)
        return shown
    if isinstance(settings, list | tuple):
        return [without_places(value) for value in settings]
    if (
        isinstance(settings, str)
        and not settings.startswith("hf://")
        and hide_places(settings) != settings
    ):
        return LEFT_OUT
    return settings


def hide_lineage(lineage: Lineage) -> Lineage:
    """Leave all names of places out of a lineage, as `without_places` does."""
    return Lineage.model_validate(without_places(lineage.model_dump(exclude_unset=True)))


def hide_places(text: str) -> str:
    """Put an ellipsis for each address in a text, and for each path out of its directory."""
    return _PATH.sub("…", _ADDRESS.sub("…", text))


def find_secrets(environment: Mapping[str, str], token: str = "") -> dict[str, str]:
    """List all secrets of this machine, each with words for it.

    They are the Hub's `token`, the values of variables that are called keys, tokens, secrets or
    passwords, the password in a ``user:password`` of these, and passwords within other values, as
    in an address of a database.
    """
    secrets = {token: "the token of the Hub"}
    for name, value in environment.items():
        for match in _PASSWORD.finditer(value):
            user, password = [part for part in match.groups() if part is not None]
            # Of a database for trying things out both are one word, which may be anywhere.
            if password not in (user, "password"):
                kind = f"a password in the environment variable {name}"
                secrets |= {password: kind, unquote(password): kind}
        if is_secret_name(name):
            secrets[value.strip()] = f"the value of the environment variable {name}"
            if name.upper().endswith(_USER_AND_PASSWORD):
                password = value.strip().partition(":")[2]
                secrets[password] = f"the password in the environment variable {name}"
    return {secret: kind for secret, kind in secrets.items() if len(secret) >= _SHORTEST}


def check_nothing_leaks(
    directory: Path, secrets: Mapping[str, str], places: Iterable[Path] = (), host: str = ""
) -> None:
    """Raise SettingsError, naming the file, if one of a directory has what must not leave.

    Looked for are `secrets`, see `find_secrets`, in every file, in texts the home directory and
    `places`, and in ``nip.json``, of which cards are made, the name `host` of this machine.
    """
    of_texts = {str(place): "a directory of this machine" for place in [Path.home(), *places]}
    for path in sorted(directory.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        is_text = path.suffix in _TEXT_FILES
        for secret, kind in [*secrets.items(), *(of_texts.items() if is_text else ())]:
            if len(secret) >= _SHORTEST and secret.encode() in content:
                name = path.relative_to(directory).as_posix()
                raise SettingsError(f"nothing was published: {name} has {kind} in it")
    if (directory / FACTS).is_file():
        facts = parse_json((directory / FACTS).read_text(encoding="utf-8"))
        _check_host({name: of for name, of in facts.items() if name not in _OF_NIP}, host)


def _check_host(facts: Any, host: str) -> None:
    """Raise SettingsError if facts have the name of this machine as a word of a text.

    A machine may be called "server" or "verifier": nip's own sentences are not searched, and what
    is a name or an option in the facts by itself says nothing of a machine.
    """
    texts = list(_texts(facts))
    if len(host) < _SHORTEST or (host.isidentifier() and host in texts):
        return
    word = re.compile(rf"(?<!\w){re.escape(host)}(?!\w)")
    if text := next(filter(word.search, texts), None):
        raise SettingsError(
            f"nothing was published: {FACTS} has the name of this machine, {host}, in it: {text!r}"
        )


def _texts(value: Any) -> Iterator[str]:
    """Give all names and texts of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield name
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
