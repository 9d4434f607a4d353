"""Folders for temporary files that are removed, also those of processes that were killed.

held_folder   a new folder, for as long as a block runs

A folder is locked while its process lives, and the kernel takes the lock away however that ends. A
folder without a lock has no owner: the first folder of a kind that a process makes removes such
folders of the same kind and the same user. Those of living processes stay, also of processes that
are not to be seen from here, as in another container with the same folder for temporary files.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

_SUFFIX = ".held"
"""Folders of versions that locked none end otherwise, and are left."""


def _remove_tree(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def held_folder(prefix: str, remove: Callable[[str], None] = _remove_tree) -> Iterator[Path]:
    """Make a folder whose name begins with `prefix`; `remove` takes it away in the end."""
    _remove_left(prefix, remove, tempfile.gettempdir())
    path, lock = _make_locked(prefix)
    try:
        yield Path(path)
    finally:
        remove(path)
        os.close(lock)


def _make_locked(prefix: str) -> tuple[str, int]:
    while True:
        path = os.path.realpath(tempfile.mkdtemp(prefix=prefix, suffix=_SUFFIX))
        # Another process may have taken it for a left one before it was locked: then once more.
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        if not _can_lock(lock):
            os.close(lock)
            continue
        if os.path.isdir(path):
            return path, lock
        os.close(lock)


def _can_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks; there nothing is taken for left, either
        return True
    return True


@cache  # once a process: making many folders is not to look at all others each time
def _remove_left(prefix: str, remove: Callable[[str], None], place: str) -> None:
    """Remove the folders of processes that have ended."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.name.endswith(_SUFFIX):
                with contextlib.suppress(OSError):
                    _remove_if_left(entry, remove)


def _remove_if_left(entry: "os.DirEntry[str]", remove: Callable[[str], None]) -> None:
    is_own = entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    if not is_own or not entry.is_dir(follow_symlinks=False):
        return
    lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: it is held
        remove(entry.path)
    finally:
        os.close(lock)
