"""The loss of DPO and its gradient by log-probabilities, without a model (Rafailov et al., 2023).

For a pair of answers with log-probabilities p (preferred) and r (rejected) by the trained model,
and p', r' by the reference:

    loss = -log sigmoid(beta ((p - p') - (r - r')))

A step's loss is the mean over its pairs. Its gradient by the log-probability of each token of the
preferred answer is -weight, of the rejected one +weight, with
weight = beta sigmoid(-margin) / pairs. So `cross_entropy` with these weights has the gradient of
the loss.
"""

from collections.abc import Sequence

import numpy as np

from nip_tinker.wire import Floats


def weigh_pairs(
    preferred: Floats, rejected: Floats, reference: Sequence[tuple[float, float]], beta: float
) -> tuple[float, Floats]:
    """Compute a step's loss, and by pair the weight of its tokens; arguments are sums by answer."""
    base = np.asarray(reference, np.float64).reshape(-1, 2)
    margin = beta * ((preferred - base[:, 0]) - (rejected - base[:, 1]))
    loss = float(np.logaddexp(0.0, -margin).mean())
    return loss, beta * np.exp(-np.logaddexp(0.0, margin)) / len(margin)
