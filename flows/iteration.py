"""One iteration: test, play, choose, train, prove, compare, swap.

iteration    all of that
retest       the test alone, with models of another run
play_split   all shards of a split, published and measured
"""

import time
from collections.abc import Sequence
from typing import Any

from prefect import flow

from nip_core.concurrency import together
from nip_core.stages.estimate import is_tested
from nip_core.stages.evaluation import promotion_of
from nip_core.stages.fine_tuning import pass_on, scheduled
from nip_core.stages.gate import NEW, OLD, is_due
from nip_prefect.flows.printing import gate_line, verdict_line
from nip_prefect.flows.remote_shards import play_apart
from nip_prefect.tasks.evaluate import measure
from nip_prefect.tasks.fine_tune import (
    await_job,
    build_dataset,
    prove_candidates,
    prove_serving,
    submit_job,
    swap_models,
)
from nip_prefect.tasks.play import commit_rollouts, plan, play_shard
from nip_prefect.tasks.publish import publish
from nip_prefect.tasks.runtime import limited, log_of, session_of


@flow(
    name="iteration",
    flow_run_name="{run}-{iteration}",
    persist_result=False,
    result_serializer="json",
)
async def iteration(run: str, iteration: int, prove: bool = False) -> dict[str, Any]:
    """Play and train once; what is committed is skipped. Returns the iteration and its models.

    `prove`: prove first that the models which are to play answer; a swap just before has done so.
    """
    session = session_of(run)
    parameters = session.parameters
    times: dict[str, float] = {}
    done = iteration / (parameters.rl.num_iterations + 1)
    share = 1 / (parameters.rl.num_iterations + 1)

    if prove:
        await prove_serving(run, iteration)
    if is_tested(parameters, iteration):
        with timed(times, "test"):
            await play_split(run, iteration, "test")
    if session.run.store.exists(session.run.models(iteration)):
        # Only its test was missing. A fork could not go through the rest, which has other keys.
        models = await swap_models(run, iteration)
        return {"iteration": iteration, "models": models, "parked": None}
    with timed(times, "play"):
        await play_split(run, iteration, "train")
    groups = scheduled(parameters, iteration)
    with timed(times, "dataset"):
        # At once: what is published is sent to Prefect's server, which takes its time.
        played = publish(run, f"playing iteration {iteration}", done + 0.5 * share, report=False)
        await together([played, *(_build(run, iteration, group) for group in groups)])
    with timed(times, "train"):
        parked = await train_groups(run, iteration, groups)
    if parked is not None:
        log_of(run).info("iteration %d: parked, %s", iteration, parked)
        await publish(run, f"parking iteration {iteration}", done + 0.5 * share, samples=False)
        return {"iteration": iteration, "models": None, "parked": parked}
    if is_due(session, iteration):
        with timed(times, "gate"):
            await prove_candidates(run, iteration)
            await play_split(run, iteration, OLD)
            await play_split(run, iteration, NEW)
    with timed(times, "swap"):
        models = await swap_models(run, iteration)
    if (decision := promotion_of(session.run, iteration)) is not None:
        log_of(run).info("iteration %d: %s", iteration, gate_line(decision))
    serving = ", ".join(f"{group}: {model}" for group, model in models.items())
    log_of(run).info("iteration %d: the models from here on are %s", iteration, serving)
    session.run.write_json_once(
        f"{session.run.iteration(iteration)}/times.json", times, lease=session.lease
    )
    last = iteration + 1 == parameters.rl.num_iterations
    if not last or is_tested(parameters, iteration + 1):  # else the run's last follows at once
        await publish(run, f"training iteration {iteration}", done + share, samples=False)
    return {"iteration": iteration, "models": models, "parked": None}


@flow(
    name="retest",
    flow_run_name="{run}-{iteration}",
    persist_result=False,
    result_serializer="json",
)
async def retest(run: str, iteration: int) -> dict[str, Any]:
    """Test once the models that played the iteration in the base run; nothing is trained."""
    session = session_of(run)
    last = session.parameters.rl.num_iterations
    await prove_serving(run, iteration)
    if is_tested(session.parameters, iteration):
        await play_split(run, iteration, "test")
    models = {} if iteration == last else pass_on(session, iteration)
    await publish(run, f"testing iteration {iteration}", (iteration + 1) / (last + 1))
    return {"iteration": iteration, "models": models, "parked": None}


async def play_split(run: str, iteration: int, split: str) -> dict[str, Any]:
    """Play all shards of a split, publish them as one and measure it."""
    session = session_of(run)
    shards = await plan(run, iteration, split)
    progress = session.progress
    log_of(run).info(
        "iteration %d: playing %s problems, %d episodes, %d of them in %d shards are still to play",
        *(iteration, split, progress.episodes_total),
        *(progress.episodes_total - progress.episodes_done, len(shards)),
    )
    if session.parameters.rollouts.task_runner == "local":
        play = await limited(play_shard, "nip-rollouts")
        await together(play(run, iteration, split, s) for s in shards)
    elif shards:
        await session.with_server(lambda: play_apart(session, iteration, split, shards))
    await commit_rollouts(run, iteration, split)
    metrics: dict[str, Any] = await measure(run, iteration, split)
    log_of(run).info(
        "iteration %d: played %s problems: %s", iteration, split, verdict_line(metrics)
    )
    return metrics


async def train_groups(run: str, iteration: int, groups: Sequence[str]) -> str | None:
    """Submit the jobs of the groups and wait for them; once more for those that ended in vain and
    are to be tried again. Returns which job is not waited for any longer, None if all ended."""
    submit = await limited(submit_job, "nip-fine-tune")
    while groups:
        for group in groups:
            job = await submit(run, iteration, group)
            what = f"trains as job {job['id']}" if job["id"] else f"has no job, {job['status']}"
            log_of(run).info("iteration %d: %s %s", iteration, group, what)
        ended = await together(_end_of_job(run, iteration, group) for group in groups)
        parked = [job["parked"] for job in ended if job["parked"] is not None]
        if parked:
            return str(parked[0])
        groups = [group for group, job in zip(groups, ended, strict=True) if job["again"]]
    return None


async def _build(run: str, iteration: int, group: str) -> None:
    built: dict[str, Any] = await build_dataset(run, iteration, group)
    log_of(run).info(
        "iteration %d: %s has %d training examples from %d episodes",
        *(iteration, group, built["examples"], built["episodes"]),
    )


async def _end_of_job(run: str, iteration: int, group: str) -> dict[str, Any]:
    job: dict[str, Any] = await await_job(run, iteration, group)
    if job["id"]:
        log_of(run).info(
            "iteration %d: job %s of %s: %s, model %s",
            *(iteration, job["id"], group, job["status"], job["model"] or "none"),
        )
    return job


class timed:  # noqa: N801 - reads as a statement
    """Adds the seconds spent in its block to `times`."""

    def __init__(self, times: dict[str, float], name: str):
        self._times, self._name = times, name

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._times[self._name] = round(time.monotonic() - self._started, 3)
