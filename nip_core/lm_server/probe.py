"""The proof that an adapter's name answers with the adapter's saved weights.

probe_tokens    a fixed conversation and a fixed sequence of tokens, for one tokenizer
merged          within it, a base model computes with an adapter's weights merged in
prove           compares what is served with what the saved weights give

What is served comes from the engine's own batched path, in one batch with the base and the other
adapters. What is expected comes from the file: for each adapted layer W + scale B A in float32,
with the engine's adapters switched off.

Tolerances are on the largest difference of a token's log-probability (nats), see TOLERANCES. The
proof also asks that the mean difference is smaller than to the base and to any other adapter.
Where two adapters give the same on the probe within rounding, neither can be nearer: these are
listed as indistinguishable, and the bitwise comparison of the weights in memory decides alone.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from nip_core.lm_server import chat_template
from nip_core.lm_server.engines.base import Proof
from nip_core.lm_server.engines.batching import Decoder
from nip_core.lm_server.engines.lora import LoraAdapter, LoraFiles, is_transposed

TOLERANCES = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""Largest allowed difference in a token's log-probability, by precision of the model."""

MESSAGES = (
    {"role": "user", "content": "Does this function return the sum of a list? def f(xs): ..."},
    {"role": "assistant", "content": "It leaves out the last element, so I would reject it."},
)
_EXTRA_TOKENS = 32
_LONGEST = 256


def probe_tokens(tokenizer: Any, max_model_len: int) -> list[int]:
    """The probe: a rendered conversation, then 32 ordinary tokens chosen by a hash.

    The latter, because a small vocabulary may know no word of the conversation.
    """
    ids = chat_template.encode(
        tokenizer, chat_template.render(tokenizer, MESSAGES, generation=False)
    )
    special = set(tokenizer.all_special_ids)
    ordinary = [index for index in range(len(tokenizer)) if index not in special]
    for number in range(_EXTRA_TOKENS):
        raw = hashlib.sha256(f"probe {number}".encode()).digest()
        ids.append(ordinary[int.from_bytes(raw[:8], "big") % len(ordinary)])
    return ids[-min(_LONGEST, max_model_len) :]


@contextmanager
def merged(model: Any, files: LoraFiles) -> Iterator[None]:
    """Within, `model` computes each adapted layer with W + scale B A, in float32."""
    modules = dict(model.named_modules())

    def override(module: Any, down: torch.Tensor, up: torch.Tensor, scale: float) -> Any:
        def compute(_: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            delta = scale * (up.to(output.device).float() @ down.to(output.device).float())
            weight = module.weight.float()
            weight = weight.T if is_transposed(module) else weight
            bias = None if module.bias is None else module.bias.float()
            result = torch.nn.functional.linear(inputs[0].float(), weight + delta, bias)
            return result.to(output.dtype)

        return module.register_forward_hook(compute)

    handles = [
        override(modules[name], down, up, files.scale(name))
        for name, (down, up) in files.pairs.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def prove(
    model: Any,
    decoder: Decoder,
    adapter: LoraAdapter,
    files: LoraFiles,
    rivals: Sequence[LoraAdapter],
    tokens: Sequence[int],
    dtype: str,
) -> Proof:
    """Compare `adapter` as served with `files` as saved; `rivals` are the other adapters."""
    others: list[LoraAdapter | None] = [None, *rivals]
    served = torch.tensor(decoder.score([tokens] * (1 + len(others)), [adapter, *others]))
    with merged(model, files):
        expected = torch.tensor(decoder.score([tokens], [None]))[0]
    with_base = torch.tensor(decoder.score([tokens], [None]))[0]
    own = (served[0] - expected).abs()
    tolerance = TOLERANCES[dtype]
    # The base is computed alone and in the batch: what that changes is rounding.
    rounding = max(float((served[1] - with_base).abs().mean()), float(own.mean()) / 4, 1e-7)
    distances, same, blurred, nearer = {}, [], [], True
    for row, other in enumerate(others, start=1):
        name = "base" if other is None else other.name
        if files.unchanged if other is None else other.digest == files.digest:
            same.append(name)
            continue
        distance = float((served[row] - expected).abs().mean())
        distances[name] = distance
        if float((served[row] - served[0]).abs().mean()) <= 8 * rounding:
            blurred.append(name)
        elif distance <= float(own.mean()):
            nearer = False
    nearest = min(distances, key=lambda key: distances[key], default=None)
    equal = weights_equal(adapter, files)
    within = bool(own.max() <= tolerance)  # False if anything is NaN
    return Proof(
        matches=equal and within and nearer,
        detail={
            "unchanged": files.unchanged,
            "weights_equal": equal,
            "weights_sha256": files.digest,
            "dtype": dtype,
            "tolerance": tolerance,
            "distance_max": float(own.max()),
            "distance_mean": float(own.mean()),
            "base_distance_mean": distances.get("base"),
            "nearest_other": nearest,
            "nearest_other_distance_mean": distances[nearest] if nearest else None,
            "indistinguishable": blurred,
            "same_weights_as": same,
            "probe_tokens": len(tokens),
        },
    )


def weights_equal(adapter: LoraAdapter, files: LoraFiles) -> bool:
    """Whether the matrices in memory are bitwise those of the file in the model's precision."""
    if adapter.matrices.keys() != files.pairs.keys():
        return False
    for name, (down, up) in files.pairs.items():
        held_down, held_up = adapter.matrices[name]
        scaled = up.float() * files.scale(name)
        if not torch.equal(held_down.cpu(), down.float().T.to(held_down.dtype)):
            return False
        if not torch.equal(held_up.cpu(), scaled.T.to(held_up.dtype)):
            return False
    return True
