"""The bytes under a run: a handful of methods, for a POSIX directory and an object store alike.

Paths are relative, with "/" between parts. A file appears whole or not at all. A fence
keeps a replaced runner from writing: a put that names one succeeds only while the fence stands.

Disks are in `nip_core.run_store.local_store`, buckets in `nip_core.run_store.object_store`.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from nip_core.errors import SettingsError, StoreError
from nip_core.redaction import show_address

OBJECT_STORES = ("s3", "gs")


_OF_A_WRITER = re.compile(r"\.(tmp|removed|probe)-[0-9a-f]+")


def is_leftover(name: str) -> bool:
    """Tell whether a store gives such names to files it is still writing or has taken away."""
    return _OF_A_WRITER.fullmatch(name) is not None


class MissingFileError(StoreError, FileNotFoundError):
    """The store has no such file."""


class Store(Protocol):
    """A place for runs, as the rest of the package uses it."""

    url: str

    def get(self, path: str) -> bytes:
        """Read the whole file. Raises MissingFileError."""

    def get_with_etag(self, path: str) -> tuple[bytes, str]:
        """Read the whole file and its tag. Other content has another tag."""

    def download(self, path: str, target: Path) -> None:
        """Copy the file to a local one without holding it in memory. Raises MissingFileError."""

    def put(self, path: str, data: bytes | Path, *, fence: str | None = None) -> None:
        """Write or replace the file. A Path is copied without holding it in memory.

        With a fence this is for content that is not trusted before a document names its digest:
        on an object store a fence that falls meanwhile does not stop it.
        """

    def put_if_absent(self, path: str, data: bytes | Path, *, fence: str | None = None) -> bool:
        """Write the file if there is none; False if there is one. Of many callers one wins."""

    def put_if_match(
        self, path: str, data: bytes, etag: str, *, fence: str | None = None
    ) -> str | None:
        """Replace the file if its tag is still `etag`; returns the new tag, else None."""

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """List the names directly in `directory`, sorted; names of directories end in "/"."""

    def delete(self, path: str, *, fence: str | None = None) -> None:
        """Remove the file; nothing happens if there is none.

        With a `fence` that does not stand, nothing is removed and LeaseError is raised.
        """

    def size(self, path: str) -> int:
        """Count the bytes of the file. Raises MissingFileError."""

    def leftovers(self, directory: str) -> Iterable[tuple[str, int]]:
        """List the leftovers of killed writers under `directory`: hidden paths, and their bytes.

        Only while no process writes there: a file that is being written looks the same.
        """

    def delete_leftover(self, path: str) -> None:
        """Remove one of the `leftovers`."""

    def local_path(self, path: str) -> Path | None:
        """Give the place of `path` on this machine's disk; None if it has none."""

    def raise_fence(self, fence: str) -> None:
        """Let puts under `fence` through from now on."""

    def drop_fence(self, fence: str) -> None:
        """Let no put under `fence` through any more, not even one under way."""


def check_location(location: str) -> None:
    """Check a place as `open_store` would, but leave nothing there and ask no server.

    Where directories would be made, they are made under a hidden name and taken away again.
    Raises SettingsError or StoreError.
    """
    from nip_core.run_store.local_store import check_can_be_made

    if _scheme(location) in OBJECT_STORES:
        open_store(location, read_only=True)
    else:
        check_can_be_made(local_directory(location).absolute(), "run_store")


def is_missing(location: str, setting: str) -> bool:
    """Tell whether a place means a directory of this machine and is missing.

    Raises SettingsError, which names `setting`, for a text that means no place.
    """
    if _scheme(location, setting) in OBJECT_STORES:
        return False
    return not os.path.isdir(local_directory(location, setting))


def local_directory(location: str, setting: str = "run_store") -> Path:
    """Give the directory of a path or a file:// URL. Raises SettingsError for another URL."""
    scheme, folder = _scheme(location, setting), location
    if scheme == "file" and (parts := urlsplit(location)).netloc in {"", "localhost"}:
        if not parts.path:
            raise SettingsError(
                f"{setting}: {location} names no directory; write file:///DIRECTORY"
            )
        scheme, folder = "", unquote(parts.path)
    if "\0" in folder:
        raise SettingsError(f"{setting}: {location!r} has a NUL in it; name a directory")
    if "://" not in location:
        try:
            return Path(folder).expanduser()
        except RuntimeError:
            home = folder.partition("/")[0]
            raise SettingsError(
                f"{setting}: {location}: there is no user {home[1:]!r} here whose directory {home} "
                "could be; write the directory itself"
            ) from None
    if not scheme:
        return Path(folder)
    raise SettingsError(
        f"{setting}: {scheme}:// is not supported, got {show_address(location)}; "
        "use a directory, or a URL that begins with file://, s3:// or gs://"
    )


def _scheme(location: str, setting: str = "run_store") -> str:
    """Read the scheme of a URL, "" for a path. Raises SettingsError if it can't be read."""
    if "://" not in location:
        return ""
    try:
        return urlsplit(location).scheme or "no scheme"
    except ValueError:
        raise SettingsError(
            f"{setting}: is an address that can't be read ({show_address(location)}); use a "
            "directory, or a URL that begins with file://, s3:// or gs://"
        ) from None


def open_store(
    location: str | Path, *, read_only: bool = False, setting: str = "run_store"
) -> Store:
    """Open a directory or URL for reading and writing; a directory is created if needed.

    For ``s3://bucket/prefix`` and ``gs://bucket/prefix`` see `nip_core.run_store.object_store`.

    With `read_only` nothing is written, neither to create the place nor to try it out, and later
    writes are refused. `setting` names the place in errors.

    Raises SettingsError for a kind of URL that is not supported and a directory that can't be,
    StoreError if the place can't give atomic writes.
    """
    from nip_core.run_store.local_store import LocalStore, check_can_be_made

    text = str(location)
    if _scheme(text, setting) in OBJECT_STORES:
        from nip_core.run_store.object_store import open_object_store

        return open_object_store(text, read_only=read_only)
    folder = local_directory(text, setting)
    if not read_only:
        check_can_be_made(folder.absolute(), setting)
    return LocalStore(folder, read_only=read_only)


def check_path(path: str) -> list[str]:
    """Split a path in a store into its parts. Raises StoreError if it leads out of it."""
    parts = path.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise StoreError(f"{path!r}: not a path inside the run store")
    return parts


def list_files(store: Store, directory: str) -> Iterator[str]:
    """List the paths of all files under `directory`, in order."""
    for name in store.list(directory):
        path = f"{directory}/{name}" if directory else name
        if name.endswith("/"):
            yield from list_files(store, path.rstrip("/"))
        else:
            yield path
