"""The loop: an iteration plays, chooses, trains, proves and swaps; a run is several of them.

train    a run, from its settings to the test of its last models
go_on    the same in a session that is open
iterate  one iteration
retest   one iteration of a run that plays the tests of another run again
play     the episodes of one split

Each step is a function of `nip_core.stages` that takes the session and plain values, commits its
results and returns plain values. Committed results are skipped, so a run goes on from any point
where it was stopped. Every step goes through the hook ``call(function, session, *arguments)`` of
`nip_core.hook`: `directly` runs it here, Prefect makes a task run of it, tests try it again or
break it. `After` holds the results of the steps that it needs, which makes a graph of them.
`iterate`, `retest` and `playing.play_shards` go through the hook, too, their last argument.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from nip_core.concurrency import gather_or_cancel, with_short
from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.hook import FIRST, After, Call, directly, within
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.tested_iterations import is_tested
from nip_core.records.status import find_first_incomplete, find_last
from nip_core.rollouts.plan import CANDIDATE, TEST, TRAIN, VALIDATION
from nip_core.session.opening import open_session
from nip_core.session.session import Session
from nip_core.showing.summary import summarise_run
from nip_core.stages import attacking, choosing, gating, measuring, playing, proving, training
from nip_core.stages.agenda import announce, announce_end
from nip_core.stages.playing import CommittedSplit
from nip_core.stages.publishing import publish
from nip_core.stages.stage_times import StageTimes
from nip_core.stages.swapping import pass_on, swap_models
from nip_core.stages.training import JobEnd, JobReference


@dataclass(frozen=True)
class IterationEnd:
    """The end of an iteration."""

    iteration: int
    models: Mapping[str, str] | None = None
    """By group, the name of the model that serves from here on; None: it is not over."""
    parked: str | None = None
    """In words, the job that the run is parked for."""
    is_last: bool = False
    """A verdict on its test has ended an attack, see `attacking`."""


async def train(
    parameters: HyperParameters, *, retry_failed_jobs: bool = False, call: Call = directly
) -> dict[str, Any]:
    """Train by these settings, or go on with the run of this name; return its summary."""
    async with open_session(parameters, retry_failed_jobs=retry_failed_jobs) as session:
        return await go_on(session, call)


async def go_on(session: Session, call: Call = directly) -> dict[str, Any]:
    """Do all missing work of the run; return its summary, as `nip show --json` prints it."""
    announce(session)
    parked = await _all_iterations(session, call)
    result = summarise_run(session.run, session.records)
    if parked is not None:
        result |= {"status": "parked", "waits_for": parked}
    announce_end(session, result)
    return result


async def _all_iterations(session: Session, call: Call) -> str | None:
    """Do all iterations; return the reason of a parked run (`park_after_s`), None if it is not."""
    parameters = session.parameters
    last = find_last(session.records, parameters)
    only_tests = parameters.base_run.base_run_type == "rerun_tests"
    # 1. The iterations from the first that lacks anything. It proves the models that it begins
    #    with; later ones begin with models that a swap has just proved.
    first = find_first_incomplete(session.records, parameters)
    newest: Any = None  # the result of the newest step
    for i in range(first, last):
        step = (retest, session, i) if only_tests else (iterate, session, i, i == first)
        newest = await call(*step, After(newest), call)
        if newest.parked is not None:
            return str(newest.parked)
        if newest.is_last:
            last = i
            break
    do = within(session, last, call)
    # 2. The last test, of the final models, and the report of the whole run.
    if only_tests:
        newest = await do(retest, After(newest), call)
    times = StageTimes(session, last, is_last=True)
    if first == last and not only_tests:
        newest = await times.count("prove", do(proving.prove_serving, After(newest)))
    if is_last_tested := is_tested(parameters, last) and not only_tests:
        async with times.during("test"):
            newest = await play_and_measure(session, last, TEST, call, After(newest))
    # 3. The end of an attack on another run's verifier: the tests, or a game of choices.
    last_step = await attacking.finish(session, last, times, play, call, After(newest))
    await times.finish()
    await do(publish, "test", True, is_last_tested, last_step)
    return None


async def iterate(
    session: Session, iteration: int, prove: bool = True, call: Call = directly
) -> IterationEnd:
    """Play, choose examples, train, compare, swap. Committed results are skipped.

    `prove` the models that are to play first, unless a swap just before has done so.
    """
    run, parameters, do = session.run, session.parameters, within(session, iteration, call)
    times = StageTimes(session, iteration)
    newest: Any = None  # the result of the newest step
    # 1. Test the models that play now.
    if prove:
        newest = await times.count("prove", do(proving.prove_serving))
    if is_tested(parameters, iteration):
        async with times.during("test"):
            newest = await play_and_measure(session, iteration, TEST, call, After(newest))
    if run.store.exists(run.models(iteration)):
        # Only its test was missing. A fork could not go through the rest, which has other keys.
        models = await call(proving.prove_serving, session, iteration + 1, After(newest))
        await times.finish()
        return IterationEnd(iteration, models)
    if await attacking.begin_step(session, iteration, times, play, call, After(newest)):
        return IterationEnd(iteration, is_last=True)
    # 2. Play the training episodes.
    if has_played := not parameters.imitates(iteration):
        async with times.during("play"):
            newest = await play(session, iteration, TRAIN, call, After(newest))
    # 3. Choose: one dataset for each group that is trained.
    groups = training.list_scheduled_groups(parameters, iteration)
    async with times.during("dataset"):
        choices = (do(choosing.build_dataset, group, After(newest)) for group in groups)
        datasets = dict(zip(groups, await gather_or_cancel(choices), strict=True))
    # 4. Train, and measure meanwhile, also where jobs are refused or fail: the metrics are known
    #    then. A job that the settings say not to wait for parks the run.
    async with times.during("train"):
        measure = partial(_measure_and_show, has_played, do, After(newest))
        jobs, wait = _submit(datasets, do), partial(_wait, do)
        ends, metrics = await with_short(jobs, wait, measure)
    newest = After(*(ends or [newest]))
    if parked := [end.parked for end in ends if end.parked is not None]:
        await do(publish, "park", True, False, newest)
        return IterationEnd(iteration, parked=parked[0])
    # 5. Gate: the models that play against those that are to follow.
    if gating.is_due(session, iteration):
        async with times.during("gate"):
            newest = After(await _play_both(session, iteration, call, newest))
    # 6. Swap: prove that the new models answer, then put on record that they play from here on.
    async with times.during("swap"):
        candidates = await times.count("swap/prove", do(proving.prove_candidates, newest))
        models = await do(swap_models, candidates, After(candidates))
    await times.finish()
    is_last = iteration + 1 == parameters.rl.num_iterations
    if not is_last or is_tested(parameters, iteration + 1):  # else the run's last follows at once
        await times.count("publish", do(publish, "train", True, False, After(models, metrics)))
    return IterationEnd(iteration, models)


async def retest(session: Session, iteration: int, call: Call = directly) -> IterationEnd:
    """Test the iteration's models of the base run once more; nothing is trained."""
    do, times = within(session, iteration, call), StageTimes(session, iteration, is_last=True)
    newest: Any = await times.count("prove", do(proving.prove_serving))
    if is_tested(session.parameters, iteration):
        async with times.during("test"):
            newest = await play_and_measure(session, iteration, TEST, call, After(newest))
    models = pass_on(session, iteration)
    await times.finish()
    await do(publish, "test", True, True, After(newest))
    return IterationEnd(iteration, models)


