"""What a training process is told and what it tells: the contract of a job's directory.

TrainingJob, TrainingSettings    ``job.json``, checked
read_job                         reads it
Events                           ``events.jsonl``, appended line by line
TrainingError                    a training that can't go on; becomes the last event
Stopped                          a training that ended at SIGTERM, after a checkpoint
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
    field_validator,
    model_validator,
)

from nip_lm_server.training.trainers import METRICS_FILE

PROGRESS_INTERVAL_S = 0.25
"""Progress is told at most this often, the first and the last step always. `METRICS_FILE` has
every step."""


class TrainingError(Exception):
    """The training can't go on. `code` is a short word, `param` the setting at fault, if one is."""

    def __init__(self, code: str, message: str, param: str | None = None):
        super().__init__(code, message, param)
        self.code, self.message, self.param = code, message, param

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class Stopped(Exception):
    """The training was asked to stop, and did so after writing a checkpoint at `step`."""

    def __init__(self, step: int):
        super().__init__(step)
        self.step = step


class TrainingSettings(BaseModel):
    """Hyper-parameters of one job."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_epochs: int = Field(3, ge=1)
    batch_size: int = Field(8, ge=1)
    """Sequences per optimizer step."""
    learning_rate: float = Field(2e-4, ge=0)
    """Peak learning rate, multiplier applied. 0 trains nothing, on purpose."""
    lora_rank: int | None = Field(16, ge=1)
    lora_alpha: float | None = Field(32.0, gt=0)
    lora_dropout: float | None = Field(0.0, ge=0, lt=1)
    lora_target_modules: str | list[str] | None = "all-linear"
    """Names of linear layers; "all-linear" means all but the output layer. LoRA's four settings
    may be None only without LoRA."""
    max_length: int | None = Field(None, ge=2)
    """Longest sequence in tokens; None means the model's context. Longer ones are an error."""
    warmup_ratio: float = Field(0.0, ge=0, le=1)
    lr_scheduler: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "linear"
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, ge=0)
    use_lora: bool = True
    result: Literal["adapter", "base"] = "adapter"
    """What is written: an adapter, or a whole model with everything merged in."""
    start_from: Literal["base", "continue", "stack"] = "base"
    """What becomes of the parent: see `wire.NipSettings.start_from`."""
    beta: float | None = Field(None, gt=0)
    dpo_reference: Literal["start", "base"] | None = None
    dpo_sft_weight: float | None = Field(None, ge=0)
    clip_low: float | None = Field(None, ge=0, le=1)
    clip_high: float | None = Field(None, ge=0)
    kl_penalty: float | None = Field(None, ge=0)
    advantage: Literal["given", "group", "group_std"] | None = None
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: Literal["none", "8bit", "4bit"] = "none"
    optimizer: Literal["auto", "adamw_torch", "adamw_8bit", "paged_adamw_8bit", "sgd"] = "auto"
    gradient_checkpointing: bool | None = None
    packing: bool | None = None
    checkpoint_steps: int | None = Field(None, ge=1)
    learning_rate_multiplier: float | None = None
    """Already in `learning_rate`; accepted so that effective settings can be passed as they are."""

    @field_validator("lora_target_modules")
    @classmethod
    def _names_or_all(cls, targets: str | list[str] | None) -> str | list[str] | None:
        # PEFT would take any other string as a pattern.
        if targets == [] or (isinstance(targets, str) and targets != "all-linear"):
            raise ValueError("expected a list of names, or all-linear")
        return targets

    @model_validator(mode="after")
    def _fit_each_other(self) -> "TrainingSettings":
        if not self.use_lora and self.result != "base":
            raise ValueError('without LoRA a base is trained: result must be "base"')
        lora = (self.lora_rank, self.lora_alpha, self.lora_dropout, self.lora_target_modules)
        if self.use_lora and None in lora:
            raise ValueError("with LoRA its rank, alpha, dropout and target modules are needed")
        return self


class TrainingJob(BaseModel):
    """``job.json``. Paths are absolute."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["supervised", "dpo", "trajectories"]
    base_model_path: str
    """A directory or a name on the model hub."""
    parent_adapter_path: Path | None = None
    """The adapter that `start_from` speaks of; None where the base model is the start."""
    training_file: Path
    validation_file: Path | None = None
    hyperparameters: TrainingSettings = TrainingSettings()
    seed: int = Field(ge=0)
    output_dir: Path
    job_dir: Path | None = None
    """Where ``job.json`` lies; `read_job` fills it in."""

    @property
    def checkpoints_dir(self) -> Path:
        """Checkpoints lie outside the output directory, which is emptied before every start."""
        return (self.job_dir or self.output_dir.parent) / "checkpoints"

    @property
    def metrics_path(self) -> Path:
        """The figures of every step, one JSON line each, written once the training is done."""
        return (self.job_dir or self.output_dir.parent) / METRICS_FILE


def read_job(job_dir: Path) -> TrainingJob:
    """Read ``job.json``. Raises TrainingError, naming the first setting that is wrong."""
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


class Events:
    """Appends to ``events.jsonl``; each line is flushed. `clock` is monotonic, in seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic):
        self._file = path.open("a", encoding="utf-8")
        self._clock = clock
        self._last_progress_s: float | None = None

    def message(self, message: str, level: str = "info") -> None:
        """Something for people to read in the job's events."""
        self._write({"type": "message", "level": level, "message": message})

    def error(self, error: TrainingError) -> None:
        """Why the training ended without an adapter."""
        self._write(
            {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        )

    def progress(self, step: int, total_steps: int, figures: dict[str, Any]) -> None:
        """Where the training is; written at most every PROGRESS_INTERVAL_S."""
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
