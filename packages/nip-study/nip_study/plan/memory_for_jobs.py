"""Whether so many runs at a time fit into the memory that a sweep may have.

The memory of a run depends on its model. Checked is the least that any takes, so that a number of
jobs which can't be is told before anything is started; one that passes may still be too large.
"""

from collections.abc import Iterable

from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.hosting import has_own_model

_RUN_BYTES = 150 * 10**6
"""The process of a run, when it has imported its modules: 156 MB on Linux with Python 3.11."""
_ENGINE_BYTES = 240 * 10**6
"""An engine of its own beside it, before it has a model: 242 MB there."""


def check_memory(jobs: int, runs: Iterable[HyperParameters], allowed: int) -> None:
    """Raise SettingsError if `jobs` of the runs at a time take more than the `allowed` bytes."""
    least_bytes = (_RUN_BYTES + (_ENGINE_BYTES if has_own_model(run) else 0) for run in runs)
    needs = sorted(least_bytes, reverse=True)[:jobs]
    if len(needs) < 2 or sum(needs) <= allowed:
        return
    fitting = 1
    while sum(needs[: fitting + 1]) <= allowed:
        fitting += 1
    raise SettingsError(
        f"--jobs {jobs}: {len(needs)} runs at a time take at least {sum(needs) / 1e9:.1f} GB of "
        f"memory before any model is loaded, and {allowed / 1e9:.1f} GB are here (nip doctor says "
        f"by which limit): give --jobs {fitting}, or --task-runner for other machines"
    )
