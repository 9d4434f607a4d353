"""The part of an attack in a run: before each of its steps, and after the last.

All follows from the records alone, so a run that goes on decides as it did before.
"""

import pyarrow as pa

from nip_core.attack_figures.metrics_document import CourseEnd
from nip_core.attack_figures.plateau import (
    find_window,
    is_flat,
    judge_course,
    measure_fall,
    share_taught,
)
from nip_core.attack_figures.sentences import change_words
from nip_core.evaluation.figures_in_words import plain_percent
from nip_core.hook import After, Call
from nip_core.parameters.derived.tested_iterations import is_tested
from nip_core.records.attack_course import course_path, read_course, read_moved
from nip_core.rollouts.plan import ATTACK, TEST
from nip_core.rollouts.storage.schema import EPISODES
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.run_store.documents import validate_document
from nip_core.session.session import Session
from nip_core.stages import measuring, proving
from nip_core.stages.stage_times import StageTimes


async def begin_step(
    session: Session, iteration: int, times: StageTimes, play: Call, call: Call, last_step: After
) -> bool:
    """Prepare a step of an attack by training; tell whether its course ends there.

    Before the first one test problems are played, with provers that are only told to lie. `play`
    plays a split.
    """
    parameters = session.parameters
    if parameters.tests_apart and iteration == 0:
        async with times.during("attack"):
            await play(session, 0, ATTACK, call, last_step)
    if not parameters.may_end_early:
        return False
    is_over: bool = await call(has_ended, session, iteration, last_step)
    return is_over


async def finish(
    session: Session, last: int, times: StageTimes, play: Call, call: Call, last_step: After
) -> After:
    """Play the rest of an attack after its last step.

    An attack that chooses messages plays its game. One that trains tests the provers that were the
    worst on validation problems, once, on test problems. Returns the step before the report.
    """
    parameters, iteration = session.parameters, last
    if parameters.target_run is None:
        return last_step
    worst: int | None = None
    if parameters.tests_apart:
        end: CourseEnd = await call(end_course, session, last, last_step)
        worst, last_step = end.worst_step, After(end)
        # Without any training the test before it is this one.
        iteration = last if worst else 0
    if worst is not None or parameters.choice is not None:
        async with times.during("attack"):
            if worst:
                last_step = After(await call(proving.prove_serving, session, worst, last_step))
            last_step = After(await play(session, iteration, ATTACK, call, last_step))
    return After(await call(measuring.measure, session, last, ATTACK, last_step))


def has_ended(session: Session, iteration: int) -> bool:
    """Say whether the course ends early, with the test of the iteration; then it is on record."""
    if not is_tested(session.parameters, iteration):
        return False
    end = read_course(session.run, iteration) or _judge(session, iteration)
    if end.is_early:
        end_course(session, iteration)
    return end.is_early


def end_course(session: Session, iteration: int) -> CourseEnd:
    """Put on record how the course ended, and return that."""
    run, path = session.run, course_path(session.run, iteration)
    if (recorded_end := read_course(run, iteration)) is not None:
        return recorded_end
    judgement = _judge(session, iteration)
    document = run.write_json_once(path, judgement.as_json(), lease=session.lease)
    end = validate_document(document, CourseEnd, path)
    session.records.look_again()
    words = f"after step {iteration} of training"
    if end.verdict is not None:
        words += f": {end.verdict}"
    if change := change_words(end):
        words += f"; {change}"
    worst = session.records.of(end.worst_step).stored_metrics(TEST)
    lowest = plain_percent(None if worst is None else worst.soundness)
    session.tell(
        "course",
        f"iteration {iteration}: the attack ends {words}; the worst provers on validation "
        f"problems are those of step {end.worst_step}, with a soundness of {lowest}",
        iteration=iteration,
        **end.as_json(),
    )
    return end


def _judge(session: Session, step: int) -> CourseEnd:
    """Judge the course after the test of a step."""
    parameters = session.parameters
    test_steps = [i for i in range(step + 1) if is_tested(parameters, i)]
    worst, moved = _find_worst(session, test_steps), read_moved(session.run, parameters, step)
    if not parameters.may_end_early:
        return CourseEnd(step=step, worst_step=worst, moved=moved)
    since = find_window(test_steps, step)
    fall = None
    if since is not None:
        split_by = session.game.scenario.split_by
        first_test, last_test = (_read_test(session, i) for i in (since, step))
        fall = measure_fall(first_test, last_test, split_by)
    unequal = None if since is None else _share_taught(session, since, step)
    return CourseEnd(
        step=step,
        worst_step=worst,
        verdict=judge_course(step, parameters.rl.num_iterations, fall, unequal, moved),
        since=since,
        fall=fall and fall.fall,
        fall_at_most=fall and fall.at_most,
        questions=fall and fall.questions,
        unequal_groups=unequal,
        moved=moved,
        is_early=is_flat(fall),
    )


def _find_worst(session: Session, test_steps: list[int]) -> int:
    """Find the tested step with the lowest soundness, the first of equals."""
    records = session.records.look_again()
    metrics_by_step = {i: records.of(i).stored_metrics(TEST) for i in test_steps}
    sound = {
        i: metrics.soundness
        for i, metrics in metrics_by_step.items()
        if metrics and metrics.soundness is not None
    }
    return min(sound, key=lambda i: sound[i], default=test_steps[0] if test_steps else 0)


def _read_test(session: Session, step: int) -> pa.Table:
    place = session.run.rollouts(step, TEST)
    return StoredRollouts(session.run.store, [place]).episodes(EPISODES.names)


def _share_taught(session: Session, since: int, until: int) -> float | None:
    records = (session.records.of(step) for step in range(since, until))
    jobs = (
        (record.jobs[group].outcome == "succeeded", dataset.counts or {})
        for record in records
        for group, dataset in record.datasets.items()
    )
    return share_taught(jobs, has_groups=session.parameters.trainer == "pure_text_grpo")
