"""Log-probabilities of some tokens, without the logits of all: the output layer in pieces.

add_scoring           teaches a causal model the argument ``scored``
score_labelled_alone  has TRL's head on the processors score the tokens with a label alone
is_scored_alike       asks the model itself whether that gives what its logits give
output_layer          hidden states -> logits, as the model makes them
chunk_size            tokens that go through it at a time

The logits of a pass are [batch, tokens, vocabulary]: with 128 thousand words, 8,192 tokens and
float32 that is 4.2 GB, once more for their logarithms and once more for their gradients. Here only
the tokens that are asked for go through the output layer, at most `CHUNK_LOGITS` logits at a time,
and where there are more of them the backward pass computes each piece again instead of keeping it
(Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). Tokens that are not scored,
prompts above all, cost nothing.

TRL's ``add_fused_lm_head`` does the same for `sft` and `dpo` with a Triton kernel. It scores every
token where there is no Triton, so on the processors: with 49 thousand words and 135 million
parameters a step whose answers are a third of its tokens takes half as long again
(`docs/decisions/0040-real-shapes.md`). There this replaces it; on a GPU TRL's stays, which takes a
C compiler. This is plain torch on any device.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from nip_lm_server.training.methods.policy_gradient import token_logprobs

CHUNK_LOGITS = 2**25
"""Logits in memory at a time: 128 MB in float32, and three to four times that with what is made of
them."""
IGNORED = -100
"""The label of a token that is not learned, as torch and transformers have it."""
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


def score_labelled_alone(model: Any) -> bool:
    """Let ``model(labels=..., fused_lm_head=True)`` leave out tokens without a label.

    `model` has TRL's head already (``add_fused_lm_head``), whose fields the answer has. Returns
    whether that could be done: not for mixtures of experts, whose loss has another part, and not
    where `is_scored_alike` says no.
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
        output_layer(model), hidden[chosen], input_ids[:, 1:][chosen], chunk_size(model)
    )
    shifted = torch.zeros(chosen.shape, dtype=logprobs.dtype, device=logprobs.device)
    return torch.nn.functional.pad(shifted.masked_scatter(chosen, logprobs), (1, 0))


def _score_labels(
    model: Any, labels: Any, *, input_ids: Any, num_items_in_batch: Any = None, **options: Any
) -> Any:
    """TRL's answer of a fused head, from the tokens with a label alone."""
    from trl.trainer.utils import FusedCausalLMOutput

    # 1. The hidden states before the tokens that have a label.
    options = {name: value for name, value in options.items() if value is not None}
    hidden = model.base_model(input_ids=input_ids, **options).last_hidden_state[:, :-1]
    shifted = labels[:, 1:]
    mask = shifted != IGNORED
    # 2. Their log-probabilities, and the figures that TRL logs.
    figures: dict[str, list[Any]] = {name: [] for name in ("entropy", "mean_logits", "is_top1")}

    def note(logits: Any, targets: Any) -> None:
        figures["entropy"].append(torch.special.entr(logits.softmax(-1)).sum(-1))
        figures["mean_logits"].append(logits.mean(-1))
        figures["is_top1"].append(logits.argmax(-1) == targets)

    logprobs = _score_in_chunks(
        output_layer(model), hidden[mask], shifted[mask], chunk_size(model), note
    )

    # 3. Back to their places, with zeros between them.
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
    """The targets' log-probabilities in float32, [tokens]; `hidden` is [tokens, width].

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
    """A piece whose logits are computed again for the backward pass, and noted the first time."""
    calls = iter((False,))
    return checkpoint(
        lambda rows, ids: score(rows, ids, next(calls, True)), rows, ids, use_reentrant=False
    )


def output_layer(model: Any) -> Callable[[Any], Any]:
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
