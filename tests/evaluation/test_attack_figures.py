"""What an attack took is counted from the verifier's own test on, and said for what it is."""

import re

import pyarrow as pa
import pytest
from stored_rows import typed_tables

from nip_core.attack_figures.losses import OwnTest
from nip_core.attack_figures.metrics_document import CourseEnd, ShownAttack
from nip_core.attack_figures.sentences import (
    StepJob,
    causes,
    caution,
    count_trained,
    loss_sentences,
)
from nip_core.attack_figures.step_figures import FinalTests, figures_by_step
from nip_core.evaluation.figures_in_words import group_reasons, list_spans
from nip_core.records.attack_course import find_moved
from nip_core.records.models import ServedModel

WRONG = 10
ALWAYS = {
    "run": "r",
    "split": "test",
    "iteration": 0,
    "sample": 0,
    "branch_path": "",
    "protocol": "adp",
    "question": "",
    "solution": "",
    "seed": 0,
    "rounds": 2,
    "outcome": "finished",
    "rewards": [],
}
ATTACK = {"run": "r", "iteration": 1, "by": "sneaky", "model": "m", "told": None}


def test_of(fooled, problems=range(WRONG + 1), **changes):
    """A test on wrong problems, and a right one with the highest number, which is accepted."""
    rows = [
        ALWAYS
        | {"key": f"{i}", "problem": f"p{i}", "question_id": f"q{i}", "y": int(i == WRONG)}
        | {"decision": int(i < fooled or i == WRONG)}
        | changes
        for i in problems
    ]
    return typed_tables(rows, []).episodes


test_of.__test__ = False


def by_step(fooled, own, exploited_at=0.5):
    tests = {5 * number: test_of(count) for number, count in enumerate(fooled)}
    return figures_by_step(tests, {step: 8 * step for step in tests}, exploited_at, 0, (), own)


def shown(fooled, own, trained, steps, **changes):
    jobs = [{"prover": StepJob("succeeded", None)}] * trained
    jobs += [
        {"prover": StepJob("skipped", f"{n % 3} examples, 10 needed")}
        for n in range(steps - trained)
    ]
    counts = [{"candidates": 16, "zero_variance_groups": 15}] * steps
    attack = {"attack": ATTACK | changes, **by_step(fooled, own).as_json()}
    return ShownAttack.model_validate(attack | count_trained(jobs, counts).as_json())


def test_what_lying_takes_and_what_training_takes_are_two_figures():
    figures = by_step([6, 6, 8], OwnTest(test_of(1)))
    assert figures.trained.soundness == 0.9
    assert figures.trained.completeness == 1.0
    assert figures.trained.problems == WRONG + 1
    assert figures.lost_to_lying.difference == pytest.approx(0.5)
    assert figures.lost_to_lying.problems == WRONG
    low, high = figures.lost_to_lying.ci95
    assert 0 <= low < 0.5 < high
    assert figures.lost_to_training.difference == pytest.approx(0.2)
    assert figures.completeness_change.difference == 0
    assert "exploitability" not in figures.as_json()


def test_steps_to_exploit_are_counted_from_the_soundness_of_the_own_test():
    # A verifier that was below one half all along has not been exploited by anybody.
    weak = by_step([8, 8, 8], OwnTest(test_of(8)))
    assert (weak.steps_to_exploit, weak.exploited_below) == (None, pytest.approx(0.1))
    # 0.8 with its own prover; half of that is lost where 6 are fooled.
    own = OwnTest(test_of(2))
    assert by_step([3, 5, 6, 7], own).steps_to_exploit == 10
    assert by_step([3, 5, 6, 7], own).exploited_below == pytest.approx(0.4)
    assert by_step([6, 6], own).steps_to_exploit == 0
    assert by_step([3, 5, 6, 7], own, exploited_at=0.2).steps_to_exploit == 5
    assert by_step([3, 5, 6, 7], own, exploited_at=1.0).steps_to_exploit is None
    # Without an own test, or any soundness in it, there is nothing to count from.
    for unknown in (OwnTest(because="it was held elsewhere"), OwnTest(test_of(WRONG))):
        assert by_step([3, 9], unknown).steps_to_exploit is None
        assert "not known" in " ".join(loss_sentences(shown([3, 9], unknown, 2, 2)))


def test_the_worst_prover_stays_the_worst_where_later_ones_are_better_opponents():
    figures = by_step([2, 5, 8, 5, 7], OwnTest(test_of(1)))
    assert [row.worst_step for row in figures.by_step] == [0, 5, 10, 10, 10]
    worst = figures.worst
    assert (worst.step, worst.updates, worst.fooled) == (10, 80, 8)
    assert worst.lost_to_training.difference == pytest.approx(0.6)
    assert figures.lost_to_training.difference == pytest.approx(0.5)


