"""A place in the run's store for a back-end that drives its jobs itself."""

from pathlib import Path

from nip_core.errors import LeaseError
from nip_core.run_store.lease import Lease
from nip_core.run_store.store import MissingFileError, Store, list_files


class RunFiles:
    """Files below one folder of a run, on a disk or in a bucket; none is half written.

    A file that another runner has changed since it was read or written here is not replaced.
    """

    def __init__(self, store: Store, folder: str, lease: Lease | None = None) -> None:
        """Touches nothing yet."""
        self._store, self._folder, self._lease = store, folder, lease
        self._etags: dict[str, str] = {}

    def read(self, name: str) -> bytes | None:
        """Read a file; None if there is none."""
        try:
            data, self._etags[name] = self._store.get_with_etag(f"{self._folder}/{name}")
        except MissingFileError:
            return None
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file. Raises LeaseError if another runner has the run, or wrote it."""
        path, fence = f"{self._folder}/{name}", self._lease.fence if self._lease else None
        etag = self._etags.get(name)
        if etag is None:
            if self._store.put_if_absent(path, data, fence=fence):
                etag = self._store.get_with_etag(path)[1]
        else:
            etag = self._store.put_if_match(path, data, etag, fence=fence)
        if etag is None:
            raise LeaseError(f"{path}: changed by another runner meanwhile; run again")
        self._etags[name] = etag

    def copy_in(self, name: str, data: bytes | Path) -> None:
        """Write a file that always has the same content under its name."""
        fence = self._lease.fence if self._lease else None
        self._store.put_if_absent(f"{self._folder}/{name}", data, fence=fence)

    def copy_out(self, name: str, target: Path) -> None:
        """Copy a file to a local one. Raises MissingFileError."""
        self._store.download(f"{self._folder}/{name}", target)

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens if there is none."""
        fence = self._lease.fence if self._lease else None
        self._etags.pop(name, None)
        self._store.delete(f"{self._folder}/{name}", fence=fence)

    def size(self, name: str) -> int | None:
        """Count the bytes of a file; None if there is none."""
        try:
            return self._store.size(f"{self._folder}/{name}")
        except MissingFileError:
            return None

    def list(self, inside: str = "") -> list[str]:
        """List the files below a folder of the place, sorted."""
        start = f"{self._folder}/"
        folder = f"{start}{inside}".rstrip("/")
        return sorted(path.removeprefix(start) for path in list_files(self._store, folder))
