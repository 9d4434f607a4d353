"""The digests in a declaration: of settings, files that they name, and code."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nip_core
from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.hashing import digest
from nip_core.parameters import HyperParameters
from nip_core.parameters.basis.plain import PlainMapping
from nip_core.session.user_files import digest_user_files, find_user_files
from nip_study.plan.swept_runs import Sweep

_STUDY = Path(__file__).parents[1]
_CORE = Path(nip_core.__file__).parent
_PRINTED = "commands"
"""The room that reads command lines and prints; no figure is made there."""


def settings_digests(sweep: Sweep) -> dict[str, str]:
    """Digest the settings of each run, and of each attack on one, by name."""
    return {name: settings_digest(parameters.to_dict()) for name, parameters in _list_all(sweep)}


def _list_all(sweep: Sweep) -> Iterator[tuple[str, HyperParameters]]:
    """List runs, then attacks, with their settings."""
    yield from ((run.name, run.parameters) for run in sweep.runs)
    yield from ((a.name, a.parameters) for run in sweep.runs for a in run.attacks)


def settings_digest(settings: PlainMapping) -> str:
    """Digest a run's settings by SHA-256, but for the place of its files, and what nip fills in."""
    # Runs may be moved to another store, or be collected from a copy, and are the same runs.
    values: dict[str, Any] = {key: value for key, value in settings.items() if key != "run_store"}
    opponents = values.get("opponents") or {}
    # The findings of opponents are on record alone: no plan has them.
    if runs := [{**entry, "found": None} for entry in opponents.get("runs") or ()]:
        values["opponents"] = {**opponents, "runs": runs}
    return digest(values)


def file_digests(sweep: Sweep) -> dict[str, str]:
    """Digest by SHA-256 the user's files that the settings of runs and attacks name, by name.

    Raises SettingsError, which begins with a run's name, for a file that can't be used.
    """
    files: dict[str, Path] = {}
    for name, parameters in _list_all(sweep):
        try:
            files |= find_user_files(Game(parameters))
        except (ValueError, OSError) as error:
            raise SettingsError(f"{name}: {error}") from None
    return digest_user_files(files)


def analysis_digest(study: Path = _STUDY, core: Path = _CORE) -> str:
    """Digest by SHA-256 the code behind figures, intervals and tests of rollouts.

    `study` and `core` are the folders of nip_study and of nip_core.
    """
    # Whole rooms, although a comment or a page changes no figure: a departure too many misleads
    # no reader, and a list of files would miss the next one.
    files = {
        f"study/{path.relative_to(study).as_posix()}": path
        for path in study.rglob("*.py")
        if path.relative_to(study).parts[0] != _PRINTED
    }
    files |= {
        path.relative_to(core).as_posix(): path
        for room in ("evaluation", "attack_figures")
        for path in (core / room).rglob("*.py")
    }
    return digest(
        {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    )
