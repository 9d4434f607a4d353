"""A rate of one test against a number that is guaranteed: is it lower beyond chance?

Studies have the same over seeds and questions.
"""

import math

from nip_core.evaluation.confidence_intervals import Interval, wilson_of_rate
from nip_core.evaluation.statistics.distributions import beta_cdf

_MOST = 1e9  # trials
_WHOLE = 1e-4  # so near to a whole number the trials are that many


def count_trials(rate: float, interval: Interval) -> float:
    """Find of how many independent trials Wilson's 95 % `interval` of a `rate` in [0, 1] is.

    An interval that counts questions is of fewer trials than there are verdicts.
    """
    width = interval[1] - interval[0]
    low, high = 1e-3, _MOST
    for _ in range(200):
        middle = math.sqrt(low * high)
        bounds = wilson_of_rate(rate, middle)
        # More trials make it narrower.
        if bounds[1] - bounds[0] > width:
            low = middle
        else:
            high = middle
    return float(round(high)) if abs(high - round(high)) < _WHOLE * high else high


def p_below(rate: float, trials: float, number: float) -> float:
    """Compute the chance of such a `rate`, or a lower one, where the true one is `number`.

    It is the binomial tail; of trials that are no whole number, the incomplete beta function's.
    """
    right, wrong = rate * trials, (1 - rate) * trials
    if wrong <= 0 or number <= 0:
        return 1.0
    return beta_cdf(1 - number, wrong, right + 1)
