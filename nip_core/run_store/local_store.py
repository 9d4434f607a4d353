"""A run store on a local disk, with atomic renames and hard links.

A file is written under a temporary name, synced, and then linked or renamed into place; the
directory is synced too. A fence is a directory in which the puts that name it are staged; taking it
away and linking a file out of it are both atomic, so no put can slip through between a check and
its effect.

Not covered: file systems without atomic rename or hard links (refused when opened).
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

from nip_core.errors import LeaseError, PlaceError, StoreError
from nip_core.run_store.store import MissingFileError, check_path, is_leftover

_HIDDEN = "."  # names that begin so are the store's own: temporary, pending, removed
_COPY_BYTES = 1 << 20
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_PLACE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
_NO_HARD_LINKS = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EPERM}


def translate_error(error: OSError, path: str | Path, action: str) -> StoreError:
    """Make the StoreError for `error`, met when trying to `action` (a verb) `path`."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreError(
            f"disk full: can't {action} {path}; free space and run again: what is finished is kept"
        )
    if isinstance(error, FileNotFoundError):
        return MissingFileError(f"{path}: no such file")
    if error.errno in _FORBIDDEN:
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
            if not os.path.isdir(self.root):
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
            if target.exists():  # spares the staging; the link alone decides
                return False
            with self._staged(target, data, fence) as staged:
                return _link(staged, target, fence)

    def put_if_match(
        self, path: str, data: bytes, etag: str, *, fence: str | None = None
    ) -> str | None:
        target = self._file(path)
        with _translating(target, "write"), self._staged(target, data, fence) as staged:
            # No call of the system renames on a condition: compared and renamed under a lock.
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
        leftovers = []
        for folder, folders, files in os.walk(self._file(directory)):
            names = [name for name in (*folders, *files) if is_leftover(name)]
            folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
            leftovers += [(path := Path(folder, name), _bytes_of(path)) for name in names]
        return sorted((path.relative_to(self.root).as_posix(), size) for path, size in leftovers)

    def delete_leftover(self, path: str) -> None:
        self._check_writable(path)
        target = self._file(path)
        if not is_leftover(target.name):
            raise StoreError(f"{path}: not something that a killed writer leaves")
        with _translating(target, "delete"):
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)

    def local_path(self, path: str) -> Path | None:
        return self._file(path)

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
                # Renamed first, which is atomic: from here on the files staged in it are gone from
                # where they were, and linking one fails.
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
        """Write and sync `data` under a temporary name on the same file system."""
        self._check_writable(target)
        make_directories(target.parent)
        # Under a fence in the directory of that: taking it away takes this file along.
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
            # Asked for again and again: a blocking wait for a stopped process would never end, and
            # never say why.
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
        """Tell whether a taken name can be linked a second time: it must not."""
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
    """Make names durable, after some were added to `folder` or taken from it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_can_be_made(folder: Path, setting: str) -> None:
    """Raise PlaceError with the name of the `setting` where `folder` can't be a run store.

    Its missing part is made under a hidden name, and taken away again.
    """
    absent_folders = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    base = absent_folders[-1].parent if absent_folders else folder
    probe = base / f"{_HIDDEN}probe-{uuid.uuid4().hex}"
    inner = probe / folder.relative_to(base)
    try:
        if not os.path.isdir(base):
            raise NotADirectoryError(errno.ENOTDIR, f"{base} is no directory")
        inner.mkdir(parents=True)
    except OSError as error:
        if error.errno not in _NO_PLACE | _FORBIDDEN:
            raise translate_error(error, folder, "create") from error
        is_forbidden = error.errno in _FORBIDDEN
        reason = "no permission to create or write it" if is_forbidden else "it can't be created"
        raise PlaceError(
            f"{setting}: {folder}: {reason} ({error.strerror}); choose another directory"
        ) from error
    finally:
        for path in (inner, *inner.parents):
            if path == base:
                break
            with suppress(OSError):
                path.rmdir()


def make_directories(folder: Path) -> None:
    """Create `folder` and its parents durably."""
    absent_folders = []
    while not folder.is_dir():
        absent_folders.append(folder)
        folder = folder.parent
    for child in reversed(absent_folders):
        with suppress(FileExistsError):
            child.mkdir()
        if not child.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "there is a file of that name", str(child))
        sync_directory(child.parent)
