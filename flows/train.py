"""The training loop: iterations, then a last test of the final models."""

from collections.abc import Sequence
from typing import Any

from prefect import flow

from flows.iteration import is_complete, iteration, play_split, retest
from nip_core.errors import StageError
from nip_core.parameters import load_parameters
from nip_core.stages.estimate import is_tested
from nip_core.stages.evaluation import summary
from nip_core.stages.session import open_session
from tasks.fine_tune import prove_serving
from tasks.publish import publish
from tasks.runtime import hold


@flow(name="train", flow_run_name="train-{config}", persist_result=False, result_serializer="json")
async def train(
    config: str, overrides: Sequence[str] = (), retry_failed_jobs: bool = False
) -> dict[str, Any]:
    """Train as the configuration says, going on where the run of that name stopped.

    With base_run.base_run_type rerun_tests nothing is trained: the tests of another run are played
    again with its models.

    Args:
        config: Path of a YAML configuration.
        overrides: Settings on top of it, each written as "a.b=c".
        retry_failed_jobs: Submit fine-tune jobs that are on record as failed once more.

    Returns:
        The run's summary, as `nip show --json` prints it.
    """
    given = load_parameters(config, overrides)
    async with open_session(given, retry_failed_jobs=retry_failed_jobs) as session:
        parameters = session.parameters
        with hold(session):
            run, last = session.run.name, parameters.rl.num_iterations
            only_tests = parameters.base_run.base_run_type == "rerun_tests"
            done = next((i for i in range(last) if not is_complete(run, i)), last)
            if not only_tests:
                await prove_serving(run, done)
            for i in range(done, last):
                result = await (retest if only_tests else iteration)(run, i)
                # Prefect matches subflows of a retried run by order of call, not by parameters.
                if result["iteration"] != i:
                    raise StageError(f"iteration {i} returned the result of {result['iteration']}")
            if only_tests:
                await retest(run, last)
            elif is_tested(parameters, last):
                await play_split(run, last, "test")
            await publish(run, "the last test", 1.0)
        return summary(session.run)
