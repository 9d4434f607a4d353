"""The statistics against scipy and, in `make test-long`, statsmodels, whose import takes seconds."""

import numpy as np
import pytest

from nip_core.evaluation.statistics.clustered import clustered_mean, totals_by
from nip_core.evaluation.statistics.differences import at_most, equivalence, holm, mcnemar
from nip_core.evaluation.statistics.distributions import (
    beta_cdf,
    beta_quantile,
    log_gamma,
    t_cdf,
    t_quantile,
)
from nip_study.parts.two_way import two_way

special = pytest.importorskip("scipy.special", reason="scipy is a part of the extra dev")


@pytest.mark.parametrize(
    ("a", "b"), [(0.5, 0.5), (1, 3), (30, 2), (300, 400), (5_000, 1.5), (2, 1e5)]
)
def test_beta_is_scipy_s(a, b) -> None:
    for x in (1e-4, 0.01, 0.3, 0.9, 0.999):
        assert beta_cdf(x, a, b) == pytest.approx(special.betainc(a, b, x), abs=1e-11)
    for probability in (0.001, 0.025, 0.5, 0.975):
        expected = special.betaincinv(a, b, probability)
        assert beta_quantile(probability, a, b) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("df", [1, 1.5, 3, 12.7, 32, 400, 1e5, 1e8])
def test_student_s_t_is_scipy_s(df) -> None:
    for probability in (0.005, 0.2, 0.5, 0.8, 0.975, 0.9999):
        expected = special.stdtrit(df, probability)
        assert t_quantile(probability, df) == pytest.approx(expected, rel=1e-7, abs=1e-12)
    assert t_cdf(1.3, df) == pytest.approx(special.stdtr(df, 1.3), abs=1e-8)


def test_log_gamma_is_scipy_s() -> None:
    x = np.array([1e-6, 1e-3, 0.3, 1.0, 2.0, 10.0, 1e3, 1e6])
    assert log_gamma(x) == pytest.approx(special.gammaln(x), abs=1e-9, rel=1e-11)


def test_one_sided_bounds_are_clopper_and_pearson_s() -> None:
    for events, trials in ((0, 33), (1, 33), (12, 264)):
        expected = special.betaincinv(events + 1, trials - events, 0.95)
        assert at_most(events, trials) == pytest.approx(expected, rel=1e-8)


def analyse_variance(cells):
    """Compute the mean squares of a full table by its textbook formulas."""
    seeds, questions = cells.shape
    rows, columns, whole = cells.mean(axis=1), cells.mean(axis=0), cells.mean()
    left = cells - rows[:, None] - columns + whole
    return (
        questions * ((rows - whole) ** 2).sum() / (seeds - 1),
        seeds * ((columns - whole) ** 2).sum() / (questions - 1),
        (left**2).sum() / ((seeds - 1) * (questions - 1)),
    )


@pytest.mark.parametrize(("seeds", "plays"), [(3, 8), (6, 1), (40, 2)])
def test_the_error_of_a_full_table_is_that_of_its_analysis_of_variance(seeds, plays) -> None:
    random = np.random.default_rng(seeds)
    cells = random.normal(0, 1, (seeds, 30)) + random.normal(0, 2, (seeds, 1))
    mean = two_way(cells * plays, np.full(cells.shape, float(plays)), 0)
    of_seeds, of_questions, noise = (square / cells.size for square in analyse_variance(cells))
    # Decision 0056: with many seeds little is left of what widens the interval for few.
    unwidened, widened = of_seeds + of_questions - noise, 0.0
    parts = noise**2 / (29 * (seeds - 1))
    for part, f in ((of_seeds, seeds - 1), (of_questions, 29)):
        seen = max(part - 0.3 * noise, 0)
        widened += 2.4 / f**2 * seen
        parts += (1 + 4 / f**2) * ((1 + 2.4 / f**2) * seen) ** 2 / f
    least = min(seeds - 1, 29)
    assert mean.error**2 == pytest.approx(unwidened + widened)
    assert mean.df == pytest.approx(max((unwidened + widened) ** 2 / parts, least))
    # Without a spread of questions, what falls with more seeds is all but the noise of cells.
    assert mean.seed_variance == pytest.approx(unwidened - max(of_questions - noise, 0))
    assert mean.widened == pytest.approx(widened)


