"""The interface of trainer back-ends, and its data.

TrainerAdapter         initialize, is_healthy, submit, status, wait_until_complete, cancel,
                       log_progress
TrajectoryCollection   the data of a submission: for each example a list of Trajectory
Trajectory             an episode with its reward; its items are EpisodeItem or DPOItem
TrainingJobRef         names a submission; any process can ask about it, any number of times
TrainingJobStatus      its status
TrainerAdapterConfig   the base of every adapter's configuration
FinetuneConfig         the argument of `initialize`; CurriculumLearningConfig is a part of it
UnhealthyError         the back-end is not there, or would not take a job
as_ours                another library's object as one of these models

The names and their meaning are those of NVIDIA's NeMo Agent Toolkit (`nat.finetuning`,
`nat.data_models.finetuning`), and its own objects are taken wherever one of these is, by their
fields. A key that a model does not know is an error; docs/adapters.md lists the other values that
these models refuse and its own let pass.
"""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    Tag,
    ValidationError,
    model_validator,
)

from nip_by_hand.fine_tuning.first_problem import first_problem
from nip_core.errors import NipError
from nip_core.parameters import CurriculumParameters

CurriculumLearningConfig = CurriculumParameters
RunId = Annotated[str, Field(min_length=1, max_length=200)]


class UnhealthyError(NipError, ConnectionError):
    """The back-end is not there, or would not take a job. The message says why."""


class ByFields(BaseModel):
    """Refuses unknown keys, and takes another model's object by its fields."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _by_fields(cls, values: Any) -> Any:
        return _fields(cls, values)


def _fields(kind: type[BaseModel], value: Any) -> Any:
    """The fields of a foreign object; anything else as it is.

    A field that `kind` does not know and that stands at its default asks for nothing, and is left
    out.
    """
    if not isinstance(value, BaseModel) or isinstance(value, kind | ByFields):
        return value
    fields = {
        name: getattr(value, name)
        for name in type(value).model_fields
        if name in kind.model_fields or name in value.model_fields_set
    }
    return {**fields, **(value.model_extra or {})}


_Ours = TypeVar("_Ours", bound=BaseModel)


def as_ours(kind: type[_Ours], value: Any, place: str = "") -> _Ours:
    """An object of `kind`, whichever library's `value` is of.

    Raises ValueError in one line that names the first place that is wrong, within `place`.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = first_problem(error)
        path = place + _path(first.place)
        raise ValueError(
            f"{kind.__name__}: {path + ': ' if path else ''}{first.message} "
            f"(got {reprlib.repr(first.got)})" + (f"; and {first.more} more" if first.more else "")
        ) from None


def _path(steps: Sequence[int | str]) -> str:
    """The place of something: ``trajectories[0][1].episode[2].role``."""
    steps_shown = [step for step in steps if step not in _KINDS]
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps_shown).lstrip(".")


class TrainingStatusEnum(StrEnum):
    """Where a job stands. The last three are its end."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


class TrainingJobRef(ByFields):
    """A submission. It is plain JSON, and can be kept and asked about by any process.

    `metadata` has ``submission``, the number of the submission under this `run_id`, from 0.
    """

    run_id: RunId
    backend: str
    metadata: dict[str, Any] | None = None


class TrainingJobStatus(ByFields):
    """The state of a submission. `progress` is in percent."""

    run_id: RunId
    backend: str
    status: TrainingStatusEnum
    progress: Annotated[float, Field(ge=0, le=100)] | None = None
    message: str | None = None
    metadata: dict[str, Any] | None = None


class EpisodeItemRole(StrEnum):
    """The speaker of a message."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    FUNCTION = "function"
    TOOL = "tool"
    ENVIRONMENT = "environment"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> "EpisodeItemRole | None":
        """The member of the same value as one of another enumeration."""
        text = value.value if isinstance(value, Enum) else None
        return next((role for role in cls if role.value == text), None)


class EpisodeItem(ByFields):
    """One message. One of the assistant's needs the log-probabilities with which it was sampled.

    Their form is checked where they are used, see `conversion`.
    """

    role: EpisodeItemRole
    content: str
    logprobs: Any | None = None
    metadata: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check(self) -> "EpisodeItem":
        if self.role == EpisodeItemRole.ASSISTANT and self.logprobs is None:
            raise ValueError("logprobs must be provided for assistant role.")
        return self


class OpenAIMessage(ByFields):
    """A message of a prompt."""

    role: str
    content: str


class DPOItem(ByFields):
    """A better and a worse response to one prompt."""

    prompt: list[OpenAIMessage] | str
    chosen_response: str
    rejected_response: str


_KINDS = ("messages", "pairs")


