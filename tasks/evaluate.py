"""The task that measures a played split."""

from typing import Any

from nip_core.stages import evaluation
from prefect import task
from prefect.cache_policies import NO_CACHE
from tasks.runtime import RETRIES, session_of


@task(name="measure", task_run_name="measure-{split}-{iteration}", cache_policy=NO_CACHE, **RETRIES)
async def measure(run: str, iteration: int, split: str) -> dict[str, Any]:
    """Accuracy, completeness and soundness with their intervals, and what else is measured."""
    return evaluation.measure(session_of(run), iteration, split)
