"""Runs on S3, on servers with its protocol, and on Google Cloud Storage.

Everything rests on conditional writes: create if absent, replace if unchanged. A store that does
not really give them is refused when it is opened. Credentials come from the environment only.

A fence is an object that is there while the fence stands. It is a redo log of one entry. A fenced
conditional put (1) swaps its path, condition and content into the log, which fails when the fence
has been dropped: this swap is the commit; (2) writes the path under its condition. The next to
commit, and the one to drop the fence, first does the write that the log still asks for. So a runner
that is stopped between (1) and (2), replaced and continued finds its write done, and its condition
no longer true; stopped before (1), it commits nothing. See docs/decisions/0012-object-stores.md.

Not covered: a fenced `put` without a condition only looks whether the fence stands. It is for
content that is not trusted before something else names it with its digest. And a path that is
deleted by the new runner while the old one stands between (1) and (2) may come back.
"""

import base64
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from nip_core.distribution import how_to_install
from nip_core.errors import CorruptionError, LeaseError, SettingsError, StoreError
from nip_core.proxies import is_on_this_machine, spare_this_machine
from nip_core.redaction import check_address, show_address
from nip_core.run_store.documents import decode, encode, validate_document
from nip_core.run_store.object_requests import (
    TOMBSTONE_BYTES,
    Requests,
    is_tombstone,
    short_message,
    tombstone,
)
from nip_core.run_store.store import MissingFileError, check_path, is_leftover

_HIDDEN = "."
_OF_ITS_SERVER = ", and the address of a server that speaks S3 in AWS_ENDPOINT_URL"
_ENDPOINTS = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "gs": ("GOOGLE_BASE_URL",)}
_SWAPS = 200  # tries of a commit before it gives up; each lost one means that another has won
_PARTS_AT_ONCE = 4  # of 5 MB each: the memory that a large file takes