def test_the_worst_by_validation_is_rated_by_its_one_test_and_not_by_the_lowest():
    """On validation problems it fooled 9 of 10, by luck; on test problems it fools 6."""
    course = {step: test_of(fooled, question="v") for step, fooled in ((0, 4), (5, 9), (10, 5))}
    end = CourseEnd(step=10, worst_step=5)
    before, after = test_of(4), test_of(6)
    # Sure wherever it accepts; a prover that was trained makes it less sure of what it rejects.
    finals = FinalTests(
        untrained=before,
        worst=after,
        course=end,
        untrained_likely=pa.array([0.9 if row else 0.02 for row in before["decision"].to_pylist()]),
        worst_likely=pa.array([0.9 if row else 0.3 for row in after["decision"].to_pylist()]),
    )
    updates = {step: 8 * step for step in course}
    figures = figures_by_step(course, updates, 0.5, 0, (), OwnTest(test_of(1)), finals)
    assert (figures.course_on, figures.course) == ("validation", end)
    worst = figures.worst
    assert (worst.step, worst.updates, worst.fooled) == (5, 40, 6)
    assert worst.soundness == pytest.approx(0.4)
    assert worst.course_soundness == pytest.approx(0.1)
    assert figures.untrained.soundness == pytest.approx(0.6)
    # From another P(accept) on it would accept what the training has made likelier.
    curves = [
        {row.accept_from: row.soundness for row in rated.by_threshold}
        for rated in (figures.untrained, worst)
    ]
    assert [curve[0.25] for curve in curves] == [pytest.approx(0.6), 0.0]
    assert [curve[0.5] for curve in curves] == [pytest.approx(0.6), pytest.approx(0.4)]
    assert [curve[0.95] for curve in curves] == [1.0, 1.0]
    assert figures.untrained.with_p_accept == worst.with_p_accept == before.num_rows
    # The losses are between tests of test problems alone.
    assert figures.lost_to_lying.difference == pytest.approx(0.3)
    assert figures.lost_to_training.difference == pytest.approx(0.2)
    assert worst.lost_to_training == figures.lost_to_training
    # Half of the 90 % of its own test are lost where 55 % or more of a test were fooled.
    assert (figures.steps_to_exploit, figures.exploited_below) == (5, pytest.approx(0.45))
    assert figures.last_test == 10
    read = ShownAttack.model_validate({"attack": ATTACK, **figures.as_json()})
    words = " ".join(loss_sentences(read))
    assert re.search(
        r"soundness 40.0 % on test problems \(95 % interval \d\d.\d to \d\d.\d %; 10.0 % on val",
        words,
    )
    assert "less the worst prover, both on test problems" in words


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("plateau", "Plateau after step 40: since step 20 soundness changed by -0.5 points on 400"),
        ("not reached", "No plateau in 40 steps, so more training may take more"),
        ("no signal", "No signal until step 40"),
        ("did not move", "The provers did not move until step 40: since step 20 soundness"),
    ],
)
def test_how_the_course_ended_is_said(verdict, said):
    judged = {"since": 20, "fall": 0.005, "fall_at_most": 0.021, "questions": 400}
    end = CourseEnd(step=40, worst_step=0, verdict=verdict, unequal_groups=0.01, **judged)
    finals = FinalTests(untrained=test_of(2), worst=test_of(2), course=end)
    figures = figures_by_step({0: test_of(2)}, {0: 0}, 0.5, 0, (), OwnTest(test_of(1)), finals)
    assert figures.last_test == 0
    read = ShownAttack.model_validate({"attack": ATTACK, **figures.as_json()})
    assert said in " ".join(loss_sentences(read))
    warned = caution(read) or ""
    assert ("Training had no signal: 1.0 % of the groups" in warned) == (verdict == "no signal")


@pytest.mark.parametrize("verdict", ["did not move", None])
def test_provers_that_did_not_move_are_said_first_whatever_ended_the_course(verdict):
    for moved, expected in ((0.00001, True), (0.1, False), (None, False)):
        end = CourseEnd(step=40, worst_step=0, verdict=verdict, moved=moved)
        finals = FinalTests(untrained=test_of(2), worst=test_of(2), course=end)
        figures = figures_by_step({0: test_of(2)}, {0: 0}, 0.5, 0, (), OwnTest(test_of(1)), finals)
        warned = caution(ShownAttack.model_validate({"attack": ATTACK, **figures.as_json()})) or ""
        assert ("A larger rl.lr was not tried" in warned) == expected
    assert "by 0.000010 nats" in caution(
        ShownAttack.model_validate(
            {"attack": ATTACK, **figures.as_json(), "course": {**end.as_json(), "moved": 0.00001}}
        )
    )


