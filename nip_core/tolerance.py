"""Comparing floats with a tolerance: numbers that differ by a rounding error are equal.

Rewards are sums and means of decimal numbers, and 0.1 + 0.1 + 0.7 is a little less than 0.9. All
that compares rewards, or figures made of them, does so here, so that a threshold means the same
everywhere. `nip_base.formats.advantages` has the same tolerance.
"""

import math

TOLERANCE = 1e-9
"""Two rewards are equal that differ by at most this, or by this share of the larger one."""


def at_least(reward: float, bound: float) -> bool:
    """Say whether `reward` reaches `bound`. NaN reaches nothing."""
    return reward >= bound or math.isclose(reward, bound, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def more_than(reward: float, bound: float) -> bool:
    """Say whether `reward` exceeds `bound` by more than rounding."""
    return reward > bound and not at_least(bound, reward)