def test_seeds_that_were_counted_more_often_weigh_as_much_in_the_error() -> None:
    # Of seeds with a variance of 1 the variance of a weighted mean is the sum over unit vectors of
    # its square, and so is what is expected of a quadratic form such as its estimate.
    counts = np.repeat([[8.0], [8.0], [1.0]], 4, axis=1)
    means = [two_way(seed[:, None] * counts, counts, 0) for seed in np.eye(3)]
    truth = sum(mean.value**2 for mean in means)
    assert truth == pytest.approx((64 + 64 + 1) / 17**2)
    assert sum(mean.seed_variance for mean in means) == pytest.approx(truth)
    # The matrix of that form, without the formulas of the code for its traces.
    shares = counts[:, 0] / counts[:, 0].sum()
    centered = np.eye(3) - shares
    form = centered.T @ np.diag(shares**2) @ centered
    df = np.trace(form) ** 2 / np.trace(form @ form)
    assert df == pytest.approx(1.06, abs=0.005)
    assert all(mean.df == pytest.approx(df) for mean in means)


@pytest.mark.parametrize(
    "counts",
    [
        [[8, 8], [1, 1]],
        [[264] * 4, [8] * 4, [8] * 4],
        [[4, 4, 4], [4, 0, 0]],
        [[4, 0, 0], [0, 4, 0], [0, 0, 4]],
        [[1e9, 1e9, 1], [1, 1, 1], [1, 1, 1]],
        [[1e17, 1e17], [1, 1]],
        [[60, 2, 2, 2], [60, 2, 2, 2], [60, 2, 2, 2]],
    ],
)
def test_however_unequal_the_counts_are_an_interval_is_one_of_rates_or_none(counts) -> None:
    counts = np.array(counts, float)
    for seed in range(20):
        right = np.random.default_rng(seed).random(counts.shape) < 0.5
        mean = two_way(right * counts, counts, 0)
        assert np.isfinite([mean.error, mean.df]).all() and mean.df >= 1
        if mean.ci95 is not None:
            low, high = mean.ci95
            assert -100 < low <= mean.value <= high < 100


@pytest.mark.long
def test_tests_are_statsmodels() -> None:
    tables = pytest.importorskip("statsmodels.stats.contingency_tables")
    several = pytest.importorskip("statsmodels.stats.multitest")
    weights = pytest.importorskip("statsmodels.stats.weightstats")
    for gained, lost in ((8, 2), (0, 5), (40, 41), (300, 240)):
        expected = tables.mcnemar([[10, gained], [lost, 10]], exact=True).pvalue
        assert mcnemar(gained, lost) == pytest.approx(expected, rel=1e-9)
    p_values = [0.012, 0.3, 0.012, 0.049, 0.0004]
    assert holm(p_values) == pytest.approx(several.multipletests(p_values, method="holm")[1])
    values = np.random.default_rng(2).normal(0.01, 0.2, 60)
    one_each = clustered_mean(values, np.arange(60))
    p = weights.DescrStatsW(values).ttost_mean(-0.05, 0.05)[0]
    assert equivalence(one_each, 0.05).p == pytest.approx(p, rel=1e-6)


@pytest.mark.long
def test_robust_errors_are_statsmodels() -> None:
    """Its clustered errors have the factor G / (G - 1) and (n - 1) / (n - 1): equal sizes agree."""
    models = pytest.importorskip("statsmodels.api")
    clusters = np.repeat(np.arange(12), 5)
    values = np.random.default_rng(3).normal(size=60) + np.repeat(np.arange(12) % 4, 5)
    fit = models.OLS(values, np.ones(60)).fit(cov_type="cluster", cov_kwds={"groups": clusters})
    mean = clustered_mean(values, clusters)
    assert mean.value == pytest.approx(fit.params[0])
    assert mean.error == pytest.approx(fit.bse[0], rel=1e-6)
    sums, sizes = totals_by(clusters, values)
    assert sums.sum() == pytest.approx(values.sum()) and set(sizes) == {5.0}
