"""The content of a repository of nip: files, and ``nip.json`` with their digests and their lineage.

seal           write ``nip.json`` over a directory's files
read_sealed    the facts of a directory, with every file checked
read_facts     the facts alone
is_taken       whether a file of a repository is taken, by its name; list_patterns: for its download
select_taken   the files of a directory that are taken from a repository
new_directory  a directory that is there as a whole or not at all
list_files     all files of a directory

Equal facts give equal bytes: no time, no place and no host name stands in them, so that what is
published again makes no new commit.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from nip_base.formats.bounds import parse_json
from nip_bridges.hub.nip_json import AdapterFacts, Facts, FileEntry, TablesFacts
from nip_core.errors import CorruptionError, SettingsError, StoreError
from nip_core.parameters.services.published import Kind
from nip_core.run_store.documents import first_fault

F = TypeVar("F", AdapterFacts, TablesFacts)
_FACTS: TypeAdapter[Facts] = TypeAdapter(Facts)

FACTS = "nip.json"
CARD = "README.md"
FORMAT = 1
_OF_BOTH = frozenset({FACTS, CARD, "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE"})
_OF_A_MODEL = frozenset(
    {
        *(
            "adapter_config.json",
            "adapter_model.safetensors",
            "adapter_model.safetensors.index.json",
        ),
        *("config.json", "generation_config.json", "model.safetensors"),
        *("model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"),
        *("special_tokens_map.json", "added_tokens.json", "vocab.json"),
        *("chat_template.jinja", "chat_template.json"),
        *("probe.json", "training.json", "evaluation.json"),  # nip's
    }
)
_WEIGHTS_PART = re.compile(r"(?:adapter_)?model-\d{5}-of-\d{5}\.safetensors")
_OF_DATA = frozenset({"dataset_info.json", "dataset_infos.json"})
_BASE = "base/"
"""Where an adapter's repository has its base model."""


def seal(directory: Path, facts: F) -> F:
    """Write ``nip.json`` with the digests of all other files, and return its facts."""
    files = {name: entry for name, entry in _measure_all(directory).items() if name != FACTS}
    sealed = facts.model_copy(update={"files": files})
    # A value that is not set stays out, so that a document is written again as it was read.
    content = sealed.model_dump(exclude_unset=True, exclude={"kind"})
    document = {"format": FORMAT, "kind": facts.kind, **content}
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    (directory / FACTS).write_text(text, encoding="utf-8")
    return sealed


def read_facts(directory: Path, place: str) -> Facts | None:
    """Read ``nip.json``; None if there is none.

    Raises SettingsError if nip has not written it, or in a format of another version.
    """
    path = directory / FACTS
    if not path.is_file():
        return None
    try:
        document = dict(parse_json(path.read_text(encoding="utf-8")))
        # Before all else: of another format nothing is known, so no other error would be true.
        version = document.pop("format")
        if version != FORMAT:
            raise SettingsError(
                f"{place}: {FACTS} has format {version}, this version of nip reads {FORMAT}; use "
                "the version of nip that published it"
            )
        if "files" not in document:
            raise KeyError("files")
        facts = _FACTS.validate_python(document)
        for name in facts.files:
            inside = not name.startswith("/") and ".." not in name.split("/")
            if not (inside and is_taken(name, facts.kind)):
                raise ValueError(f"the entry of {name!r}")
    except SettingsError:
        raise
    except ValidationError as error:
        raise SettingsError(
            f"{place}: {FACTS} is not what nip writes ({first_fault(error)})"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{place}: {FACTS} is not what nip writes ({error!r})") from None
    return facts


def read_sealed(directory: Path, place: str) -> Facts | None:
    """Read ``nip.json`` and compare every file. Raises CorruptionError for a damaged one."""
    facts = read_facts(directory, place)
    for name, entry in facts.files.items() if facts is not None else ():
        path = directory / name
        if not path.is_file():
            raise CorruptionError(f"{place}: {name} is missing, and {FACTS} names it")
        measure = _measure(path)
        if measure != entry:
            raise CorruptionError(
                f"{place}: {name} has SHA-256 {measure.sha256[:12]}…, {FACTS} says "
                f"{entry.sha256[:12]}…: it was changed, or is damaged"
            )
    return facts


def list_files(directory: Path) -> dict[str, Path]:
    """List all files below a directory, by their names in a repository."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path for path in paths}


def is_taken(name: str, kind: Kind) -> bool:
    """Tell whether a file is taken from a repository of this kind, by its name.

    An adapter's are on a list, at the top and in ``base``; a dataset has Parquet files in folders.
    Programs, pickled weights and settings of other programs (``.vscode``, ``.mcp.json``, CLAUDE.md)
    are not among them, nor are hidden files: no part of a name begins with a dot.
    """
    parts = name.split("/")
    plain = all(part and part[0] not in ".-~" and "\\" not in part for part in parts)
    if not (plain and name.isprintable()):
        return False
    if kind == "dataset":
        return name in _OF_BOTH | _OF_DATA or name.endswith(".parquet")
    bare = name.removeprefix(_BASE)
    return bare in _OF_BOTH | _OF_A_MODEL or _WEIGHTS_PART.fullmatch(bare) is not None


def list_patterns(kind: Kind) -> list[str]:
    """List patterns for a download: they fit every name of `is_taken`, and some other names."""
    if kind == "dataset":
        return sorted([*_OF_BOTH, *_OF_DATA, "*.parquet"])
    names = sorted([*_OF_BOTH, *_OF_A_MODEL])
    parts = [f"{stem}-?????-of-?????.safetensors" for stem in ("model", "adapter_model")]
    return [folder + name for folder in ("", _BASE) for name in (*names, *parts)]


def select_taken(directory: Path, facts: Facts | None, kind: Kind) -> dict[str, Path]:
    """Choose the files to take; where there is a ``nip.json``, it and those it names.

    A folder of the Hub's cache has all files that any program has downloaded of the repository.
    """
    files = {name: path for name, path in list_files(directory).items() if is_taken(name, kind)}
    if facts is None:
        return files
    return {name: path for name, path in files.items() if name in {FACTS, *facts.files}}


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Give a directory to fill, and make it `target` in the end, at once and whole.

    One that is there already with the same files is left as it is. Raises SettingsError if it has
    others, StoreError if the disk refuses.
    """
    target = target.expanduser().absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part"))
    except OSError as error:
        raise StoreError(f"{target}: can't be written: {error.strerror}") from error
    try:
        part.chmod(0o755)
        yield part
        if target.is_dir() and any(target.iterdir()):
            if _measure_all(target) != _measure_all(part):
                raise SettingsError(f"{target}: it has other files already; choose a new directory")
            return
        for path in (*part.rglob("*"), part):
            _sync(path)
        if target.exists():
            target.rmdir()
        part.rename(target)
        _sync(target.parent)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{target}: can't be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _measure_all(directory: Path) -> dict[str, FileEntry]:
    return {name: _measure(path) for name, path in list_files(directory).items()}


def _measure(path: Path) -> FileEntry:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(sha256=sha256, bytes=file.tell())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
