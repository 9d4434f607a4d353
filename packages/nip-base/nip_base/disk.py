"""Files safe from a power loss, and directories either whole or absent.

hash_file, sync   one file
is_full           whether an error means that nothing more can be written
want_of_space     whether a disk has room for the files to write
publish           a directory gets its manifest, and by one rename its name
seal_directory    the same for a new directory of plain files, whose manifest has their SHA-256
find_damage       what is wrong with such a directory
"""

import errno
import hashlib
import json
import math
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nip_base.formats.bounds import parse_json

MANIFEST = "manifest.json"
MIN_FREE_BYTES = 64 * 1024 * 1024
"""A server needs so much room on its disk: with less, no job could end well."""


def hash_file(path: Path) -> str:
    """Hex digest of a file's content, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a directory, survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_full(error: Exception) -> bool:
    """Tell if the disk, or the part its user may have, had no room for a file or a table."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, sqlite3.OperationalError) and "full" in str(error)


def want_of_space(path: Path, needed_bytes: int = MIN_FREE_BYTES) -> str | None:
    """Say how much the disk of `path` lacks, or None if it has the room.

    `path` need not exist yet. Raises OSError for a disk that can't be asked.
    """
    parent = next(place for place in (path, *path.absolute().parents) if place.exists())
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes >= needed_bytes:
        return None
    # Rounded apart, so that what is too little never looks like enough.
    needed_mb, free_mb = math.ceil(needed_bytes / 1e5) / 10, math.floor(free_bytes / 1e5) / 10
    return f"{needed_mb} MB of disk are needed, only {free_mb} MB are free"


def publish(part: Path, path: Path, manifest: Mapping[str, Any] | None = None) -> None:
    """Let `path` be what the directory `part` is, together with its `manifest`, if one is given."""
    if manifest is not None:
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (part / MANIFEST).write_text(text)
    # Contents before names: after a power loss the rename must not be there without them.
    for entry in (*part.rglob("*"), part):
        sync(entry)
    part.rename(path)
    sync(path.parent)


@contextmanager
def seal_directory(path: Path) -> Iterator[Path]:
    """Give an empty directory to fill, and publish it whole in the place of `path`.

    Where filling it fails nothing is changed. Leftovers of writes that were cut short are removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(".*.part"):
        shutil.rmtree(leftover)
    part = path.with_name(f".{path.name}.part")
    part.mkdir()
    try:
        yield part
        files = {file.name: hash_file(file) for file in sorted(part.iterdir())}
        shutil.rmtree(path, ignore_errors=True)
        publish(part, path, {"format": 1, "files": files})
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def find_damage(path: Path, needed: Set[str] = frozenset()) -> str | None:
    """Describe the damage of a sealed directory with the files `needed`; None if it is whole."""
    try:
        listed = parse_json((path / MANIFEST).read_text())["files"]
        for name, expected in listed.items():
            if hash_file(path / name) != expected:
                return f"{name} does not have the SHA-256 of its manifest"
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    missing_names = needed - set(listed)
    return f"the manifest lacks {sorted(missing_names)}" if missing_names else None
