"""The training loop: iterations, then a last test of the final models.

train         as a configuration says
continue-run  a run that there is, known by its name alone
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed
from pydantic import Field

from nip_core.errors import SettingsError
from nip_core.loop import go_on
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.records.rewinds import Stage
from nip_core.records.status import find_first_incomplete, find_last
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.session import Session
from nip_core.stages.publishing import check_store
from nip_core.upkeep.rerun import rerun
from nip_prefect.flows.form import Bundled
from nip_prefect.flows.hooks import HOOKS
from nip_prefect.flows.iteration import Steps
from nip_prefect.tasks.flow_run_marks import note_goal
from nip_prefect.tasks.flow_run_names import name_flow_run
from nip_prefect.tasks.publish import published_state
from nip_prefect.tasks.runtime import offered_settings, open_run

Iteration = Annotated[int, Field(ge=0, le=9999)]
Count = Annotated[int, Field(ge=1)]


def _flow_run_name() -> str:
    typed = flow_run.parameters
    if (lent := offered_settings()) is not None:
        return name_flow_run("train", lent.run_name)
    file = typed.get("config_file") or typed["config"]
    return name_flow_run("train", typed.get("run_name") or Path(file).stem)


def _name_of_continued() -> str:
    return name_flow_run("continue", flow_run.parameters["run"])


@flow(
    name="train",
    flow_run_name=_flow_run_name,
    persist_result=False,
    result_serializer="json",
    **HOOKS,
)
async def train(
    config: Bundled,
    overrides: Sequence[str] = (),
    retry_failed_jobs: bool = False,
    run_name: str | None = None,
    num_iterations: Count | None = None,
    more_iterations: Count | None = None,
    rollouts_per_iteration: Count | None = None,
    rerun_from_iteration: Iteration | None = None,
    rerun_from_stage: Literal["test", "play", "dataset", "train", "swap"] = "play",
    config_file: str | None = None,
) -> dict[str, Any] | State[Any]:
    """Train as the configuration says, going on where the run of that name stopped.

    A run that has finished its iterations trains nothing more, and the state of the flow run says
    so: a schedule of one run needs more_iterations, as the deployment nightly-training has it.

    With base_run.base_run_type rerun_tests nothing is trained: the tests of another run are played
    again with its models.

    Args:
        config: One of the configurations that are installed with nip.
        overrides: Any settings on top of it, each written as a.b=c, for example rl.lr=0.001.
        retry_failed_jobs: Submit fine-tune jobs that are on record as failed once more.
        run_name: The name of nip's run, instead of the configuration's. A name means one
            configuration; a run of that name that was stopped goes on. The flow run is called
            after it, not by the name typed above.
        num_iterations: How many iterations instead of the configuration's. More of them extend a
            finished run; with as many as it has nothing is trained.
        more_iterations: How many iterations to add to those that the run has finished; it is
            trained as far as the configuration says at least. For schedules, which train nothing
            without it once the run is finished. A flow run that is retried adds them once.
        rollouts_per_iteration: How many training episodes per iteration instead of the
            configuration's.
        rerun_from_iteration: Do this iteration and all later ones anew. Their files so far are
            set aside in the run's directory superseded, not deleted.
        rerun_from_stage: The stage of that iteration to begin with; earlier stages are kept.
        config_file: Path of a YAML configuration on the worker, instead of a bundled one.

    Returns:
        The run's summary, as `nip show --json` prints it.
    """
    source = config_file or config
    chosen = {
        "run_name": run_name,
        "rl.num_iterations": num_iterations,
        "rl.rollouts_per_iteration": rollouts_per_iteration,
    }
    settings = [*overrides, *(f"{key}={value}" for key, value in chosen.items() if value)]
    parameters = offered_settings() or load_parameters(source, settings)
    if more_iterations is not None:
        if num_iterations is not None:
            raise SettingsError("num_iterations and more_iterations: set one of them")
        run = RunStore(open_store(parameters.run_store), parameters.run_name)
        last = max(parameters.rl.num_iterations, run.finished_iterations() + more_iterations)
        last = await note_goal(last)
        parameters = load_parameters(source, [*settings, f"rl.num_iterations={last}"])
    return await _train(parameters, retry_failed_jobs, rerun_from_iteration, rerun_from_stage)


@flow(
    name="continue-run",
    flow_run_name=_name_of_continued,
    persist_result=False,
    result_serializer="json",
    **HOOKS,
)
async def continue_run(
    run: str,
    run_store: str | None = None,
    retry_failed_jobs: bool = False,
    num_iterations: Count | None = None,
    rerun_from_iteration: Iteration | None = None,
    rerun_from_stage: Literal["test", "play", "dataset", "train", "swap"] = "play",
) -> dict[str, Any] | State[Any]:
    """Go on with a run that exists, by its name: the settings are those on record.

    A run that has finished its iterations trains nothing more, and the state of the flow run says
    so.

    Args:
        run: Name of the run.
        run_store: Where it is kept. Left empty, the run's artifact nip-<run>-state says so.
        retry_failed_jobs: Submit fine-tune jobs that are on record as failed once more.
        num_iterations: How many iterations instead of those on record. More of them extend a
            finished run.
        rerun_from_iteration: Do this iteration and all later ones anew. Their files so far are
            set aside in the run's directory superseded, not deleted.
        rerun_from_stage: The stage of that iteration to begin with; earlier stages are kept.

    Returns:
        The run's summary, as `nip show --json` prints it.
    """
    state = await published_state(run)
    if run_store is None and state is None:
        raise SettingsError(
            f"run {run!r}: there is no artifact nip-{run}-state here that says where it is kept; "
            "give run_store"
        )
    place = run_store or str(state and state["store"])
    record = RunStore(open_store(place, read_only=True), run)
    if state is not None:
        check_store(record, state)
    parameters = record.open().parameters
    overrides = [f"rl.num_iterations={num_iterations}"] if num_iterations else []
    new_parameters = load_parameters({**parameters, "run_store": place}, overrides)
    return await _train(new_parameters, retry_failed_jobs, rerun_from_iteration, rerun_from_stage)


async def _train(
    given: HyperParameters, retry_failed_jobs: bool, again_from: int | None, stage: Stage
) -> dict[str, Any] | State[Any]:
    async with open_run(given, retry_failed_jobs=retry_failed_jobs) as session:
        state = await published_state(session.run.name)
        if state is not None and state["store"] == session.run.store.url:  # else of a copy
            check_store(session.run, state)
        if again_from is not None:
            # Once for each flow run, however often it is retried.
            await rerun(session, again_from, stage, token=str(flow_run.get_id()))
        spare = _describe_spare(session)
        result = await go_on(session, Steps())
    if spare is None:
        return result
    # As a warning, too: a schedule that trains nothing would be green night after night.
    session.log.warning("%s", spare)
    return Completed(message=spare, data=result)


def _describe_spare(session: Session) -> str | None:
    """Say that the run has nothing to train, and how a schedule trains more; None if it has."""
    parameters, run = session.parameters, session.run
    # A run that only tests trains nothing, as its settings say; an attempt before may have trained.
    if parameters.base_run.base_run_type == "rerun_tests" or flow_run.get_run_count() > 1:
        return None
    last = find_last(session.records, parameters)
    if last == 0 or find_first_incomplete(session.records, parameters) < last:
        return None
    return (
        f"run {run.name} is finished: nothing was trained; it has its {last} "
        f"iteration{'s' * (last > 1)}. A schedule goes on with more_iterations, as the deployment "
        "nightly-training does; another run needs another run_name"
    )
