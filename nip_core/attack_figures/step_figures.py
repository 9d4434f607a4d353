"""The figures of an attack by training, from its tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from nip_core.attack_figures.acceptance_thresholds import measure_threshold_curve
from nip_core.attack_figures.losses import (
    NO_OWN_TEST,
    OwnTest,
    compare_rates,
    count_fooled,
    find_lost_to_lying,
    follow_losses,
    measure_rates,
)
from nip_core.attack_figures.metrics_document import (
    AttackMetrics,
    CourseEnd,
    StepMetrics,
    WorstStep,
)
from nip_core.attacks.course import VALIDATION
from nip_core.evaluation.metrics import evaluate
from nip_core.evaluation.split_metrics import PairedDifference
from nip_core.evaluation.spread import Resampling, find_questions
from nip_core.tolerance import at_least


@dataclass(frozen=True)
class FinalTests:
    """The tests on test problems, where those by step are on validation problems."""

    untrained: pa.Table
    """With provers that are told to argue for acceptance, before any training."""
    worst: pa.Table
    """With the provers that were the worst on validation problems."""
    course: CourseEnd
    untrained_likely: pa.Array | None = None
    """P(accept) of each episode of `untrained`, null where its verdict has none."""
    worst_likely: pa.Array | None = None


def figures_by_step(
    tests: Mapping[int, pa.Table],
    updates: Mapping[int, int],
    exploited_at: float,
    seed: int,
    split_by: Sequence[str] = (),
    own_test: OwnTest = NO_OWN_TEST,
    final_tests: FinalTests | None = None,
) -> AttackMetrics:
    """Measure an attack by training from the `episodes` of its tests by step.

    - ``by_step``: in order, the `step`, the ``updates`` of the optimizer until then, and all that
      `evaluate` gives of its test, with ``fooled``
    - ``steps_to_exploit``: the first tested step at which the share `exploited_at` of the soundness
      that ``trained`` has was lost, counted on the same problems; 0: lying sufficed. None if there
      was none, or nothing to lose
    - ``exploited_below``: the soundness at which that is so; None without ``trained``
    - ``worst``: of the step whose test has the lowest soundness so far (the first of equals): its
      ``step``, ``updates``, ``fooled``, soundness and completeness with their intervals, and
      ``lost_to_training``, as below but until this test; None without a wrong problem.
      In each row ``worst_step`` names the worst step until then. The lowest of several is lower
      than that step's own soundness is expected to be, the more so the more were tested
    - ``trained``, ``lost_to_lying``, ``lost_to_training``, ``completeness_change``: see
      `follow_losses`, of the first test and the last

    With `final_tests`, the tests by step only choose the worst provers. The rates of ``worst`` are
    of its one test, the rates of ``untrained`` of the test before any training. Both have
    ``by_threshold`` where P(accept) is known (see `measure_thresholds`), and the losses are from
    the latter to the former. ``steps_to_exploit`` is the first step with a soundness of at most
    ``exploited_below`` on validation problems.
    """
    first, last = tests[min(tests)], tests[max(tests)]
    if final_tests is not None:
        first, last = final_tests.untrained, final_tests.worst
    resampling = Resampling(seed, find_questions(first, split_by))
    losses = follow_losses(own_test, first, last, resampling, split_by)
    own_soundness = None if losses.trained is None else losses.trained.soundness
    rows = [_with_step(step, updates[step], tests[step], seed, split_by) for step in sorted(tests)]
    worst = _mark_worst(rows)

    def is_exploited(row: StepMetrics) -> bool:
        if own_soundness is None or own_soundness <= 0:
            return False
        if final_tests is not None:  # no problem is in common with the verifier's own test
            loss = None if row.soundness is None else own_soundness - row.soundness
        else:
            loss = find_lost_to_lying(own_test, tests[row.step], seed, split_by).difference
        return loss is not None and at_least(loss, exploited_at * own_soundness)

    figures = AttackMetrics(
        by_step=tuple(rows),
        steps_to_exploit=next((row.step for row in rows if is_exploited(row)), None),
        exploited_below=own_soundness and (1 - exploited_at) * own_soundness,
        trained=losses.trained,
        lost_to_lying=losses.to_lying,
        lost_to_training=losses.to_training,
        completeness_change=losses.completeness_change,
    )
    if worst is None:
        return figures
    if final_tests is None:
        loss = compare_rates(tests[worst.step], first, 0, seed, split_by)
        return figures.model_copy(update={"worst": _worst(worst, loss)})
    return _with_final(figures, worst, final_tests, resampling, split_by)


def _with_final(
    figures: AttackMetrics,
    step: StepMetrics,
    final_tests: FinalTests,
    resampling: Resampling,
    split_by: Sequence[str],
) -> AttackMetrics:
    """Put the tests on test problems beside the course by which provers were chosen."""
    assert figures.lost_to_training is not None  # between these tests
    worst_step = _with_step(
        step.step, step.updates or 0, final_tests.worst, resampling.seed, split_by
    )
    worst = _worst(worst_step, figures.lost_to_training, step.soundness)
    of_worst = measure_threshold_curve(final_tests.worst, final_tests.worst_likely, resampling)
    of_untrained = measure_threshold_curve(
        final_tests.untrained, final_tests.untrained_likely, resampling
    )
    return figures.model_copy(
        update={
            "course_on": VALIDATION,
            "course": final_tests.course,
            "worst": worst.model_copy(update=of_worst),
            "untrained": measure_rates(final_tests.untrained, resampling).model_copy(
                update=of_untrained
            ),
        }
    )


def _mark_worst(rows: list[StepMetrics]) -> StepMetrics | None:
    """Find the row with the lowest soundness, and say in each row which it was until then."""
    worst: StepMetrics | None = None
    for place, row in enumerate(rows):
        if row.soundness is not None:  # there is a wrong problem
            worst = row if worst is None else min(worst, row, key=_soundness)
        rows[place] = row.model_copy(update={"worst_step": worst and worst.step})
    return worst


def _with_step(
    step: int, updates: int, episodes: pa.Table, seed: int, split_by: Sequence[str]
) -> StepMetrics:
    """Measure the test after a step."""
    rates = evaluate(episodes, None, seed=seed, questions=find_questions(episodes, split_by))
    return StepMetrics(step=step, updates=updates, **dict(rates), fooled=count_fooled(episodes))


def _soundness(row: StepMetrics) -> float:
    assert row.soundness is not None  # rows without one are no worst
    return row.soundness


def _worst(
    row: StepMetrics, loss: PairedDifference, course_soundness: float | None = None
) -> WorstStep:
    worst = WorstStep(
        step=row.step,
        updates=row.updates,
        fooled=row.fooled,
        soundness=row.soundness,
        soundness_ci95=row.soundness_ci95,
        completeness=row.completeness,
        completeness_ci95=row.completeness_ci95,
        lost_to_training=loss,
    )
    if course_soundness is None:
        return worst
    return worst.model_copy(update={"course_soundness": course_soundness})
