"""Commits: groups of files, each there as a whole or not at all.

commit               write the files, then publish their manifest in one atomic put
read_manifest        the manifest of a committed group
read_committed_file  one file of the group, checked against its manifest
verify               every file of the group, checked
measure_file         size and SHA-256 of a local file

A file of a commit is stored under its name with the beginning of its SHA-256 before the suffix,
``episodes-0003.9f86d081.parquet``, so that two runners that prepare the same commit never write
over each other. The first manifest wins; the other publisher gets it back. Files that no
manifest names come from a killed or late runner; readers don't see them, and the next commit
of the same names removes them.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from nip_base.formats.bounds import parse_json
from nip_core.errors import CorruptionError, RunConflictError, StoreError
from nip_core.hashing import digest
from nip_core.run_store.documents import first_fault
from nip_core.run_store.lease import Lease
from nip_core.run_store.store import MissingFileError, Store

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MANIFEST_NAME = re.compile(r"manifest(-\w+)?\.json")
"""The name of a commit's manifest: a directory may hold several commits."""
_HASH_CHARACTERS = 8  # keep two contents of a name apart; the manifest has the whole hash
_WHAT_TO_DO = "nothing is repaired: restore the file from a copy, or do its part of the run again"


@dataclass(frozen=True)
class FileEntry:
    """One file of a commit. `file` is its name on disk, next to the manifest."""

    file: str
    sha256: str
    bytes: int


class ManifestDocument(BaseModel):
    """The JSON of a manifest, without its checksum. `nip_core.run_store.facts` reads `extra`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    format_version: int = FORMAT_VERSION
    files: dict[str, FileEntry]
    inputs: dict[str, str]
    rows: dict[str, int]
    extra: dict[str, Any]
    epoch: int


@dataclass(frozen=True)
class Manifest:
    """A commit: its files, the digests of its sources, and facts about it."""

    directory: str
    name: str  # file name of the manifest
    files: Mapping[str, FileEntry]  # by the name they were committed under
    inputs: Mapping[str, str]  # digests of the sources of this, by name
    rows: Mapping[str, int]  # row counts, by table
    extra: Mapping[str, Any] = field(default_factory=dict)
    epoch: int = 0  # of the lease it was written under; 0 without a lease

    @property
    def digest(self) -> str:
        """SHA-256 over content and lineage; another runner's epoch leaves it as it is."""
        return digest(
            {
                "files": {name: [entry.sha256, entry.bytes] for name, entry in self.files.items()},
                "inputs": dict(self.inputs),
                "rows": dict(self.rows),
                "extra": dict(self.extra),
            }
        )

    def path(self, name: str) -> str:
        """Give the path of the file committed as `name`. Raises StoreError if there is none."""
        if name not in self.files:
            raise StoreError(
                f"{self.directory}/{self.name}: has no file {name!r}; it has {sorted(self.files)}"
            )
        return f"{self.directory}/{self.files[name].file}"


def commit(
    store: Store,
    directory: str,
    files: Mapping[str, bytes | Path],
    *,
    inputs: Mapping[str, str] | None = None,
    rows: Mapping[str, int] | None = None,
    extra: Mapping[str, Any] | None = None,
    lease: Lease | None = None,
    name: str = MANIFEST,
) -> Manifest:
    """Commit `files` (content, or a local file to copy) to `directory`, durably and at once.

    If `name` is already published there with the same inputs, that manifest is returned and
    nothing is written: the first to publish has won, even where contents differ.

    Raises RunConflictError if it is published with other inputs, LeaseError if `lease` was lost,
    StoreError if writing fails (a full disk, say); in all cases nothing half-written is visible.
    """
    inputs, rows, extra = dict(inputs or {}), dict(rows or {}), dict(extra or {})
    # 1. A published manifest has won, by any writer: it may have been read and built on.
    existing = _published(store, directory, name, inputs)
    if existing is not None:
        return existing
    # 2. The files, under names made of their content: two writers can't be in each other's way.
    fence = lease.fence if lease else None
    entries: dict[str, FileEntry] = {}
    for file_name, content in files.items():
        entry = _entry(file_name, content)
        path = f"{directory}/{entry.file}"
        # A file there under that name may be damaged: only a manifest vouches for a file.
        store.put(path, content, fence=fence)
        entries[file_name] = entry
    # 3. The manifest in one atomic put, which is the commit.
    manifest = Manifest(
        directory, name, entries, inputs, rows, extra, epoch=lease.epoch if lease else 0
    )
    if lease is not None:
        # For an early and clear error. The fence keeps a replaced runner out, also when it
        # is stopped right after this line and goes on an hour later.
        lease.check()
    if not store.put_if_absent(f"{directory}/{name}", _encode(manifest), fence=fence):
        existing = _published(store, directory, name, inputs)
        if existing is None:
            raise StoreError(f"{directory}/{name}: was published and deleted meanwhile; run again")
        manifest = existing
    # 4. Versions of these files that no manifest will ever name.
    _remove_leftovers(store, manifest)
    return manifest


