"""A fine-tune job: its request, its record, and the calls that a back-end must offer.

job_key      the identity of a job, derived from everything that decides its outcome
JobSpec      the job to submit
Payload      the data of a job: bytes, or a file
JobRecord    the document ``jobs/<group>.json`` of the run store, with a JobAttempt for each
             that was followed by another
JobView      a job as the back-end reports it
ModelView    a model as the back-end describes it
PlannedTraining   the course of a training, where a service has more than jobs
Backend      the calls to a training service
BackendTrouble   the failure of a call: Refused, Busy or NoAnswer; the ledger treats each
             differently, so a back-end must sort its errors into them
Clock        the time that the ledger goes by
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    JsonValue,
)

from nip_base.wire import NipSettings
from nip_core.errors import NipError
from nip_core.hashing import derive_key
from nip_core.parameters import HyperParameters
from nip_core.run_store.lease import Lease
from nip_core.run_store.run import RunStore

FORMAT_VERSION = 1
KEY_METADATA = "nip_key"

Payload = bytes | Path
"""JSONL in memory, or a file of it, which is never held in memory as a whole."""

State = Literal["intent", "submitted", "terminal"]
Outcome = Literal["succeeded", "failed", "cancelled", "refused", "not_found", "deadline", "skipped"]


class BackendTrouble(NipError, RuntimeError):
    """A call to a back-end went wrong, in one of three ways."""

    def __init__(self, message: str, *details: Any) -> None:
        super().__init__(message, *details)
        self.message = message

    def __str__(self) -> str:
        return self.message


class Refused(BackendTrouble):
    """The back-end understood and said no: nothing happened there. `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message, status)
        self.status = status


class Busy(BackendTrouble):
    """Too many requests: nothing happened, and the call may be made again."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s


class NoAnswer(BackendTrouble):
    """No usable answer: the effect of the call, if any, is unknown."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s


def job_key(
    run: str,
    iteration: int,
    group: str,
    attempt: int,
    dataset_digest: str,
    parent_model_digest: str,
    method: str,
    hyper_parameters: Mapping[str, Any],
    seed: int,
    validation_digest: str | None = None,
) -> str:
    """Derive the identity of a job: 16 URL-safe characters. `hyper_parameters` are all those sent.

    `validation_digest` says which part of the dataset is not trained on; None: all is.
    """
    return derive_key(
        "job",
        run,
        iteration,
        group,
        attempt,
        dataset_digest,
        parent_model_digest,
        method,
        dict(hyper_parameters),
        seed,
        *([] if validation_digest is None else [validation_digest]),
    )


@dataclass(frozen=True)
class JobSpec:
    """A job to be, completely: two equal specs are one job."""

    run: str
    iteration: int
    group: str
    dataset_digest: str
    parent_model: str  # name under which the back-end knows the model to start from
    parent_model_digest: str
    seed: int
    examples: int  # lines of the training file
    method: str = "supervised"
    hyper_parameters: Mapping[str, Any] = field(default_factory=dict)
    """Settings in the OpenAI API's words: n_epochs, batch_size, and beta of a job by DPO."""
    nip: NipSettings = field(default_factory=NipSettings)
    """LoRA and optimizer settings, for our own server only; sent are those that are set."""
    attempt: int = 0  # grows with each deliberate resubmission
    suffix: str | None = None  # readable part of the new model's name, where the back-end has one
    validation_examples: int = 0  # lines of the validation file; 0: there is none
    validation_digest: str | None = None  # says which part of the dataset that is
    integrations: Sequence[Mapping[str, Any]] = ()
    """The services that are told of the job, in the OpenAI API's words. They change no model."""

    @property
    def settings(self) -> dict[str, Any]:
        """Hyper-parameters and the server's own settings as one mapping, as they are sent."""
        return {**self.hyper_parameters, "nip": self.nip.model_dump(exclude_unset=True)}

    @property
    def key(self) -> str:
        """See `job_key`."""
        return job_key(
            self.run,
            self.iteration,
            self.group,
            self.attempt,
            self.dataset_digest,
            self.parent_model_digest,
            self.method,
            self.settings,
            self.seed,
            self.validation_digest,
        )

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the job at the back-end, to find it again by its key."""
        return {
            KEY_METADATA: self.key,
            "nip_run": self.run,
            "nip_iteration": str(self.iteration),
            "nip_group": self.group,
            "nip_attempt": str(self.attempt),
        }


class JobEvent(BaseModel):
    """An event in the life of a job, with the time of day."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: float  # seconds since the epoch
    what: str


class JobAttempt(BaseModel):
    """One attempt to train a model: its request, and its outcome."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    format_version: Literal[1] = 1
    state: State
    key: str
    run: str
    iteration: int
    group: str
    attempt: int
    method: str
    parent_model: str
    parent_model_digest: str
    dataset_digest: str
    examples: int
    seed: int
    settings: dict[str, Any]  # as asked
    created_at: float
    file_id: str | None = None
    validation_examples: int = 0
    validation_digest: str | None = None
    validation_file_id: str | None = None
    creates_open: int = 0  # creates that may have had an effect; written before each is sent
    sent_at: float | None = None  # when the last of them was sent
    id: str | None = None
    submitted_at: float | None = None
    status: str | None = None  # the back-end's last word
    given_up: bool = False  # its deadline has passed, and it is, or is to be, cancelled
    outcome: Outcome | None = None
    reason: str | None = None  # why the outcome is not "succeeded"
    model: str | None = None  # name of the new model
    finished_at: float | None = None
    trained_tokens: int | None = None
    effective: dict[str, Any] | None = None  # settings as the back-end says it used them
    events: tuple[JobEvent, ...] = ()
    backend_events: tuple[dict[str, Any], ...] = ()  # the back-end's own, with losses

    @property
    def succeeded(self) -> bool:
        """True if there is a new model."""
        return self.outcome == "succeeded"


class JobRecord(JobAttempt):
    """The document ``jobs/<group>.json``: the newest attempt, and those before it."""

    previous: tuple[JobAttempt, ...] = ()

    @classmethod
    def from_spec(
        cls, spec: JobSpec, created_at: float, previous: tuple[JobAttempt, ...]
    ) -> "JobRecord":
        """Make the record of a job before anything is sent."""
        return cls(
            state="intent",
            key=spec.key,
            run=spec.run,
            iteration=spec.iteration,
            group=spec.group,
            attempt=spec.attempt,
            method=spec.method,
            parent_model=spec.parent_model,
            parent_model_digest=spec.parent_model_digest,
            dataset_digest=spec.dataset_digest,
            examples=spec.examples,
            validation_examples=spec.validation_examples,
            validation_digest=spec.validation_digest,
            seed=spec.seed,
            settings=spec.settings,
            created_at=created_at,
            previous=previous,
        )

    def difference_to(self, spec: JobSpec) -> str:
        """Say where another job is asked for than the one on record (stored -> given)."""
        pairs = {
            "attempt": (self.attempt, spec.attempt),
            "method": (self.method, spec.method),
            "parent_model_digest": (self.parent_model_digest, spec.parent_model_digest),
            "dataset_digest": (self.dataset_digest, spec.dataset_digest),
            "validation_digest": (self.validation_digest, spec.validation_digest),
            "seed": (self.seed, spec.seed),
            "settings": (self.settings, spec.settings),
        }
        different = (f"{name}: {a} -> {b}" for name, (a, b) in pairs.items() if a != b)
        return "; ".join(different) or "none"


@dataclass(frozen=True)
class JobView:
    """A job as the back-end reports it. Times are seconds since the epoch."""

    id: str
    status: str
    created_at: float = 0.0
    fine_tuned_model: str | None = None
    error: str | None = None
    estimated_finish: float | None = None
    finished_at: float | None = None
    trained_tokens: int | None = None
    effective: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelView:
    """The description of a model by a back-end; None: it does not say."""

    digest: str | None = None  # of its weights
    kind: str | None = None  # "adapter", or "base" where every weight was trained
    proof: dict[str, Any] | None = None  # that the weights its job saved are those that answer
    is_served: bool | None = None
    is_lm_servers: bool = False  # a server of nip describes it

    @property
    def is_proved(self) -> bool:
        """True if the server has found that the saved weights answer."""
        return bool((self.proof or {}).get("matches"))


@dataclass(frozen=True)
class PlannedTraining:
    """The course of a group's training at a service, before a run begins."""

    words: str
    facts: Mapping[str, JsonValue]


class Backend(ABC):
    """Calls to a training service. Each raises Refused, Busy or NoAnswer, and none retries.

    A service of your own is a subclass of it. The ledger creates a job once if `find_jobs` lists
    each job with the key that `create_job` was given, at the latest `fine_tuning.settle_s` after
    it was created.
    """

    proves: bool = False
    """Whether it says of each model it has trained that the saved weights are those that answer;
    without the proof such a model does not play."""
    tells_steps: bool = False
    """Whether a job as it is reported has its newest step, so that looking often is cheap; of
    others the events are asked for."""
    stands_still: bool = False
    """Whether its jobs stand still while nobody polls them; their deadlines count from there."""
    run: tuple[RunStore, Lease | None] | None = None
    """The run that it works for, and the lease to write there; of one that a ledger has opened."""

    def __init__(self, address: str, key: str) -> None:
        """`address` is the provider's API, `key` what opens it. Nothing is sent yet."""
        self.address, self.key = address, key

    @abstractmethod
    async def upload(self, filename: str, data: Payload) -> str:
        """Upload training data; returns the new file's id."""

    @abstractmethod
    async def create_job(
        self, spec: JobSpec, file_id: str, validation_file_id: str | None = None
    ) -> JobView:
        """Submit `spec` with its key as metadata and idempotency key. For the ledger alone."""

    @abstractmethod
    async def find_jobs(self, key: str) -> list[JobView]:
        """List all jobs with `key` in their metadata."""

    @abstractmethod
    async def retrieve_job(self, job_id: str) -> JobView:
        """Look at a job. Raises Refused with status 404 for an unknown one."""

    @abstractmethod
    async def cancel_job(self, job_id: str) -> JobView:
        """Ask for a job's end; one that has ended stays as it is, or is refused."""

    async def find_file(self, filename: str, size_bytes: int) -> str | None:
        """Find the id of an uploaded, usable file of this name and size; None if there is none."""
        return None

    async def job_events(self, job_id: str) -> list[dict[str, JsonValue]]:
        """List the back-end's events of a job, oldest first; `steps` reads figures in them."""
        return []

    @classmethod
    def check_agent(cls, parameters: HyperParameters, name: str) -> None:
        """Raise SettingsError for settings of a trained agent that it can't carry."""
        return

    @classmethod
    def plan_training(
        cls, parameters: HyperParameters, group: str, examples: Sequence[int | None], tokens: float
    ) -> PlannedTraining | None:
        """Plan a group's training for ``--dry-run``; None where a job is all there is to it.

        `examples` that each job reads at most, None where it is not known; `tokens` that all jobs
        are expected to train on.
        """
        return None

    async def check_model(self, model: str) -> None:
        """Raise SettingsError if a base model can't be trained there. Nothing is spent."""
        return

    async def check_jobs(self) -> None:
        """Learn whether the key may list jobs at all, and raise if not."""
        await self.find_jobs("-")

    async def describe_model(self, name: str) -> ModelView:
        """Ask for the description of a model. Raises Refused for an unknown one."""
        return ModelView()

    async def bring_model(self, name: str) -> ModelView:
        """Describe a model, which answers again if another one had taken its place."""
        return await self.describe_model(name)

    async def aclose(self) -> None:  # noqa: B027 - most have nothing to close
        """Close the connections."""


@dataclass(frozen=True)
class Clock:
    """Time of day (seconds since the epoch), monotonic time and sleep, all replaceable."""

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
