"""Test the newest models of a run without training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from nip_core.hook import After
from nip_core.loop import play_and_measure
from nip_core.parameters import load_parameters
from nip_core.rollouts.plan import TEST
from nip_core.stages.proving import prove_serving
from nip_prefect.flows.form import Bundled
from nip_prefect.flows.hooks import HOOKS_OF_TESTS
from nip_prefect.flows.iteration import Steps
from nip_prefect.tasks.flow_run_names import name_flow_run
from nip_prefect.tasks.runtime import offered_settings, open_run


def _flow_run_name() -> str:
    typed = flow_run.parameters
    if (lent := offered_settings()) is not None:
        return name_flow_run("evaluate", lent.run_name)
    return name_flow_run("evaluate", Path(typed.get("config_file") or typed["config"]).stem)


@flow(
    name="evaluate",
    flow_run_name=_flow_run_name,
    persist_result=False,
    result_serializer="json",
    **HOOKS_OF_TESTS,
)
async def evaluate(
    config: Bundled, overrides: Sequence[str] = (), config_file: str | None = None
) -> dict[str, Any]:
    """Play the test problems with the run's newest models (the base models of a new run).

    Args:
        config: One of the configurations that are installed with nip.
        overrides: Settings on top of it, each written as "a.b=c".
        config_file: Path of a YAML configuration on the worker, instead of a bundled one.

    Returns:
        The iteration whose models were tested, and the metrics.
    """
    parameters = offered_settings() or load_parameters(config_file or config, overrides)
    async with open_run(parameters) as session:
        newest = session.run.finished_iterations()
        steps = Steps()
        proof = await steps(prove_serving, session, newest)
        metrics = await play_and_measure(session, newest, TEST, steps, After(proof))
    return {"run": session.run.name, "iteration": newest, "test": metrics.as_json()}
