"""What follows when a fine-tune job ends without a model: the settings decide, case by case.

next_step   what to do about a job that has ended: go on, keep the group's model, try again, stop
stopped     the error that stops the run, which says what to do
"""

from typing import Literal

from nip_core.errors import JobError
from nip_core.jobs.job import JobRecord
from nip_core.parameters import HyperParameters

Step = Literal["go_on", "keep_model", "try_again", "stop"]


def next_step(parameters: HyperParameters, record: JobRecord) -> Step:
    """What follows from a job on record as terminal.

    A job is tried again until it has had `fine_tuning.max_attempts`, those on record before it
    included; the next failure stops the run.
    """
    settings = parameters.fine_tuning
    wanted = {
        "succeeded": "go_on",
        "failed": settings.on_failed,
        "cancelled": settings.on_cancelled,
        "not_found": settings.on_not_found,
        "deadline": settings.on_deadline,
        "skipped": settings.on_too_few_examples,
        "refused": "stop",  # the same request would be refused again
    }[record.outcome or "failed"]
    if wanted == "try_again" and len(record.previous) + 1 >= settings.max_attempts:
        return "stop"
    steps: dict[str, Step] = {
        "go_on": "go_on",
        "keep_model": "keep_model",
        "try_again": "try_again",
    }
    return steps.get(wanted, "stop")


def stopped(record: JobRecord, path: str) -> JobError:
    """The error for a run that stops because of the job whose record is at `path`."""
    attempts = len(record.previous) + 1
    tried = "" if attempts == 1 else f", after {attempts} attempts"
    return JobError(
        f"job {record.id} of group {record.group}, iteration {record.iteration}: {record.outcome} "
        f"({record.reason}){tried}; its record is {path}. Mend the cause and run again with "
        "--retry-failed-jobs, or say with fine_tuning.on_... what is to follow"
    )
