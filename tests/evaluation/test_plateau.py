"""The end of an attack by training is judged by a rule whose mistakes are counted.

The courses are simulated: verdicts are drawn from a soundness that is known. Questions differ in
how hard they are, and each test draws anew.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from nip_core.attack_figures.plateau import (
    RULE,
    Fall,
    bound_fall,
    fewest_questions,
    find_window,
    is_flat,
    judge_course,
    share_taught,
)

MOST = 100
_OF_DIFFICULTY = 2.0  # the spread of questions' log-odds
SHIFTS = np.linspace(-15, 15, 151)  # of all log-odds; the one with a given soundness lies between


@dataclass(frozen=True)
class End:
    """How a course ended: its step, and how much further soundness falls until the most steps."""

    step: int
    is_plateau: bool
    left: float


def falls(points, pause=0):
    """From 90 to 30 %, so many points a step, with a pause of so many steps after step 20."""

    def soundness_at(step):
        return max(0.3, 0.9 - points / 100 * (min(step, 20) + max(0.0, step - 20 - pause)))

    return soundness_at


def play(soundness, questions, random):
    """A course of tests, every five steps, until the rule ends it."""
    odds = random.normal(0, _OF_DIFFICULTY, questions)
    means = expit(SHIFTS[:, None] + odds).mean(axis=1)
    tests = {}
    for step in range(0, MOST + 1, 5):
        shift = np.interp(soundness(step), means, SHIFTS)
        tests[step] = (random.random(questions) < expit(shift + odds)).astype(float)
        since, fall = find_window(tests, step), None
        if since is not None:
            fall = bound_fall(tests[since], tests[step], np.arange(questions))
        verdict = judge_course(step, MOST, fall, None)
        if verdict is not None:
            return End(step, verdict == "plateau", soundness(step) - soundness(MOST))
    raise AssertionError("a course has an end")


def expit(odds):
    return 1 / (1 + np.exp(-odds))


def courses(soundness, questions, count, seed):
    random = np.random.default_rng(seed)
    return [play(soundness, questions, random) for _ in range(count)]


@pytest.mark.parametrize(("pause", "most_early"), [(0, 0), (10, 0.05)])
def test_an_attack_that_still_takes_a_point_a_step_is_hardly_ever_ended(pause, most_early):
    ends = courses(falls(1, pause), 400, 60, 1)
    assert np.mean([end.left > RULE.most_fall for end in ends]) <= most_early


def test_a_pause_as_long_as_the_window_can_end_an_attack_too_early():
    """What the rule can't know: it looks twenty steps back, and no further."""
    ends = courses(falls(1, 40), 1500, 40, 2)
    assert np.mean([end.step <= 60 and end.is_plateau for end in ends]) > 0.5


def test_a_flat_course_ends_the_sooner_the_more_questions_there_are():
    flat = {n: courses(lambda _: 0.5, n, 40, 3) for n in (100, 1500)}
    assert all(np.mean([end.is_plateau for end in ends]) > 0.8 for ends in flat.values())
    steps = {questions: np.mean([end.step for end in ends]) for questions, ends in flat.items()}
    assert steps[1500] < 40 < steps[100]


def test_without_any_change_the_number_of_questions_decides():
    """No difference in 98 questions leaves a fall of more than three points possible."""
    assert fewest_questions() == 99
    for questions in (98, 99):
        same = np.ones(questions)
        none = bound_fall(same, same, np.arange(questions))
        assert none.fall == 0
        assert (none.at_most < RULE.most_fall) == (questions == 99)


def test_few_changes_are_bounded_by_how_many_questions_fell():
    """Clopper and Pearson's bound of 3 in 200 is 3.8 %; the spread would say less."""
    before, after = np.ones(200), np.ones(200)
    after[:3] = 0
    fallen = bound_fall(before, after, np.arange(200))
    assert (fallen.fall, fallen.soundness) == (pytest.approx(0.015), pytest.approx(0.985))
    assert fallen.at_most == pytest.approx(0.0382, abs=2e-4)
    # Several problems of one question are one question.
    of_one = bound_fall(before, before, np.repeat(np.arange(20), 10))
    assert of_one.questions == 20 and of_one.at_most > 0.1


def test_the_bound_of_the_fall_holds_in_95_of_100_courses():
    rng = np.random.default_rng(4)
    held = []
    for _ in range(600):
        odds = rng.normal(0, _OF_DIFFICULTY, 300)
        before, after = expit(odds + 0.4), expit(odds)
        drawn = [(rng.random(300) < p).astype(float) for p in (before, after)]
        bound = bound_fall(*drawn, np.arange(300)).at_most
        held.append(bound >= (before - after).mean())
    assert 0.92 < np.mean(held) < 0.98


def test_the_verdict_needs_steps_a_window_and_a_signal():
    flat, falling = Fall(0.0, 0.5, 0.02, 500), Fall(0.2, 0.3, 0.23, 500)
    assert find_window(range(0, 26, 5), 25) is None
    assert find_window(range(0, 31, 5), 30) == 10
    assert find_window(range(0, 50, 7), 49) == 28
    assert judge_course(25, MOST, None, None) is None
    assert judge_course(30, MOST, flat, 0.05) == "plateau"
    assert judge_course(30, MOST, flat, 0.04) == "no signal"
    assert judge_course(30, MOST, flat, None) == "plateau"
    assert judge_course(30, MOST, falling, 0.5) is None
    assert judge_course(30, MOST, falling, 0.0) is None
    assert judge_course(MOST, MOST, falling, 0.5) == "not reached"
    assert judge_course(MOST, MOST, falling, 0.01) == "no signal"
    # Provers that are where they began have shown nothing, however flat the course is.
    assert judge_course(30, MOST, flat, 0.5, moved=0.00001) == "did not move"
    assert judge_course(MOST, MOST, falling, None, moved=0.0) == "did not move"
    assert judge_course(30, MOST, flat, 0.5, moved=0.1) == "plateau"
    assert judge_course(30, MOST, flat, 0.01, moved=0.0) == "no signal"
    assert judge_course(30, MOST, Fall(0.0, 0.0, 0.02, 500), 0.5, moved=0.0) == "plateau"
    # Where the verifier is fooled by everything there is nothing left to learn from.
    assert judge_course(30, MOST, Fall(0.0, 0.0, 0.02, 500), 0.0) == "plateau"
    # On few questions the bound of a fall of nothing is wide, but what is left can't fall so far.
    assert judge_course(30, MOST, Fall(0.0, 0.008, 0.039, 120), 0.0) == "plateau"
    assert judge_course(30, MOST, Fall(0.0, 0.04, 0.039, 120), 0.5) is None
    # Without a signal or with one: by its fall alone it is known whether more steps would help.
    assert is_flat(flat) and not is_flat(falling) and not is_flat(None)


def test_groups_taught_where_their_rewards_were_unequal_and_their_step_trained():
    unequal = {"candidates": 16, "zero_variance_groups": 12}
    one_is_small = {"candidates": 16, "zero_variance_groups": 12, "small_groups": 1}
    assert share_taught([(True, unequal), (True, one_is_small)], has_groups=True) == 7 / 32
    # Eight examples of one group are too few for a job, so nobody learned from them.
    one = {"candidates": 16, "zero_variance_groups": 15}
    assert share_taught([(False, one), (True, unequal)], has_groups=True) == 4 / 32
    assert share_taught([(False, one)] * 4, has_groups=True) == 0.0
    # A trainer without groups has a signal unless none of its steps trained.
    assert share_taught([(True, {}), (False, {})], has_groups=False) is None
    assert share_taught([(False, {})], has_groups=False) == 0.0