def _kind_of_items(episode: Any) -> Literal["messages", "pairs"]:
    """Tell the kind of an episode's items by the first, so errors speak of one kind alone."""
    first = episode[0] if isinstance(episode, list | tuple) and episode else None
    names = {*(first if isinstance(first, Mapping) else getattr(type(first), "model_fields", ()))}
    is_pair = "role" not in names and bool({"chosen_response", "rejected_response"} & names)
    return "pairs" if is_pair else "messages"


Episode = Annotated[
    Annotated[list[EpisodeItem], Tag("messages")] | Annotated[list[DPOItem], Tag("pairs")],
    Discriminator(_kind_of_items),
]
"""Messages, or preference pairs; not both. An empty one is a list of no messages."""


class Trajectory(ByFields):
    """An episode with its reward. An empty episode is refused when it is submitted."""

    episode: Episode
    reward: FiniteFloat
    shaped_rewards: list[FiniteFloat] | None = None
    """Kept for whoever reads it. No method here learns from more than one reward per episode."""
    metadata: dict[str, Any] | None = None


class TrajectoryCollection(ByFields):
    """A submission. Each inner list holds the trajectories of one example."""

    trajectories: list[list[Trajectory]]
    run_id: RunId


class RewardFunctionConfig(ByFields):
    """Which evaluator gives the reward."""

    name: Annotated[str, Field(min_length=1)]


class _ComponentConfig(ByFields):
    reward: RewardFunctionConfig | None = None
    """Set by `initialize` to the value in the whole configuration."""


class TrainerConfig(_ComponentConfig):
    """The base of a trainer's configuration."""


class TrajectoryBuilderConfig(_ComponentConfig):
    """The base of a trajectory builder's configuration."""


class TrainerAdapterConfig(_ComponentConfig):
    """The base of a trainer adapter's configuration."""


class FinetuneRunConfig(ByFields):
    """The arguments of NeMo's command `nat finetune`. No adapter here reads them."""

    config_file: Path | BaseModel | None = None
    dataset: str | Path | None = None
    result_json_path: str = "$"
    endpoint: str | None = None
    endpoint_timeout: Annotated[int, Field(ge=1)] = 300
    override: tuple[tuple[str, str], ...] = ()
    validation_dataset: str | Path | None = None
    validation_interval: Annotated[int, Field(ge=1)] = 5
    validation_config_file: str | Path | None = None


class FinetuneConfig(ByFields):
    """The argument of `initialize`. The adapters here read `reward_function` of it."""

    enabled: bool = False
    trainer: str | None = None
    trajectory_builder: str | None = None
    trainer_adapter: str | None = None
    reward_function: RewardFunctionConfig | None = None
    target_functions: list[str] = Field(default_factory=lambda: ["<workflow>"])
    target_model: str | None = None
    curriculum_learning: Annotated[
        CurriculumLearningConfig, BeforeValidator(lambda it: _fields(CurriculumLearningConfig, it))
    ] = CurriculumLearningConfig()
    num_epochs: Annotated[int, Field(ge=1)] = 1
    output_dir: Path = Path("./.tmp/nat/finetuning/")
    run_configuration: FinetuneRunConfig | None = None

    @model_validator(mode="after")
    def _check(self) -> "FinetuneConfig":
        names = ("trainer", "trajectory_builder", "trainer_adapter")
        unset_names = [name for name in names if getattr(self, name) is None]
        if self.enabled and unset_names:
            raise ValueError(
                "When fine-tuning is enabled, the following fields must be set: "
                + ", ".join(unset_names)
            )
        return self


class TrainerAdapter(ABC):
    """A trainer back-end. Create it with its configuration, then `initialize` it once."""

    def __init__(self, adapter_config: TrainerAdapterConfig) -> None:
        """Reaches nothing and writes nothing."""
        self.adapter_config = adapter_config
        self.run_config: FinetuneConfig | None = None

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """Get ready. Raises ConnectionError if the back-end is not there or not healthy.

        This part of it notes the use of the adapter.
        """
        self.run_config = as_ours(FinetuneConfig, run_config)
        self.adapter_config.reward = self.run_config.reward_function

    @abstractmethod
    async def is_healthy(self) -> bool:
        """Return True if the back-end would take a job now."""

    @abstractmethod
    async def submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        """Train on `trajectories`, once.

        The same collection under the same `run_id` is the same submission, whoever asks, as long
        as it is under way. Raises ValueError for data that can't be trained on.
        """

    @abstractmethod
    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Tell where the job stands. Raises ValueError for an unknown reference."""

    @abstractmethod
    async def wait_until_complete(
        self, ref: TrainingJobRef, poll_interval: float = 10.0
    ) -> TrainingJobStatus:
        """Wait until the job has ended, looking every `poll_interval` seconds."""

    @abstractmethod
    async def cancel(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Stop the job and return its status; an ended one stays as it is."""

    @abstractmethod
    def log_progress(
        self, ref: TrainingJobRef, metrics: dict[str, Any], output_dir: str | None = None
    ) -> None:
        """Append `metrics` as one JSON line to a file for the job in `output_dir`."""
