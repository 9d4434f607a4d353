"""Doing part of an open run again."""

import asyncio

from nip_core.errors import SettingsError
from nip_core.records.rewinds import (
    Stage,
    cancel_jobs,
    check_submissions_known,
    is_rewound,
    list_paths_from,
    rewind,
)
from nip_core.records.status import find_last
from nip_core.session.session import Session


async def rerun(session: Session, iteration: int, stage: Stage, *, token: str) -> None:
    """Set aside the results of an open run from a stage of an iteration on; `token` as in `rewind`.

    Raises SettingsError for a point that the run does not have, and as `check_submissions_known`
    and `cancel_jobs` do.
    """
    run, last = session.run, find_last(session.records, session.parameters)
    if is_rewound(run, token):
        return  # jobs that are open now were submitted since
    if iteration > last or (iteration == last and stage != "test"):
        raise SettingsError(
            f"run {run.name!r} can't be done again from {iteration}:{stage}: of {last} iterations "
            f"the last is {last - 1}, and the last test {last}:test"
        )
    # 1. No job may go on unseen: who asked for it is about to be set aside.
    set_aside = list_paths_from(run, iteration, stage)
    check_submissions_known(run, set_aside)
    control = {group: session.at(group).control for group in session.parameters.groups}
    await cancel_jobs(run, session.parameters, control, set_aside)
    # 2. Only then is anything moved.
    await asyncio.to_thread(rewind, run, session.lease, iteration, stage, token=token)
    # The results set aside were paid for, and are counted in another place from now on.
    session.budget.look()
