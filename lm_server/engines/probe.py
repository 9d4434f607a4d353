"""The proof that a served model answers with its saved weights.

probe_tokens    a fixed conversation and a fixed sequence of tokens, for one tokenizer
merged          within it, a base model computes with an adapter's weights merged in
prove           compares what is served for an adapter with what its saved weights give
prove_base      compares a served base model with the files of a model

What is served comes from the engine's own batched path, in one batch with the base and the other
adapters. What is expected comes from the file: for each adapted layer W + scale B A in float32,
with the engine's adapters switched off. Where a training left ``probe.json`` (tokens and the
log-probabilities that it computed from what it had saved), these must be met too.

Tolerances are on the largest difference of a token's log-probability (nats), see
`proof.TOLERANCES`. The proof also asks that the mean difference is smaller than to the base and to
any other adapter. One that makes the same change by other matrices (a copy that another job
continued, a stack whose second half is zero) is listed under `same_weights_as`, one that gives the
same on the probe within rounding as indistinguishable. Of neither can the served one be nearer, and
the bitwise comparison of the weights in memory decides alone.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nip_lm_server.engines.base import EngineError, Proof
from nip_lm_server.engines.batching import Decoder
from nip_lm_server.engines.loading import LoadedModel
from nip_lm_server.engines.lora import LoraAdapter, LoraFiles, is_transposed
from nip_lm_server.engines.proof import (
    PROBE,
    QUANTIZED_TOLERANCE,
    TOLERANCES,
    ProbeError,
    read_probe,
)
from nip_lm_server.formats import chat_template

SAME_CHANGE = {"float32": 1e-6, "float16": 4e-3, "bfloat16": 3e-2}
"""Relative distance of two adapters' changes that rounding of their matrices explains."""
_EXACT = 1e-6

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

    def compute(module: Any, rows: torch.Tensor, pair: Any, scale: float) -> torch.Tensor:
        delta = scale * (pair[1].float() @ pair[0].float())
        weight = module.weight.float()
        weight = weight.T if is_transposed(module) else weight
        bias = None if module.bias is None else module.bias.float()
        return torch.nn.functional.linear(rows.float(), weight + delta, bias)

    with _computing(model, files, compute):
        yield


@contextmanager
def _unmerged(model: Any, files: LoraFiles) -> Iterator[None]:
    """Within, `model` adds the low-rank product in its own precision, as an engine does.

    How far that is from `merged` is what rounding alone may change.
    """

    def compute(module: Any, rows: torch.Tensor, pair: Any, scale: float) -> torch.Tensor:
        down, up = (pair[0].float().to(rows.dtype), (pair[1].float() * scale).to(rows.dtype))
        weight = module.weight.T if is_transposed(module) else module.weight
        return torch.nn.functional.linear(rows, weight, module.bias) + (rows @ down.T) @ up.T

    with _computing(model, files, compute):
        yield


@contextmanager
def _computing(
    model: Any,
    files: LoraFiles,
    compute: Callable[[Any, torch.Tensor, Any, float], torch.Tensor],
) -> Iterator[None]:
    modules = dict(model.named_modules())

    def override(name: str) -> Any:
        def replace(
            module: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
        ) -> torch.Tensor:
            pair = tuple(half.to(output.device) for half in files.pairs[name])
            return compute(module, inputs[0], pair, files.scale(name)).to(output.dtype)

        return modules[name].register_forward_hook(replace)

    handles = [override(name) for name in files.pairs]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def prove(
    decoder: Decoder,
    loaded: LoadedModel,
    adapter: LoraAdapter,
    files: LoraFiles,
    rivals: Sequence[LoraAdapter],
) -> Proof:
    """Compare `adapter` as served with `files` as saved; `rivals` are the other adapters."""
    tokens = probe_tokens(loaded.tokenizer, loaded.max_model_len)
    others: list[LoraAdapter | None] = [None, *rivals]
    served = torch.tensor(decoder.score([tokens] * (1 + len(others)), [adapter, *others]))

    def alone() -> torch.Tensor:
        return torch.tensor(decoder.score([tokens], [None]))[0]

    with merged(loaded.model, files):
        expected = alone()
    with _unmerged(loaded.model, files):
        unmerged = alone()
    own = (served[0] - expected).abs()
    tolerance = TOLERANCES[loaded.dtype]
    # The base in the batch and by itself, the adapter merged and not: they differ by rounding.
    rounding = max(_mean(served[1], alone()), _mean(unmerged, expected), 1e-7)
    distances, same, blurred, nearer = {}, [], [], True
    for row, other in enumerate(others, start=1):
        name = "base" if other is None else other.name
        change = (0.0 if files.unchanged else 1.0) if other is None else _change(adapter, other)
        if change <= _EXACT:
            same.append(name)
            continue
        distances[name] = distance = _mean(served[row], expected)
        if change <= SAME_CHANGE[loaded.dtype] or distance <= 4 * rounding:
            blurred.append(name)
        elif not float(own.mean()) < distance:
            nearer = False
    nearest = min(distances, key=lambda key: distances[key], default=None)
    equal = weights_equal(adapter, files)
    recorded = _compare_recorded(decoder, loaded, adapter, files.path)
    within = bool(own.max() <= tolerance)  # False if anything is NaN
    return Proof(
        matches=equal and within and nearer and recorded.get("probe_file_matches", True),
        detail={
            "kind": "logprobs",
            "unchanged": files.unchanged,
            "weights_equal": equal,
            "weights_sha256": files.digest,
            "dtype": loaded.dtype,
            "tolerance": tolerance,
            "rounding": rounding,
            "distance_max": float(own.max()),
            "distance_mean": float(own.mean()),
            "base_distance_mean": distances.get("base"),
            "nearest_other": nearest,
            "nearest_other_distance_mean": distances[nearest] if nearest else None,
            "indistinguishable": blurred,
            "same_weights_as": same,
            "probe_tokens": len(tokens),
            **recorded,
        },
    )


