"""The run that a command is told by its name."""

import difflib
import sys
from pathlib import Path

from nip_core.errors import CorruptionError, SettingsError
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import Store, open_store


def open_runs(run_store: str) -> Store:
    """The store at this place, to be read. Raises SettingsError if there is none."""
    if "://" not in run_store and not Path(run_store).is_dir():
        raise SettingsError(f"--run-store {run_store!r}: there is no such directory")
    return open_store(run_store, read_only=True)


def find_run(name: str | None, run_store: str) -> RunStore:
    """The run of this name, or the newest; damaged ones that are passed over go to standard error.

    Raises SettingsError, which lists the runs that there are, and CorruptionError if none of them
    can be read.
    """
    from nip_core.stages.showing import newest_run

    store = open_runs(run_store)

    def left_out(reason: str) -> None:
        print(f"nip: left out: {reason}", file=sys.stderr)

    known = list_runs(store)
    name = name or newest_run(store, left_out)
    if name is None:
        if known:
            raise CorruptionError(f"--run-store {run_store!r}: none of its runs can be read")
        raise SettingsError(f"--run-store {run_store!r}: there are no runs in it")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SettingsError(
            f"run {name!r} is not in {run_store!r}; there are {', '.join(known) or 'none'}{hint}"
        )
    return RunStore(store, name)
