"""Measures of the verdicts of a set of episodes: confusion, and how well a scale is calibrated.

count_verdicts       labels by decisions
measure_calibration  of the verdicts on a scale, how often each was the right one
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.evaluation.calibration import Calibration, calibrate
from nip_core.protocols import ACCEPT, NEITHER, NO_DECISION, REJECT

DECISIONS = (ACCEPT, REJECT, NEITHER, NO_DECISION)
LABELS = (1, 0)


@dataclass(frozen=True)
class Confusion:
    """By label and decision, how many episodes; failed ones stand by themselves."""

    counts: dict[tuple[int, int], int]
    failed: dict[int, int]

    def total(self, label: int) -> int:
        """Return how many episodes have this label."""
        return self.failed[label] + sum(n for (y, _), n in self.counts.items() if y == label)


def count_verdicts(table: pa.Table) -> Confusion:
    """Count the episodes of a part of the index."""
    y = np.asarray(table["y"].to_numpy()).astype(np.int64)
    decision = np.asarray(table["decision"].to_numpy()).astype(np.int64)
    is_failed = np.asarray(pc.equal(table["outcome"], "failed").to_numpy())
    counts = {
        (label, verdict): int(np.sum((y == label) & (decision == verdict) & ~is_failed))
        for label in LABELS
        for verdict in DECISIONS
    }
    return Confusion(counts, {label: int(np.sum((y == label) & is_failed)) for label in LABELS})


def measure_calibration(table: pa.Table) -> Calibration | None:
    """Compare P(accept) with the labels, or verdicts on a scale where there is none.

    A value v from -1 to 1 says that the solution is right with probability (v + 1) / 2. None where
    nothing was decided, or nothing but the ends of a scale was used.
    """
    is_known = pc.and_(pc.is_valid(table["p_accept"]), pc.greater_equal(table["y"], 0))
    if pc.any(is_known).as_py():
        likely, right = (table[name].filter(is_known).to_numpy() for name in ("p_accept", "y"))
        return calibrate(np.asarray(likely, np.float64), np.asarray(right, np.float64))
    value, label = table["decision_value"], table["y"]
    decided = pc.and_(pc.is_valid(value), pc.equal(table["outcome"], "finished"))
    # An episode of a problem without a label can't be compared with one.
    is_counted = pc.and_(decided, pc.greater_equal(label, 0))
    values = np.asarray(value.filter(is_counted).to_numpy(), dtype=np.float64)
    if not len(values) or np.all(np.abs(values) == 1):
        return None
    claims = (values + 1) / 2
    y = np.asarray(label.filter(is_counted).to_numpy(), dtype=np.float64)
    return calibrate(claims, y, is_scale=True)
