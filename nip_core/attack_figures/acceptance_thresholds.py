"""What a verifier keeps, and loses, that accepts from another P(accept) on.

A verdict is one point of a curve: who accepts only where it is surer is fooled less, and rejects
more right solutions. An attack that lowers soundness at one point may have moved along the curve,
or lowered all of it.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.attack_figures.metrics_document import ThresholdRates
from nip_core.evaluation.confidence_intervals import Interval
from nip_core.evaluation.spread import Asked, Bools

_ROUNDING = 1e-9
CURVE_KEYS = ("by_threshold", "with_p_accept")
"""What documents call the rates by threshold, and the number of verdicts they are of."""
THRESHOLDS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


def measure_thresholds(
    episodes: pa.Table, likely: pa.Array, asked: Asked
) -> tuple[tuple[ThresholdRates, ...], int] | None:
    """Measure both rates by the P(accept) from which on a solution is accepted.

    `likely` has that of each episode, null where it has none: such episodes are left out, and the
    number of the others is given. None where no verdict has one.
    """
    known = pc.and_(pc.is_valid(likely), pc.greater_equal(episodes["y"], 0))
    if not pc.any(known).as_py():
        return None
    ids = sorted(pc.unique(episodes["problem"]).to_pylist())
    places = pc.index_in(episodes["problem"].filter(known), value_set=pa.array(ids, pa.string()))
    problem = np.asarray(places.to_numpy(), dtype=np.int64)
    y = np.asarray(episodes["y"].filter(known).to_numpy(), dtype=np.int64)
    p = np.asarray(likely.filter(known).to_numpy(), dtype=np.float64)
    spread = asked.spread(ids)

    def share(hit: Bools, among: Bools) -> tuple[float | None, Interval | None]:
        if not among.any():
            return None, None
        some = hit[among]
        return float(some.mean()), spread.rate(problem[among], some, np.ones(len(some)))

    rows = []
    for threshold in THRESHOLDS:
        accepted = p >= threshold - _ROUNDING
        soundness, soundness_ci95 = share(~accepted, y == 0)
        completeness, completeness_ci95 = share(accepted, y == 1)
        rows.append(
            ThresholdRates(
                accept_from=threshold,
                soundness=soundness,
                soundness_ci95=soundness_ci95,
                completeness=completeness,
                completeness_ci95=completeness_ci95,
            )
        )
    return tuple(rows), len(p)


def measure_threshold_curve(
    episodes: pa.Table, likely: pa.Array | None, asked: Asked
) -> dict[str, Any]:
    """Measure the same, by the names in `CURVE_KEYS`; empty where no verdict has a P(accept)."""
    measured = None if likely is None else measure_thresholds(episodes, likely, asked)
    return {} if measured is None else dict(zip(CURVE_KEYS, measured, strict=True))
