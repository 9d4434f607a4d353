"""Asking back-ends to stop the jobs of a run that is not to go on."""

from collections.abc import Callable
from contextlib import aclosing

from nip_core.agents.chat_client import Endpoint
from nip_core.errors import RunConflictError
from nip_core.fine_tuning.job import JobRecord
from nip_core.fine_tuning.ledger import Ledger
from nip_core.parameters import HyperParameters
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import walk
from nip_core.stages.providers import speaks_nip


def open_jobs(run: RunStore, from_iteration: int = 0) -> list[JobRecord]:
    """Jobs on record that have been asked for and have not ended, from an iteration on."""
    found = []
    for path in walk(run.store, f"{run.root}/iterations"):
        number, folder = path.removeprefix(f"{run.root}/iterations/").split("/")[:2]
        if folder == "jobs" and int(number) >= from_iteration:
            record = JobRecord.model_validate(run.read_json(path))
            if record.state != "terminal":
                found.append(record)
    return found


async def cancel_jobs(
    run: RunStore,
    parameters: HyperParameters,
    control: Callable[[str], Endpoint | None],
    from_iteration: int = 0,
) -> list[str]:
    """Ask for every submitted job of the run to be stopped; returns their ids.

    `control` gives the address where a group's jobs are, None where that can't be reached: they
    are left alone then. How a job ended is learned, and recorded, by the next one who polls it.
    Raises JobError if a back-end refuses, or does not answer for long.
    """
    # Imported here: the client costs most of a second.
    from nip_core.fine_tuning.openai_backend import OpenAIBackend

    cancelled = []
    for record in open_jobs(run, from_iteration):
        at = control(record.group)
        if record.id is None or at is None:
            continue
        hosted = speaks_nip(parameters.group_parameters(record.group))
        async with aclosing(OpenAIBackend(at.base_url, at.api_key, extensions=hosted)) as backend:
            await Ledger(run, backend, settle_s=parameters.fine_tuning.settle_s).cancel(record)
        cancelled.append(record.id)
    return cancelled


def check_submissions_known(run: RunStore, from_iteration: int) -> None:
    """Raise RunConflictError if it is open whether a job was submitted, which could get lost."""
    for record in open_jobs(run, from_iteration):
        if record.id is None and record.creates_open:
            raise RunConflictError(
                f"{run.job(record.iteration, record.group)}: its submission was cut short, and it "
                "is not known whether there is a job; run once without going back, then try again"
            )
