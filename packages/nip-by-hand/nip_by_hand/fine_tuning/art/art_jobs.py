"""The jobs of the ART trainer adapter on record, so that any process can answer for them.

AdapterJob    one submission under a run id: its training, and how it ended
AdapterJobs   reads and writes them: ``<state directory>/art-jobs/<run id>/0002.json``
make_status   the status of one, as NeMo's interface says it
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from nip_by_hand.fine_tuning.art.art_steps import Documents
from nip_by_hand.fine_tuning.interface import (
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
)
from nip_by_hand.fine_tuning.submissions import run_name
from nip_core.jobs.job import JobView
from nip_core.jobs.steps import read_progress
from nip_core.run_store.lease import Owner, ThisMachine

State = Literal["running", "completed", "failed", "canceled"]
NOTHING_TRAINED = (
    "Nothing was trained: in every group all rewards are equal, or no message is one to train."
)
_MESSAGES = {
    TrainingStatusEnum.PENDING: "Training has not begun.",
    TrainingStatusEnum.RUNNING: "Training is in progress.",
    TrainingStatusEnum.COMPLETED: "Training completed successfully.",
    TrainingStatusEnum.CANCELED: "Training was cancelled.",
}


class AdapterJob(BaseModel):
    """One submission. Only its state, and its job's name, ever change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1] = 1
    run_id: str
    number: int
    project: str
    name: str
    digest: str  # of the submitted data
    owner: dict[str, Any]  # the process that submitted it
    created_at: float  # seconds since the epoch
    step: int | None = None  # of the model, where the back-end is lm_server
    submission: int | None = None  # of the step; None: it had nothing to train
    job_id: str | None = None
    state: State = "running"
    message: str | None = None
    metrics: dict[str, float] = {}
    model: str | None = None

    def owner_is_gone(self) -> bool:
        """Tell whether the submitting process ran on this machine and has ended."""
        return ThisMachine().is_gone(Owner.read(self.owner))

    def owner_is_me(self) -> bool:
        """True if this process submitted it."""
        me = ThisMachine().owner()
        submitter = Owner.read(self.owner)
        return (submitter.machine, submitter.pid) == (me.machine, me.pid) and (
            submitter.process in ("", me.process)
        )


class AdapterJobs:
    """The jobs in a state directory."""

    def __init__(self, directory: str) -> None:
        """Open the directory. Raises StoreError if it can't be used."""
        self._documents = Documents(directory, AdapterJob, "a job")

    def newest(self, run_id: str) -> AdapterJob | None:
        """The last submission under a run id."""
        names = self._documents.store.list(_directory(run_id))
        numbers = [int(name.removesuffix(".json")) for name in names]
        return self.load(run_id, max(numbers)) if numbers else None

    def load(self, run_id: str, number: int) -> AdapterJob | None:
        """One submission, or None."""
        loaded = self._documents.load(_path(run_id, number))
        return None if loaded is None else loaded[0]

    def has(self, project: str, name: str, step: int, submission: int | None) -> bool:
        """True if one of the jobs is this submission of a model's step."""
        store, place = self._documents.store, (project, name, step, submission)
        runs = [f"art-jobs/{run.rstrip('/')}" for run in store.list("art-jobs")]
        loaded = (self._documents.load(f"{run}/{file}") for run in runs for file in store.list(run))
        jobs = (job for job, _ in filter(None, loaded))
        return any((job.project, job.name, job.step, job.submission) == place for job in jobs)

    def add(self, job: AdapterJob) -> bool:
        """Write a new submission; False if there is one of its number."""
        return self._documents.put(_path(job.run_id, job.number), job)

    def update(self, job: AdapterJob, **changes: Any) -> AdapterJob:
        """Write changes, unless the job has ended by now; the job as it stands."""
        path = _path(job.run_id, job.number)
        while True:
            loaded = self._documents.load(path)
            assert loaded is not None  # documents are never deleted
            record, etag = loaded
            if record.state != "running":
                return record
            changed_record = record.model_copy(update=changes)
            if self._documents.put(path, changed_record, etag):
                return changed_record


def make_status(
    ref: TrainingJobRef, job: AdapterJob, view: JobView | None, trouble: str
) -> TrainingJobStatus:
    """The status of a job; `view`: its server's answer, `trouble`: why there is none."""
    status = TrainingStatusEnum(job.state)
    if view is not None and view.status in ("validating_files", "queued"):
        status = TrainingStatusEnum.PENDING
    progress = 100.0 if status is TrainingStatusEnum.COMPLETED else None
    if view is not None and (steps := read_progress(view)) is not None:
        progress = min(100.0, 100.0 * steps.step / steps.total)
    message = job.message or _MESSAGES[status]
    return TrainingJobStatus(
        run_id=ref.run_id,
        backend=ref.backend,
        status=status,
        progress=progress,
        message=f"{message} {trouble}".strip(),
        metadata={
            "submission": job.number,
            "step": job.step,
            "model": job.model,
            "metrics": job.metrics,
            "job_id": job.job_id,
        },
    )


def _directory(run_id: str) -> str:
    return f"art-jobs/{run_name(run_id)}"


def _path(run_id: str, number: int) -> str:
    return f"{_directory(run_id)}/{number:04d}.json"
