"""How well claims of a probability fit what was so."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nip_core.evaluation.confidence_intervals import Interval, wilson

_Floats = NDArray[np.float64]
_MOST_VALUES = 12  # different ones, of which each is a group of its own
_BINS = 10


@dataclass(frozen=True)
class ClaimGroup:
    """Claims of nearly one value."""

    said: float  # the mean claim, from 0 to 1
    seen: float  # how often it was so
    interval: Interval | None
    episodes: int


@dataclass(frozen=True)
class Calibration:
    """Of all claims: `error` is the mean distance between said and seen, by episodes, `brier` the
    mean squared distance between said and the label."""

    groups: tuple[ClaimGroup, ...]
    error: float
    brier: float
    episodes: int


def calibrate(claims: _Floats, y: _Floats, *, is_scale: bool = False) -> Calibration:
    """Compare claims with labels of 0 and 1; both have one entry per episode, and there is one.

    Groups are tenths of the range, each with its lower end; on a scale with few values
    (`is_scale`) each value is a group.
    """
    # In one order, so that the last digit does not tell in which order the rows came.
    order = np.lexsort((y, claims))
    claims, y = claims[order], y[order]
    distinct = np.unique(claims)
    if is_scale and len(distinct) <= _MOST_VALUES:
        number = np.searchsorted(distinct, claims)
    else:
        number = np.minimum((claims * _BINS).astype(np.int64), _BINS - 1)
    groups = tuple(_make_group(claims[number == k], y[number == k]) for k in np.unique(number))
    error = sum(abs(group.said - group.seen) * group.episodes for group in groups) / len(claims)
    return Calibration(groups, error, float(np.mean((claims - y) ** 2)), len(claims))


def _make_group(claims: _Floats, y: _Floats) -> ClaimGroup:
    return ClaimGroup(float(claims.mean()), float(y.mean()), wilson(float(y.sum()), len(y)), len(y))


def measure_separation(claims: _Floats, y: _Floats) -> float | None:
    """Measure the area under the ROC curve: the share of pairs of a 1 and a 0 in the right order.

    Equal claims count one half. None where all labels are the same.
    """
    ones, zeros = np.sort(claims[y == 1]), np.sort(claims[y == 0])
    if not len(ones) or not len(zeros):
        return None
    zeros_below = np.searchsorted(zeros, ones, side="left").sum()
    up_to = np.searchsorted(zeros, ones, side="right").sum()
    return float(zeros_below + up_to) / (2 * len(ones) * len(zeros))
