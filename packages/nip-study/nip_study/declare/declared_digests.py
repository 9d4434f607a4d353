"""What a declaration holds fast, in digests: settings, files that they name, and code.

settings_digests  by run and by attack of a sweep, of its settings
settings_digest   of the settings of one
file_digests      of the user's files that these settings name
analysis_digest   of the code that makes figures, intervals and tests
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.hashing import digest
from nip_core.parameters import HyperParameters
from nip_core.parameters.basis.plain import PlainMapping
from nip_core.session.user_files import digest_user_files, find_user_files
from nip_study.plan.swept_runs import Sweep

_PACKAGE = Path(__file__).parents[2]
_ANALYSIS = ("sweep", "evaluation", "attack_figures")
"""The rooms in which figures are made."""


def settings_digests(sweep: Sweep) -> dict[str, str]:
    """Digest the settings of each run, and of each attack on one, by name."""
    return {name: settings_digest(parameters.to_dict()) for name, parameters in _list_all(sweep)}


def _list_all(sweep: Sweep) -> Iterator[tuple[str, HyperParameters]]:
    """List runs, then attacks, with their settings."""
    yield from ((run.name, run.parameters) for run in sweep.runs)
    yield from ((a.name, a.parameters) for run in sweep.runs for a in run.attacks)


def settings_digest(settings: PlainMapping) -> str:
    """Digest a run's settings by SHA-256, but for the place of its files."""
    # Runs may be moved to another store, or be collected from a copy, and are the same runs.
    return digest({key: value for key, value in settings.items() if key != "run_store"})


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


def analysis_digest(package: Path = _PACKAGE) -> str:
    """Digest by SHA-256 the code behind figures, intervals and tests of what was played.

    `package` is the folder of nip_core.
    """
    # Whole rooms, although a comment or a page changes no figure: a departure too many misleads
    # nobody, and a list of files would miss the next one.
    files = [path for room in _ANALYSIS for path in (package / room).rglob("*.py")]
    return digest(
        {
            path.relative_to(package).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        }
    )
