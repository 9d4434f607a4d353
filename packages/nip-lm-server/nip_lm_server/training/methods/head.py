"""Log-probabilities of some tokens, without the logits of all: the output layer in pieces.

add_scoring           teach a causal model the argument ``scored``
score_labelled_alone  have TRL's head on the processors score only the tokens with a label
is_scored_alike       compare the scores with the model's own logits, on a few tokens
output_layer          hidden states -> the model's logits
chunk_size            tokens that go through the output layer at a time

The logits of a pass are [batch, tokens, vocabulary]: with 128 thousand words, 8,192 tokens and
float32 that is 4.2 GB, once more for their logarithms and once more for their gradients. Here only
the scored tokens go through the output layer, at most `CHUNK_LOGITS` logits at a time. If there are
several pieces, the backward pass computes each piece again instead of keeping it (Chen et al.,
"Training Deep Nets with Sublinear Memory Cost", 2016). Tokens that are not scored, mostly prompts,
cost nothing.

TRL's ``add_fused_lm_head`` does the same for `sft` and `dpo` with a Triton kernel. Without Triton,
so on the processors, it scores every token: with 49 thousand words and 135 million parameters a
step whose answers are a third of its tokens takes half as long again
(`docs/decisions/0040-real-shapes.md`). There this module replaces it; on a GPU TRL's head stays,
which needs a C compiler. This module is plain torch on any device.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from nip_lm_server.training.methods.policy_gradient import token_logprobs

CHUNK_LOGITS = 2**25
"""Logits in memory at a time: 128 MB in float32, and three to four times that with the tensors that
are computed from them."""
IGNORED = -100
"""The label of a token that is not learned, in torch and transformers."""
_NEAR = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Largest distance of log-probabilities by rounding alone, relative to the largest logit."""


def add_scoring(model: Any) -> None:
    """Let ``model(input_ids, ..., scored=mask)`` return log-probabilities [batch, tokens].

    `scored` is [batch, tokens], true for the tokens to score, and false for every first token,
    which has no token before it. The result is float32, and 0 for the other tokens. Without the
    argument the model answers as usual. `model` is a causal model of transformers, not wrapped by
    PEFT or others; wrappers pass the argument through.
    """
    usual = model.forward

    def forward(self: Any, *args: Any, scored: Any = None, **options: Any) -> Any:
        if scored is None:
            return usual(*args, **options)
        return _score(self, scored, **options)

    model.forward = MethodType(forward, model)


def score_labelled_alone(model: Any) -> bool:
    """Let ``model(labels=..., fused_lm_head=True)`` leave out tokens without a label.

    `model` has TRL's head already (``add_fused_lm_head``); the answer has the same fields. Returns
    whether it was done: not for mixtures of experts, which have another part in their loss, and not
    if `is_scored_alike` is false.
    """
    config = model.config.get_text_config()
    if getattr(config, "output_router_logits", False) or not is_scored_alike(model):
        return False
    usual = model.forward

    def forward(
        self: Any, *args: Any, labels: Any = None, fused_lm_head: bool = False, **options: Any
    ) -> Any:
        if not fused_lm_head or labels is None or args:
            options |= {} if labels is None else {"labels": labels}
            return usual(*args, **options, **({"fused_lm_head": True} if fused_lm_head else {}))
        return _score_labels(self, labels, **options)

    model.forward = MethodType(forward, model)
    return True


