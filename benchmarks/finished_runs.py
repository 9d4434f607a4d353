"""Runs of a benchmark that goes on where it stopped: what is finished is not played again."""

from typing import Any

from nip_core import loop
from nip_core.parameters import HyperParameters
from nip_core.session.prepare import prepare
from nip_core.showing.finished import find_finished_run


async def play_once(parameters: HyperParameters) -> dict[str, Any]:
    """Return the summary of a run, which is played unless all of it is there.

    Raises RunConflictError where a run of this name has settings that make other data.
    """
    known = find_finished_run(prepare(parameters))
    return dict(await loop.train(parameters)) if known is None else known
