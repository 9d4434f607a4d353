"""Statistics by question: known values, laws, what they cover, and what they say of nonsense."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.evaluation.confidence_intervals import bootstrap_rate, wilson
from nip_core.evaluation.statistics.clustered import (
    clustered_mean,
    clustered_rate,
    effective_trials,
)
from nip_core.evaluation.statistics.differences import (
    at_most,
    equivalence,
    holm,
    mcnemar,
    sign_flips,
)
from nip_core.evaluation.statistics.power import detectable_change, detectable_difference
from nip_study.parts.two_way import two_way

QUESTIONS, VARIANTS = 33, 8
SIZES = np.full(QUESTIONS, float(VARIANTS))
CLUSTERS = np.repeat(np.arange(QUESTIONS), VARIANTS)


def drawn(rate: float, likeness: float, draws: int, seed: int = 0) -> np.ndarray:
    """Hits by question, whose rates are beta-distributed."""
    random = np.random.default_rng(seed)
    spread = (1 - likeness) / likeness
    rates = random.beta(rate * spread, (1 - rate) * spread, (draws, QUESTIONS))
    return random.binomial(VARIANTS, rates).astype(float)


def rows(hits: np.ndarray) -> np.ndarray:
    """A row for each variant, those that hit first."""
    return (np.arange(VARIANTS) < hits[:, None]).ravel()


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.randoms())
def test_a_question_with_one_row_each_gives_wilson_to_the_last_digit(hits, random) -> None:
    clusters = list(range(len(hits)))
    random.shuffle(clusters)
    interval = clustered_rate(np.array(hits), np.array(clusters))
    assert interval == wilson(sum(hits), len(hits))


@pytest.mark.parametrize(("rate", "likeness"), [(0.5, 0.2), (0.8, 0.5), (0.95, 0.2)])
def test_intervals_by_question_cover_and_the_old_ones_do_not(rate, likeness) -> None:
    draws = 300
    by_question = by_row = by_bootstrap = 0
    for hits in drawn(rate, likeness, draws):
        right = rows(hits)
        low, high = clustered_rate(right, CLUSTERS)
        by_question += low <= rate <= high
        low, high = wilson(int(hits.sum()), QUESTIONS * VARIANTS)
        by_row += low <= rate <= high
    # What was computed before for problems that were played twice, alike: problems as independent.
    for hits in drawn(rate, likeness, 40):
        low, high = bootstrap_rate(2 * rows(hits), np.full(QUESTIONS * VARIANTS, 2), 0)
        by_bootstrap += low <= rate <= high
    # The benchmark draws 10,000 times; here chance alone moves a share by up to 4 points.
    assert 0.91 <= by_question / draws <= 0.99
    assert by_row / draws < 0.86
    assert by_bootstrap / 40 < 0.93


def test_means_and_differences_by_question_cover() -> None:
    random, draws, covered = np.random.default_rng(5), 250, 0
    for _ in range(draws):
        sizes = random.integers(1, 9, 25)
        clusters = np.repeat(np.arange(25), sizes)
        values = random.normal(size=25)[clusters] * 0.5 + random.normal(size=len(clusters))
        low, high = clustered_mean(values, clusters).interval()
        covered += low <= 0 <= high
    assert 0.9 <= covered / draws <= 0.99


def test_the_order_of_rows_and_the_names_of_questions_do_not_matter() -> None:
    hits = rows(drawn(0.7, 0.3, 1)[0])
    order = np.random.default_rng(1).permutation(len(hits))
    renamed = (CLUSTERS * 7 + 3) % 101
    assert clustered_rate(hits[order], CLUSTERS[order]) == clustered_rate(hits, CLUSTERS)
    assert clustered_rate(hits, renamed) == pytest.approx(clustered_rate(hits, CLUSTERS), abs=1e-12)
    values = np.random.default_rng(2).normal(size=len(hits))
    shuffled = clustered_mean(values[order], CLUSTERS[order])
    assert shuffled == clustered_mean(values, CLUSTERS)


def test_rows_that_repeat_each_other_are_worth_one_and_independent_ones_all() -> None:
    alike = effective_trials(np.where(np.arange(QUESTIONS) < 20, 8.0, 0.0), SIZES)
    assert 25 < alike < 34
    apart = effective_trials(np.full(QUESTIONS, 4.0), SIZES)
    assert 230 < apart <= 264


def test_a_rate_of_0_or_1_or_of_one_question_counts_questions() -> None:
    all_right = clustered_rate(np.ones(264, dtype=bool), CLUSTERS)
    assert all_right == wilson(33, 33)
    assert clustered_rate(np.zeros(264, dtype=bool), CLUSTERS) == wilson(0, 33)
    one_question = clustered_rate(np.arange(8) < 4, np.zeros(8, dtype=int))
    assert one_question == wilson(0.5, 1)


def test_shares_of_trees_are_trials_that_succeed_in_part() -> None:
    """Two trees per question, each leaf with half of it."""
    clusters, weights = np.repeat(np.arange(10), 4), np.full(40, 0.5)
    low, high = clustered_rate(np.arange(40) % 4 < 3, clusters, weights)
    assert 0 < low < 0.75 < high < 1


def test_means_of_questions_of_one_size_have_the_error_between_questions() -> None:
    values = np.random.default_rng(3).normal(size=264)
    mean = clustered_mean(values, CLUSTERS)
    by_question = values.reshape(QUESTIONS, VARIANTS).mean(axis=1)
    assert mean.value == pytest.approx(values.mean())
    assert mean.error == pytest.approx(by_question.std(ddof=1) / math.sqrt(QUESTIONS))
    assert mean.df == pytest.approx(QUESTIONS - 1)
    # 2.0369 is Student's t for 32 degrees of freedom.
    assert mean.interval()[1] == pytest.approx(mean.value + 2.036933 * mean.error, rel=1e-6)


def test_uneven_questions_have_fewer_degrees_of_freedom_than_even_ones() -> None:
    clusters = np.repeat([0, 1, 2, 3, 4, 5], [40, 1, 1, 1, 1, 1])
    mean = clustered_mean(np.random.default_rng(4).normal(size=45), clusters)
    assert 0.9 < mean.df < 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_is_refused_in_words(bad) -> None:
    with pytest.raises(ValueError, match="statistics need finite numbers"):
        clustered_mean(np.array([1.0, bad]), np.array([0, 1]))
    with pytest.raises(ValueError, match="weights above 0"):
        clustered_rate(np.array([True]), np.array([0]), np.array([bad]))
    with pytest.raises(ValueError, match="must be finite"):
        two_way(np.array([[bad]]), np.ones((1, 1)), 0)
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        holm([0.1, math.nan])
    with pytest.raises(ValueError, match="whole numbers"):
        sign_flips([1, bad])


def test_nothing_and_what_has_no_spread_have_no_interval() -> None:
    none = np.array([], dtype=np.int64)
    assert clustered_rate(none.astype(bool), none) is None
    assert clustered_mean(none.astype(float), none) is None
    assert two_way(np.zeros((2, 2)), np.zeros((2, 2)), 0) is None
    one_question = clustered_mean(np.array([0.0, 1.0]), np.array([3, 3]))
    assert one_question.interval() is None and one_question.value == 0.5
    equal = clustered_mean(np.full(6, 0.1), np.array([0, 0, 1, 1, 2, 2]))
    assert equal.error == 0.0
    assert equivalence(equal, 0.05) is None and equivalence(one_question, 0.05) is None
    assert two_way(np.ones((1, 5)), np.ones((1, 5)), 0).ci95 is None
    assert two_way(np.ones((3, 5)), np.ones((3, 5)), 0).ci95 is None
    assert at_most(0, 0) is None
    assert mcnemar(0, 0) == 1.0 and sign_flips([]) == 1.0


def test_mcnemar_by_question_flips_whole_questions() -> None:
    # Half of 2^-9 and so on: 10 tosses, at most 2 tails, both sides.
    assert mcnemar(8, 2) == pytest.approx(2 * (1 + 10 + 45) / 1024)
    # Ten verdicts of two questions: both signs equal happens in two of four cases.
    assert sign_flips([5, 5]) == pytest.approx(0.5)
    assert sign_flips([5, 3]) == pytest.approx(0.5)
    # 3 - 1 + 1 = 3 or more, of eight sums: 5, 3, 3 above, as many below.
    assert sign_flips([3, -1, 1]) == pytest.approx(6 / 8)
    assert sign_flips([-3, 1, -1]) == sign_flips([3, -1, 1])
    assert sign_flips([4, -4]) == 1.0


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
def test_sign_flips_are_what_counting_all_of_them_gives(changes) -> None:
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(changes))).reshape(len(changes), -1)
    sums = np.abs((signs * np.array(changes).reshape(-1, 1)).sum(axis=0))
    expected = float((sums >= abs(sum(changes))).mean())
    assert sign_flips(changes) == pytest.approx(expected)


def test_holm_is_stepwise_and_keeps_the_order() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_equivalence_needs_the_whole_interval_within_the_margin() -> None:
    values = np.random.default_rng(6).normal(0.01, 0.2, 400)
    difference = clustered_mean(values, np.arange(400))
    wide, narrow = equivalence(difference, 0.05), equivalence(difference, 0.015)
    assert wide.is_equivalent and not narrow.is_equivalent
    assert -0.05 < wide.interval[0] < wide.interval[1] < 0.05
    with pytest.raises(ValueError, match="margin"):
        equivalence(difference, 0.0)


def test_no_event_in_n_trials_leaves_about_three_in_n() -> None:
    assert at_most(0, 300) == pytest.approx(3 / 300, rel=0.01)
    assert at_most(0, 33) == pytest.approx(0.0868, abs=5e-5)
    assert at_most(33, 33) == 1.0
    with pytest.raises(ValueError, match="between 0 and 3"):
        at_most(4, 3)


def test_seeds_and_questions_both_widen_the_interval() -> None:
    random = np.random.default_rng(7)
    noise = random.normal(0, 0.1, (6, 50))
    ones = np.ones((6, 50))

    def width(by_seed: float, by_question: float) -> float:
        cells = noise + by_seed * random.normal(size=(6, 1)) + by_question * random.normal(size=50)
        low, high = two_way(cells, ones, 3).ci95
        return float(high - low)

    alone = width(0, 0)
    assert width(0.3, 0) > 3 * alone and width(0, 0.5) > 3 * alone
    cells = noise + random.normal(size=(6, 1))
    assert two_way(cells, ones, 3) == two_way(cells, ones, 3)
    # One cell less: the mean leaves it out.
    counts = ones.copy()
    counts[2, 7] = 0
    assert two_way(cells * counts, counts, 3).value == pytest.approx(cells[counts > 0].mean())


def test_detectable_changes_are_those_of_the_plan() -> None:
    # 2.8016 is 1.9600 + 0.8416; a fifth of 400 verdicts change, at random either way.
    assert detectable_change([1] * 400) == pytest.approx(2.8016 * math.sqrt(0.2 / 400), rel=0.02)
    assert detectable_change([8] * 33) == pytest.approx(0.12, abs=0.002)
    assert detectable_change([8] * 33) > 1.5 * detectable_change([1] * 264)
    assert detectable_change([8]) is None and detectable_change([]) is None
    assert detectable_change([1] * 4) < 1
    assert detectable_difference([1] * 400, 0.5) == pytest.approx(0.098, abs=0.001)
    assert detectable_difference([1] * 4, 0.5) is None
