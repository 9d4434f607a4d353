"""Tasks that train: dataset, submission, waiting, proof, swap. The flow alone calls submission."""

from typing import Any

from nip_core.stages import fine_tuning, training_data
from nip_prefect.tasks.runtime import session_of, stage


@stage("build-dataset", "dataset-{group}-{iteration}")
async def build_dataset(run: str, iteration: int, group: str) -> dict[str, Any]:
    """Choose training examples from the rollouts and commit them; returns counts and digest."""
    return training_data.build_dataset(session_of(run), iteration, group)


@stage("submit-job", "submit-{group}-{iteration}")
async def submit_job(run: str, iteration: int, group: str) -> dict[str, Any]:
    """Create the group's fine-tune job, once and only once, or find the one that exists."""
    return await fine_tuning.submit(session_of(run), iteration, group)


@stage("await-job", "await-{group}-{iteration}")
async def await_job(run: str, iteration: int, group: str) -> dict[str, Any]:
    """Poll the job until it ends or its deadline passes."""
    return await fine_tuning.wait(session_of(run), iteration, group)


@stage("prove-candidates", "prove-candidates-{iteration}")
async def prove_candidates(run: str, iteration: int) -> dict[str, str]:
    """Prove that the new models of all groups answer; returns their names by group."""
    proved = await fine_tuning.prove_new(session_of(run), iteration)
    return {group: model.model for group, model in proved.items()}


@stage("swap-models", "swap-{iteration}")
async def swap_models(run: str, iteration: int) -> dict[str, str]:
    """Let the new models, if they are proved and not refused by the gate, serve from the next
    iteration on."""
    return await fine_tuning.swap(session_of(run), iteration)


@stage("prove-serving", "prove-serving-{iteration}")
async def prove_serving(run: str, iteration: int) -> None:
    """Prove that the trained models which are to play the iteration answer with their weights."""
    await fine_tuning.prove_serving(session_of(run), iteration)
