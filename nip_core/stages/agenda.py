"""The work of a run, said at its start, and the part of it that is on record.

announce, announce_end  tell the work of the run, and its outcome
expect               tell the progress the stages of the run, and the seconds of those on record
describe_opening     the work of the run in words
describe_resumption  the part of it that is on record, where the run goes on
describe_ending      its outcome in words
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nip_core.costs.estimate import Estimate
from nip_core.evaluation.figures_in_words import amount, plain_percent
from nip_core.jobs.document import read_job
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.tested_iterations import is_tested
from nip_core.progress.board import Stage
from nip_core.progress.phases import by_stage
from nip_core.records.stage_seconds import read_seconds_so_far
from nip_core.records.status import find_first_incomplete
from nip_core.rollouts.plan import ATTACK, TEST, TRAIN, group_size
from nip_core.rollouts.storage.journal_segments import read_journal
from nip_core.rollouts.storage.shard_manifests import committed_shards
from nip_core.run_store.run import RunStore
from nip_core.session.attacked_run import name_attack
from nip_core.session.server_speed import count_turns
from nip_core.session.session import Session
from nip_core.stages.training import list_scheduled_groups

_MEASURED_BY = 10  # iterations on record, the newest ones


def list_stages(parameters: HyperParameters, estimate: Estimate) -> tuple[Stage, ...]:
    """All stages of the run, in order."""
    last = parameters.rl.num_iterations
    tests = max(sum(is_tested(parameters, i) for i in range(last + 1)), 1)
    stages = []
    for i in range(last + 1):
        if is_tested(parameters, i):
            stages.append(Stage(i, "test", estimate.test_episodes // tests))
        if i == last or parameters.base_run.base_run_type == "rerun_tests":
            continue
        if not parameters.imitates(i):
            playing = last - parameters.imitates(0)
            stages.append(Stage(i, "play", estimate.train_episodes // playing))
        trains = bool(list_scheduled_groups(parameters, i))
        stages += [Stage(i, "dataset"), *([Stage(i, "train")] if trains else [])]
        if trains and parameters.promotion.enabled:
            stages.append(Stage(i, "gate", estimate.gate_episodes // last))
        stages.append(Stage(i, "swap"))
    if parameters.choice is not None:
        stages.append(Stage(last, "attack", estimate.apart_episodes))
    elif parameters.tests_apart:
        half = estimate.apart_episodes // 2
        stages.insert(1, Stage(0, "attack", half))  # after the first test
        stages.append(Stage(last, "attack", half))
    return tuple(stages)


def expect(session: Session) -> None:
    """Tell the progress the stages of the run, and the seconds of those on record."""
    if session.estimate is None:
        return
    plan = list_stages(session.parameters, session.estimate)
    finished = session.records.finished()
    took_s: dict[Stage, float] = {}
    paces: dict[str, list[float]] = {}
    for i in range(max(0, finished - _MEASURED_BY), finished + 1):
        is_over = i < finished
        record = session.records.of(i)
        seconds = by_stage(record.stage_s if is_over else read_seconds_so_far(session.run, i))
        over = [stage for stage in plan if stage.iteration == i and stage.name in seconds]
        # In the iteration that goes on, the last stage that was begun may have been cut short.
        for stage in over if is_over else over[:-1]:
            took_s[stage] = float(seconds[stage.name])
            paces.setdefault(stage.name, []).append(took_s[stage] / (stage.episodes or 1))
    session.progress.expect(plan, took_s, paces)
    session.progress.turns_per_episode = count_turns(session.estimate)


def announce(session: Session) -> None:
    """Tell the work of the run, and the part of it that is on record."""
    run = session.run
    expect(session)
    words = f"run {run.name}: {describe_opening(session)}"
    session.tell("run", words, run=run.name, run_store=run.store.url)
    if resuming := describe_resumption(session):
        session.tell("resume", f"run {run.name} goes on: {resuming}", run=run.name)


def announce_end(session: Session, result: Mapping[str, Any]) -> None:
    """Tell the outcome of the run, by its summary."""
    name, status = session.run.name, result["status"]
    more = f", {result['waits_for']}" if status == "parked" else describe_ending(result)
    session.tell("end", f"run {name}: {status}{more}", run=name, status=status)


def describe_opening(session: Session) -> str:
    """Describe the work of the run, as "plays 3 iterations of 400 episodes, trains ..."."""
    parameters, estimate = session.parameters, session.estimate
    last = parameters.rl.num_iterations
    test_steps = [i for i in range(last + 1) if is_tested(parameters, i)]
    size = 0 if estimate is None or not test_steps else estimate.test_episodes // len(test_steps)
    is_chosen = parameters.choice is not None
    if parameters.base_run.base_run_type == "rerun_tests":
        does = f"plays the tests of {amount(last, 'iteration')} again, and trains nothing"
    elif is_chosen:
        does = name_attack(parameters, estimate)
    else:
        every = len(session.problems[TRAIN]) * group_size(parameters, TRAIN)
        count = parameters.rollouts_per_iteration or every
        imitates, may_end_early = parameters.imitates(0), parameters.may_end_early
        groups = [g for g in parameters.trainable_groups if _trains(parameters, g, last)]
        does = f"trains {' and '.join(groups) or 'nothing'}"
        if iteration_count := last - imitates:
            iterations = f"{amount(iteration_count, 'iteration')} of {amount(count, 'episode')}"
            imitation_words = " after one of imitation" if imitates else ""
            does = (
                f"plays {'at most ' if may_end_early else ''}{iterations}{imitation_words}, {does}"
            )
    tests = [] if is_chosen and not test_steps else [_tests_words(test_steps, last, size)]
    return "; ".join([does, *tests, f"kept in {session.run.store.url}"])


def _trains(parameters: HyperParameters, group: str, last: int) -> bool:
    return any(group in list_scheduled_groups(parameters, i) for i in range(last))


def _tests_words(iterations: Sequence[int], last: int, size: int) -> str:
    if not iterations:
        return "no tests"
    count = f"{amount(len(iterations), 'test')} of {amount(size, 'episode')}"
    if iterations == [last]:
        return f"{count}, after the last" if last else count
    first = "the first before any training" if iterations[0] == 0 else ""
    return f"{count}, {first}" if first else count


def describe_ending(result: Mapping[str, Any]) -> str:
    """Return the figures of a run's tests, by its summary: ", accuracy 52.5 % at first, ..."."""
    tests = [entry["test"] for entry in result["iterations"] if entry["test"]]
    if not tests:
        return ""
    first, last = (plain_percent(test["accuracy"]) for test in (tests[0], tests[-1]))
    return f", accuracy {f'{first} at first and {last} at last' if len(tests) > 1 else last}"


