"""The clipped policy gradient as a pure function on tensors.

clipped_loss        loss and figures of a batch of action tokens
join_figures        the figures of several batches -> the figures of their step
token_logprobs      logits -> log-probability of each action token

For an action token t of an episode with advantage A, with the policy p that is trained, the policy
q that sampled, and the reference r:

    ratio_t = p(t) / q(t)
    gain_t  = min(ratio_t A, clip(ratio_t, 1 - clip_low, 1 + clip_high) A)
    gain_t  = max(gain_t, dual_clip A) where A < 0
    loss_t  = -gain_t + kl_penalty k3_t
    k3_t    = r(t) / p(t) - log(r(t) / p(t)) - 1
    loss    = sum of loss_t over the action tokens of the batch / their number

The clipped ratio is PPO's (Schulman et al., 2017, equation 7), here with two bounds, as in DAPO (Yu
et al., 2025). It bounds a token's gain, but for A < 0 not its loss: a token that was sampled by
other weights, or split otherwise, may have a ratio of any size, and would dominate the step.
`dual_clip` bounds that, too (Ye et al., "Mastering Complex Control in MOBA Games with Deep
Reinforcement Learning", 2020, who take 3). All tokens of an episode have its advantage, which is
relative to its group: GRPO (Shao et al., 2024). k3 is an unbiased, never negative estimate of the
divergence KL(p, r) on samples of p (Schulman, "Approximating KL divergence", 2020).

Normalisation: every action token of a batch counts alike. GRPO first takes the mean over each
episode, which divides by the episode's length. So a token of a long bad answer is punished less
than a token of a short one, and answers grow longer ("Understanding R1-Zero-Like Training", Liu et
al., 2025, which calls the method without this mean Dr. GRPO). Dr. GRPO divides the sum by a
constant instead. Dividing by the number of tokens needs no such constant, and the step's size, and
with it the learning rate, does not depend on the length of episodes. The same paper shows that
dividing by the group's standard deviation gives more weight to tasks that are nearly always or
nearly never solved. The setting `advantage` decides that: "group" doesn't divide, "group_std" does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

MAX_LOG_RATIO = 20.0
"""A larger ratio counts as a mismatch of tokens; it stays finite and gets no gradient."""
DUAL_CLIP = 3.0
"""A trainer's bound of the ratio where the advantage is negative."""


@dataclass(frozen=True)
class Figures:
    """Figures of a batch, averages over its action tokens."""

    ratio: float  # 1 while the policy is the one that sampled
    clipped: float  # share of tokens whose gradient the clipping removes
    kl: float  # k3 from the reference; 0 without one
    tokens: int
    ratio_max: float = 1.0  # the largest ratio, at most e^MAX_LOG_RATIO


def join_figures(parts: Sequence[Figures]) -> Figures:
    """Join the figures of the batches in one step."""
    tokens = sum(part.tokens for part in parts)
    if tokens == 0:
        return parts[0]

    def mean(name: str) -> float:
        return float(sum(getattr(part, name) * part.tokens for part in parts) / tokens)

    largest = max(part.ratio_max for part in parts if part.tokens)
    return Figures(mean("ratio"), mean("clipped"), mean("kl"), tokens, largest)


def clipped_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    kl_penalty: float = 0.0,
    reference_logprobs: torch.Tensor | None = None,
    divisor: torch.Tensor | float | None = None,
    dual_clip: float | None = None,
) -> tuple[torch.Tensor, Figures]:
    """Compute the loss (a scalar with gradient) and figures of a batch; the module has the formula.

    `logprobs`, `old_logprobs`, `reference_logprobs` are natural logarithms, [batch, tokens];
    `advantages` is [batch]; `mask` is [batch, tokens], true for actions. Values that are masked out
    may be anything, NaN included. `divisor` replaces the number of action tokens, for a batch that
    is spread over several passes or processes. `dual_clip` is above 1 + `clip_high`; None: no
    bound. Raises ValueError if `kl_penalty` is not 0 and there is no reference.
    """
    if kl_penalty and reference_logprobs is None:
        raise ValueError(f"kl_penalty is {kl_penalty}, but there are no reference_logprobs")
    mask = mask.bool()
    new, old = logprobs[mask], old_logprobs[mask]
    advantage = advantages[:, None].expand_as(mask)[mask]
    ratio = (new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped_ratio = ratio.clamp(1 - clip_low, 1 + clip_high)
    gains = torch.minimum(ratio * advantage, clipped_ratio * advantage)
    is_clipped = clipped_ratio * advantage < ratio * advantage
    if dual_clip is not None:
        bound = dual_clip * advantage
        is_clipped = is_clipped | ((advantage < 0) & (gains < bound))
        gains = torch.where(advantage < 0, torch.maximum(gains, bound), gains)
    terms = -gains
    kl = torch.zeros_like(new)
    if reference_logprobs is not None:
        difference = (reference_logprobs[mask] - new).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        kl = difference.exp() - difference - 1
        terms = terms + kl_penalty * kl
    tokens = int(mask.sum())
    loss = terms.sum() / (max(tokens, 1) if divisor is None else divisor)
    return loss, _figures(ratio, is_clipped, kl, tokens)


def _figures(
    ratio: torch.Tensor, is_clipped: torch.Tensor, kl: torch.Tensor, tokens: int
) -> Figures:
    if tokens == 0:
        return Figures(ratio=1.0, clipped=0.0, kl=0.0, tokens=0)
    with torch.no_grad():
        return Figures(
            ratio=float(ratio.mean()),
            clipped=float(is_clipped.float().mean()),
            kl=float(kl.mean()),
            tokens=tokens,
            ratio_max=float(ratio.max()),
        )


def token_logprobs(
    logits: torch.Tensor, input_ids: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Compute each token's log-probability, given those before it, if `mask` is true; else it is 0.

    `logits` is [batch, tokens, vocabulary], the others and the result [batch, tokens]. `mask` is
    false for every first token, which has no token before it. The result is float32.
    """
    shifted_mask = mask[:, 1:].bool()
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1][shifted_mask].float(), input_ids[:, 1:][shifted_mask], reduction="none"
    )
    shifted = torch.zeros(shifted_mask.shape, dtype=losses.dtype, device=losses.device)
    shifted = shifted.masked_scatter(shifted_mask, -losses)
    return torch.nn.functional.pad(shifted, (1, 0))
