"""Bearer keys: where they come from, and the comparison.

Keys come from a file (one per line) or from the variable NIP_API_KEYS (comma-separated), never
from the command line, where every user of the machine could read them. They are kept as
SHA-256 digests and are never logged.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

KEYS_VARIABLE = "NIP_API_KEYS"

_SECRET_ENDINGS = (
    "API_KEY",
    "API_KEYS",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "ACCESS_KEY",
    "CREDENTIALS",
)
_SECRET_VARIABLES = frozenset(
    {
        KEYS_VARIABLE,
        "NIP_WEBHOOK",
        "PREFECT_API_AUTH_STRING",
        "PREFECT_SERVER_API_AUTH_STRING",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL",
    }
)
# Without it a private model could not be loaded from the Hugging Face Hub.
_NEEDED_VARIABLES = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """What a child process needs of an environment: nobody's keys but for its models."""

    def is_secret(name: str) -> bool:
        name = name.upper()
        return name not in _NEEDED_VARIABLES and (
            name in _SECRET_VARIABLES or name.endswith(_SECRET_ENDINGS)
        )

    return {name: value for name, value in environment.items() if not is_secret(name)}


class KeyRing:
    """The keys that are accepted. An empty ring accepts nobody; `open_to_all` accepts everybody."""

    def __init__(self, keys: Iterable[str] = (), *, open_to_all: bool = False):
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys)
        self.open_to_all = open_to_all
        if not self._digests and not open_to_all:
            raise ValueError(
                f"no API key: set {KEYS_VARIABLE}, give --api-keys-file, or say --no-auth"
            )

    def accepts(self, authorization: str | None) -> bool:
        """Whether an Authorization header carries one of the keys. Takes the same time for each."""
        if self.open_to_all:
            return True
        if authorization is None or authorization[:7].lower() != "bearer ":
            return False
        # A header's bytes need not be UTF-8; then they come as lone surrogates.
        raw = authorization[7:].strip().encode("utf-8", "surrogateescape")
        given = hashlib.sha256(raw).digest()
        matched = False
        for known in self._digests:
            matched |= hmac.compare_digest(known, given)
        return matched


def load_keys(
    keys_file: Path | None, no_auth: bool, environment: MutableMapping[str, str]
) -> KeyRing:
    """Read the keys, and take them out of `environment` so that no child inherits them.

    Raises ValueError if there is none (unless `no_auth`), if a file was named that has none, or
    if `no_auth` contradicts given keys.
    """
    keys = [key.strip() for key in environment.pop(KEYS_VARIABLE, "").split(",") if key.strip()]
    if keys_file is not None:
        from_file = [line.strip() for line in keys_file.read_text().splitlines() if line.strip()]
        if not from_file:
            raise ValueError(f"the API keys file {keys_file} is empty: one key per line")
        keys.extend(from_file)
    if no_auth and keys:
        raise ValueError("--no-auth was given together with API keys: choose one")
    return KeyRing(keys, open_to_all=no_auth)


def make_key_file(path: Path) -> str:
    """Return the key in `path`, making the file (mode 0600) with a new random key if needed.

    Callers at the same moment get the same key: the file appears with its content.
    """
    key = secrets.token_urlsafe(32)
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(key + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, path)
        except FileExistsError:
            key = path.read_text().strip()
    finally:
        part.unlink()
    if not key:
        raise ValueError(f"the API key file {path} is empty: remove it, or put a key into it")
    return key
