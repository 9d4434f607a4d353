"""The loop's iterations as flow runs, their steps as task runs, each with the steps that it needs.

    prove ─► plan ─► play (shards) ─► commit ─► measure       of the test, then of the training:
                                        ├─► measure ─► publish
                                        └─► dataset ─► submit ─► await (of each group) ─► prove ─►
    [gate: plan ─► play ─► commit ─► measure, of both sides; prove] ─► swap ─► publish

`nip_core.loop` says so; `call` is the hook by which it runs all of it through Prefect.
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
from nip_prefect.tasks.runtime import limit_by_tag, session_of


@flow(name="iteration", persist_result=False, result_serializer="json")
async def iteration(run: str, iteration: int, prove: bool = False) -> loop.IterationEnd:
    """Play and train once; what is committed is skipped.

    `prove`: prove first that the models which are to play answer; a swap just before has done so.
    """
    with without_tags():
        return await loop.iterate(session_of(run), iteration, prove, call)


@flow(name="retest", persist_result=False, result_serializer="json")
async def retest(run: str, iteration: int) -> loop.IterationEnd:
    """Test the models of a base run's iteration again, once; nothing is trained."""
    with without_tags():
        return await loop.retest(session_of(run), iteration, call)


async def call(function: Callable[..., Any], session: Session, *arguments: Any) -> Any:
    """Run a step: an iteration as a flow run, shards and everything else as task runs.

    The steps that it needs are known by their results. Prefect looks into neither these nor the
    arguments, where it would take a text of another step for one more dependence.
    """
    run, (values, results) = session.run.name, separate(arguments)
    after = [opaque(result) for result in results]
    if function in (loop.iterate, loop.retest):
        kind = iteration if function is loop.iterate else retest
        return await _run_iteration(kind, run, values[:-1], after)
    if function is play_shards:
        return await _play(session, *values[:-1])
    task = TASKS[function]
    if function is submit_job:
        task = await limit_by_tag(task, "nip-fine-tune")
    return await task(run, *map(quote, values), wait_for=after)


async def _run_iteration(kind: Any, run: str, place: Sequence[Any], after: Sequence[Any]) -> Any:
    named = kind.with_options(flow_run_name=name_flow_run(kind.name, run, place[0]))
    with with_tags(tag_run(run)):
        end = await named(run, *place, wait_for=after)
    # Prefect matches subflows of a retried run by order of call, not by parameters.
    if end.iteration != place[0]:
        raise StageError(f"iteration {place[0]} returned the result of {end.iteration}")
    return end


async def _play(session: Session, number: int, split: str, shards: Sequence[str]) -> list[Any]:
    after = [opaque(shards)]
    if session.parameters.rollouts.task_runner != "local":
        return await play_remotely(session, number, split, shards, after)
    task = await limit_by_tag(TASKS[play_shard], "nip-rollouts")  # looked up once for all shards

    async def play(_: Callable[..., Any], __: Session, *place: Any) -> Any:
        return await task(session.run.name, *map(quote, place), wait_for=after)

    return await play_shards(session, number, split, shards, play)
