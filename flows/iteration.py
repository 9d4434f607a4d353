"""The loop's iterations as flow runs, their steps as task runs, each with the steps that it needs.

    prove ─► plan ─► play (shards) ─► commit ─► measure       of the test, then of the training:
                                        ├─► measure ─► publish
                                        └─► dataset ─► submit ─► await (of each group) ─► prove ─►
    [gate: plan ─► play ─► commit ─► measure, of both sides; prove] ─► swap ─► publish

`nip_core.loop` says so; `Steps` is the hook by which it runs all of it through Prefect.
"""

from collections.abc import Callable, Sequence
from typing import Any

from prefect import flow
from prefect.utilities.annotations import opaque, quote

from nip_core import loop
from nip_core.errors import StageError
from nip_core.hook import separate
from nip_core.session.session import Session
from nip_core.stages.playing import play_shard, play_shards
from nip_core.stages.training import submit_job
from nip_prefect.flows.remote_shards import play_remotely
from nip_prefect.tasks.calls import TASKS
from nip_prefect.tasks.flow_run_names import name_flow_run, tag_run, with_tags, without_tags
from nip_prefect.tasks.runtime import find_last_step, limit_by_tag, session_of


@flow(name="iteration", persist_result=False, result_serializer="json")
async def iteration(run: str, iteration: int, prove: bool = False) -> loop.IterationEnd:
    """Play and train once; committed steps are skipped.

    `prove`: prove first that the models which are to play answer; a swap just before has done so.
    """
    with without_tags():
        return await loop.iterate(session_of(run), iteration, prove, Steps())


@flow(name="retest", persist_result=False, result_serializer="json")
async def retest(run: str, iteration: int) -> loop.IterationEnd:
    """Test the models of a base run's iteration again, once; nothing is trained."""
    with without_tags():
        return await loop.retest(session_of(run), iteration, Steps())


class Steps:
    """The loop's hook in one flow run: an iteration is a flow run, all other steps are task runs.

    Prefect knows a step by the object that it returned, at its address: all are kept here, so that
    none has the address of another. It looks into neither the results that a step needs nor its
    arguments, where a text of another step would look like one more need.
    """

    def __init__(self) -> None:
        """Begins with no step."""
        self._results: list[Any] = []

    async def __call__(
        self, function: Callable[..., Any], session: Session, *arguments: Any
    ) -> Any:
        """Run a step, with those that it needs as its inputs; return what the function does."""
        values, results = separate(arguments)
        awaited_results: list[Any] = [opaque(result) for result in results]
        if function in (loop.iterate, loop.retest):
            kind = iteration if function is loop.iterate else retest
            result = await _run_iteration(kind, session.run.name, values[:-1], awaited_results)
        elif function is play_shards:
            result = await self._play(session, *values[:-1])
        else:
            task = TASKS[function]
            if not self._results:
                awaited_results += await find_last_step()
            if function is submit_job:
                task = await limit_by_tag(task, "nip-fine-tune")
            result = await task(session.run.name, *map(quote, values), wait_for=awaited_results)
        self._results.append(result)
        return result

    async def _play(
        self, session: Session, number: int, split: str, shards: list[str]
    ) -> list[Any]:
        after = [opaque(shards)]
        if session.parameters.rollouts.task_runner != "local":
            return await play_remotely(session, number, split, shards, after)
        task = await limit_by_tag(TASKS[play_shard], "nip-rollouts")  # looked up once for all

        async def play(_: Callable[..., Any], __: Session, *place: Any) -> Any:
            return await task(session.run.name, *map(quote, place), wait_for=after)

        return await play_shards(session, number, split, shards, play)


async def _run_iteration(
    kind: Any, run: str, place: Sequence[Any], awaited_results: Sequence[Any]
) -> Any:
    named_flow = kind.with_options(flow_run_name=name_flow_run(kind.name, run, place[0]))
    with with_tags(tag_run(run)):
        end = await named_flow(run, *place, wait_for=awaited_results)
    # Prefect matches subflows of a retried run by order of call, not by parameters.
    if end.iteration != place[0]:
        raise StageError(f"iteration {place[0]} returned the result of {end.iteration}")
    return end
