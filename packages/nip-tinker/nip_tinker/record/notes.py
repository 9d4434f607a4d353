"""The notes of jobs and their blocks, in the run's store.

JobNote     a job: its settings, its course, its model
BlockNote   a block of its steps: the intent before anything is sent, the requests, the state after
Notes       reads and writes both

A block's note is written before its first request, before its state is saved, and when the state is
there; at level 2 also before each request. `files/` has the data of jobs that have not ended.
"""

from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nip_core.errors import CorruptionError
from nip_tinker.record.run_files import RunFiles
from nip_tinker.record.steps import Plan

_Kind = TypeVar("_Kind", bound="_Note")
Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class _Note(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    format_version: Literal[1] = 1


class Figures(BaseModel):
    """The figures of a step, by the service."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int
    """Counted from 0."""
    loss: float | None
    tokens: int
    learning_rate: float
    at: float
    requests: int
    """Numbered ones, for gradients and log-probabilities and the step."""


class Sent(BaseModel):
    """A numbered request that may have been sent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seq: int
    digest: str


class JobNote(_Note):
    """A job. Times are seconds since 1970."""

    key: str
    metadata: dict[str, str]
    plan: Plan
    parent: str
    """The model that it starts from: a base model, or a sampler's path."""
    file: str
    created_at: float
    status: Status = "queued"
    error: str | None = None
    waits: str | None = None
    """Why it stands still."""
    address: str | None = None
    """The service at which it began, without what is secret in it."""
    level: Literal[1, 2] | None = None
    level_reason: str = ""
    keeps_numbers: bool = True
    """A request that comes twice is one there; else none is sent again that may have counted."""
    base: str | None = None
    steps: int | None = None
    tokens: int | None = None
    """Of all its steps."""
    blocks: int = 0
    """How many have begun."""
    trained_tokens: int | None = None
    """Sent for gradients, `tokens_again` included; of a job that has ended."""
    tokens_again: int = 0
    """Those of `steps_again`."""
    scored_tokens: int = 0
    """Sent for log-probabilities alone."""
    steps_again: int = 0
    """Steps that were sent, and lost with their model; of a job that has ended."""
    sessions: list[str] = Field(default_factory=list)
    """Begun and not finished."""
    deletions: list[str] = Field(default_factory=list)
    """States that are to be deleted at the service."""
    state: str | None = None
    """The last state, with the optimizer's."""
    model: str | None = None
    finished_at: float | None = None

    @property
    def group(self) -> str:
        """Name the group that it trains."""
        return self.metadata.get("nip_group", "")


class BlockNote(_Note):
    """A block of steps between two named states."""

    number: int
    first: int
    end: int
    """The step after its last."""
    digest: str
    name: str
    """Of its state at the service."""
    start: str | None
    """The state that it starts from; None: the job's own start."""
    tries: int = 0
    """How many models were made for it."""
    session: str | None = None
    model: str | None = None
    runs: list[str] = Field(default_factory=list)
    """All training runs that may have saved its state."""
    first_seq: int = 1
    sent: list[Sent] = Field(default_factory=list)
    figures: list[Figures] = Field(default_factory=list)
    weights: dict[int, list[float]] = Field(default_factory=dict)
    """Of `dpo`: by step the weights of its pairs."""
    pair_losses: dict[int, float] = Field(default_factory=dict)
    references: list[tuple[float, float]] | None = None
    """Of `dpo`, in its first block: by pair the log-probabilities at the job's start."""
    saving_at: float | None = None
    save_seq: int | None = None
    state: str | None = None
    saved_at: float | None = None
    sampling_at: float | None = None
    sampler: str | None = None
    seconds: float | None = None
    """So long its steps took."""

    begun: dict[int, int] = Field(default_factory=dict)
    """By step that was sent to its model, the tokens."""
    steps_again: int = 0
    """Steps that were sent to models of before, and lost."""
    tokens_again: int = 0

    @property
    def is_done(self) -> bool:
        """True if its state is there."""
        return self.state is not None

    def start_again(self) -> None:
        """Forget the model, and its steps, which are lost."""
        self.steps_again += len(self.begun)
        self.tokens_again += sum(self.begun.values())
        self.tries, self.model, self.first_seq = self.tries + 1, None, 1
        self.sent, self.figures, self.weights, self.pair_losses = [], [], {}, {}
        self.begun = {}
        self.saving_at = self.save_seq = None


class Notes:
    """The notes of one job."""

    def __init__(self, files: RunFiles, key: str) -> None:
        self.files, self._folder = files, key

    def read_job(self) -> JobNote | None:
        """Read the job; None if there is none. Raises CorruptionError."""
        return _read(JobNote, self.files, f"{self._folder}/job.json")

    def write_job(self, job: JobNote) -> None:
        """Write the job. Raises LeaseError if another runner has the run."""
        self.files.write(f"{self._folder}/job.json", job.model_dump_json(indent=1).encode())

    def read_block(self, number: int) -> BlockNote | None:
        """Read a block; None if it has not begun."""
        return _read(BlockNote, self.files, self._block(number))

    def write_block(self, block: BlockNote) -> None:
        """Write a block."""
        self.files.write(self._block(block.number), block.model_dump_json(indent=1).encode())

    def list_blocks(self, job: JobNote) -> list[BlockNote]:
        """List the blocks that have begun."""
        blocks = (self.read_block(number) for number in range(job.blocks))
        return [block for block in blocks if block is not None]

    def _block(self, number: int) -> str:
        return f"{self._folder}/block-{number:04d}.json"

    def copy_data(self, job: JobNote, folder: Path) -> Path:
        """Copy the job's data to a local folder."""
        target = folder / "training.jsonl"
        self.files.copy_out(f"files/{job.file}", target)
        return target


def _read(kind: type[_Kind], files: RunFiles, name: str) -> _Kind | None:
    data = files.read(name)
    if data is None:
        return None
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise CorruptionError(
            f"training/{name}: damaged, no {kind.__name__} ({error.errors()[0]['msg']}); restore "
            "the file from a copy, or train it again: nip train --rerun-from ITERATION:train"
        ) from None
