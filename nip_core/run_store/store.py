"""The bytes under a run: a handful of methods that a POSIX directory and an object store can offer.

Store            the interface: whole files in, whole files out, two conditional puts, a fence
LocalStore       the same on a local disk, with atomic renames and hard links
open_store       from a directory or a URL to one of them
walk             every file under a directory
translate_error  what the operating system said, as an error that says what to do

Paths are relative, with "/" between parts. A file appears whole or not at all: it is written
under a temporary name, synced, and then linked or renamed into place; the directory is synced too.

A fence is what keeps a replaced runner from writing. A put that names one succeeds only while
the fence stands. `LocalStore` keeps the fence as a directory in which such puts are staged;
taking it away and linking a file out of it are both atomic, so no put can slip through between
a check and its effect.

Object stores are in `nip_core.run_store.object_store`. Not covered: file systems without atomic
rename or hard links (refused when opened).
"""

import errno
import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from nip_core.errors import LeaseError, SettingsError, StoreError

OBJECT_STORES = ("s3", "gs")
_HIDDEN = "."  # names that begin so are the store's own: temporary, pending, removed
_COPY_BYTES = 1 << 20
_NO_HARD_LINKS = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EPERM}


class MissingFileError(StoreError, FileNotFoundError):
    """The store has no such file."""


class Store(Protocol):
    """What the rest of the package asks of the place where runs are kept."""

    url: str

    def get(self, path: str) -> bytes:
        """The whole file. Raises MissingFileError."""

    def get_with_etag(self, path: str) -> tuple[bytes, str]:
        """The whole file and a tag that changes when its content does."""

    def download(self, path: str, target: Path) -> None:
        """Copy the file to a local one without holding it in memory. Raises MissingFileError."""

    def put(self, path: str, data: bytes | Path, *, fence: str | None = None) -> None:
        """Write or replace the file. A Path is copied without holding it in memory.

        With a fence this is for content that nobody trusts before a document names its digest:
        on an object store a fence that falls meanwhile does not stop it.
        """

    def put_if_absent(self, path: str, data: bytes | Path, *, fence: str | None = None) -> bool:
        """Write the file if there is none; False if there is one. Of many callers one wins."""

    def put_if_match(
        self, path: str, data: bytes, etag: str, *, fence: str | None = None
    ) -> str | None:
        """Replace the file if its tag is still `etag`; the new tag, or None if it is not."""

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Names directly in `directory`, sorted; those of directories end in "/"."""

    def delete(self, path: str, *, fence: str | None = None) -> None:
        """Remove the file; nothing happens if there is none.

        With a `fence` that does not stand, nothing is removed and LeaseError is raised.
        """

    def size(self, path: str) -> int:
        """Bytes of the file. Raises MissingFileError."""

    def leftovers(self, directory: str) -> Iterable[tuple[str, int]]:
        """What killed writers have left under `directory`: paths that no reader sees, and bytes.

        Only while nobody writes there: what is being written looks the same.
        """

    def delete_leftover(self, path: str) -> None:
        """Remove one of the `leftovers`."""

    def local_path(self, path: str) -> Path | None:
        """Where `path` lies on this machine's disk, or None if it does not."""

    def free_bytes(self) -> int | None:
        """Bytes that can still be written, or None where there is no such limit."""

    def raise_fence(self, fence: str) -> None:
        """Let puts that name `fence` through from now on."""

    def drop_fence(self, fence: str) -> None:
        """Let no put that names `fence` through any more, those under way included."""


def open_store(location: str | Path, *, read_only: bool = False) -> Store:
    """Open a directory or URL for reading and writing; a directory is created if needed.

    For ``s3://bucket/prefix`` and ``gs://bucket/prefix`` see `nip_core.run_store.object_store`.

    With `read_only` nothing is written, neither to create the place nor to try it out, and what
    would write later is refused.

    Raises SettingsError for a kind of URL that is not supported, StoreError if the place can't
    be written or can't give atomic writes.
    """
    text = str(location)
    if "://" not in text:
        return LocalStore(Path(text).expanduser(), read_only=read_only)
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        return LocalStore(Path(unquote(parts.path)), read_only=read_only)
    if parts.scheme in OBJECT_STORES:
        from nip_core.run_store.object_store import open_object_store

        return open_object_store(text, read_only=read_only)
    raise SettingsError(
        f"run_store: {parts.scheme}:// is not supported, got {_without_secrets(text)}; "
        "use a directory, or a URL that begins with file://, s3:// or gs://"
    )


