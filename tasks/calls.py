"""The steps that the loop calls, as Prefect tasks.

TASKS                by function, the task that runs it
play_shard_remotely  the task that plays a shard in another process
"""

import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from inspect import Parameter, signature
from typing import Any

from prefect import Task

from nip_core.hook import directly
from nip_core.run_store.while_led import while_led
from nip_core.session.session import Session
from nip_core.stages.attacking import end_course, has_ended
from nip_core.stages.choosing import build_dataset
from nip_core.stages.measuring import measure
from nip_core.stages.playing import commit_split, plan_split, play_shard
from nip_core.stages.proving import prove_candidates, prove_serving
from nip_core.stages.publishing import Milestone, publish
from nip_core.stages.remote_shards import Ticket, make_ticket, open_apart
from nip_core.stages.swapping import swap_models
from nip_core.stages.training import submit_job, wait_for_job
from nip_prefect.tasks.publish import publish_artifacts
from nip_prefect.tasks.runtime import retried_task, session_of


def _task(function: Callable[..., Any], name: str, run_name: str) -> Task[..., Any]:
    """Make the task of a function. The first parameter names a run; it works in its session."""

    @wraps(function)
    async def in_session(run: str, *arguments: Any) -> Any:
        return await directly(function, session_of(run), *arguments)

    # Prefect names runs after the parameters, and shows them.
    _, *places = signature(function).parameters.values()
    run = Parameter("run", Parameter.POSITIONAL_OR_KEYWORD, annotation=str)
    in_session.__signature__ = signature(function).replace(parameters=[run, *places])  # type: ignore[attr-defined]
    return retried_task(name, run_name)(in_session)


async def _publish(
    session: Session, iteration: int, after: Milestone, report: bool, samples: bool
) -> None:
    """Write the report, and the artifacts that show the run in Prefect's UI."""
    publish(session, iteration, after, report, samples)
    await publish_artifacts(session, after, iteration, samples)


TASKS: dict[Callable[..., Any], Task[..., Any]] = {
    plan_split: _task(plan_split, "plan", "plan-{split}-{iteration}"),
    make_ticket: _task(make_ticket, "make-ticket", "make-ticket"),
    play_shard: _task(play_shard, "play-shard", "play-{split}-{iteration}-{shard}"),
    commit_split: _task(commit_split, "commit-rollouts", "commit-{split}-{iteration}"),
    measure: _task(measure, "measure", "measure-{split}-{iteration}"),
    build_dataset: _task(build_dataset, "build-dataset", "dataset-{group}-{iteration}"),
    submit_job: _task(submit_job, "submit-job", "submit-{group}-{iteration}"),
    wait_for_job: _task(wait_for_job, "await-job", "await-{group}-{iteration}"),
    prove_candidates: _task(prove_candidates, "prove-candidates", "prove-candidates-{iteration}"),
    prove_serving: _task(prove_serving, "prove-serving", "prove-serving-{iteration}"),
    has_ended: _task(has_ended, "judge-attack", "judge-attack-{iteration}"),
    end_course: _task(end_course, "end-attack", "end-attack-{iteration}"),
    swap_models: _task(swap_models, "swap-models", "swap-{iteration}"),
    publish: _task(_publish, "publish", "publish-{after}-{iteration}"),
}


@retried_task("play-shard-apart", "play-{split}-{iteration}-{shard}")
async def play_shard_remotely(
    ticket: Ticket, iteration: int, split: str, shard: str
) -> dict[str, Any]:
    """Play and commit one shard in a process of its own, without opening the run."""
    async with open_apart(ticket) as session:
        summary = await while_led(session.lease, play_shard(session, iteration, split, shard))
    return {**asdict(summary), "process": os.getpid(), "host": socket.gethostname()}
