"""Asking back-ends to stop the jobs of a run that is not to go on."""

from collections.abc import Callable, Collection

from nip_core.errors import JobError, RunConflictError
from nip_core.jobs.document import read_job
from nip_core.jobs.job import Backend, Busy, JobRecord, NoAnswer, Refused
from nip_core.jobs.ledger import open_ledger
from nip_core.parameters import HyperParameters
from nip_core.rollouts.chat_client import Endpoint
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import walk
from nip_core.stages.providers import speaks_nip
from nip_lm_server.client import ENDED_STATUSES


def open_jobs(run: RunStore, among: Collection[str] | None = None) -> list[JobRecord]:
    """Jobs on record that have been asked for and have not ended.

    `among`: paths of files relative to the run's root; only the jobs in these. None: all.
    """
    found = []
    for path in walk(run.store, f"{run.root}/iterations"):
        relative = path.removeprefix(f"{run.root}/")
        is_job = relative.split("/")[2] == "jobs"
        if is_job and (among is None or relative in among):
            record = read_job(run, path)
            if record is not None and record.state != "terminal":
                found.append(record)
    return found


async def cancel_jobs(
    run: RunStore,
    parameters: HyperParameters,
    control: Callable[[str], Endpoint | None],
    among: Collection[str] | None = None,
) -> list[str]:
    """Ask for every submitted job of the run to be stopped; returns their ids.

    `control` gives the address where a group's jobs are, None where that can't be reached: they
    are left alone then. `among`: see `open_jobs`. How a job ended is learned, and recorded, by the
    next one who polls it. Raises JobError, when all were asked, if a back-end refused (unless the
    job has ended), or did not answer for long; or if it is not known whether there is a job.
    """
    cancelled, troubles = [], []
    for record in open_jobs(run, among):
        at = control(record.group)
        if record.id is None and record.creates_open:
            troubles.append(f"{run.job(record.iteration, record.group)}: perhaps submitted")
        if record.id is None or at is None:
            continue
        hosted = speaks_nip(parameters.group_parameters(record.group))
        settle_s = parameters.fine_tuning.settle_s
        opened = open_ledger(run, at, extensions=hosted, settle_s=settle_s)
        async with opened as (ledger, backend):
            try:
                await ledger.cancel(record)
            except JobError as error:
                if not await _has_ended(backend, record.id):
                    troubles.append(str(error))
                continue
        cancelled.append(record.id)
    if troubles:
        raise JobError(f"not every job was cancelled: {'; '.join(troubles)}")
    return cancelled


async def _has_ended(backend: Backend, job_id: str) -> bool:
    try:
        return (await backend.retrieve_job(job_id)).status in ENDED_STATUSES
    except (Refused, Busy, NoAnswer):
        return False


def check_submissions_known(run: RunStore, among: Collection[str]) -> None:
    """Raise RunConflictError if it is open whether a job was submitted, which could get lost."""
    for record in open_jobs(run, among):
        if record.id is None and record.creates_open:
            raise RunConflictError(
                f"{run.job(record.iteration, record.group)}: its submission was cut short, and it "
                "is not known whether there is a job; run once without going back, then try again"
            )