def is_scored_alike(model: Any) -> bool:
    """Return whether scores agree with the model's own logits, on a few tokens.

    Models scale or bend their logits in their own code; `output_layer` may not know the way of this
    one.
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
    tolerance = _NEAR.get(logits.dtype, 1e-4) * (1 + logits.float().abs().max())
    return bool(difference <= tolerance)


def _score(model: Any, scored: Any, *, input_ids: Any, **options: Any) -> Any:
    options = {name: value for name, value in options.items() if value is not None}
    hidden = model.base_model(input_ids=input_ids, **options).last_hidden_state[:, :-1]
    mask = scored[:, 1:].bool()
    logprobs = _score_in_chunks(
        output_layer(model), hidden[mask], input_ids[:, 1:][mask], chunk_size(model)
    )
    shifted = torch.zeros(mask.shape, dtype=logprobs.dtype, device=logprobs.device)
    return torch.nn.functional.pad(shifted.masked_scatter(mask, logprobs), (1, 0))


def _score_labels(
    model: Any, labels: Any, *, input_ids: Any, num_items_in_batch: Any = None, **options: Any
) -> Any:
    """Give the answer of TRL's fused head, from the tokens with a label only."""
    from trl.trainer.utils import FusedCausalLMOutput

    # 1. Compute the hidden states before the tokens that have a label.
    options = {name: value for name, value in options.items() if value is not None}
    hidden = model.base_model(input_ids=input_ids, **options).last_hidden_state[:, :-1]
    shifted = labels[:, 1:]
    mask = shifted != IGNORED
    # 2. Compute the log-probabilities, and the figures that TRL logs.
    figures: dict[str, list[Any]] = {name: [] for name in ("entropy", "mean_logits", "is_top1")}

    def note(logits: Any, targets: Any) -> None:
        figures["entropy"].append(torch.special.entr(logits.softmax(-1)).sum(-1))
        figures["mean_logits"].append(logits.mean(-1))
        figures["is_top1"].append(logits.argmax(-1) == targets)

    logprobs = _score_in_chunks(
        output_layer(model), hidden[mask], shifted[mask], chunk_size(model), note
    )

    # 3. Put them back into their places, with zeros between them.
    def placed(values: Any) -> Any:
        return values.new_zeros(mask.shape).masked_scatter(mask, values)

    placed_logprobs = placed(logprobs)
    count = mask.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    return FusedCausalLMOutput(
        loss=-placed_logprobs.sum() / count,
        log_probs=placed_logprobs,
        label_mask=mask,
        **{name: placed(torch.cat(values)) for name, values in figures.items()},
    )


def chunk_size(model: Any) -> int:
    """Count the tokens to send through the output layer at a time."""
    return max(1, CHUNK_LOGITS // int(model.get_output_embeddings().weight.shape[0]))


def _score_in_chunks(
    layer: Callable[[Any], Any],
    hidden: Any,
    targets: Any,
    size: int,
    note: Callable[[Any, Any], None] | None = None,
) -> Any:
    """Compute the targets' log-probabilities in float32, [tokens]; `hidden` is [tokens, width].

    `note` gets the logits of each piece, once, without a gradient.
    """

    def score(rows: Any, ids: Any, noted: bool) -> Any:
        logits = layer(rows).float()
        if note is not None and not noted:
            with torch.no_grad():
                note(logits, ids)
        return -torch.nn.functional.cross_entropy(logits, ids, reduction="none")

    if len(targets) <= size:
        return score(hidden, targets, False)
    pieces = []
    for rows, ids in zip(hidden.split(size), targets.split(size), strict=True):
        if torch.is_grad_enabled():
            pieces.append(_compute_twice(score, rows, ids))
        else:
            pieces.append(score(rows, ids, False))
    return torch.cat(pieces)


def _compute_twice(score: Callable[[Any, Any, bool], Any], rows: Any, ids: Any) -> Any:
    """Score a piece whose logits the backward pass computes again; they are noted only once."""
    calls = iter((False,))
    return checkpoint(
        lambda rows, ids: score(rows, ids, next(calls, True)), rows, ids, use_reentrant=False
    )


def output_layer(model: Any) -> Callable[[Any], Any]:
    """Return the output layer with the model's scale and cap of logits; see `is_scored_alike`."""
    layer, config = model.get_output_embeddings(), model.config.get_text_config()
    scale = 1.0
    # Each name is in the configuration of other models: Cohere, Falcon-H1, Granite.
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
