"""The contract of a job's directory, between the server and a training process.

TrainingJob, read_job    ``job.json``, written and read
Events                   ``events.jsonl``, appended line by line
TrainingError            a training that can't go on; becomes the last event, and the job's error
TrainingResult           the figures of a finished training
TrainingStopped          a training that was told to end, and can go on
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
)

from nip_base.wire import EffectiveSettings

CHECKPOINTS = "checkpoints"
METRICS_FILE = "metrics.jsonl"
"""A file in the job's directory, with the figures of every step. Not every trainer writes it."""
PROGRESS_INTERVAL_S = 0.25
"""Least time between two progress events, but the first and the last step always have one.
`METRICS_FILE` has every step."""


class TrainingError(Exception):
    """The training can't go on. `code` is a short word, `param` the setting at fault, if one is."""

    def __init__(self, code: str, message: str, param: str | None = None):
        super().__init__(code, message, param)
        self.code, self.message, self.param = code, message, param

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class TrainingStopped(Exception):
    """The training ended because it was told to; training the same job goes on.

    `step` is the step of its last checkpoint, if the trainer gives it.
    """

    def __init__(self, step: int | None = None):
        super().__init__(step)
        self.step = step


class TrainingJob(BaseModel):
    """A training: the fields of ``job.json``, and its directory. Paths are absolute.

    If it was stopped, or its server died, it is trained again with the same fields; its
    ``checkpoints`` stay as they were.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    method: Literal["supervised", "dpo", "trajectories"]
    base_model_path: str
    """A directory or a name on the model hub."""
    parent_adapter_path: Path | None = None
    """The adapter that `start_from` refers to; None where the base model is the start."""
    training_file: Path
    validation_file: Path | None = None
    settings: EffectiveSettings = Field(alias="hyperparameters")
    """They are the `hyperparameters` in ``job.json``."""
    seed: int = Field(ge=0)
    chat_template_kwargs: dict[str, Any] = {}
    """Variables of the base model's chat template, the same as the engine's."""
    output_dir: Path
    device: Literal["cpu", "cuda"] | None = None
    """The only kind of device to train on; None: CUDA where there is some. The environment decides
    which CUDA device."""
    job_dir: Path = Field(Path(), exclude=True)
    """The directory of ``job.json``; `read_job` fills it in."""
    key: str = Field("", exclude=True)
    """The idempotency key, or the job's id: the same when the job is trained again."""

    @property
    def checkpoints_dir(self) -> Path:
        """The directory of checkpoints, outside the output: every start empties the output."""
        return self.job_dir / CHECKPOINTS

    @property
    def metrics_path(self) -> Path:
        """The file of every step's figures, one JSON line each, written after the training."""
        return self.job_dir / METRICS_FILE

    def write(self) -> None:
        """Write ``job.json`` for `read_job`."""
        self.job_dir.mkdir(parents=True, exist_ok=True)
        part = self.job_dir / "job.json.part"
        part.write_text(self.model_dump_json(indent=1, by_alias=True))
        part.rename(self.job_dir / "job.json")


def read_job(job_dir: Path) -> TrainingJob:
    """Read ``job.json``. Raises TrainingError with the name of the first wrong setting."""
    path = job_dir / "job.json"
    try:
        job = TrainingJob.model_validate_json(path.read_bytes())
    except OSError as error:
        raise TrainingError("job_unreadable", f"can't read {path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(map(str, first["loc"]))
        message = f"{param}: {first['msg']}, got {first.get('input')!r}"
        raise TrainingError("invalid_job", message, param) from None
    return job.model_copy(update={"job_dir": job_dir.absolute()})


Report = Callable[[list[dict[str, Any]]], None]
"""Receives the events of a training in order, a few at a time."""


class TrainingResult(BaseModel):
    """Figures of a finished training; its method adds more."""

    model_config = ConfigDict(extra="allow", frozen=True)

    steps: int
    tokens: int
    wall_s: float
    final_loss: float | None  # None where there is no model
    unchanged: bool = False  # the weights are those that the training started from


class Events:
    """Appends to ``events.jsonl``; each line is flushed. `clock` is monotonic, in seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic):
        self._file = path.open("a", encoding="utf-8")
        self._clock = clock
        self._last_progress_s: float | None = None

    def message(self, message: str, level: str = "info") -> None:
        """Add a message for people to the job's events."""
        self._write({"type": "message", "level": level, "message": message})

    def error(self, error: TrainingError) -> None:
        """Report the error at the end of a failed training."""
        self._write(
            {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        )

    def progress(self, step: int, total_steps: int, figures: dict[str, Any]) -> None:
        """Report the progress of the training, at most every PROGRESS_INTERVAL_S."""
        now = self._clock()
        due = self._last_progress_s is None or now - self._last_progress_s >= PROGRESS_INTERVAL_S
        if due or step >= total_steps:
            self._last_progress_s = now
            self._write({"type": "progress", "step": step, "total_steps": total_steps, **figures})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(json.dumps(event, ensure_ascii=False) + "\n")
        self._file.flush()
