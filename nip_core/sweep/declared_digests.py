"""What a declaration holds fast, in digests: settings of runs, and the code of the analysis.

settings_digests  by run and by attack of a sweep, of its settings
settings_digest   of the settings of one
analysis_digest   of the code that makes figures, intervals and tests
"""

import hashlib
from pathlib import Path

from nip_core.hashing import digest
from nip_core.parameters.plain import PlainMapping
from nip_core.sweep.swept_runs import Sweep

_PACKAGE = Path(__file__).parents[1]
_ANALYSIS = ("sweep", "evaluation")
"""The rooms in which figures are made."""


def settings_digests(sweep: Sweep) -> dict[str, str]:
    """Digest the settings of each run, and of each attack on one, by name."""
    played = {run.name: run.parameters for run in sweep.runs}
    played |= {attack.name: attack.parameters for run in sweep.runs for attack in run.attacks}
    return {name: settings_digest(parameters.to_dict()) for name, parameters in played.items()}


def settings_digest(settings: PlainMapping) -> str:
    """Digest a run's settings by SHA-256, but for the place of its files."""
    # Runs may be moved to another store, or be collected from a copy, and are the same runs.
    return digest({key: value for key, value in settings.items() if key != "run_store"})


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
