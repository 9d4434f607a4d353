"""Log-probabilities of some tokens, without the logits of all: the output layer in pieces.

add_scoring       teaches a causal model the argument ``scored``
is_scored_alike   asks the model itself whether that gives what its logits give

The logits of a pass are [batch, tokens, vocabulary]: with 128 thousand words, 8,192 tokens and
float32 that is 4.2 GB, once more for their logarithms and once more for their gradients. Here only
the tokens that are asked for go through the output layer, at most `CHUNK_LOGITS` logits at a time,
and where there are more of them the backward pass computes each piece again instead of keeping it
(Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). Tokens that are not scored,
prompts above all, cost nothing.

TRL's ``add_fused_lm_head`` does the same for `sft` and `dpo` with a Triton kernel. It scores every
token where there is no Triton, and takes a C compiler where there is; this is plain torch on any
device.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from nip_lm_server.training.policy_gradient import token_logprobs

CHUNK_LOGITS = 2**25
"""Logits in memory at a time: 128 MB in float32, and three to four times that with what is made of
them."""
_NEAR = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""How far log-probabilities may be apart by rounding alone, relative to the largest logit."""


def add_scoring(model: Any) -> None:
    """Let ``model(input_ids, ..., scored=mask)`` return log-probabilities [batch, tokens].

    `scored` is [batch, tokens], true for the tokens that are asked for, and false for every first
    token, which has nothing before it; elsewhere the result is 0. It is float32. Without the
    argument the model answers as before. `model` is a causal model of transformers, not wrapped by
    PEFT or others; who wraps it passes the argument through.
    """
    usual = model.forward

    def forward(self: Any, *args: Any, scored: Any = None, **options: Any) -> Any:
        if scored is None:
            return usual(*args, **options)
        return _score(self, scored, **options)

    model.forward = MethodType(forward, model)


def is_scored_alike(model: Any) -> bool:
    """Return whether scoring gives what the model's own logits give, on a few tokens.

    Models scale or bend their logits in ways that only their code knows; one whose way is not
    known here is found out by this.
    """
    if model.base_model is model or model.get_output_embeddings() is None:
        return False
    ids = torch.arange(8, device=model.device)[None]
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0] = False
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits
            scores = _score(model, mask, input_ids=ids, use_cache=False)
    finally:
        model.train(training)
    difference = (scores - token_logprobs(logits, ids, mask)).abs().max()
    near = _NEAR.get(logits.dtype, 1e-4) * (1 + logits.float().abs().max())
    return bool(difference <= near)


def _score(model: Any, scored: Any, *, input_ids: Any, **options: Any) -> Any:
    options = {name: value for name, value in options.items() if value is not None}
    hidden = model.base_model(input_ids=input_ids, **options).last_hidden_state[:, :-1]
    chosen = scored[:, 1:].bool()
    logprobs = _score_in_chunks(
        _output_layer(model), hidden[chosen], input_ids[:, 1:][chosen], chunk_size(model)
    )
    shifted = torch.zeros(chosen.shape, dtype=logprobs.dtype, device=logprobs.device)
    return torch.nn.functional.pad(shifted.masked_scatter(chosen, logprobs), (1, 0))


def chunk_size(model: Any) -> int:
    """Count the tokens to send through the output layer at a time."""
    return max(1, CHUNK_LOGITS // int(model.get_output_embeddings().weight.shape[0]))


def _score_in_chunks(layer: Callable[[Any], Any], hidden: Any, targets: Any, size: int) -> Any:
    """The targets' log-probabilities in float32, [tokens]; `hidden` is [tokens, width]."""

    def score(rows: Any, ids: Any) -> Any:
        return -torch.nn.functional.cross_entropy(layer(rows).float(), ids, reduction="none")

    if len(targets) <= size:
        return score(hidden, targets)
    pieces = [
        checkpoint(score, rows, ids, use_reentrant=False) if torch.is_grad_enabled()
        else score(rows, ids)
        for rows, ids in zip(hidden.split(size), targets.split(size), strict=True)
    ]  # fmt: skip
    return torch.cat(pieces)


def _output_layer(model: Any) -> Callable[[Any], Any]:
    """The output layer with what models do to its logits; see `is_scored_alike`."""
    layer, config = model.get_output_embeddings(), model.config.get_text_config()
    scale = 1.0
    # Each of them is of other models: Cohere, Falcon-H1, Granite.
    for name, power in (("logit_scale", 1), ("lm_head_multiplier", 1), ("logits_scaling", -1)):
        value = getattr(config, name, None)
        if value is not None:
            scale *= float(value) ** power
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma 2

    def logits(rows: Any) -> Any:
        values = layer(rows)
        if scale != 1.0:
            values = values * scale
        return values if cap is None else torch.tanh(values / cap) * cap

    return logits
