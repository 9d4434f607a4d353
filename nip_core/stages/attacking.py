"""The part of an attack in a run: before each of its steps, and after the last.

begin_step  what an attack by training does before a step; whether its course ends there
finish      what the last models are attacked by, measured
has_ended   whether the course ends with the test of an iteration, by the rule of `plateau`
end_course  put on record how it ended

All follows from what is on record alone, so a run that goes on decides as it did before.
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


async def begin_step(
    session: Session, iteration: int, play: Call, call: Call, after: After
) -> bool:
    """Do what an attack by training has to do before a step; tell whether its course ends there.

    Before the first one test problems are played, with provers that are only told to lie. `play`
    plays a split.
    """
    parameters = session.parameters
    if parameters.tests_apart and iteration == 0:
        with session.progress.during(0, "attack"):
            await play(session, 0, ATTACK, call, after)
    if not parameters.may_end_early:
        return False
    ended: bool = await call(has_ended, session, iteration, after)
    return ended


async def finish(session: Session, last: int, play: Call, call: Call, after: After) -> After:
    """Play what an attack plays after its last step: the game of choices, or the last test.

    The provers that were the worst on validation problems are tested once, on test problems.
    Returns the step after which the report is due.
    """
    parameters, at = session.parameters, last
    if parameters.target_run is None:
        return after
    worst: int | None = None
    if parameters.tests_apart:
        end: CourseEnd = await call(end_course, session, last, after)
        worst, after = end.worst_step, After(end)
        # Without any training the test before it is this one.
        at = last if worst else 0
    if worst is not None or parameters.choice is not None:
        with session.progress.during(last, "attack"):
            if worst:
                after = After(await call(proving.prove_serving, session, worst, after))
            after = After(await play(session, at, ATTACK, call, after))
    return After(await call(measuring.measure, session, last, ATTACK, after))


def has_ended(session: Session, iteration: int) -> bool:
    """Say whether the course ends early, with the test of the iteration; then it is on record."""
    if not is_tested(session.parameters, iteration):
        return False
    judged = read_course(session.run, iteration) or _judge(session, iteration)
    if judged.is_early:
        end_course(session, iteration)
    return judged.is_early


def end_course(session: Session, iteration: int) -> CourseEnd:
    """Put on record how the course ended, and return that."""
    run, path = session.run, course_path(session.run, iteration)
    if (stored := read_course(run, iteration)) is not None:
        return stored
    judged = _judge(session, iteration)
    document = run.write_json_once(path, judged.as_json(), lease=session.lease)
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
    tested = [i for i in range(step + 1) if is_tested(parameters, i)]
    worst, moved = _find_worst(session, tested), read_moved(session.run, parameters, step)
    if not parameters.may_end_early:
        return CourseEnd(step=step, worst_step=worst, moved=moved)
    since = find_window(tested, step)
    fall = None
    if since is not None:
        split_by = session.game.scenario.split_by
        before, after = (_read_test(session, i) for i in (since, step))
        fall = measure_fall(before, after, split_by)
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


def _find_worst(session: Session, tested: list[int]) -> int:
    """Find the tested step with the lowest soundness, the first of equals."""
    records = session.records.look_again()
    measured = {i: records.of(i).stored_metrics(TEST) for i in tested}
    sound = {i: of.soundness for i, of in measured.items() if of and of.soundness is not None}
    return min(sound, key=lambda i: sound[i], default=tested[0] if tested else 0)


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