def prove_base(decoder: Decoder, loaded: LoadedModel, path: Path) -> Proof:
    """Compare the served base model with the model's files in `path`, tensor by tensor."""
    different: list[str] = []
    count = 0
    state = loaded.model.state_dict()
    for name, tensor in _saved_tensors(path, loaded, state):
        count += 1
        # Bits, because a NaN does not equal itself.
        saved = tensor.to(state[name].dtype)
        held = state[name].cpu()
        if saved.shape != held.shape or not torch.equal(_bits(saved), _bits(held)):
            different.append(name)
    recorded = _compare_recorded(decoder, loaded, None, path)
    equal = not different and count > 0
    return Proof(
        matches=equal and recorded.get("probe_file_matches", True),
        detail={
            "kind": "weights",
            "weights_equal": equal,
            "tensors": count,
            "different": different[:5],
            "dtype": loaded.dtype,
            **recorded,
        },
    )


def _saved_tensors(
    path: Path, loaded: LoadedModel, state: dict[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a model's files under the names that the loaded model has for them."""
    from safetensors import safe_open

    index = path / "model.safetensors.index.json"
    try:
        names = (
            set(json.loads(index.read_text())["weight_map"].values())
            if index.is_file()
            else {"model.safetensors"}
        )
        keys: dict[str, list[str]] = {}
        for name in sorted(names):
            with safe_open(path / name, framework="pt") as file:
                keys[name] = list(file.keys())
        held = {key for listed in keys.values() for key in listed}
        # A tied weight is saved once and loaded under several names.
        covered = {state[key].data_ptr() for key in held if key in state}
        if held <= state.keys() and all(
            key in held or tensor.data_ptr() in covered for key, tensor in state.items()
        ):
            for name, listed in keys.items():
                with safe_open(path / name, framework="pt") as file:
                    for key in listed:
                        yield key, file.get_tensor(key)
            return
    except Exception as error:  # safetensors has an exception class of its own
        raise EngineError(f"the model in {path} can't be read: {error!r}") from error
    # This architecture has other names on disk than in memory: the library knows which.
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=getattr(torch, loaded.dtype),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise EngineError(f"the model in {path} can't be loaded: {error}") from error
    fresh = model.state_dict()
    for key in state:
        yield key, fresh.get(key, torch.empty(0))


def _compare_recorded(
    decoder: Decoder, loaded: LoadedModel, adapter: LoraAdapter | None, path: Path
) -> dict[str, Any]:
    """Compare with the log-probabilities that the training computed from what it had saved."""
    if not (path / PROBE).is_file():
        return {}
    try:
        probe = read_probe(path)
    except ProbeError as error:
        raise EngineError(str(error)) from error
    tokens = probe.tokens[: loaded.max_model_len]
    saved = torch.tensor(probe.logprobs[: len(tokens) - 1])
    tolerance = max(TOLERANCES[loaded.dtype], TOLERANCES[probe.dtype])
    if probe.quantization != "none":
        tolerance = max(tolerance, QUANTIZED_TOLERANCE)
    served = torch.tensor(decoder.score([tokens], [adapter]))[0]
    distance = float((served - saved).abs().max())
    return {
        "probe_file_matches": distance <= tolerance,  # False if it is NaN
        "probe_file_distance_max": distance,
        "probe_file_tolerance": tolerance,
    }


def _mean(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).abs().mean())


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _change(left: LoraAdapter, right: LoraAdapter) -> float:
    """Relative distance of what two adapters add to the weights: 0 if it is the same."""

    def inner(one: LoraAdapter, other: LoraAdapter) -> float:
        # <B A, D C> = sum of (A C^T) * (B^T D): matrices of the ranks' size only.
        total = 0.0
        for name in one.matrices.keys() & other.matrices.keys():
            (down, up), (other_down, other_up) = one.matrices[name], other.matrices[name]
            downs = down.double().T @ other_down.double()
            total += float((downs * (up.double() @ other_up.double().T)).sum())
        return total

    squares = inner(left, left), inner(right, right)
    if max(squares) == 0.0:
        return 0.0
    distance = max(0.0, sum(squares) - 2 * inner(left, right))
    return float((distance / max(squares)) ** 0.5)


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
