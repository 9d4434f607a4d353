"""Test the newest models of a run without training."""

from collections.abc import Sequence
from typing import Any

from prefect import flow

from nip_core.parameters import load_parameters
from nip_prefect.flows.hooks import HOOKS_OF_TESTS
from nip_prefect.flows.iteration import play_split
from nip_prefect.tasks.fine_tune import prove_serving
from nip_prefect.tasks.runtime import opened


@flow(
    name="evaluate",
    flow_run_name="evaluate-{config}",
    persist_result=False,
    result_serializer="json",
    **HOOKS_OF_TESTS,
)
async def evaluate(config: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Play the test problems with the run's newest models (the base models of a new run).

    Args:
        config: Path of a YAML configuration.
        overrides: Settings on top of it, each written as "a.b=c".

    Returns:
        The iteration whose models were tested, and the metrics.
    """
    parameters = load_parameters(config, overrides)
    async with opened(parameters) as session:
        newest = session.run.finished_iterations()
        await prove_serving(session.run.name, newest)
        metrics = await play_split(session.run.name, newest, "test")
    return {"run": session.run.name, "iteration": newest, "test": metrics}
