"""A paired change with its interval and p-value, which always agree.

Two tests are asked whether there is a change: Student's t between questions, and the exact one in
which whole questions change sides (`sign_flips`). There is one only if both say so, so the p-value
is the larger of theirs: a test of the union of both hypotheses, whose level is that of each
(Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24, 1982). The
interval is Student's, and reaches to 0 where the exact test does not exclude it. Either test alone
would be wrong in some cases: with few changes the first is too sure, and with unequal questions the
second looks at signs where sizes scatter.
"""

from typing import NamedTuple

from nip_core.evaluation.confidence_intervals import Interval
from nip_core.evaluation.statistics.clustered import Floats, Ints, clustered_mean
from nip_core.evaluation.statistics.differences import sign_flips
from nip_core.evaluation.statistics.distributions import t_cdf

_LEVEL = 0.05


class PairedChange(NamedTuple):
    """The 95 % interval of a mean change, and the p-value of no change."""

    interval: Interval | None
    """None with one question, which shows no spread. It excludes 0 exactly if p is below 0.05."""
    p: float


def compare_pairs(differences: Floats, clusters: Ints, changes: Floats) -> PairedChange:
    """Test the mean of `differences`, one per problem with its question in `clusters`.

    `changes` has by question how many verdicts became right, less how many became wrong. Raises
    ValueError for changes that are no whole numbers.
    """
    exact = sign_flips(changes)
    mean = clustered_mean(differences, clusters)
    interval = None if mean is None else mean.interval()
    if mean is None or interval is None:
        return PairedChange(None, exact)
    p = max(exact, _student(mean.value, mean.error or 0.0, mean.df))
    low, high = interval
    if p >= _LEVEL:
        return PairedChange((min(low, 0.0), max(high, 0.0)), p)
    # Where the end is 0 but for rounding, nothing is excluded.
    return PairedChange(interval, _LEVEL if low <= 0 <= high else p)


def _student(value: float, error: float, df: float) -> float:
    """Compute the two-sided p-value of a mean of 0; without any spread no mean but 0 has one."""
    if not error:
        return float(value == 0)
    return min(1.0, 2 * t_cdf(-abs(value) / error, df))
