"""Files that settings name by a path, and the folders in which they are looked for.

A path in a YAML file is looked for beside that file first, then in the working directory; one that
was typed (``--set``) the other way round. The file's path from the working directory stands in the
settings, so that a later reader need not know where the YAML lay. A run's record keeps that path;
it is read from elsewhere by the folder in which the run's store lies.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nip_core.attacks.base import CHATS
from nip_core.errors import SettingsError
from nip_core.models import BUNDLED, KNOWN, refuse_both
from nip_core.parameters.basis.plain import Plain, PlainDict, PlainMapping
from nip_core.scenarios import find_scenario

_IN_PYTHON = (
    ("scenario",),
    ("interaction_protocol",),
    ("protocol_common", "reward_function"),
    ("attack", "by"),
    ("attack", "script"),
    ("lm_server", "engine"),
)
"""Settings that name a class or function in a Python file, behind a colon."""
_DATA_ENDINGS = (".parquet", ".jsonl", ".jsonl.gz", ".train", ".dev", ".test")
_SELF_HOSTED = "SelfHosted"


@dataclass(frozen=True)
class Folder:
    """Where files are looked for."""

    path: str
    """As it is joined with a file's path; "" is the working directory."""
    name: str = "the working directory"


_HERE = Folder("")


@dataclass(frozen=True)
class _NamedFile:
    """A file that a setting names, or might name."""

    keys: tuple[str, ...]
    file: str
    name_in_file: str = ""
    """``:Class`` where one stands behind the path."""
    is_needed: bool = True
    """Whether it can be nothing but a path; other texts may name a data set or a model."""
    is_published: bool = False
    """Whether it is the name of a published model, and never a path."""

    @property
    def address(self) -> str:
        return ".".join(self.keys)


def find_beside(values: PlainMapping, file: str, typed: PlainMapping | None = None) -> PlainDict:
    """Give `values` with each path as it is found beside `file`, or in the working directory.

    `typed` has the values that were typed. Raises SettingsError for a path that is in
    neither folder.
    """
    own_folder = Folder(os.path.dirname(file), f"beside {os.path.basename(file)}")
    result = dict(values)
    for setting in _list_named(values):
        is_typed = bool(_text(typed, *setting.keys))
        folders = (_HERE, own_folder) if is_typed else (own_folder, _HERE)
        path = _find(setting, folders, values)
        if path is not None and setting.is_published:
            _refuse_both(setting, path)
            continue
        if path is None and setting.is_needed:
            place = "--set" if is_typed else file
            raise SettingsError(f"{place}: {_say_missing(setting, folders)}")
        if path is not None:
            result = _with(result, setting.keys, path)
    return result


def find_on_record(
    settings: PlainMapping, directory: str | None, place: Path | None
) -> PlainMapping:
    """Give a run's settings on record with paths that lead to its files from here.

    A path that is not in the working directory is looked for in the `directory` in which the run
    was begun, where that is on record, and by the `place` of the run by now (None in a bucket): a
    project may have moved. A path that is nowhere stays as it is.
    """
    moved = _find_moved(_text(settings, "run_store"), place)
    folders = [folder for folder in (moved, directory) if folder is not None]
    result = settings
    for setting in _list_named(settings) if folders else ():
        path = _find(setting, (_HERE, *map(Folder, folders)), settings)
        if path is not None and not setting.is_published:
            result = _with(result, setting.keys, path)
    return result


def find_in_sweep(setting: str, value: Plain, file: str) -> Plain:
    """Give a value of a sweep's file: a path as it is found beside it, else the value itself."""
    keys, values = setting.split("."), value
    for key in reversed(keys):
        values = {key: values}
    for named in _list_named(values if isinstance(values, dict) else {}):
        path = _find(named, (Folder(os.path.dirname(file)),), {}) if named.is_needed else None
        if path is not None:
            value = _with(value, named.keys[len(keys) :], path)
    return value


def _find_moved(run_store: str, place: Path | None) -> str | None:
    """Find the directory from which `run_store` leads to the run at `place`."""
    parts = Path(run_store).parts
    if place is None or "://" in run_store or os.path.isabs(run_store) or ".." in parts:
        return None
    store = place.resolve().parent
    folders = [store, *store.parents]
    is_there = store.parts[-len(parts) :] == parts and len(parts) < len(folders)
    return str(folders[len(parts)]) if parts and is_there else None


