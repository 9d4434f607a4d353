"""The run that somebody names, in the store that they name."""

import difflib
from collections.abc import Callable
from pathlib import Path

from nip_core.errors import CorruptionError, SettingsError
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import Store, open_store


def open_runs(run_store: str, setting: str = "--run-store") -> Store:
    """The store at this place, to be read. Raises SettingsError if there is none.

    `setting` is what names the place, for errors.
    """
    if "://" not in run_store and not Path(run_store).is_dir():
        raise SettingsError(f"{setting} {run_store!r}: there is no such directory")
    return open_store(run_store, read_only=True)


def find_run(
    name: str | None,
    run_store: str,
    on_damaged: Callable[[str], None],
    setting: str = "--run-store",
) -> RunStore:
    """The run of this name, or the newest; `on_damaged` is told of those that are passed over.

    Raises SettingsError, which lists the runs that there are, and CorruptionError if none of them
    can be read.
    """
    from nip_core.stages.showing import newest_run

    store = open_runs(run_store, setting)
    known = list_runs(store)
    name = name or newest_run(store, on_damaged)
    if name is None:
        if known:
            raise CorruptionError(f"{setting} {run_store!r}: none of its runs can be read")
        raise SettingsError(f"{setting} {run_store!r}: there are no runs in it")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SettingsError(
            f"run {name!r} is not in {run_store!r}; there are {', '.join(known) or 'none'}{hint}"
        )
    return RunStore(store, name)
