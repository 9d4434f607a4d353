"""Tasks that train: dataset, submission, waiting, swap. Submission is called from the flow alone."""

from typing import Any

from nip_core.stages import fine_tuning
from prefect import task
from prefect.cache_policies import NO_CACHE
from tasks.runtime import RETRIES, session_of


@task(
    name="build-dataset",
    task_run_name="dataset-{group}-{iteration}",
    cache_policy=NO_CACHE,
    **RETRIES,
)
async def build_dataset(run: str, iteration: int, group: str) -> dict[str, Any]:
    """Choose training examples from the rollouts and commit them; returns counts and digest."""
    return fine_tuning.build_dataset(session_of(run), iteration, group)


@task(
    name="submit-job",
    task_run_name="submit-{group}-{iteration}",
    tags=["nip-fine-tune"],
    cache_policy=NO_CACHE,
    **RETRIES,
)
async def submit_job(run: str, iteration: int, group: str) -> dict[str, Any]:
    """Create the group's fine-tune job, once and only once, or find the one that exists."""
    return await fine_tuning.submit(session_of(run), iteration, group)


@task(
    name="await-job",
    task_run_name="await-{group}-{iteration}",
    cache_policy=NO_CACHE,
    **RETRIES,
)
async def await_job(run: str, iteration: int, group: str) -> dict[str, Any]:
    """Poll the job until it ends or its deadline passes."""
    return await fine_tuning.wait(session_of(run), iteration, group)


@task(name="swap-models", task_run_name="swap-{iteration}", cache_policy=NO_CACHE, **RETRIES)
async def swap_models(run: str, iteration: int) -> dict[str, str]:
    """Prove that the new models answer and let them serve from the next iteration on."""
    return await fine_tuning.swap(session_of(run), iteration)