def open_object_store(
    url: str, *, read_only: bool = False, environment: Mapping[str, str] = os.environ
) -> "ObjectStore":
    """Open ``s3://bucket/prefix`` or ``gs://bucket/prefix``.

    Raises SettingsError for a URL that can't be used or a missing library, StoreError if the
    store can't be reached or does not give conditional writes.
    """
    parts = urlsplit(url)
    address = show_address(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise SettingsError(
            f"run_store: {address} came with credentials or options in it; credentials are read "
            "from the environment only (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, ...)"
        )
    prefix = parts.path.strip("/")
    if not parts.netloc or ":" in parts.netloc or "//" in prefix:
        more = _OF_ITS_SERVER if parts.scheme == "s3" else ""
        raise SettingsError(
            f"run_store: {address} names no bucket; give {parts.scheme}://bucket/prefix{more}"
        )
    for variable in _ENDPOINTS[parts.scheme]:
        if endpoint := environment.get(variable):
            check_address(f"environment variable {variable}", endpoint)
    try:
        from obstore.store import GCSStore, S3Store
    except ImportError as error:
        raise SettingsError(
            f"run_store: {address} needs a library that is not installed; "
            f"{how_to_install('object-stores')}"
        ) from error
    is_local = _is_local(environment)
    allow_http = is_local or environment.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true"}
    if not allow_http:
        _refuse_plain(parts.scheme, environment)
    if is_local:
        spare_this_machine(os.environ)  # which alone the library reads

    def connect(retries: int, timeout: str) -> Any:
        client = {"timeout": timeout, "read_timeout": "60s", "connect_timeout": "5s"}
        if allow_http:
            client["allow_http"] = "true"
        more: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": retries}}
        if parts.scheme == "gs":
            return GCSStore(parts.netloc, prefix=prefix or None, **more)
        return S3Store(parts.netloc, prefix=prefix or None, **more)

    try:
        # Large files may take long, and are repeated by the library. Conditional writes are not:
        # a repetition would be refused for the write of the first try, and look like a defeat.
        patient, once = connect(6, "60m"), connect(0, "60s")
    except Exception as error:
        raise SettingsError(
            f"run_store: {address} can't be opened: {short_message(error)}"
        ) from None
    place = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    return ObjectStore(place, patient, once, read_only=read_only)


def _is_local(environment: Mapping[str, str]) -> bool:
    """Tell whether the store is on this machine: access need not be encrypted then."""
    endpoints = [environment.get(name) for names in _ENDPOINTS.values() for name in names]
    return any(is_on_this_machine(endpoint) for endpoint in endpoints if endpoint)


def _refuse_plain(scheme: str, environment: Mapping[str, str]) -> None:
    """Raise SettingsError for an unencrypted address; the library would say "builder error"."""
    for variable in _ENDPOINTS[scheme]:
        endpoint = environment.get(variable, "")
        if endpoint.lower().startswith("http://"):
            raise SettingsError(
                f"environment variable {variable}: {show_address(endpoint)} is unencrypted and not "
                "on this machine; give an https:// address, or set AWS_ALLOW_HTTP=true on a "
                "network that you trust"
            )


class LogEntry(BaseModel):
    """A conditional write, logged in a fence. Any process can do it, and none does it twice."""

    model_config = ConfigDict(frozen=True, extra="allow")

    path: str
    etag: str | None
    """The tag that `path` has to have; None: it has to be absent."""
    data: str
    """The content to write, in base64."""


class FenceDocument(BaseModel):
    """The object of a fence: its state, and the last write under it."""

    model_config = ConfigDict(frozen=True, extra="allow")

    state: Literal["up", "closed"] = "up"
    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    """Drawn anew for every write, so that no two contents of a fence are the same."""
    commit: LogEntry | None = None


@dataclass(frozen=True)
class _Fence:
    """The object of a fence, with the tag at its reading."""

    document: FenceDocument
    tag: str


class ObjectStore(Requests):
    """A prefix of a bucket. Made by `open_object_store`; safe to use from several threads."""

    def __init__(
        self,
        url: str,
        patient: Any,
        once: Any,
        *,
        read_only: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`patient` and `once` are obstore's stores: one repeats failed requests, one does not.

        Tries the store out, unless it is `read_only`. Raises StoreError with the reason if unfit.
        """
        super().__init__(url, patient, once, sleep)
        self._read_only = read_only
        self._committing = threading.Lock()
        self._settled: str | None = None  # the log entry that this process knows to be done
        if not read_only:
            self._try_out()

    # Files ------------------------------------------------------------------------------------

    def get(self, path: str) -> bytes:
        return self.get_with_etag(path)[0]

    def get_with_etag(self, path: str) -> tuple[bytes, str]:
        standing = self._look(path)
        if standing is None or is_tombstone(standing[0]):
            raise MissingFileError(f"{self._name(path)}: no such file")
        return standing

    def download(self, path: str, target: Path) -> None:
        import obstore

        check_path(path)

        def get() -> None:
            answer = obstore.get(self._patient, path)
            with target.open("wb") as file:
                for part in answer.stream():
                    file.write(part)

        self._ask(path, "download", get)

    def put(self, path: str, data: bytes | Path, *, fence: str | None = None) -> None:
        import obstore

        self._check_writable(path)
        if fence is not None:
            # Only looked at: a large file can't go through the fence's log. A manifest has to name
            # it before it is read, and that is committed through the log.
            self._standing(fence, path)

        def put() -> None:
            obstore.put(self._patient, path, data, max_concurrency=_PARTS_AT_ONCE)

        try:
            self._ask(path, "write", put)
        except MissingFileError:  # the library asked twice for the end of a write in parts
            self._ask(path, "write", put)

    def put_if_absent(self, path: str, data: bytes | Path, *, fence: str | None = None) -> bool:
        self._check_writable(path)
        content = data if isinstance(data, bytes) else data.read_bytes()
        if fence is not None:
            return self._commit(path, content, None, fence) is not None
        return self._swap(path, content, None) is not None

    def put_if_match(
        self, path: str, data: bytes, etag: str, *, fence: str | None = None
    ) -> str | None:
        self._check_writable(path)
        if fence is not None:
            return self._commit(path, data, etag, fence)
        return self._swap(path, data, etag)

    def exists(self, path: str) -> bool:
        import obstore

        check_path(path)
        try:
            meta = self._ask(path, "look for", lambda: obstore.head(self._patient, path))
        except MissingFileError:
            return False
        return meta["size"] != TOMBSTONE_BYTES or self._is_there(path)

    def list(self, directory: str) -> list[str]:
        import obstore

        if directory:
            check_path(directory)
        listing = self._ask(
            directory or "(all)",
            "list",
            lambda: obstore.list_with_delimiter(self._patient, directory or None),
        )
        names = [
            entry["path"].rpartition("/")[2]
            for entry in listing["objects"]
            # Only files of a tombstone's size are read: one request for each file is too many.
            if entry["size"] != TOMBSTONE_BYTES or self._is_there(entry["path"])
        ]
        names += [f"{prefix.rpartition('/')[2]}/" for prefix in listing["common_prefixes"]]
        return sorted(name for name in names if not name.startswith(_HIDDEN))

    def delete(self, path: str, *, fence: str | None = None) -> None:
        import obstore

        self._check_writable(path)
        if fence is not None:
            # A bucket has no deletion under a condition, but it has writes: a tombstone is one.
            while (tag := self._tag_of(path)) is not None:
                # Else it was written meanwhile, which this fence's runner may have done.
                if self._commit(path, tombstone(), tag, fence) is not None:
                    return
            return
        try:
            obstore.delete(self._patient, path)
        except Exception as error:
            translated = self._translated(error, path, "delete")
            if not isinstance(translated, MissingFileError):
                raise translated from error

    def size(self, path: str) -> int:
        import obstore

        check_path(path)
        return self._ask(path, "look at", lambda: int(obstore.head(self._patient, path)["size"]))

    def leftovers(self, directory: str) -> Iterable[tuple[str, int]]:
        import obstore

        check_path(directory)
        entries = self._ask(
            directory,
            "list",
            lambda: [entry for page in obstore.list(self._patient, directory) for entry in page],
        )
        return sorted(
            (entry["path"], entry["size"])
            for entry in entries
            if any(map(is_leftover, entry["path"].split("/")))
        )

    def delete_leftover(self, path: str) -> None:
        if not any(map(is_leftover, path.split("/"))):
            raise StoreError(f"{path}: not something that a killed writer leaves")
        self.delete(path)

    def local_path(self, path: str) -> Path | None:
        check_path(path)
        return None

    # Fences -----------------------------------------------------------------------------------

    def raise_fence(self, fence: str) -> None:
        self._check_writable(fence)
        self._swap(fence, _encode(FenceDocument()), None)

    def drop_fence(self, fence: str) -> None:
        self._check_writable(fence)
        for _ in range(_SWAPS):
            standing = self._read_fence(fence)
            if standing is None:
                return
            if standing.document.state == "up":
                # Closed first, then the write in the log, then gone: after the first step nothing
                # more is committed under this fence, after the second nothing is left to be done.
                closed = standing.document.model_copy(update={"state": "closed"})
                if self._swap(fence, _encode(closed), standing.tag) is None:
                    continue  # one more commit came in; it counts, and is done below
            self._settle(standing.document)
            self.delete(fence)
            return
        raise StoreError(f"{self._name(fence)}: other runners kept changing it; run again")

    def _commit(self, path: str, data: bytes, etag: str | None, fence: str) -> str | None:
        """Write `path`, if its tag is `etag` (None: it is absent) and the fence stands.

        Returns the new tag; None if the condition does not hold.
        """
        # One at a time: each swaps the log that the one before it left, and would else lose often.
        with self._committing:
            for _ in range(_SWAPS):
                standing = self._standing(fence, path)
                # The log has one entry: the one in it has to be done before it is written over.
                self._settle(standing.document)
                condition = etag
                if etag is None and (standing_file := self._look(path)) is not None:
                    if not is_tombstone(standing_file[0]):
                        return None
                    condition = standing_file[
                        1
                    ]  # a tombstone is nothing, but it has a tag to be replaced by
                content = base64.b64encode(data).decode()
                document = FenceDocument(commit=LogEntry(path=path, etag=condition, data=content))
                if self._swap(fence, _encode(document), standing.tag) is None:
                    continue  # another process of this runner was faster, or the fence was dropped
                return self._settle(document)
        raise StoreError(f"{self._name(fence)}: other processes kept changing it; run again")

    def _settle(self, document: FenceDocument) -> str | None:
        """Do the logged write, unless it is known to be done; returns the new tag."""
        entry = document.commit
        if entry is None or document.id == self._settled:
            return None
        data = base64.b64decode(entry.data)
        tag = self._swap(entry.path, data, entry.etag, is_logged=True)
        self._settled = document.id
        return tag

    def _standing(self, fence: str, path: str) -> _Fence:
        standing = self._read_fence(fence)
        if standing is None or standing.document.state != "up":
            raise LeaseError(
                f"{self._name(path)}: not written, because the lease {fence.rpartition('/')[2]} "
                "was released or taken over by another runner"
            )
        return standing

    def _read_fence(self, fence: str) -> _Fence | None:
        try:
            data, tag = self.get_with_etag(fence)
        except MissingFileError:
            return None
        try:
            name = self._name(fence)
            return _Fence(validate_document(decode(data, name), FenceDocument, name), tag)
        except CorruptionError as error:
            raise CorruptionError(
                f"{self._name(fence)}: damaged, not a fence of a lease ({error}); if no runner "
                "is alive, delete it and lease.json, and run again"
            ) from error

    # Trying it out ---------------------------------------------------------------------------

    def _try_out(self) -> None:
        """Raise StoreError unless conditions are heeded."""
        # Each condition once where it holds and once where it does not: a server that ignores them
        # answers all four as done, and two runners would both believe that they have won.
        probe = f"{_HIDDEN}probe-{uuid.uuid4().hex}"
        try:
            first = self._swap(probe, b"1", None)
            second = self._swap(probe, b"2", None)
            third = None if first is None else self._swap(probe, b"3", first)
            stale = None if first is None else self._swap(probe, b"4", first)
            content = self.get(probe)
        except MissingFileError as error:
            raise StoreError(
                f"{self.url}: there is no such bucket; make it, or name another run_store"
            ) from error
        finally:
            self._remove_probe(probe)
        if (
            first is None
            or second is not None
            or third is None
            or stale is not None
            or content != b"3"
        ):
            raise StoreError(
                f"{self.url}: this store does not heed conditions on writes (If-None-Match and "
                "If-Match), which commits need; choose another run_store"
            )

    def _remove_probe(self, probe: str) -> None:
        try:
            self.delete(probe)
        except StoreError:
            return  # the error is being raised; a file of one byte may stay

    def _check_writable(self, path: str) -> None:
        check_path(path)
        if self._read_only:
            raise StoreError(f"{path}: not written, the run store was opened for reading only")


def _encode(document: FenceDocument) -> bytes:
    return encode(document.model_dump())
