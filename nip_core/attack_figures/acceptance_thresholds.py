"""The rates of a verifier that accepts from another P(accept) on.

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
from nip_core.evaluation.spread import Bools, Resampling

_ROUNDING = 1e-9
CURVE_KEYS = ("by_threshold", "with_p_accept")
"""The keys of the rates by threshold, and of the number of their verdicts."""
THRESHOLDS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


def measure_thresholds(
    episodes: pa.Table, likely: pa.Array, resampling: Resampling
) -> tuple[tuple[ThresholdRates, ...], int] | None:
    """Measure both rates by the P(accept) from which on a solution is accepted.

    `likely` has the P(accept) of each episode. Episodes with null are left out, and the number of
    the others is given. None where no verdict has one.
    """
    is_known = pc.and_(pc.is_valid(likely), pc.greater_equal(episodes["y"], 0))
    if not pc.any(is_known).as_py():
        return None
    ids = sorted(pc.unique(episodes["problem"]).to_pylist())
    places = pc.index_in(episodes["problem"].filter(is_known), value_set=pa.array(ids, pa.string()))
    problem = np.asarray(places.to_numpy(), dtype=np.int64)
    y = np.asarray(episodes["y"].filter(is_known).to_numpy(), dtype=np.int64)
    p = np.asarray(likely.filter(is_known).to_numpy(), dtype=np.float64)
    spread = resampling.spread(ids)

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
    episodes: pa.Table, likely: pa.Array | None, resampling: Resampling
) -> dict[str, Any]:
    """Measure the same, by the names in `CURVE_KEYS`; empty where no verdict has a P(accept)."""
    rates = None if likely is None else measure_thresholds(episodes, likely, resampling)
    return {} if rates is None else dict(zip(CURVE_KEYS, rates, strict=True))