def _list_named(values: PlainMapping) -> Iterator[_NamedFile]:
    """List what names a relative path, or might; settings of a wrong form are refused later."""
    for place in _IN_PYTHON:
        yield from _list_in_python(values, place)
    chats = _text(values, "attack", "start_from")
    if chats.endswith(CHATS):
        yield from _relative(_NamedFile(("attack", "start_from"), chats))
    imitated = ("imitation", "chats")
    yield from _relative(_NamedFile(imitated, _text(values, *imitated)))
    dataset = _text(values, "dataset")
    is_data = dataset.endswith(_DATA_ENDINGS) or _is_written_as_path(dataset)
    yield from _relative(_NamedFile(("dataset",), dataset, is_needed=is_data))
    yield from _relative(
        _NamedFile(("lm_server", "replies"), _text(values, "lm_server", "replies"))
    )
    opponents = values.get("opponents")
    runs = opponents.get("runs") if isinstance(opponents, Mapping) else None
    for number in range(len(runs)) if isinstance(runs, list | tuple) else ():
        yield from _list_in_python(values, ("opponents", "runs", str(number), "script"))
    agents = values.get("agents")
    for name in agents if isinstance(agents, Mapping) else ():
        for setting in ("model_provider", "script"):
            yield from _list_in_python(values, ("agents", name, setting))
        template = ("agents", name, "system_prompt_template_path")
        yield from _relative(_NamedFile(template, _text(values, *template)))
        model = _text(values, "agents", name, "model_name")
        provider = _text(values, "agents", name, "model_provider") or _text(
            values, "agents", "_default", "model_provider"
        )
        if provider == _SELF_HOSTED and model not in BUNDLED:
            is_path = _is_written_as_path(model)
            keys = ("agents", name, "model_name")
            yield from _relative(
                _NamedFile(keys, model, is_needed=is_path, is_published=model in KNOWN)
            )


def _list_in_python(values: PlainMapping, place: tuple[str, ...]) -> Iterator[_NamedFile]:
    file, _, name = _text(values, *place).rpartition(":")
    if file.endswith(".py"):
        yield from _relative(_NamedFile(place, file, f":{name}"))


def _refuse_both(setting: _NamedFile, path: str) -> None:
    try:
        refuse_both(setting.file, path)
    except SettingsError as error:
        raise SettingsError(f"{setting.address}: {error}") from None


def _relative(setting: _NamedFile) -> Iterator[_NamedFile]:
    """Pass on a relative path."""
    if setting.file and not setting.file.startswith(("/", "~")):
        yield setting


def _is_written_as_path(text: str) -> bool:
    """Tell a path from a name on the Hugging Face Hub, which is NAME or OWNER/NAME."""
    return text.startswith(".") or text.count("/") > 1


def _text(values: Any, *keys: str) -> str:
    for key in keys:
        if isinstance(values, list | tuple):
            values = values[int(key)] if int(key) < len(values) else None
        else:
            values = values.get(key) if isinstance(values, Mapping) else None
    return values if isinstance(values, str) else ""


def _find(setting: _NamedFile, folders: Sequence[Folder], values: PlainMapping) -> str | None:
    """Return the setting with the path of the first folder that has the file; None if none has."""
    for folder in folders:
        path = os.path.join(folder.path, setting.file)
        if os.path.lexists(path):
            if _is_own(setting, values):
                return None
            # As it is written where it leads to the same file: equal settings stay equal.
            written_path = setting.file if _is_same(path, setting.file) else path
            return f"{written_path}{setting.name_in_file}"
    return None


def _is_same(path: str, second: str) -> bool:
    try:
        return os.path.samefile(path, second)
    except OSError:
        return path == second


def _is_own(setting: _NamedFile, values: PlainMapping) -> bool:
    """Tell whether a word is the name of data that come with the scenario."""
    if setting.keys != ("dataset",) or setting.is_needed:
        return False
    try:
        kind = find_scenario(_text(values, "scenario") or "code_validation")
    except ValueError:  # is said with all else that is wrong
        return False
    return setting.file in kind.bundled or setting.file in kind.generated


def _say_missing(setting: _NamedFile, folders: Sequence[Folder]) -> str:
    places: dict[str, str] = {}
    for folder in folders:
        place = os.path.abspath(os.path.join(folder.path, setting.file))
        places[place] = f"{places[place]} and {folder.name}" if place in places else folder.name
    looked = ", then for ".join(f"{place!r} ({name})" for place, name in places.items())
    return (
        f"{setting.address}: there is no {setting.file!r:.200}; looked for {looked}; name a file "
        "that is there"
    )


def _with(values: Any, keys: Sequence[str], value: str) -> Any:
    """Give `values` with another value at an address that is there."""
    if not keys:
        return value
    if isinstance(values, list | tuple):
        return [_with(v, keys[1:], value) if str(i) == keys[0] else v for i, v in enumerate(values)]
    return {**values, keys[0]: _with(values[keys[0]], keys[1:], value)}
