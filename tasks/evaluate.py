"""The task that measures a played split."""

from typing import Any

from nip_core.stages import evaluation
from nip_prefect.tasks.runtime import session_of, stage


@stage("measure", "measure-{split}-{iteration}")
async def measure(run: str, iteration: int, split: str) -> dict[str, Any]:
    """Accuracy, completeness and soundness with their intervals, and what else is measured."""
    return evaluation.measure(session_of(run), iteration, split)