def _answers_in_journals(run: RunStore, iteration: int) -> int:
    """Count the answers of shards not committed yet; 0 in a bucket: it takes many requests."""
    answers, root = 0, f"{run.root}/journals/{iteration:04d}"
    if run.store.local_path(root) is None:
        return 0
    for split in (name.rstrip("/") for name in run.store.list(root)):
        committed_names = committed_shards(run.store, run.rollouts(iteration, split))
        for name in run.store.list(f"{root}/{split}"):
            path = f"{root}/{split}/{name}"
            if name.partition(".")[0] not in committed_names:
                answers += sum("generation" in record for record in read_journal(run.store, path))
    return answers


def describe_resumption(session: Session) -> str:
    """Describe the part of the run that is on record and stays; "" for a new one."""
    run, parameters, last = session.run, session.parameters, session.parameters.rl.num_iterations
    i = find_first_incomplete(session.records, parameters)
    parts, details = [f"{i} of {last} iterations are finished"] if i else [], []
    if i <= last and run.read_json_or_none(run.metrics(i, TEST)) is not None:
        details.append("its test is held")
    for split, kind in ((TEST, "test"), (TRAIN, "training"), (ATTACK, "attack")):
        shards = committed_shards(run.store, run.rollouts(i, split)).values()
        episodes = sum(manifest.rows.get("episodes", 0) for manifest in shards)
        if episodes and not (split == TEST and details):
            are = "is" if episodes == 1 else "are"
            details.append(f"{amount(episodes, f'{kind} episode')} {are} played")
    if answers := _answers_in_journals(run, i):
        details.append(f"{answers:,} answers are in journals and not asked for again")
    for group in parameters.trainable_groups:
        record = read_job(run, run.job(i, group)) if i < last else None
        if record is not None and record.id:
            end_words = f"has ended: {record.outcome}"
            state = "is submitted and goes on" if record.outcome is None else end_words
            details.append(f"job {record.id} of {group} {state}")
    if details:
        parts.append(f"of iteration {i} {', '.join(details)}")
    return "; ".join(parts)
