"""The intervals: known values, degenerate cases, and the laws of the bootstrap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.evaluation.confidence_intervals import (
    _normal,
    bootstrap_mean,
    bootstrap_rate,
    bootstrap_ratio,
    rate_interval,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3, to four digits.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 0.8389, 1.0),
    ],
)
def test_wilson_agrees_with_published_values(successes, trials, low, high) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_no_trials_have_no_interval() -> None:
    none = np.array([], dtype=np.int64)
    assert wilson(0, 0) is None
    assert bootstrap_rate(none, none, 0) is None
    assert bootstrap_mean(none.astype(float), 0) is None
    assert rate_interval(none, none, 0) is None


@given(st.integers(1, 500), st.data())
def test_wilson_contains_its_rate_and_stays_within_0_and_1(trials, data) -> None:
    successes = data.draw(st.integers(0, trials))
    low, high = wilson(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1
    assert high > low


def test_each_problem_once_gives_wilson_and_repeats_give_the_bootstrap() -> None:
    ones = np.ones(40, dtype=np.int64)
    right = (np.arange(40) < 30).astype(np.int64)
    assert rate_interval(right, ones, 0) == wilson(30, 40)
    assert rate_interval(right * 2, ones * 2, 5) == bootstrap_rate(right * 2, ones * 2, 5)


def test_plays_of_one_problem_that_always_agree_do_not_narrow_the_interval() -> None:
    right = (np.arange(200) < 120).astype(np.int64)
    low, high = bootstrap_rate(right * 10, np.full(200, 10), 0)
    # 200 independent problems: the normal interval has a half-width of 0.0679. Counting the
    # 2,000 plays as independent would give 0.0215.
    assert (high - low) / 2 == pytest.approx(0.0679, abs=0.006)
    assert (high + low) / 2 == pytest.approx(0.6, abs=0.01)


def test_problems_without_spread_get_wilsons_interval_over_problems() -> None:
    assert bootstrap_rate(np.full(10, 3), np.full(10, 3), 0) == wilson(10, 10)
    assert bootstrap_rate(np.array([2]), np.array([4]), 0) == wilson(0.5, 1)


def test_the_bootstrap_is_the_same_for_the_same_seed_and_differs_between_seeds() -> None:
    successes, trials = np.arange(30) % 4, np.full(30, 3)
    assert bootstrap_rate(successes, trials, 7) == bootstrap_rate(successes, trials, 7)
    values = np.random.default_rng(0).normal(size=300)
    assert bootstrap_mean(values, 7) == bootstrap_mean(values, 7)
    assert bootstrap_mean(values, 7) != bootstrap_mean(values, 8)


def test_the_bootstrap_of_a_mean_has_the_width_that_theory_gives() -> None:
    values = np.random.default_rng(3).normal(loc=2.0, scale=1.0, size=400)
    low, high = bootstrap_mean(values, 0)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=0.012)
    assert high == pytest.approx(values.mean() + half, abs=0.012)


def test_drawing_in_pieces_covers_all_resamples() -> None:
    values = np.random.default_rng(4).normal(size=2_500)  # more than one piece of draws
    low, high = bootstrap_mean(values, 0)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert (high - low) / 2 == pytest.approx(half, rel=0.08)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_order_does_not_matter_and_the_interval_is_within_0_and_1(pairs) -> None:
    successes = np.array([min(a, a + b) for a, b in pairs])
    trials = np.array([a + b or 1 for a, b in pairs])
    low, high = bootstrap_rate(successes, trials, 0)
    assert 0 <= low <= high <= 1
    assert bootstrap_rate(successes[::-1], trials[::-1], 0) == (low, high)


@pytest.mark.parametrize("plays", [1, 3])
def test_for_many_different_problems_the_normal_interval_is_the_bootstrap(plays) -> None:
    random = np.random.default_rng(3)
    counts = np.full(3_900, plays)
    sums = random.exponential(size=3_900) * plays
    resampled = bootstrap_ratio(sums, counts, 0)
    at_once = _normal(np.stack([sums, counts], axis=1), np.ones(3_900, dtype=np.int64))
    assert at_once == pytest.approx(resampled, abs=0.004)  # a tenth of the width
    twice = bootstrap_ratio(np.append(sums, sums + 1e-9), np.append(counts, counts), 0)
    assert twice[1] - twice[0] == pytest.approx((at_once[1] - at_once[0]) / 2**0.5, rel=1e-3)
