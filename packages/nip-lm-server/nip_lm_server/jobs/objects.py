"""The objects of the API for a job: OpenAI's, made of the job's row.

JobObject          a `fine_tuning.job`, which `build_job_object` builds
CheckpointObject   its `fine_tuning.job.checkpoint`: the final weights; `build_checkpoint`
name_checkpoint    the id of a checkpoint
"""

from typing import Any, Literal, NotRequired, TypedDict

from nip_base import wire
from nip_lm_server.jobs.events import JobError, StepFigures
from nip_lm_server.state.database import load
from nip_lm_server.state.rows import JobRow


class MethodBlock(TypedDict):
    """The settings of one method."""

    hyperparameters: wire.MethodHyperparameters


class JobMethod(TypedDict):
    """The training method of a job. Only the block of that method is there."""

    type: Literal["supervised", "dpo", "trajectories"]
    supervised: NotRequired[MethodBlock]
    dpo: NotRequired[MethodBlock]
    trajectories: NotRequired[MethodBlock]


class JobObject(TypedDict):
    """OpenAI's `fine_tuning.job`. Times are seconds since 1970."""

    object: str
    id: str
    model: str
    created_at: int
    finished_at: int | None
    fine_tuned_model: str | None
    organization_id: str
    result_files: list[str]
    status: str
    validation_file: str | None
    training_file: str
    hyperparameters: wire.JobHyperparameters
    trained_tokens: int | None
    error: JobError | None
    seed: int
    estimated_finish: int | None
    integrations: list[str]
    """Always empty: no integration is supported."""
    method: JobMethod
    metadata: dict[str, str] | None
    nip: dict[str, Any]
    """The extension: `EffectiveSettings.nip_settings`, and the job's progress and result."""


class CheckpointMetrics(TypedDict):
    """The losses at a checkpoint, where the training has reported them."""

    step: int
    train_loss: NotRequired[float]
    valid_loss: NotRequired[float]


class CheckpointObject(TypedDict):
    """OpenAI's `fine_tuning.job.checkpoint`."""

    object: str
    id: str
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    step_number: int
    metrics: CheckpointMetrics


def build_job_object(row: JobRow) -> JobObject:
    """Build OpenAI's `fine_tuning.job`, with the extension object `nip`."""
    settings = row.read_settings()
    result: dict[str, Any] = load(row.result) or {}
    succeeded = row.status == "succeeded"
    method: JobMethod = {"type": row.method}
    method[row.method] = {"hyperparameters": settings.method_hyperparameters(row.method)}
    return {
        "object": "fine_tuning.job",
        "id": row.id,
        "model": row.model,
        "created_at": int(row.created_at),
        "finished_at": int(row.finished_at) if row.finished_at else None,
        "fine_tuned_model": row.adapter_name if succeeded else None,
        "organization_id": wire.ORGANIZATION_ID,
        "result_files": [row.result_file] if row.result_file else [],
        "status": row.status,
        "validation_file": row.validation_file,
        "training_file": row.training_file,
        "hyperparameters": settings.openai_hyperparameters(),
        "trained_tokens": result.get("tokens") if succeeded else None,
        "error": load(row.error),
        "seed": row.seed,
        "estimated_finish": _estimate_finish(row),
        "integrations": [],
        "method": method,
        "metadata": load(row.metadata),
        "nip": {
            "suffix": row.suffix,
            **settings.nip_settings(),
            "base_model": row.base_model,
            "parent": row.parent,
            "paused": bool(row.paused),
            "attempts": row.attempts,
            "progress": load(row.progress),
            "result": result or None,
        },
    }


def name_checkpoint(row: JobRow) -> str:
    """Return the id of a job's only checkpoint."""
    return "ftckpt-" + row.adapter_digest


def build_checkpoint(row: JobRow) -> CheckpointObject:
    """Build OpenAI's `fine_tuning.job.checkpoint`: a job's final weights."""
    result = load(row.result) or {}
    steps: int = result.get("steps", 0)
    metrics: CheckpointMetrics = {"step": steps}
    if (loss := result.get("final_loss")) is not None:
        metrics["train_loss"] = loss
    if (loss := result.get("validation_loss")) is not None:
        metrics["valid_loss"] = loss
    return {
        "object": "fine_tuning.job.checkpoint",
        "id": name_checkpoint(row),
        "created_at": int(row.finished_at or 0),
        "fine_tuned_model_checkpoint": row.adapter_name,
        "fine_tuning_job_id": row.id,
        "step_number": steps,
        "metrics": metrics,
    }


def _estimate_finish(row: JobRow) -> int | None:
    progress: StepFigures = load(row.progress) or {}
    progress_at, left_s = progress.get("at"), progress.get("time_left_s")
    if row.status != "running" or progress_at is None or left_s is None:
        return None
    return int(progress_at + left_s)
