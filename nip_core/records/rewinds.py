"""Doing part of a run again: all results after a point are set aside, never deleted.

`nip_core.upkeep.rerun` asks for it in an open run. It stands here, below the session, because every
opening completes a rewind that was killed half-way (`nip_core.session.opening`).

STAGES                       the stages from which an iteration can be done again, in order
rewind                       set aside all that was committed from a stage of an iteration on
find_stage_of_split          which of them plays a split
is_rewound                   whether that was asked for before
list_unfinished_rewinds      those that were killed half-way
finish_rewinds               complete them
number_next_attempt          the number of a group's next job, after those that were set aside
list_open_jobs, cancel_jobs  jobs that have not ended; ask back-ends to stop them

``<run>/superseded/0001/`` keeps the files of the first rewind under their old paths, beside a
plan.json that names them. The plan is written first and is the moment at which the rewind counts:
the next opening of the run completes it before reading anything else. Results are committed once
and for all, so this is the only way to have others under the same name; a job that is submitted
again is a new attempt, and so a new job with a model of its own.
"""

import logging
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from nip_base.wire import ENDED_STATUSES
from nip_core.errors import CorruptionError, JobError, RunConflictError, SettingsError
from nip_core.jobs.document import read_job
from nip_core.jobs.job import Backend, Busy, JobRecord, NoAnswer, Refused
from nip_core.parameters import HyperParameters
from nip_core.run_store.lease import Lease
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError, list_files

if TYPE_CHECKING:
    from nip_core.rollouts.client.completions import Endpoint

