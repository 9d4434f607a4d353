"""Seeds that a difference needs, and rates against a number: scipy says the same."""

import pytest

from nip_study.compute.given_rate import bound_rate
from nip_study.compute.needed import seeds_needed
from nip_study.parts.two_way import TwoWay

special = pytest.importorskip("scipy.special", reason="scipy is a part of the extra dev")


def exact_seeds(difference, spread):
    """The pairs that show a difference in 80 of 100 cases, by the noncentral t distribution."""
    for seeds in range(2, 5_000):
        shift, limit = difference * seeds**0.5 / spread, special.stdtrit(seeds - 1, 0.975)
        shown = 1 - special.nctdtr(seeds - 1, shift, limit)
        if shown >= 0.8:
            return seeds
    raise AssertionError("never shown")


@pytest.mark.parametrize("spread", [0.03, 0.05, 0.1, 0.4])
def test_seeds_needed_are_those_of_the_noncentral_t(spread) -> None:
    error = spread / 4**0.5
    seen = TwoWay(0.1, error, 3.0, None, 4, 10**6, error**2)
    assert abs(seeds_needed(0.05, seen) - exact_seeds(0.05, spread)) <= 1


def test_more_seeds_leave_the_questions_share_as_it_is() -> None:
    seen = TwoWay(0.1, 0.05, 3.0, None, 4, 30, 0.05**2 - 0.02**2)
    # The questions alone have an error of 2 points, so 5 points are not to be seen, and 8 are.
    assert seeds_needed(0.05, seen) is None
    few, many = seeds_needed(0.2, seen), seeds_needed(0.08, seen)
    assert 2 <= few < many < 100
    assert seeds_needed(0.0, seen) is None
    with pytest.raises(ValueError, match="says nothing of more seeds"):
        seeds_needed(0.1, TwoWay(0.1, None, 0.0, None, 1, 30))


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.3, 0.5, 0.99, 1.0])
def test_bounds_of_a_rate_are_clopper_and_pearson_s_and_say_what_the_tests_say(rate) -> None:
    mean = TwoWay(rate, 0.0 if rate in (0, 1) else 0.02, 9.0, None, 4, 100)
    bounds = bound_rate(mean, 800, 0.95)
    right, wrong = rate * bounds.trials, (1 - rate) * bounds.trials
    rule_of_three = 1 - 0.05**0.01
    high = special.betaincinv(right + 1, wrong, 0.95) if wrong else 1
    low = special.betaincinv(right, wrong + 1, 0.05) if right else 0
    assert bounds.high == pytest.approx(max(high, rule_of_three), abs=1e-9)
    assert bounds.low == pytest.approx(min(low, 1 - rule_of_three), abs=1e-9)
    # A p-value of 5 % lies exactly at the bound, and one beyond it is smaller.
    if bounds.high < 1:
        assert bounds.p_lower(bounds.high) == pytest.approx(0.05, abs=1e-9)
        assert bounds.p_lower(bounds.high + 0.001) < 0.05 < bounds.p_lower(bounds.high - 0.001)
    if bounds.low > 0:
        assert bounds.p_higher(bounds.low) == pytest.approx(0.05, abs=1e-9)
    assert bounds.p_equal(rate, 0.5) < 0.05


def test_one_seed_shows_no_spread_of_a_rate() -> None:
    assert bound_rate(TwoWay(0.5, None, 0.0, None, 1, 100), 100, 0.95) is None


@pytest.mark.parametrize("seeds", [2, 3, 8])
@pytest.mark.parametrize("rate", [0.02, 0.06, 0.5, 0.97])
def test_a_p_value_against_a_number_is_where_the_bound_of_its_level_lies(seeds, rate):
    """At every level, as Holm's method has them; also where few seeds leave far tails wide."""
    mean = TwoWay(rate, 0.02, float(seeds - 1), None, seeds, 200)
    for number in (rate + 0.015, rate + 0.04, rate + 0.2):
        if number >= 1:
            continue
        p = bound_rate(mean, 1600, 0.95).p_lower(number)
        for alpha in (0.2, 0.05, 0.01, 0.005, 0.001, 1e-5):
            high = bound_rate(mean, 1600, 1 - alpha).high
            assert (high < number) == (p < alpha) or abs(high - number) < 1e-6