def _without_secrets(url: str) -> str:
    """`url` without user name, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def check_path(path: str) -> list[str]:
    """The parts of a path in a store. Raises StoreError if it leads out of it."""
    parts = path.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise StoreError(f"{path!r}: not a path inside the run store")
    return parts


def walk(store: Store, directory: str) -> Iterator[str]:
    """Paths of all files under `directory`, in order."""
    for name in store.list(directory):
        path = f"{directory}/{name}" if directory else name
        if name.endswith("/"):
            yield from walk(store, path.rstrip("/"))
        else:
            yield path


def translate_error(error: OSError, path: str | Path, action: str) -> StoreError:
    """The StoreError to raise for `error`, met when trying to `action` (a verb) `path`."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreError(
            f"disk full: can't {action} {path}; free space and run again: what is finished is kept"
        )
    if isinstance(error, FileNotFoundError):
        return MissingFileError(f"{path}: no such file")
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return StoreError(
            f"{path}: no permission to {action} it ({error.strerror}); "
            "change its permissions or choose another run_store"
        )
    return StoreError(f"{path}: can't {action} it: {error.strerror or error}")


@contextmanager
def _translating(path: str | Path, action: str) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise translate_error(error, path, action) from error


class LocalStore:
    """A directory on a POSIX file system.

    Only `put_if_match` takes a lock (the file ``.lock``), for the instant between comparing and
    renaming; the operating system frees it when its holder dies.
    """

    def __init__(
        self, root: Path, *, lock_timeout_s: float = 10.0, read_only: bool = False
    ) -> None:
        """Create `root` if needed and try it out. Raises StoreError with the reason if unfit.

        With `read_only`, `root` has to be there, and nothing is ever written.
        """
        self.root = root.absolute()
        self.url = self.root.as_uri()
        self._lock_timeout_s = lock_timeout_s
        self._read_only = read_only
        if read_only:
            if not self.root.is_dir():
                raise StoreError(f"{self.root}: there is no such directory")
            return
        with _translating(self.root, "create"):
            make_directories(self.root)
        self._try_out()

    def get(self, path: str) -> bytes:
        with _translating(self._file(path), "read"):
            return self._file(path).read_bytes()

    def get_with_etag(self, path: str) -> tuple[bytes, str]:
        data = self.get(path)
        return data, _etag(data)

    def download(self, path: str, target: Path) -> None:
        with _translating(self._file(path), "copy"):
            shutil.copyfile(self._file(path), target)

    def put(self, path: str, data: bytes | Path, *, fence: str | None = None) -> None:
        target = self._file(path)
        with _translating(target, "write"), self._staged(target, data, fence) as staged:
            _rename(staged, target, fence)
            sync_directory(target.parent)

    def put_if_absent(self, path: str, data: bytes | Path, *, fence: str | None = None) -> bool:
        target = self._file(path)
        with _translating(target, "write"):
            if target.exists():
                return False
            with self._staged(target, data, fence) as staged:
                return _link(staged, target, fence)

    def put_if_match(
        self, path: str, data: bytes, etag: str, *, fence: str | None = None
    ) -> str | None:
        target = self._file(path)
        with _translating(target, "write"), self._staged(target, data, fence) as staged:
            with self._locked():
                if not target.exists() or _etag(target.read_bytes()) != etag:
                    return None
                _rename(staged, target, fence)
            sync_directory(target.parent)
            return _etag(data)

    def exists(self, path: str) -> bool:
        with _translating(self._file(path), "look for"):
            return self._file(path).exists()

    def list(self, directory: str) -> list[str]:
        folder = self._file(directory) if directory else self.root
        with _translating(folder, "list"):
            try:
                entries = list(os.scandir(folder))
            except FileNotFoundError:
                return []
        return sorted(
            entry.name + ("/" if entry.is_dir() else "")
            for entry in entries
            if not entry.name.startswith(_HIDDEN)
        )

    def delete(self, path: str, *, fence: str | None = None) -> None:
        self._check_writable(path)
        target = self._file(path)
        with _translating(target, "delete"):
            if fence is None:
                target.unlink(missing_ok=True)
            elif target.exists():
                # Into the fence first: that fails, with the file left alone, once it is taken away.
                removed = self._file(fence) / f"{_HIDDEN}tmp-{uuid.uuid4().hex}"
                try:
                    target.rename(removed)
                except FileNotFoundError:
                    raise _out_of_reach(target, fence) from None
                removed.unlink()

    def size(self, path: str) -> int:
        with _translating(self._file(path), "look at"):
            return self._file(path).stat().st_size

    def leftovers(self, directory: str) -> Iterable[tuple[str, int]]:
        found = []
        for folder, folders, files in os.walk(self._file(directory)):
            hidden = [name for name in (*folders, *files) if name.startswith(_HIDDEN)]
            folders[:] = [name for name in folders if name not in hidden]
            found += [(path := Path(folder, name), _bytes_of(path)) for name in hidden]
        return sorted((path.relative_to(self.root).as_posix(), size) for path, size in found)

    def delete_leftover(self, path: str) -> None:
        self._check_writable(path)
        target = self._file(path)
        if not target.name.startswith(_HIDDEN):
            raise StoreError(f"{path}: not something that a killed writer leaves")
        with _translating(target, "delete"):
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)

    def local_path(self, path: str) -> Path | None:
        return self._file(path)

    def free_bytes(self) -> int | None:
        with _translating(self.root, "measure"):
            stat = os.statvfs(self.root)
        return stat.f_bavail * stat.f_frsize

    def raise_fence(self, fence: str) -> None:
        self._check_writable(fence)
        with _translating(self._file(fence), "create"):
            make_directories(self._file(fence))

    def drop_fence(self, fence: str) -> None:
        self._check_writable(fence)
        folder = self._file(fence)
        removed = folder.with_name(f"{_HIDDEN}removed-{uuid.uuid4().hex}")
        with _translating(folder, "remove"):
            with suppress(FileNotFoundError):
                folder.rename(removed)
                sync_directory(folder.parent)
            shutil.rmtree(removed, ignore_errors=True)

    def _file(self, path: str) -> Path:
        return self.root.joinpath(*check_path(path))

    def _check_writable(self, path: str | Path) -> None:
        if self._read_only:
            raise StoreError(f"{path}: not written, the run store was opened for reading only")

    @contextmanager
    def _staged(self, target: Path, data: bytes | Path, fence: str | None) -> Iterator[Path]:
        """`data`, written and synced under a temporary name on the same file system."""
        self._check_writable(target)
        make_directories(target.parent)
        folder = target.parent if fence is None else self._file(fence)
        staged = folder / f"{_HIDDEN}tmp-{uuid.uuid4().hex}"
        try:
            try:
                file = staged.open("xb")
            except FileNotFoundError:
                raise _out_of_reach(target, fence) from None
            with file:
                if isinstance(data, bytes):
                    file.write(data)
                else:
                    with data.open("rb") as source:
                        shutil.copyfileobj(source, file, _COPY_BYTES)
                file.flush()
                os.fsync(file.fileno())
            yield staged
        finally:
            with suppress(OSError):
                staged.unlink()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.root / f"{_HIDDEN}lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            deadline_s = time.monotonic() + self._lock_timeout_s
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline_s:
                        raise StoreError(
                            f"{self.root}/.lock: held for more than {self._lock_timeout_s:g} s by "
                            "another process, probably a stopped one; continue or kill it (fuser "
                            "names it) and run again"
                        ) from None
                    time.sleep(0.002)
            yield
        finally:
            os.close(descriptor)  # frees the lock

    def _try_out(self) -> None:
        """Raise StoreError unless files can be written, linked once only, and renamed."""
        probe = f"{_HIDDEN}probe-{uuid.uuid4().hex}"
        try:
            first = self.put_if_absent(probe, b"1")
            second = self._link_again(probe)
            self.put(probe, b"2")
            if not first or second or self.get(probe) != b"2":
                raise StoreError(
                    f"{self.root}: this file system does not keep files apart reliably (exclusive "
                    "links or renames are missing); choose a local disk as run_store"
                )
        except StoreError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in _NO_HARD_LINKS:
                raise StoreError(
                    f"{self.root}: this file system has no hard links ({cause.strerror}), which "
                    "atomic commits need; choose another run_store"
                ) from error
            raise
        finally:
            with suppress(OSError):
                self.delete(probe)

    def _link_again(self, path: str) -> bool:
        """Whether a name that is taken can be linked a second time: it must not."""
        target = self._file(path)
        with _translating(target, "write"), self._staged(target, b"3", None) as staged:
            return _link(staged, target, None)


def _bytes_of(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(inner.stat().st_size for inner in path.rglob("*") if inner.is_file())


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _link(staged: Path, target: Path, fence: str | None) -> bool:
    """Give `staged` the name `target` durably; False if the name is taken."""
    try:
        os.link(staged, target)
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise _out_of_reach(target, fence) from None
    sync_directory(target.parent)
    return True


def _rename(staged: Path, target: Path, fence: str | None) -> None:
    try:
        staged.rename(target)
    except FileNotFoundError:
        raise _out_of_reach(target, fence) from None


def _out_of_reach(target: Path, fence: str | None) -> Exception:
    if fence is None:
        return StoreError(f"{target}: its directory was removed while it was being written")
    return LeaseError(
        f"{target}: not written, because the lease {fence.rpartition('/')[2]} was released or "
        "taken over by another runner"
    )


def sync_directory(folder: Path) -> None:
    """Make names that were added to or taken from `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(folder: Path) -> None:
    """Create `folder` and its parents durably."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for child in reversed(missing):
        with suppress(FileExistsError):
            child.mkdir()
        if not child.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "there is a file of that name", str(child))
        sync_directory(child.parent)