async def play(
    session: Session, iteration: int, split: str, call: Call = directly, last_step: After = FIRST
) -> CommittedSplit:
    """Play the missing shards of a split, and commit all as one."""
    do = within(session, iteration, call)
    shards = await do(playing.plan_split, split, last_step)
    results = await do(playing.play_shards, split, shards, call)
    commit: CommittedSplit = await do(playing.commit_split, split, After(*(results or [shards])))
    return commit


async def play_and_measure(
    session: Session, iteration: int, split: str, call: Call = directly, last_step: After = FIRST
) -> SplitMetrics:
    """Play and measure a split; return its metrics."""
    do = within(session, iteration, call)
    commit = await play(session, iteration, split, call, last_step)
    metrics: SplitMetrics = await do(measuring.measure, split, After(commit))
    return metrics


async def _submit(steps: Mapping[str, object], do: Call) -> dict[str, JobReference]:
    """Submit the groups' jobs in turn, since a cap counts those before; each after its step."""
    return {g: await do(training.submit_job, g, After(step)) for g, step in steps.items()}


async def _wait(do: Call, jobs: Mapping[str, JobReference]) -> list[JobEnd]:
    """Wait for all jobs; submit once more those that are to be tried again, and wait for them."""
    ends: list[JobEnd] = []
    while jobs:
        waits = (do(training.wait_for_job, group, After(job)) for group, job in jobs.items())
        ends += (newest := await gather_or_cancel(waits))
        retries = {end.job.group: end for end in newest if end.again}
        jobs = {} if any(end.parked for end in newest) else await _submit(retries, do)
    return ends


async def _measure_and_show(has_played: bool, do: Call, last_step: After) -> Any:
    """Measure the training episodes, where some were played, and show the committed results."""
    metrics = await do(measuring.measure, TRAIN, last_step) if has_played else None
    await do(publish, "play", False, True, After(metrics) if has_played else last_step)
    return metrics


async def _play_both(session: Session, iteration: int, call: Call, step: After) -> SplitMetrics:
    """Play with the models of now and with the new ones, in turns where a server has one place."""
    do, in_turns = within(session, iteration, call), gating.takes_turns_in(session)
    newest: Any = await do(proving.prove_candidates, step)
    if in_turns:
        newest = await do(proving.prove_serving, After(newest))
    newest = await play_and_measure(session, iteration, VALIDATION, call, After(newest))
    if in_turns:
        newest = await do(proving.prove_candidates, After(newest))
    return await play_and_measure(session, iteration, CANDIDATE, call, After(newest))
