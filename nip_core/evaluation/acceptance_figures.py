"""Whether P(accept) of a batch's verdicts is worth something: means, calibration, separation.

P(accept) is taken for the probability that the solution is right: a verifier that is sure of a
wrong verdict is worse off than one that tosses a coin. Failed episodes, ones without verdict, and
verdicts of which nothing is known are left out, and the number of those that count is given.
"""

import math
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.evaluation.calibration import calibrate, measure_separation
from nip_core.evaluation.metrics import weigh_episodes
from nip_core.evaluation.split_metrics import AcceptanceMeasures
from nip_core.evaluation.spread import Bools, Floats, Resampling
from nip_core.rollouts.acceptance import find_acceptance


def measure_acceptance(
    episodes: pa.Table,
    generations: pa.Table,
    *,
    seed: int = 0,
    questions: Mapping[str, str] | None = None,
) -> AcceptanceMeasures | None:
    """Measure P(accept) of a batch; None where no verdict has one.

    Weights and intervals of means are as in `evaluate`, and so are `seed` and `questions`. The
    calibration error and the separation count each episode once, and have none: the first is too
    high where there are few episodes (noise counts as miscalibration), the second is a share of
    pairs.
    """
    likely = find_acceptance(episodes, generations)
    is_known = pc.and_(pc.is_valid(likely), pc.greater_equal(episodes["y"], 0))
    if not pc.any(is_known).as_py():
        return None
    # 1. The episodes that count, as arrays.
    claims = np.asarray(likely.filter(is_known).to_numpy(), dtype=np.float64)
    y = np.asarray(episodes["y"].filter(is_known).to_numpy(), dtype=np.float64)
    # As in `evaluate`, so that draws of a bootstrap are the same.
    ids = sorted(pc.unique(episodes["problem"]).to_pylist())
    problems = pc.index_in(
        episodes["problem"].filter(is_known), value_set=pa.array(ids, pa.string())
    )
    problem = np.asarray(problems.to_numpy(), dtype=np.int64)
    weight = weigh_episodes(episodes)[np.asarray(is_known.to_numpy(), dtype=bool)]
    # 2. Means, with intervals as all means have them.
    spread = Resampling(seed, questions).spread(ids)

    def average(name: str, values: Floats, among: Bools) -> dict[str, object]:
        if not among.any():
            return {}
        some, shares = values[among], weight[among]
        mean = math.fsum((some * shares).tolist()) / math.fsum(shares.tolist())
        return {name: mean, f"{name}_ci95": spread.mean(problem[among], some, shares)}

    everything = np.ones(len(y), dtype=bool)
    calibration = calibrate(claims, y)
    return AcceptanceMeasures.model_validate(
        {
            "episodes": len(claims),
            **average("mean_if_right", claims, y == 1),
            **average("mean_if_wrong", claims, y == 0),
            **average("brier", (claims - y) ** 2, everything),
            "calibration_error": calibration.error,
            "auroc": measure_separation(claims, y),
        }
    )
