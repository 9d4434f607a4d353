"""The loop: an iteration plays, chooses, trains, proves and swaps; a run is several of them.

train    a run, from its settings to the test of its last models
go_on    the same in a session that is open
iterate  one iteration
retest   one iteration of a run that plays the tests of another run again
play     the episodes of one split

Each step is a function of `nip_core.stages` that takes the session and plain values, commits what
it has made and returns plain values. What is committed is skipped, so a run goes on from wherever
it was stopped. Every step goes through the hook ``call(function, session, *arguments)``: `directly`
runs it here, Prefect makes a task run of it, tests try it again or break it. `iterate`, `retest`
and `playing.play_shards` go through it, too, with the hook itself as their last argument. (A run
that only tests passes its models on without it: that is one small document.)
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nip_core.concurrency import gather_or_cancel
from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.tested_iterations import is_tested
from nip_core.records.status import find_first_incomplete, find_last
from nip_core.rollouts.plan import CANDIDATE, TEST, TRAIN, VALIDATION
from nip_core.session.opening import open_session
from nip_core.session.session import Session
from nip_core.showing.summary import summarise_run
from nip_core.stages import (
    agenda,
    attacking,
    choosing,
    gating,
    measuring,
    playing,
    proving,
    swapping,
    training,
)
from nip_core.stages.playing import CommittedSplit
from nip_core.stages.publishing import Milestone, publish
from nip_core.stages.stage_times import StageTimes
from nip_core.stages.training import JobEnd

Call = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class IterationEnd:
    """What an iteration has come to."""

    iteration: int
    models: Mapping[str, str] | None = None
    """By group, the name of the model that serves from here on; None: it is not over."""
    parked: str | None = None
    """In words, the job that the run is parked for."""
    is_last: bool = False
    """A verdict on its test has ended an attack, see `attacking`."""


async def directly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function of a stage in this process, once."""
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else result


async def train(
    parameters: HyperParameters, *, retry_failed_jobs: bool = False, call: Call = directly
) -> dict[str, Any]:
    """Train by these settings, or go on with the run of this name; return its summary."""
    async with open_session(parameters, retry_failed_jobs=retry_failed_jobs) as session:
        return await go_on(session, call)


async def go_on(session: Session, call: Call = directly) -> dict[str, Any]:
    """Do all missing work of the run; return its summary, as `nip show --json` prints it."""
    run = session.run
    agenda.expect(session)
    words = f"run {run.name}: {agenda.describe_opening(session)}"
    session.tell("run", words, run=run.name, run_store=run.store.url)
    if resuming := agenda.describe_resumption(session):
        session.tell("resume", f"run {run.name} goes on: {resuming}", run=run.name)
    parked = await _all_iterations(session, call)
    result = summarise_run(run, session.records)
    ended = f"parked, {parked}" if parked else f"{result['status']}{agenda.describe_ending(result)}"
    status = "parked" if parked else result["status"]
    session.tell("end", f"run {run.name}: {ended}", run=run.name, status=status)
    return result if parked is None else {**result, "status": "parked", "waits_for": parked}


async def _all_iterations(session: Session, call: Call) -> str | None:
    """Do all iterations; return what the run was parked for, None when all is done.

    See `fine_tuning.park_after_s`.
    """
    parameters = session.parameters
    last = find_last(session.records, parameters)
    only_tests = parameters.base_run.base_run_type == "rerun_tests"
    # 1. The iterations from the first that lacks anything. It proves the models that it begins
    #    with; later ones begin with what a swap has just proved.
    first = find_first_incomplete(session.records, parameters)
    for i in range(first, last):
        step = (retest, session, i) if only_tests else (iterate, session, i, i == first)
        result: IterationEnd = await call(*step, call)
        if result.parked is not None:
            return result.parked
        if result.is_last:
            last = i
            break
    # 2. The last test, of the final models, and the report of the whole run.
    if only_tests:
        await call(retest, session, last, call)
    elif first == last:
        await call(proving.prove_serving, session, last)
    if tested := is_tested(parameters, last) and not only_tests:
        with session.progress.during(last, "test"):
            await play_and_measure(session, last, TEST, call)
    # 3. What an attack on another run's verifier did to it: the tests, or a game of choices.
    await attacking.finish(session, last, play, call)
    await _publish(call, session, "test", last, played=tested)
    return None


