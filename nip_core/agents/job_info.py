"""A fine-tune job as our lm_server reports it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

JobStatus = Literal["pending", "running", "succeeded", "failed", "cancelled", "not_found"]

_STATUSES: dict[str, JobStatus] = {
    word: word for word in ("running", "succeeded", "failed", "cancelled")
}


def job_status(server_word: str) -> JobStatus:
    """The status of a job for what the API calls it.

    What has not begun, is paused or is not known is pending: none of these is an end.
    """
    return _STATUSES.get(server_word, "pending")


@dataclass(frozen=True)
class TrainingJobInfo:
    """A fine-tune job. Times are seconds since the epoch."""

    job_id: str
    status: JobStatus
    server_status: str  # in the server's own word: validating_files, queued, paused, ...
    fine_tuned_model: str | None
    error: str | None
    created_at: float
    finished_at: float | None
    trained_tokens: int | None
    settings: Mapping[str, Any] = field(default_factory=dict)  # with which it really trains
    metadata: Mapping[str, str] = field(default_factory=dict)


LmTrainingJobInfo = TrainingJobInfo
"""The name that this class has where it is a language-model server's."""