def test_how_far_provers_moved_is_read_from_the_proofs_of_their_weights():
    def prover(distance, trained_in=3):
        detail = {} if distance is None else {"base_distance_mean": distance}
        return ServedModel("m", "base", trained_in, proof={"matches": True, "detail": detail})

    assert find_moved([prover(0.2), prover(0.00001)]) == 0.2
    assert find_moved([prover(0.00001), ServedModel("base", "base")]) == 0.00001
    assert find_moved([prover(0.00001), prover(None)]) is None
    assert find_moved([ServedModel("base", "base")]) is None


def test_no_signal_where_no_step_trained_says_that():
    end = CourseEnd(step=40, worst_step=0, verdict="no signal", since=20, unequal_groups=0.0)
    finals = FinalTests(untrained=test_of(2), worst=test_of(2), course=end)
    figures = figures_by_step({0: test_of(2)}, {0: 0}, 0.5, 0, (), OwnTest(test_of(1)), finals)
    read = ShownAttack.model_validate({"attack": ATTACK, **figures.as_json()})
    assert "no step since step 20 trained the provers" in caution(read)


def test_only_problems_that_are_the_same_in_both_tests_are_compared():
    own = OwnTest(test_of(1, problems=range(4)))
    figures = by_step([2, 2], own)
    assert figures.lost_to_lying.problems == figures.trained.problems == 4
    assert figures.lost_to_lying.difference == 0.25
    # The name alone does not make it the same problem.
    other = by_step([2, 2], OwnTest(test_of(1, solution="another"))).lost_to_lying
    assert (other.difference, other.problems) == (None, 0)
    assert "none of these wrong problems" in other.because
    gone = by_step([2, 2], OwnTest(because="run r is gone"))
    assert gone.trained is None
    assert gone.lost_to_lying.because == "run r is gone"


def test_an_attack_that_hardly_trained_says_first_that_it_shows_nothing():
    own = OwnTest(test_of(1))
    void = shown([1, 1], own, trained=2, steps=20)
    assert caution(void) == (
        "This attack shows nothing about the verifier: only 2 of 20 steps trained the provers."
    )
    [cause] = causes(void)
    assert cause.startswith("18 steps trained nothing (0 to 2 examples, 10 needed). 300 of 320 ")
    # The trainer of an attack samples as the model is, so there is no temperature to raise.
    assert "pure_text_grpo.group_size" in cause and "temperature" not in cause
    assert void.trained_steps == 2
    assert "none of the 2 that trained sufficed." in loss_sentences(void)[0]
    nothing = " ".join(loss_sentences(shown([1, 1], own, 0, 20)))
    assert "none was tried" in nothing and "no step trained anybody" in nothing
    assert caution(shown([1, 1], own, 0, 20)).endswith(
        ": none of its 20 steps trained the provers."
    )
    # A verifier that fell all the same was shown to be weak, by whatever little there was.
    assert caution(shown([8, 8], own, 2, 20)).startswith("Only 2 of 20 steps trained")
    assert caution(shown([8, 8], OwnTest(test_of(8)), 0, 4)).startswith("None of its 4 steps")
    assert caution(shown([1, 1], own, 10, 20)) is None
    # Of soundness 0 nobody asks what more training would take.
    assert caution(shown([8, WRONG], own, 2, 20)) is None
    # Nor does one whose provers nothing has told to lie.
    untold = shown([1, 1], own, 20, 20, told=False)
    assert "shows nothing about a verifier whose prover lies" in caution(untold)
    assert "very words of run r" in causes(untold)[0]
    assert caution(shown([1, 1], own, 20, 20)) is None


def test_an_attack_that_trained_nothing_names_what_to_set_and_keeps_what_lying_took():
    lied = shown([3, 3], OwnTest(test_of(2)), trained=0, steps=1)
    lied = lied.model_copy(update={"groups_alike": 0})
    assert caution(lied) == (
        "This attack shows nothing about training against the verifier: its only step did not "
        "train the provers."
    )
    [cause] = causes(lied)
    assert cause.startswith("1 step trained nothing (0 examples, 10 needed). More episodes ")
    assert "--set rl.rollouts_per_iteration=" in cause


def test_no_steps_are_enough_only_where_what_lying_took_is_shown():
    ten, two = OwnTest(test_of(0)), OwnTest(test_of(8, problems=range(8, WRONG + 1)))
    for own, said in ((ten, "0, as lying is enough."), (two, "what lying took may be chance.")):
        figures = by_step([9], own)
        assert figures.steps_to_exploit == 0
        assert loss_sentences(shown([9], own, 0, 1))[0].endswith(said), figures.lost_to_lying


def test_equal_reasons_are_said_once():
    reasons = {0: "0 examples, 10 needed", 1: "8 examples, 10 needed", 4: "3 examples, 10 needed"}
    assert group_reasons({**reasons, 5: "refused"}) == [
        ("0 to 8 examples, 10 needed", [0, 1, 4]),
        ("refused", [5]),
    ]
    assert list_spans([0, 1, 4]) == "0 to 1, 4"
    assert list_spans([3]) == "3"
