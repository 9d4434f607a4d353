"""The time of an iteration, divided into phases in which no second is twice."""

import numpy as np
import pytest

from nip_core.progress.phases import PhaseClock, by_stage, describe_phases
from nip_core.records.stage_seconds import JobSeconds, divide_jobs, measure_slow_end


def test_each_moment_counts_to_the_innermost_phase():
    now_s = [100.0]

    def pass_s(seconds):
        now_s[0] += seconds

    phases = PhaseClock(lambda: now_s[0])
    pass_s(3)
    assert phases.take() == {"start": 3.0}
    pass_s(1)
    with phases.during("swap"):
        pass_s(2)
        with pytest.raises(ValueError), phases.during("swap/prove"):
            pass_s(5)
            raise ValueError
        pass_s(4)
    assert phases.take() == {"idle": 1.0, "swap": 6.0, "swap/prove": 5.0}
    assert phases.take() == {"idle": 0.0}


def test_stages_are_whole_and_in_their_order():
    seconds = {"swap": 1.0, "play/slow": 2.0, "play": 3.0, "of-later": 1.0, "start": 1.0}
    assert list(by_stage(seconds).items()) == [
        *[("start", 1.0), ("play", 5.0), ("swap", 1.0), ("of-later", 1.0)]
    ]
    shown = describe_phases([seconds, {"play": 7.0, "swap": 0.0}, {"idle": 0.01}])
    assert [words for words, _, _ in shown] == [
        *["start", "play", "play: wait for slow answers", "swap", "of-later"]
    ]
    assert shown[1][1:] == (10.0, pytest.approx(10 / 15.01))


def test_an_end_is_slow_from_where_answers_came_at_less_than_half_of_their_usual_pace():
    def measure(ended):
        # Each answer takes a second and a half, so a call is in flight all the time but in a pause.
        return measure_slow_end(ended - 1.5, ended)

    even = np.arange(0.0, 100.0)
    assert measure(even) == measure_slow_end(even[:0], even[:0]) == 0.0
    # Ten answers more, one every 6 seconds: the last window of usual pace ends before them.
    slow = np.random.default_rng(0).permutation(
        np.concatenate([even, even[-1] + 6.0 * np.arange(1, 11)])
    )
    assert measure_slow_end(slow - 7.0, slow) == pytest.approx(60, abs=6)
    # A run that was stopped asks for nothing meanwhile, and the end of it is as even as the rest.
    for last in (100, 3):
        assert measure(np.concatenate([even, 5000 + even[:last]])) == 0.0
    assert measure(np.arange(0.0, 19.0) ** 3) == 0.0  # too few to tell


def test_jobs_one_after_the_other_wait_for_no_longer_than_none_of_them_works():
    first, second = (
        JobSeconds.model_validate({"submitted_at": at, "result": result, "progress": {"at": end}})
        for at, end, result in (
            (0.0, 15.0, {"startup_s": 3.0, "train_s": 10.0, "wall_s": 14.0, "swap_s": 1.0}),
            (1.0, 29.0, {"startup_s": 2.0, "train_s": 9.0, "wall_s": 12.0, "swap_s": 0.0}),
        )
    )
    assert divide_jobs([first]) == {
        **{"train/queue": 2.0, "train/load": 3.0, "train": 10.0, "train/save": 2.0}
    }
    both = divide_jobs([first, second])
    assert both == {"train/queue": 3.0, "train/load": 5.0, "train": 19.0, "train/save": 3.0}
    assert sum(both.values()) == 30.0  # from the first submission to the end of the second job
