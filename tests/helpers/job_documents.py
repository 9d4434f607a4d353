"""The document of a fine-tune job, whole, for tests that only look at some of it."""

from typing import Any

from nip_core.jobs.job import JobRecord


def job_record(**facts: Any) -> JobRecord:
    """A job of a group, with these facts."""
    return JobRecord.model_validate(
        {
            "state": "terminal",
            "key": "k",
            "run": "a",
            "iteration": 0,
            "group": "verifier",
            "attempt": 0,
            "method": "supervised",
            "parent_model": "m",
            "parent_model_digest": "d",
            "dataset_digest": "d",
            "examples": 10,
            "seed": 1,
            "settings": {"n_epochs": 1},
            "created_at": 1.5,
            **facts,
        }
    )


def job_document(**facts: Any) -> dict[str, Any]:
    """The same as JSON."""
    return job_record(**facts).model_dump(mode="json")
