"""The losses of `forward_backward`, on the tokens that are learned.

LOSSES       every loss by its name
Loss         its inputs, its configuration, and its terms

With p = exp(log-probability now), q = exp(`logprobs`), r = p / q, A = `advantages`, and sg(x) for x
without a gradient, a token's term is

cross_entropy        -w log p, summed over the K targets of a token
importance_sampling  -r A
ppo                  -min(r A, clip(r, low, high) A)                 Schulman et al., 2017
cispo                -sg(clip(r, low, high)) log p A                 MiniMax, 2025
dro                  -(log p A - beta / 2 (log p - log q)^2)         Richemond et al., 2024
gspo                 as ppo, with s p / sg(p) for r                  Zheng et al., 2025 (GSPO-token)

where s = exp(mean of log p - log q over the tokens that `sequence_ratio_mask` marks), without
gradient. The loss of a call is the sum of all terms, without any division.

Terms are computed in float64. A ratio may be e^100 where a sampler and the model disagree, and in
float32 even a clipped term would then have NaN as its gradient.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Inputs = Mapping[str, torch.Tensor]
"""Values of the learned tokens: [T], or [T, K] for `weights`. Clip thresholds and ``beta`` are
among them."""

CLIPPING = ("clip_low_threshold", "clip_high_threshold")
RATIO = ("logprobs", "advantages")
SEQUENCE_LOG_RATIO = "sequence_log_ratio"
"""The name of a computed input: the logarithm of GSPO's s, for each token."""


@dataclass(frozen=True)
class Loss:
    """A loss: the inputs that it needs beside `target_tokens`, and its configuration.

    `config` has the default of each number in the configuration. `per_token` lists the names in
    `config` for which a datum may send an input instead, with a value for each token. `learned_by`
    names an input: the training skips tokens for which it has only zeros. If `learned_by` is None,
    the training learns every token.
    """

    inputs: tuple[str, ...]
    terms: Callable[[torch.Tensor, Inputs], torch.Tensor]
    config: Mapping[str, float]
    learned_by: str | None
    per_token: tuple[str, ...] = ()


def _cross_entropy(logprobs: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return -(inputs["weights"] * logprobs).sum(-1)


def _ratio(logprobs: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return (logprobs - inputs["logprobs"]).exp()


def _clip(ratio: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    low, high = (inputs[name] for name in CLIPPING)
    return torch.minimum(torch.maximum(ratio, low), high)


def _importance_sampling(logprobs: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return -_ratio(logprobs, inputs) * inputs["advantages"]


def _clipped(ratio: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    low, high = (inputs[name] for name in CLIPPING)
    advantages = inputs["advantages"]
    # `where` and not the minimum of two products: within the bounds both are equal, and the
    # gradient must be the ratio's.
    is_within = (ratio >= low) & (ratio <= high)
    clipped = _clip(ratio.detach(), inputs)
    is_cut = ~is_within & (clipped * advantages < ratio.detach() * advantages)
    return -torch.where(is_cut, clipped, ratio) * advantages


def _ppo(logprobs: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return _clipped(_ratio(logprobs, inputs), inputs)


def _cispo(logprobs: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return -_clip(_ratio(logprobs.detach(), inputs), inputs) * logprobs * inputs["advantages"]


def _dro(logprobs: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    distance = logprobs - inputs["logprobs"]
    return -(logprobs * inputs["advantages"] - inputs["beta"] / 2 * distance**2)


def _gspo(logprobs: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return _clipped((inputs[SEQUENCE_LOG_RATIO] + logprobs - logprobs.detach()).exp(), inputs)


def _bounds(low: float, high: float) -> dict[str, float]:
    return dict(zip(CLIPPING, (low, high), strict=True))


LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss(("weights",), _cross_entropy, {}, "weights"),
    "importance_sampling": Loss(RATIO, _importance_sampling, {}, "advantages"),
    "ppo": Loss(RATIO, _ppo, _bounds(0.8, 1.2), "advantages", CLIPPING),
    "cispo": Loss(RATIO, _cispo, _bounds(0.0, 4.0), "advantages", CLIPPING),
    # At an advantage of 0 the distance from q still counts, so every token is learned.
    "dro": Loss(RATIO, _dro, {"beta": 0.05}, None),
    "gspo": Loss((*RATIO, "sequence_ratio_mask"), _gspo, _bounds(0.8, 1.2), "advantages", CLIPPING),
}
