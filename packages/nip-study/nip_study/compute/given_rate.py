"""A rate over seeds and questions against a given number: lower, higher, or as good as equal?

Where every verdict is the same nothing varies, and Student's t has nothing to go by. Near 0 and 1
it errs, too: few verdicts differ, by chance often in few questions, and bounds then come out too
tight just where the rate seems lowest. So a rate is compared with a number as that of so many
independent trials as its verdicts are worth, after Korn and Graubard, "Confidence intervals for
proportions with small expected number of positive counts estimated from survey data", Survey
Methodology 24 (1998).
"""

import math
from dataclasses import dataclass, replace

from nip_core.evaluation.confidence_intervals import Interval
from nip_core.evaluation.statistics.distributions import (
    beta_cdf,
    beta_quantile,
    normal_quantile,
    t_quantile,
)
from nip_study.parts.two_way import NO_ERROR, TwoWay

_LEAST_P, _MOST_P = 1e-12, 0.49
"""Between them a p-value is looked for; trials have no meaning at an error of one half."""
_PRECISION = 1e-11


@dataclass(frozen=True)
class RateBounds:
    """A rate, in [0, 1], worth so many independent trials, with one-sided bounds.

    The bounds are those of Clopper and Pearson, "The use of confidence or fiducial limits",
    Biometrika 26 (1934), and never tighter than so many questions without any exception would
    give: an exception makes nothing surer.
    """

    rate: float
    questions: int
    verdicts: int
    error: float
    df: float
    level: float
    """Of each bound by itself; both are an interval of 2 · level - 1."""

    @property
    def trials(self) -> float:
        """Return of how many trials the bounds are; no whole number as a rule."""
        return self._count_trials(self.level)

    def _count_trials(self, level: float) -> float:
        if self.error <= NO_ERROR:
            return self.questions
        scale = (t_quantile(level, self.df) / normal_quantile(level)) ** 2
        worth = self.rate * (1 - self.rate) / self.error**2 / scale
        return min(worth, float(self.verdicts))

    @property
    def low(self) -> float:
        """Return the lower bound."""
        return 1 - self._mirrored().high

    @property
    def high(self) -> float:
        """Return the upper bound: it is below a number where its `p_lower` is below 1 - level."""
        right, wrong = self.rate * self.trials, (1 - self.rate) * self.trials
        bound = beta_quantile(self.level, right + 1, wrong) if wrong > 0 else 1.0
        return max(bound, 1 - math.pow(1 - self.level, 1 / self.questions))

    @property
    def interval(self) -> Interval:
        """Return both bounds."""
        return self.low, self.high

    def p_lower(self, number: float) -> float:
        """Compute the p-value of a true rate of `number`, in [0, 1], or more, against a lower
        one.

        It is the smallest level of error at which the upper bound excludes the number. The trials
        are others at each level, as few degrees of freedom widen far tails the most.
        """
        if self.rate >= 1:
            return 1.0
        # The tail's excess over its level falls as the level grows, so there is one solution.
        low, high = _LEAST_P, _MOST_P
        if self._find_tail(number, high) >= high:
            return self._find_tail(number, high)
        if self._find_tail(number, low) <= low:
            return low
        while high - low > _PRECISION * high:
            middle = math.sqrt(low * high)
            if self._find_tail(number, middle) > middle:
                low = middle
            else:
                high = middle
        return high

    def _find_tail(self, number: float, error: float) -> float:
        """Find the chance of a rate so low, by as many trials as the bound of this `error` has."""
        trials = self._count_trials(1 - error)
        right, wrong = self.rate * trials, (1 - self.rate) * trials
        # beta_cdf takes the tail from 1 itself where it is small, so nothing is lost here.
        tail = beta_cdf(1 - number, wrong, right + 1)
        return max(tail, math.pow(1 - number, self.questions))

    def p_higher(self, number: float) -> float:
        """Compute the p-value of a true rate of `number`, in [0, 1], or less, against a higher
        one."""
        return self._mirrored().p_lower(1 - number)

    def p_equal(self, number: float, margin: float) -> float:
        """Compute the p-value of two one-sided tests of a rate within `margin` of `number`."""
        low, high = number - margin, number + margin
        # No rate lies beyond 0 and 1, so there is nothing to test on that side.
        p_above = 0.0 if low <= NO_ERROR else self.p_higher(low)
        p_below = 0.0 if high >= 1 - NO_ERROR else self.p_lower(high)
        return max(p_above, p_below)

    def _mirrored(self) -> "RateBounds":
        return replace(self, rate=1 - self.rate)


def bound_rate(mean: TwoWay, verdicts: int, level: float) -> RateBounds | None:
    """Bound a rate over seeds and questions, each side with `level`, in (0.5, 1).

    It is worth rate (1 - rate) / error² trials, divided by (t / z)² for the degrees of freedom of
    the error, and at most as many as there are `verdicts`. Where all are the same, a question is
    one trial, however many seeds answered it: without an exception that is the rule of three by
    question. It says nothing of seeds, which all were the same.

    None for one seed or one question, which shows no spread.
    """
    if mean.error is None:
        return None
    rate = min(1.0, max(0.0, mean.value))
    return RateBounds(rate, mean.questions, verdicts, mean.error, mean.df, level)