def read_manifest(store: Store, directory: str, name: str = MANIFEST) -> Manifest:
    """Read a manifest. Raises MissingFileError if nothing is committed, else CorruptionError."""
    path = f"{directory}/{name}"
    data = store.get(path)
    try:
        # The format before the checksum: a later version may compute it in another way.
        value = parse_json(data)
        checksum = value.pop("sha256")
        if value["format_version"] != FORMAT_VERSION:
            raise StoreError(
                f"{path}: format version {value['format_version']}, this version of nip reads "
                f"{FORMAT_VERSION}; use the version of nip that wrote it"
            )
        if checksum != digest(value):
            raise ValueError("its own checksum does not match")
        document = ManifestDocument.model_validate(value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = first_fault(error) if isinstance(error, ValidationError) else repr(error)
        raise CorruptionError(f"{path}: damaged manifest ({reason}); {_WHAT_TO_DO}") from error
    return Manifest(
        directory,
        name,
        document.files,
        document.inputs,
        document.rows,
        document.extra,
        document.epoch,
    )


def is_committed(store: Store, directory: str, name: str = MANIFEST) -> bool:
    """Tell whether a manifest of this name is published in `directory`."""
    return store.exists(f"{directory}/{name}")


def read_committed_file(store: Store, manifest: Manifest, name: str) -> bytes:
    """Read a committed file. Raises CorruptionError with its name if it has changed or is gone."""
    path, entry = manifest.path(name), manifest.files[name]
    try:
        data = store.get(path)
    except MissingFileError as error:
        raise CorruptionError(
            f"{path}: missing, but {manifest.directory}/{manifest.name} names it; {_WHAT_TO_DO}"
        ) from error
    _check(path, entry, len(data), hashlib.sha256(data).hexdigest())
    return data


def verify(store: Store, directory: str, name: str = MANIFEST) -> Manifest:
    """Check every file of a commit. Raises CorruptionError naming the first damaged file."""
    manifest = read_manifest(store, directory, name)
    for file_name, entry in manifest.files.items():
        # A file on this disk is hashed piece by piece; one in a bucket comes into memory whole.
        local = store.local_path(manifest.path(file_name))
        if local is None or not local.exists():
            read_committed_file(store, manifest, file_name)
        else:
            _check(manifest.path(file_name), entry, *measure_file(local))
    return manifest


def _check(path: str, entry: FileEntry, size_bytes: int, sha256: str) -> None:
    if size_bytes != entry.bytes:
        raise CorruptionError(
            f"{path}: damaged, {size_bytes} bytes instead of {entry.bytes}; {_WHAT_TO_DO}"
        )
    if sha256 != entry.sha256:
        raise CorruptionError(
            f"{path}: damaged, SHA-256 {sha256} instead of {entry.sha256}; {_WHAT_TO_DO}"
        )


def _published(
    store: Store, directory: str, name: str, inputs: Mapping[str, str]
) -> Manifest | None:
    try:
        manifest = read_manifest(store, directory, name)
    except MissingFileError:
        return None
    # Made from other inputs it is another commit: to hand it out would give it a false lineage.
    if dict(manifest.inputs) != dict(inputs):
        different = {
            key: f"{manifest.inputs.get(key)} -> {inputs.get(key)}"
            for key in sorted({*manifest.inputs, *inputs})
            if manifest.inputs.get(key) != inputs.get(key)
        }
        raise RunConflictError(
            f"{directory}/{name}: already committed from other inputs (stored -> given): "
            f"{different}; a run name means one configuration"
        )
    return manifest


def _entry(name: str, content: bytes | Path) -> FileEntry:
    if isinstance(content, bytes):
        size_bytes, sha256 = len(content), hashlib.sha256(content).hexdigest()
    else:
        size_bytes, sha256 = measure_file(content)
    path = PurePosixPath(name)
    return FileEntry(f"{path.stem}.{sha256[:_HASH_CHARACTERS]}{path.suffix}", sha256, size_bytes)


def measure_file(file: Path) -> tuple[int, str]:
    """Compute size in bytes and SHA-256 of a local file."""
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
        return opened.tell(), sha256


def _encode(manifest: Manifest) -> bytes:
    document = ManifestDocument(
        files=dict(manifest.files),
        inputs=dict(manifest.inputs),
        rows=dict(manifest.rows),
        extra=dict(manifest.extra),
        epoch=manifest.epoch,
    ).model_dump()
    return json.dumps({**document, "sha256": digest(document)}, indent=1).encode()


def _remove_leftovers(store: Store, manifest: Manifest) -> None:
    """Delete other versions of the committed files; the published one has won for good."""
    published = {entry.file for entry in manifest.files.values()}
    if not published:  # the manifest of a split has no files of its own, and no versions of them
        return
    mine = {(PurePosixPath(name).stem, PurePosixPath(name).suffix) for name in manifest.files}
    for file in store.list(manifest.directory):
        path = PurePosixPath(file)
        stem, dot, hash_part = path.stem.rpartition(".")
        is_version = dot and len(hash_part) == _HASH_CHARACTERS and (stem, path.suffix) in mine
        if is_version and file not in published:
            store.delete(f"{manifest.directory}/{file}")
