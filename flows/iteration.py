"""The loop's iterations as flow runs, what it calls as task runs.

iteration   one iteration
retest      one test, with models of another run
call        the hook by which `nip_core.loop` runs everything through Prefect
"""

from collections.abc import Callable
from typing import Any

from prefect import flow

from nip_core import loop
from nip_core.errors import StageError
from nip_core.session.session import Session
from nip_core.stages.playing import play_shard, play_shards
from nip_core.stages.remote_shards import count_while
from nip_core.stages.training import submit_job
from nip_prefect.flows.remote_shards import play_remotely
from nip_prefect.tasks.calls import TASKS
from nip_prefect.tasks.flow_run_names import name_flow_run, tag_run, with_tags, without_tags
from nip_prefect.tasks.runtime import limit_by_tag, session_of


@flow(
    name="iteration",
    persist_result=False,
    result_serializer="json",
)
async def iteration(run: str, iteration: int, prove: bool = False) -> loop.IterationEnd:
    """Play and train once; what is committed is skipped.

    `prove`: prove first that the models which are to play answer; a swap just before has done so.
    """
    with without_tags():
        return await loop.iterate(session_of(run), iteration, prove, call)


@flow(
    name="retest",
    persist_result=False,
    result_serializer="json",
)
async def retest(run: str, iteration: int) -> loop.IterationEnd:
    """Test the models of a base run's iteration again, once; nothing is trained."""
    with without_tags():
        return await loop.retest(session_of(run), iteration, call)


async def call(function: Callable[..., Any], session: Session, *arguments: Any) -> Any:
    """Run a part of the loop: an iteration as a flow run, everything else as task runs."""
    run = session.run.name
    if function in (loop.iterate, loop.retest):
        *place, _ = arguments
        one = iteration if function is loop.iterate else retest
        named = one.with_options(flow_run_name=name_flow_run(one.name, run, place[0]))
        with with_tags(tag_run(run)):
            result = await named(run, *place)
        # Prefect matches subflows of a retried run by order of call, not by parameters.
        if result.iteration != place[0]:
            raise StageError(f"iteration {place[0]} returned the result of {result.iteration}")
        return result
    if function is play_shards:
        number, split, shards, _ = arguments
        if session.parameters.rollouts.task_runner != "local":
            return await session.with_server(
                lambda: count_while(
                    session, number, split, lambda: play_remotely(session, number, split, shards)
                )
            )
        # The tag is looked up once for all shards.
        play = await limit_by_tag(TASKS[play_shard], "nip-rollouts")
        in_task: loop.Call = lambda _, __, *place: play(run, *place)  # noqa: E731
        return await play_shards(session, number, split, shards, in_task)
    task = TASKS[function]
    if function is submit_job:
        task = await limit_by_tag(task, "nip-fine-tune")
    return await task(run, *arguments)
