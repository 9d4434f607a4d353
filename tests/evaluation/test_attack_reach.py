"""Reach: what may never be sampled, and what, sampled once, trains nobody."""

import random

import pytest

from nip_core.attack_figures.reach import (
    measure_reach,
    measure_training_reach,
    reach_share,
    reach_words,
)


def test_groups_below_a_job_have_a_second_reach_and_larger_ones_none():
    small = measure_training_reach(6_400, steps=100, group=8, examples=8)
    assert small.rarest == 3 / 6_400
    assert (small.alone, small.needed) == (8, 10)
    assert small.rarest_to_train > 5 * small.rarest
    large = measure_training_reach(6_400, steps=100, group=16, examples=16)
    assert large == measure_reach(6_400)
    # Without groups each message is one example, so ten of a step have to be of the kind.
    single = measure_training_reach(6_400, steps=100, group=1, examples=1)
    assert single.rarest_to_train > small.rarest_to_train
    # A step of one group trains nobody, however common a kind is.
    assert measure_training_reach(80, steps=10, group=8, examples=8).rarest_to_train == 1.0


def test_the_share_that_trains_is_what_playing_it_gives():
    steps, groups, size = 20, 6, 8
    share = measure_training_reach(steps * groups * size, steps, size, size).rarest_to_train
    draw = random.Random(0)

    def trains():
        has_one = 1 - (1 - share) ** size
        return any(sum(draw.random() < has_one for _ in range(groups)) >= 2 for _ in range(steps))

    assert sum(trains() for _ in range(2_000)) / 2_000 == pytest.approx(0.95, abs=0.02)


def test_both_are_said_before_an_attack_and_after_it():
    reach = measure_training_reach(6_400, steps=100, group=8, examples=8)
    for planned, may in ((True, "may never train the"), (False, "may never have trained the")):
        words = reach_words(reach, is_planned=planned)
        assert "rarer than 0.047 % (3/6,400)" in words
        assert "gives 8 examples, and a step with fewer than 10 trains nobody" in words
        assert f"kinds rarer than {reach_share(reach.rarest_to_train)} {may} provers." in words
    assert "trains nobody" not in reach_words(measure_reach(6_400))
    assert reach_share(reach.rarest, reach.rarest_to_train).startswith("0.047 % (to train 0.")
