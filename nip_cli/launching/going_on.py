"""The command that goes on with a run that was stopped."""

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nip_core.configurations import bundled_configs
from nip_core.errors import NipError
from nip_core.parameters import load_parameters
from nip_core.run_store.run import RunRecord
from nip_core.run_store.settings_difference import settings_difference

_MOST_FILES = 50  # configurations of the working directory that are looked at
_MOST_SETTINGS = 4  # laid over one, in a command that a user would have typed


def command_for(record: RunRecord, run_store: str, directory: Path) -> str | None:
    """``nip train CONFIG --set …`` with the settings of the run, to be run in `directory`.

    CONFIG is a YAML file there or a bundled configuration: the one from which the run differs
    least. None if it differs in much from all of them, or was begun by another command.
    """
    parameters = dict(record.parameters)
    if (parameters.get("attack") or {}).get("run") is not None:
        return None
    if runs := (parameters.get("opponents") or {}).get("runs"):
        # Facts found in other runs are not typed; they are on record.
        unfound = [{**entry, "found": None} for entry in runs]
        parameters["opponents"] = {**parameters["opponents"], "runs": unfound}
    files = [p.name for p in sorted(directory.iterdir()) if p.suffix in (".yaml", ".yml")]
    commands = (
        _command(config, parameters, run_store, directory)
        for config in (*(f"./{name}" for name in files[:_MOST_FILES]), *bundled_configs())
    )
    return min(filter(None, commands), key=lambda command: command.count("--set"), default=None)


def _command(
    config: str, parameters: Mapping[str, Any], run_store: str, directory: Path
) -> str | None:
    """The command with this configuration, if it amounts to the settings of the run."""
    place = str(directory / config) if config.startswith("./") else config
    try:
        file_parameters = load_parameters(place).to_dict()
        if _is_same_place(file_parameters["run_store"], run_store):
            parameters = {**parameters, "run_store": file_parameters["run_store"]}
        else:
            parameters = {**parameters, "run_store": run_store}
        differing = settings_difference(file_parameters, parameters)
        if len(differing) > _MOST_SETTINGS:
            return None
        changes = [f"{key}={_as_typed(value)}" for key, (_, value) in differing.items()]
        if settings_difference(load_parameters(place, changes).to_dict(), parameters):
            return None
    except (NipError, OSError):
        return None
    typed = ["nip", "train", config.removeprefix("./")]
    return shlex.join([*typed, *(word for change in changes for word in ("--set", change))])


def _is_same_place(a: str, b: str) -> bool:
    return a == b or ("://" not in a + b and os.path.realpath(a) == os.path.realpath(b))


def _as_typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
