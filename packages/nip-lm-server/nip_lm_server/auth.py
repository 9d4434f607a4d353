"""Bearer keys: their sources, and the comparison.

Keys come from a file (one per line) or from the variable NIP_API_KEYS (comma-separated), never
from the command line, where every user of the machine could read them. They are kept as
SHA-256 digests and are never logged.
"""

import contextlib
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path

KEYS_VARIABLE = "NIP_API_KEYS"
TINKER_PREFIX = "tml-"
"""Tinker's SDK sends no key that begins otherwise."""
_MOST_BYTES = 4 * 1024 * 1024  # of a file with keys

_SECRET_NAME = re.compile(
    r"(KEY|TOKEN|SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL|AUTH(_STRING)?|AUTHORIZATION|BEARER|JWT|WEBHOOK(_URL)?|COOKIE|_DSN"
    r"|CONNECTION_(STRING|URL)|_PASS|_PWD|_PAT)S?(_ID)?$"
)
# Without it a private model could not be loaded from the Hugging Face Hub.
_NEEDED_VARIABLES = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})


def is_secret_name(name: str) -> bool:
    """Say by an environment variable's name, in capitals or not, whether its value is secret."""
    return _SECRET_NAME.search(name.upper()) is not None


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Take the secrets out of an environment, but for those needed to load a model."""
    return {
        name: value
        for name, value in environment.items()
        if name.upper() in _NEEDED_VARIABLES or not is_secret_name(name)
    }


class KeyRing:
    """The accepted keys. An empty ring accepts no client; `open_to_all` accepts every one."""

    def __init__(self, keys: Sequence[str] = (), *, open_to_all: bool = False):
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys)
        self.open_to_all = open_to_all
        self.has_tinker_key = any(key.startswith(TINKER_PREFIX) for key in keys)
        if not self._digests and not open_to_all:
            raise ValueError(
                f"no API key: set {KEYS_VARIABLE}, give --api-keys-file, or say --no-auth"
            )

    def accepts(self, authorization: str | None) -> bool:
        """Compare an Authorization header with the keys, in the same time for each of them."""
        if self.open_to_all:
            return True
        if authorization is None or authorization[:7].lower() != "bearer ":
            return False
        # A header's bytes need not be UTF-8; then they come as lone surrogates.
        raw = authorization[7:].strip().encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(raw).digest()
        # Compared with all of them, so that the time tells nothing about the order.
        matched = False
        for key_digest in self._digests:
            matched |= hmac.compare_digest(key_digest, digest)
        return matched


def is_loopback(host: str) -> bool:
    """Say whether a host's name or address means this machine, without asking name servers."""
    if host.lower() == "localhost":
        return True
    # Any other name is an address by the word of a name server.
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def load_keys(
    keys_file: Path | None, no_auth: bool, environment: MutableMapping[str, str]
) -> KeyRing:
    """Read the keys, and take them out of `environment`: no child inherits them.

    Spaces and line ends around a key are no part of it. Raises ValueError if there is no key
    (unless `no_auth`), if the file has none, if one can't stand in a header, or if there are keys
    together with `no_auth`.
    """
    # 1. From the environment, which loses them.
    keys = _split_keys(environment.pop(KEYS_VARIABLE, "").split(","), KEYS_VARIABLE)
    # 2. From the file; an empty one is a mistake, not a server without keys.
    if keys_file is not None:
        with keys_file.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise ValueError(
                f"the API keys file {keys_file} is larger than {_MOST_BYTES} bytes, or has no end"
            )
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError(f"the API keys file {keys_file} is no UTF-8 text") from None
        from_file = _split_keys(text.splitlines(), f"the API keys file {keys_file}")
        if not from_file:
            raise ValueError(f"the API keys file {keys_file} is empty: one key per line")
        keys.extend(from_file)
    if no_auth and keys:
        raise ValueError("--no-auth was given together with API keys: choose one")
    return KeyRing(keys, open_to_all=no_auth)


def _split_keys(raw: Iterable[str], source: str) -> list[str]:
    keys = [key for key in map(str.strip, raw) if key]
    for number, key in enumerate(keys, 1):
        if not (key.isascii() and key.isprintable()):
            raise ValueError(
                f"{source}: key {number} has a character that no HTTP header can carry"
            )
    return keys


def make_key_file(path: Path) -> str:
    """Return the key in `path`, making the file (mode 0600) with a new random key if needed.

    Callers at the same moment get the same key: the file appears with its content.
    """
    # 1. A whole file under a name that no other process writes.
    key = secrets.token_urlsafe(32)
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(key + "\n")
            file.flush()
            os.fsync(file.fileno())
        # 2. It appears with its content, or another process was faster: then its key counts.
        try:
            os.link(part, path)
        except FileExistsError:
            (key,) = _split_keys([path.read_text()], f"the API key file {path}") or [""]
    finally:
        part.unlink()
    if not key:
        raise ValueError(f"the API key file {path} is empty: remove it, or put a key into it")
    return key
