"""What the API shows of a job: OpenAI's objects, made of a row.

build_job_object   a `fine_tuning.job`
name_checkpoint    the id of its final weights
build_checkpoint   their `fine_tuning.job.checkpoint`
"""

from typing import Any

from nip_lm_server import wire
from nip_lm_server.state.database import load
from nip_lm_server.state.rows import JobRow


def build_job_object(row: JobRow) -> dict[str, Any]:
    """Build OpenAI's `fine_tuning.job`, with the extension object `nip`."""
    settings = row.read_settings()
    result: dict[str, Any] = load(row.result) or {}
    method, succeeded = row.method, row.status == "succeeded"
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
        "method": {
            "type": method,
            method: {"hyperparameters": settings.method_hyperparameters(method)},
        },
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
    """Return the id of the only checkpoint that a job has."""
    return "ftckpt-" + row.adapter_digest


def build_checkpoint(row: JobRow) -> dict[str, Any]:
    """Build OpenAI's `fine_tuning.job.checkpoint`: the final weights of a job that succeeded."""
    result = load(row.result) or {}
    metrics: dict[str, Any] = {"step": result.get("steps", 0)}
    for name, figure in (("train_loss", "final_loss"), ("valid_loss", "validation_loss")):
        if result.get(figure) is not None:
            metrics[name] = result[figure]
    return {
        "object": "fine_tuning.job.checkpoint",
        "id": name_checkpoint(row),
        "created_at": int(row.finished_at or 0),
        "fine_tuned_model_checkpoint": row.adapter_name,
        "fine_tuning_job_id": row.id,
        "step_number": result.get("steps", 0),
        "metrics": metrics,
    }


def _estimate_finish(row: JobRow) -> int | None:
    progress = load(row.progress)
    if row.status != "running" or not progress or progress.get("time_left_s") is None:
        return None
    return int(progress["at"] + progress["time_left_s"])
