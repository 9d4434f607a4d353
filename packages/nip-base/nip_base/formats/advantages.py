"""The advantage of an episode: its reward, compared with those of its group.

group_advantages   rewards of the episodes of one group -> advantages

Rewards are sums and means of decimal numbers, and 0.1 + 0.1 + 0.7 is a little less than 0.9. Two
that differ by rounding alone are equal, so that dividing by the deviation makes no whole number of
their difference.
"""

import math
from collections.abc import Sequence
from typing import Literal

Deviation = Literal["sample", "population"]

_SAME = 1e-9
"""Rewards are equal that differ by at most this, or by this share of their size: by rounding."""


def group_advantages(
    rewards: Sequence[float], *, divide_by: Deviation | None = None, add: float = 0.0
) -> list[float] | None:
    """Subtract the group's mean from each reward. None if all are equal: nothing is learned.

    `divide_by` divides by the rewards' standard deviation plus `add`: that of a "sample" (n - 1) or
    of a "population" (n).
    """
    size = max([1.0, *map(abs, rewards)])
    if not rewards or max(rewards) - min(rewards) <= _SAME * size:
        return None
    mean = math.fsum(rewards) / len(rewards)
    advantages = [reward - mean for reward in rewards]
    if divide_by is None:
        return advantages
    count = len(rewards) - 1 if divide_by == "sample" else len(rewards)
    # hypot, because squares of very small rewards would be 0
    std = math.hypot(*advantages) / math.sqrt(count) + add
    return [value / std for value in advantages]
