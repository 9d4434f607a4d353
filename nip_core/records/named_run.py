"""The run that a user names, in the store that the user names."""

from collections.abc import Callable, Sequence

from nip_core.errors import CorruptionError, SettingsError
from nip_core.nearest import did_you_mean
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import Store, is_missing, open_store


def open_runs(run_store: str, setting: str = "--run-store") -> Store:
    """The store at this place, to be read. Raises SettingsError if there is none.

    `setting` is the option or setting that names the place, for errors.
    """
    if is_missing(run_store, setting):
        raise SettingsError(f"{setting} {run_store!r}: there is no such directory")
    return open_store(run_store, read_only=True, setting=setting)


def name_place(name: str, run_store: str) -> tuple[str, str]:
    """The store and the name of a run called `name` in `run_store`, or STORE/NAME.

    STORE is a directory or an address like ``s3://bucket/runs``.
    """
    place, slash, run = name.rstrip("/").rpartition("/")
    return (place or "/", run) if slash else (run_store, run)


def find_run(
    name: str | None,
    run_store: str,
    on_damaged: Callable[[str], None] = lambda reason: None,
    setting: str = "--run-store",
) -> RunStore:
    """The run of this name in the store, the one at STORE/NAME, or the newest, to be read.

    `on_damaged` is told of those that are passed over for the newest.

    Raises SettingsError, which lists the runs that there are, and CorruptionError if none of them
    can be read.
    """
    # Here, because it loads pyarrow, which callers that only name a place do without.
    from nip_core.records.status import find_newest_run

    place, run = (run_store, None) if name is None else name_place(name, run_store)
    store = open_runs(place, setting if place == run_store else f"run {name!r}:")
    names = list_runs(store)
    run = find_newest_run(store, on_damaged) if run is None else run
    if run is None:
        # Not the same to the user: runs that are there and damaged are not to look like none.
        if names:
            raise CorruptionError(f"{setting} {run_store!r}: none of its runs can be read")
        raise SettingsError(f"{setting} {run_store!r}: there are no runs in it")
    if run not in names:
        raise make_unknown_run_error(run, place, names)
    return RunStore(store, run)


def make_unknown_run_error(name: str, place: str, names: Sequence[str]) -> SettingsError:
    """Make the error for a name of no run in a store, with the nearest name there is."""
    listed = ", ".join(names) or "none"
    hint = did_you_mean(name, names)
    return SettingsError(f"run {name!r} is not in {place!r}; there are {listed}{hint}")