Stage = Literal["test", "play", "dataset", "train", "swap"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""In the order of an iteration: stages of `nip_core.progress.board` with their own results. "swap"
includes the gate, "test" the attack."""
FORMAT_VERSION = 1  # of plans; written and never compared, since there has been one alone
_STAGE_OF_SPLIT: dict[str, Stage] = {"test": "test", "attack": "test", "train": "play"}
_log = logging.getLogger(__name__)


def rewind(
    run: RunStore,
    lease: Lease,
    iteration: int,
    stage: Stage,
    *,
    token: str,
) -> str | None:
    """Set aside the results of iteration `iteration` from `stage` on, and all later iterations.

    `token` names who asked: asked twice by the same one (a retried flow run), the second time does
    nothing, also where the first found nothing to set aside. Returns the directory in the store,
    or None the second time.

    Raises SettingsError for a stage that is not known or an iteration that nothing is on record of.
    """
    if stage not in STAGES:
        raise SettingsError(f"stage {stage!r}: use one of {', '.join(STAGES)}")
    # Or a flow run that is tried again would set aside the work of its first try.
    if is_rewound(run, token):
        return None
    numbers = _rewinds(run)
    # Nothing would be set aside, so the number is a slip.
    if iteration > 0 and not run.store.list(run.iteration(iteration - 1)):
        raise SettingsError(
            f"run {run.name!r} can't be done again from iteration {iteration}: there is nothing of "
            f"iteration {iteration - 1} yet"
        )
    # 1. The plan names every file: from its writing on the rewind counts.
    files = list_paths_from(run, iteration, stage)
    number = max(numbers, default=0) + 1
    plan = {
        "format_version": FORMAT_VERSION,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "token": token,
        "iteration": iteration,
        "stage": stage,
        "files": files,
    }
    plan_on_record = run.write_json_once(f"{_directory(run, number)}/plan.json", plan, lease=lease)
    # 2. File by file, copied before it is deleted, so that it can be done again.
    _complete(run, lease, number, plan_on_record)
    _log.info("%s: set aside %d files in %s", run.name, len(files), _directory(run, number))
    return _directory(run, number)


def is_rewound(run: RunStore, token: str) -> bool:
    """Return whether `rewind` was asked for by `token` before."""
    return any(_plan(run, number)["token"] == token for number in _rewinds(run))


def list_unfinished_rewinds(run: RunStore) -> list[str]:
    """List the directories of rewinds killed half-way."""
    directories = (_directory(run, number) for number in _rewinds(run))
    return [path for path in directories if not run.store.exists(f"{path}/done.json")]


def finish_rewinds(run: RunStore, lease: Lease) -> None:
    """Complete every unfinished rewind. Call it with the lease, before reading the run."""
    for path in list_unfinished_rewinds(run):
        number = int(path.rpartition("/")[2])
        _complete(run, lease, number, _plan(run, number))


def number_next_attempt(run: RunStore, iteration: int, group: str) -> int:
    """Return the number of the group's next job in this iteration.

    The number is 0 if no rewind has set a job of the group aside. Otherwise it is one more than the
    highest number among those jobs. The job's key follows from the number, and a back-end that gets
    the key of an earlier job returns that earlier job.
    """
    relative = run.job(iteration, group).removeprefix(f"{run.root}/")
    attempts = [-1]
    for number in _rewinds(run):
        record = read_job(run, f"{_directory(run, number)}/{relative}")
        if record is not None:
            attempts.append(record.attempt)
    return max(attempts) + 1


def list_paths_from(run: RunStore, iteration: int, stage: Stage) -> list[str]:
    """List the files that `rewind` would set aside, journals included, relative to the run's
    root.
    """
    paths = []
    # With the journals, or episodes played again would be taken from them.
    for top in ("iterations", "journals"):
        for path in list_files(run.store, f"{run.root}/{top}"):
            relative = path.removeprefix(f"{run.root}/")
            _, number, inner = relative.split("/", 2)
            file_stage = find_stage(inner, is_journal=top == "journals")
            later = int(number) > iteration
            if later or (
                int(number) == iteration and STAGES.index(file_stage) >= STAGES.index(stage)
            ):
                paths.append(relative)
    return paths


def find_stage_of_split(split: str) -> Stage:
    """Name the stage of a split: the gate's splits are played for the swap."""
    return _STAGE_OF_SPLIT.get(split, "swap")


def find_stage(path: str, *, is_journal: bool = False) -> Stage:
    """Name the stage of a file of an iteration."""
    first, _, inner = path.partition("/")
    if is_journal:
        return find_stage_of_split(first)
    if first == "rollouts":
        return find_stage_of_split(inner.partition("/")[0])
    if first == "datasets":
        return "dataset"
    if first == "jobs":
        return "train"
    kind, _, split = first.partition(".")[0].partition("-")
    if kind == "course":  # which follows from the tests
        return "test"
    return find_stage_of_split(split) if kind in ("metrics", "intervals", "transcripts") else "swap"


def _complete(run: RunStore, lease: Lease, number: int, plan: dict[str, Any]) -> None:
    directory = _directory(run, number)
    for relative in plan["files"]:
        source = f"{run.root}/{relative}"
        try:
            content = run.store.local_path(source) or run.store.get(source)
            # A path on the disk is given for a missing file as well.
            if run.store.exists(source):
                run.store.put(f"{directory}/{relative}", content, fence=lease.fence)
        except MissingFileError:
            continue  # moved before the process was killed
        # A runner that was replaced must not delete a file of its successor under this name.
        lease.check()
        run.store.delete(source, fence=lease.fence)
    # Last: without it, the next opening does all this again, which is safe.
    run.write_json_once(f"{directory}/done.json", {"files": len(plan["files"])}, lease=lease)


def _rewinds(run: RunStore) -> list[int]:
    """Numbers of those with a plan. A kill just before it was written leaves a directory alone."""
    names = (name.rstrip("/") for name in run.store.list(f"{run.root}/superseded"))
    numbers = sorted(int(name) for name in names if name.isdigit())
    return [n for n in numbers if run.store.exists(f"{_directory(run, n)}/plan.json")]


def _directory(run: RunStore, number: int) -> str:
    return f"{run.root}/superseded/{number:04d}"


def _plan(run: RunStore, number: int) -> dict[str, Any]:
    path = f"{_directory(run, number)}/plan.json"
    plan = run.read_json(path)
    # By a part of a plan only some files would be moved, and the run would be a mixture.
    if not isinstance(plan, dict) or not {"token", "files", "iteration", "stage"} <= set(plan):
        raise CorruptionError(f"{path}: damaged, not the plan of a rewind")
    return plan


def list_open_jobs(run: RunStore, among: Collection[str] | None = None) -> list[JobRecord]:
    """List the jobs on record without an end, once they were asked for.

    `among`: paths of files relative to the run's root; only the jobs in these. None: all.
    """
    jobs = []
    for path in list_files(run.store, f"{run.root}/iterations"):
        relative = path.removeprefix(f"{run.root}/")
        is_job = relative.split("/")[2] == "jobs"
        if is_job and (among is None or relative in among):
            record = read_job(run, path)
            if record is not None and record.state != "terminal":
                jobs.append(record)
    return jobs


async def cancel_jobs(
    run: RunStore,
    parameters: HyperParameters,
    control: "Mapping[str, Endpoint]",
    among: Collection[str] | None = None,
) -> list[str]:
    """Ask for every submitted job of the run to be stopped; returns their ids.

    `control` has by group the address where its jobs are; other jobs are left alone. `among`:
    see `list_open_jobs`. How a job ended is learned, and recorded, by the next one who polls it.
    Raises JobError, when all were asked, if a back-end refused (unless the job has ended), or did
    not answer for long; or if it is not known whether there is a job.
    """
    from nip_core.jobs.ledger import open_ledger  # with the client of a server

    # All are asked, also after a failure: no process may look after them later.
    cancelled, troubles = [], []
    for record in list_open_jobs(run, among):
        endpoint = control.get(record.group)
        # A job that may be there has no id yet by which it could be cancelled.
        if record.id is None and record.creates_open:
            troubles.append(f"{run.job(record.iteration, record.group)}: perhaps submitted")
        # Nothing to be stopped, or not at this address.
        if record.id is None or endpoint is None:
            continue
        provider = parameters.group_parameters(record.group).provider
        settle_s = parameters.fine_tuning.settle_s
        opened = open_ledger(run, provider, endpoint, settle_s=settle_s)
        async with opened as (ledger, backend):
            try:
                await ledger.cancel(record)
            except JobError as error:
                # Told at the end, so that the others are asked as well.
                if not await _has_ended(backend, record.id):
                    troubles.append(str(error))
                continue
        cancelled.append(record.id)
    if troubles:
        raise JobError(f"not every job was cancelled: {'; '.join(troubles)}")
    return cancelled


async def _has_ended(backend: Backend, job_id: str) -> bool:
    try:
        # A refused cancelling is no trouble if the job was over.
        return (await backend.retrieve_job(job_id)).status in ENDED_STATUSES
    except (Refused, Busy, NoAnswer):
        return False  # not known, so the refusal is told


def check_submissions_known(run: RunStore, among: Collection[str]) -> None:
    """Raise RunConflictError for a job that may have been submitted or not. It could get lost."""
    for record in list_open_jobs(run, among):
        if record.id is None and record.creates_open:
            raise RunConflictError(
                f"{run.job(record.iteration, record.group)}: its submission was cut short, and it "
                "is not known whether there is a job; run once without going back, then try again"
            )