async def iterate(
    session: Session, iteration: int, prove: bool = True, call: Call = directly
) -> IterationEnd:
    """Play, choose examples, train, compare, swap. What is committed is skipped.

    `prove` the models that are to play first, unless a swap just before has done so.
    """
    run, parameters = session.run, session.parameters
    times = StageTimes(session, iteration)
    # 1. Test the models that play now.
    if prove:
        await call(proving.prove_serving, session, iteration)
    if is_tested(parameters, iteration):
        async with times.during("test"):
            await play_and_measure(session, iteration, TEST, call)
    if run.store.exists(run.models(iteration)):
        # Only its test was missing. A fork could not go through the rest, which has other keys.
        models = await call(swapping.swap_models, session, iteration)
        return IterationEnd(iteration, models)
    if await attacking.begin_step(session, iteration, play, call):
        return IterationEnd(iteration, is_last=True)
    # 2. Play the training episodes.
    if not parameters.imitates(iteration):
        async with times.during("play"):
            await play_and_measure(session, iteration, TRAIN, call)
    # 3. Choose: one dataset for each group that is trained. The publishing meanwhile takes its
    #    time, where it sends something to Prefect's server.
    groups = training.list_scheduled_groups(parameters, iteration)
    async with times.during("dataset"):
        published = _publish(call, session, "play", iteration, report=False, played=True)
        chosen = (call(choosing.build_dataset, session, iteration, group) for group in groups)
        await gather_or_cancel([published, *chosen])
    # 4. Train. A job that the settings say not to wait for any longer stops the run here.
    async with times.during("train"):
        parked = await _train_groups(session, iteration, groups, call)
    if parked is not None:
        await _publish(call, session, "park", iteration)
        return IterationEnd(iteration, parked=parked)
    # 5. Gate: the models that play against those that are to follow.
    if gating.is_due(session, iteration):
        async with times.during("gate"):
            await call(proving.prove_candidates, session, iteration)
            in_turns = gating.takes_turns_in(session)  # base models, on a server with one place
            if in_turns:
                await call(proving.prove_serving, session, iteration)
            await play_and_measure(session, iteration, VALIDATION, call)
            if in_turns:
                await call(proving.prove_candidates, session, iteration)
            await play_and_measure(session, iteration, CANDIDATE, call)
    # 6. Swap: prove that the new models answer, then put on record that they play from here on.
    async with times.during("swap"):
        models = await call(swapping.swap_models, session, iteration)
    times.finish()
    is_last = iteration + 1 == parameters.rl.num_iterations
    if not is_last or is_tested(parameters, iteration + 1):  # else the run's last follows at once
        await _publish(call, session, "train", iteration)
    return IterationEnd(iteration, models)


async def retest(session: Session, iteration: int, call: Call = directly) -> IterationEnd:
    """Test the iteration's models of the base run once more; nothing is trained."""
    await call(proving.prove_serving, session, iteration)
    if is_tested(session.parameters, iteration):
        with session.progress.during(iteration, "test"):
            await play_and_measure(session, iteration, TEST, call)
    models = swapping.pass_on(session, iteration)
    await _publish(call, session, "test", iteration, played=True)
    return IterationEnd(iteration, models)


async def play(
    session: Session, iteration: int, split: str, call: Call = directly
) -> CommittedSplit:
    """Play the missing shards of a split, and commit all as one."""
    shards = await call(playing.plan_split, session, iteration, split)
    await call(playing.play_shards, session, iteration, split, shards, call)
    split_end: CommittedSplit = await call(playing.commit_split, session, iteration, split)
    return split_end


async def play_and_measure(
    session: Session, iteration: int, split: str, call: Call = directly
) -> SplitMetrics:
    """Play and measure a split; return its metrics."""
    await play(session, iteration, split, call)
    metrics: SplitMetrics = await call(measuring.measure, session, iteration, split)
    return metrics


async def _publish(
    call: Call,
    session: Session,
    after: Milestone,
    iteration: int,
    *,
    report: bool = True,
    played: bool = False,
) -> None:
    """Show what is committed after this milestone of the iteration."""
    await call(publish, session, after, iteration, report, played)


async def _train_groups(
    session: Session, iteration: int, groups: Sequence[str], call: Call
) -> str | None:
    """Submit all jobs, then wait for all; do so once more for jobs to be tried again.

    Returns which job is not waited for any longer, None if all have ended.
    """
    while groups:
        for group in groups:
            await call(training.submit_job, session, iteration, group)
        waits = (call(training.wait_for_job, session, iteration, group) for group in groups)
        ended: list[JobEnd] = await gather_or_cancel(waits)
        parked = [end.parked for end in ended if end.parked is not None]
        if parked:
            return parked[0]
        groups = [end.job.group for end in ended if end.again]
    return None
