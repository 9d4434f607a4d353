"""The interface of trainer back-ends, and its data.

TrainerAdapter         initialize, is_healthy, submit, status, wait_until_complete, cancel,
                       log_progress
TrajectoryCollection   what is submitted: for each example a list of Trajectory
Trajectory             an episode with its reward; its items are EpisodeItem or DPOItem
TrainingJobRef         names a submission; any process can ask about it, any number of times
TrainingJobStatus      what is known of it
FinetuneConfig         what `initialize` is given

The names and their meaning are those of NVIDIA's NeMo Agent Toolkit (`nat.finetuning`,
`nat.data_models.finetuning`); what these models refuse and its own let pass is in docs/adapters.md.
"""

import math
from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

RunId = Annotated[str, Field(min_length=1, max_length=200)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TrainingStatusEnum(StrEnum):
    """Where a job stands. The last three are its end."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


class TrainingJobRef(_Model):
    """A submission. It is plain JSON, and can be kept and asked about by any process.

    `metadata` has ``submission``, the number of the submission under this `run_id`, from 0.
    """

    run_id: RunId
    backend: str
    metadata: dict[str, Any] | None = None


class TrainingJobStatus(_Model):
    """What is known of a submission. `progress` is in percent."""

    run_id: RunId
    backend: str
    status: TrainingStatusEnum
    progress: Annotated[float, Field(ge=0, le=100)] | None = None
    message: str | None = None
    metadata: dict[str, Any] | None = None


class EpisodeItemRole(StrEnum):
    """Who speaks."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    FUNCTION = "function"
    TOOL = "tool"
    ENVIRONMENT = "environment"
    OTHER = "other"


class EpisodeItem(_Model):
    """One message. One of the assistant's needs the log-probabilities with which it was sampled."""

    role: EpisodeItemRole
    content: str
    logprobs: Any | None = None
    metadata: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check(self) -> "EpisodeItem":
        if self.role is EpisodeItemRole.ASSISTANT and self.logprobs is None:
            raise ValueError("logprobs must be provided for assistant role.")
        return self


class OpenAIMessage(_Model):
    """A message of a prompt."""

    role: str
    content: str


class DPOItem(_Model):
    """A better and a worse response to one prompt."""

    prompt: list[OpenAIMessage] | str
    chosen_response: str
    rejected_response: str


class Trajectory(_Model):
    """An episode with its reward."""

    episode: list[EpisodeItem] | list[DPOItem]
    reward: float
    shaped_rewards: list[float] | None = None
    metadata: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check(self) -> "Trajectory":
        if not math.isfinite(self.reward):
            raise ValueError(f"reward must be a finite number (got {self.reward})")
        return self


class TrajectoryCollection(_Model):
    """What is submitted. Each inner list holds the trajectories of one example."""

    trajectories: list[list[Trajectory]]
    run_id: RunId


class RewardFunctionConfig(_Model):
    """Which evaluator gives the reward."""

    name: Annotated[str, Field(min_length=1)]


class FinetuneConfig(BaseModel):
    """What `initialize` is given. Fields that no adapter here reads are kept, not refused."""

    model_config = ConfigDict(extra="allow")

    enabled: bool = False
    reward_function: RewardFunctionConfig | None = None
    num_epochs: Annotated[int, Field(ge=1)] = 1
    output_dir: str = "./.tmp/nat/finetuning/"


class TrainerAdapter(ABC):
    """A trainer back-end. Create it with its configuration, then `initialize` it once."""

    @abstractmethod
    async def initialize(self, run_config: FinetuneConfig) -> None:
        """Get ready. Raises ConnectionError if the back-end is not there or not healthy."""

    @abstractmethod
    async def is_healthy(self) -> bool:
        """Whether the back-end would take a job now."""

    @abstractmethod
    async def submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        """Train on `trajectories`, once.

        The same collection under the same `run_id` is the same submission, whoever asks, as long
        as it is under way. Raises ValueError for what can't be trained on.
        """

    @abstractmethod
    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Where the job stands. Raises ValueError for a reference that nothing is known of."""

    @abstractmethod
    async def wait_until_complete(
        self, ref: TrainingJobRef, poll_interval: float = 10.0
    ) -> TrainingJobStatus:
        """Wait until the job has ended, looking every `poll_interval` seconds."""

    @abstractmethod
    async def cancel(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Stop the job; one that has ended stays as it is. Returns where it stands then."""

    @abstractmethod
    def log_progress(
        self, ref: TrainingJobRef, metrics: dict[str, Any], output_dir: str | None = None
    ) -> None:
        """Append `metrics` as one JSON line to a file for the job in `output_dir`."""
