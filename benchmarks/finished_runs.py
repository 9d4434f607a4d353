"""Runs of a benchmark that goes on where it stopped: what is finished is not played again."""

from typing import Any

from nip_core import loop
from nip_core.parameters import HyperParameters
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import open_store
from nip_core.session.prepare import prepare
from nip_core.showing.summary import summarise_run


async def play_once(parameters: HyperParameters) -> dict[str, Any]:
    """Return the summary of a run, which is played unless it is finished.

    Raises RunConflictError where a run of this name has other settings.
    """
    store = open_store(parameters.run_store)
    if parameters.run_name in list_runs(store):
        known = summarise_run(RunStore(store, parameters.run_name))
        if known["status"] == "finished":
            prepare(parameters)
            return known
    return dict(await loop.train(parameters))
