"""The steps of an ART model on record, so that they outlive the process.

ModelRecord   project, name, base model, and the results of each step
Step          the model of one step, and the submission that it came of
StepRecords   reads and writes them: ``<state directory>/art-models/<project-name-...>.json``
Documents     files of one kind in a state directory, for these records and those of jobs
StepJob       a step between the two halves of its training
JobFailed     the job of a step ended without a model
make_step     the step that a job made
job_metrics   the figures of a job, under ART's names

Step 0 is the base model. A step without a submission trained nothing and has the model before it.
"""

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from nip_by_hand.fine_tuning.submissions import run_name
from nip_core.errors import CorruptionError, JobError, SettingsError
from nip_core.jobs.job import JobRecord
from nip_core.run_store.store import MissingFileError, open_store

_STEPS = "data/step_num_gradient_steps"  # as `art.metrics_taxonomy` has it
_RENAMED = {
    "train_loss": "loss/train",
    "learning_rate": "loss/learning_rate",
    "grad_norm": "loss/grad_norm",
    "kl": "loss/kl_policy_ref",
    "policy/ratio": "loss/policy_ratio",
    "policy/clipped": "loss/policy_clipped",
}
"""The server's names of its figures, and ART's."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Step(_Record):
    """A step and the model that it made."""

    model: str  # as the server names it
    digest: str | None = None  # of the data it was trained on
    submission: int | None = None
    returned: bool = True
    """False as long as no call of `train` has returned it: its program was killed meanwhile."""


class ModelRecord(_Record):
    """A model of ART. `steps` begins with step 0."""

    format_version: Literal[1] = 1
    project: str
    name: str
    base_model: str
    steps: tuple[Step, ...]

    @property
    def step(self) -> int:
        """The number of the newest step."""
        return len(self.steps) - 1

    @property
    def served(self) -> str:
        """The model of the newest step, as the server names it."""
        return self.steps[-1].model

    def run_id(self, step: int) -> str:
        """Name the run of a step's jobs."""
        return f"{self.project}/{self.name}@{step}"


@dataclass(frozen=True)
class StepJob:
    """A step whose job was submitted. `submission` is None where there is nothing to train."""

    step: int
    submission: int | None
    counted: dict[str, float]


class JobFailed(JobError):
    """The job of a step ended without a model. `outcome`: failed, cancelled, not_found."""

    def __init__(self, message: str, outcome: str) -> None:
        super().__init__(message, outcome)
        self.message, self.outcome = message, outcome

    def __str__(self) -> str:
        return self.message


_Document = TypeVar("_Document", bound=BaseModel)


class Documents(Generic[_Document]):
    """Files of one kind in a state directory, each replaced only as it was last seen."""

    def __init__(self, directory: str, kind: type[_Document], noun: str) -> None:
        """Open the directory; `noun` names its files in errors. Raises StoreError if it can't be
        used.
        """
        self.store, self._kind, self._what = open_store(directory, setting="state_dir"), kind, noun

    def load(self, path: str) -> tuple[_Document, str] | None:
        """A document with its tag; None if there is none. Raises CorruptionError."""
        try:
            data, etag = self.store.get_with_etag(path)
        except MissingFileError:
            return None
        try:
            return self._kind.model_validate_json(data), etag
        except ValidationError as error:
            raise CorruptionError(
                f"{path}: damaged, no record of {self._what} ({error})"
            ) from error

    def put(self, path: str, document: _Document, etag: str | None = None) -> bool:
        """Write a new document, or replace the one with this tag; False if another was faster."""
        data = (document.model_dump_json(indent=1) + "\n").encode()
        if etag is None:
            return self.store.put_if_absent(path, data)
        return self.store.put_if_match(path, data, etag) is not None


class StepRecords:
    """The records of all models in a state directory."""

    def __init__(self, directory: str) -> None:
        """Open the directory. Raises StoreError if it can't be used."""
        self._documents = Documents(directory, ModelRecord, "steps")

    def open(self, project: str, name: str, base_model: str) -> ModelRecord:
        """The record, made if there is none. Raises SettingsError for another base model."""
        fresh = ModelRecord(
            project=project, name=name, base_model=base_model, steps=(Step(model=base_model),)
        )
        path = _path(project, name)
        self._documents.put(path, fresh)
        record = self.load(project, name)
        if (record.project, record.name) != (project, name):
            raise SettingsError(f"{path} belongs to {record.project}/{record.name}; rename one")
        if record.base_model != base_model:
            raise SettingsError(
                f"model {project}/{name}: it is trained from {record.base_model!r}, got base_model "
                f"{base_model!r}; give the new one another name"
            )
        return record

    def load(self, project: str, name: str) -> ModelRecord:
        """The record. Raises LookupError if there is none."""
        return self._load(project, name)[0]

    def put(self, record: ModelRecord, steps: tuple[Step, ...]) -> ModelRecord:
        """Replace the steps of `record`, unless another process was faster. Raises JobError."""
        stored_record, etag = self._load(record.project, record.name)
        path = _path(record.project, record.name)
        new_record = record.model_copy(update={"steps": steps})
        if (
            stored_record == new_record
        ):  # another process waited for the same job, and has counted its step
            return new_record
        if stored_record != record or not self._documents.put(path, new_record, etag):
            raise JobError(
                f"model {record.project}/{record.name}: another program trains it and is at step "
                f"{stored_record.step} now; run one at a time"
            )
        return new_record

    def _load(self, project: str, name: str) -> tuple[ModelRecord, str]:
        loaded = self._documents.load(_path(project, name))
        if loaded is None:
            raise LookupError(f"no model {project}/{name} is on record")
        return loaded


def _path(project: str, name: str) -> str:
    return f"art-models/{run_name(f'{project}/{name}')}.json"


def make_step(submission: int, job: JobRecord, *, returned: bool) -> Step:
    """Make the step of a successful job."""
    return Step(
        model=str(job.model),
        digest=job.dataset_digest,
        submission=submission,
        returned=returned,
    )


def job_metrics(job: JobRecord) -> list[dict[str, float]]:
    """The figures of a job's optimizer steps, under ART's names."""
    metrics = [event["data"] for event in job.backend_events if event.get("type") == "metrics"]
    steps = float(max((data.get("total_steps", 0) for data in metrics), default=0))
    by_step = []
    for data in metrics:
        figures = {
            art_name: float(data[name])
            for name, art_name in _RENAMED.items()
            if isinstance(data.get(name), int | float)
        }
        by_step.append({**figures, _STEPS: steps})
    return by_step or [{_STEPS: 0.0}]
