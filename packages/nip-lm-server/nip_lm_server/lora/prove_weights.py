"""The proof that a served model answers with its saved weights.

probe_tokens    a fixed conversation and a fixed sequence of tokens, for one tokenizer
apply_adapter   within it, a base model computes with an adapter's weights
token_logprobs  what a model gives a sequence
prove           compares the served figures of an adapter with those of its saved weights
prove_base      compares a served base model with the files of a model

The served log-probabilities come from the engine's own path: a pass by itself, and a batch with the
base and the newest other adapter; further ones have them from their own proofs. The expected ones
come from the file: W + scale B A in each adapted layer, in float32, with the engine's adapters off.
Those that a training computed from its saved weights, in ``probe.json``, must be met too.

`probes.LIMITS` has the largest distance, in nats and as a mean over the tokens; where rounding
makes more, three times the rounding is allowed. The served adapter must also be nearer to its saved
weights than the base and any other adapter is. An adapter that makes the same change by other
matrices (a copy that another job continued, a stack whose second half is zero) is listed under
`same_weights_as`; one that gives the same on the probe within rounding as indistinguishable. The
served adapter can't be nearer than either, so the bitwise comparison of the weights in memory
decides alone.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from nip_base.api_errors import EngineError
from nip_base.formats.bounds import parse_json
from nip_base.proof import Proof
from nip_lm_server.chats import chat_template
from nip_lm_server.lora.probes import (
    LIMITS,
    OVER_NOISE,
    PROBE,
    Limits,
    Probe,
    ProbeError,
    Scores,
    choose_limits,
    judge,
    mean_difference,
    measure_differences,
    read_probe,
)
from nip_lm_server.lora.rowwise_lora import LoraAdapter, LoraFiles, is_transposed

SAME_CHANGE = {"float64": 1e-6, "float32": 1e-6, "float16": 4e-3, "bfloat16": 3e-2}
"""Relative distance of two adapters' changes that rounding of their matrices explains: some units
in the last place of each precision."""
_EXACT = 1e-6  # relative distance of two changes that double precision explains, with a margin

MESSAGES = (
    {"role": "user", "content": "Does this function return the sum of a list? def f(xs): ..."},
    {"role": "assistant", "content": "It leaves out the last element, so I would reject it."},
)
_EXTRA_TOKENS = 32
"""A rule of thumb: enough for a mean where the conversation tells nothing; the pass stays short."""
LONGEST = 256
"""Most tokens of a probe: a new adapter waits for its pass. A rule of thumb: with far fewer tokens,
a few that rounding moved far would decide the mean."""
_WIDE = ("float32", "float64")
"""Precisions with little noise: the extra tokens, and so many of a training, are enough."""


class Scorer(Protocol):
    """The way in which an engine computes, for the proof of its answers."""

    def score(
        self, sequences: Sequence[Sequence[int]], adapters: Sequence[LoraAdapter | None]
    ) -> list[list[float]]:
        """Log-probability of each token but the first of each sequence, as play computes it."""

    def score_by_library(
        self, sequences: Sequence[Sequence[int]], adapters: Sequence[LoraAdapter | None]
    ) -> list[list[float]]:
        """The same by the model's own modules, whose hooks are heeded."""


class ProvedModel(Protocol):
    """The model behind a `Scorer`."""

    @property
    def model(self) -> Any:
        """The module of torch."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the model."""

    @property
    def max_model_len(self) -> int:
        """Longest sequence, in tokens."""

    @property
    def dtype(self) -> str:
        """The precision of the weights, a key of `SAME_CHANGE`."""

    @property
    def base_logprobs(self) -> list[float]:
        """The base's log-probabilities by the library; the first proof fills it."""


def probe_tokens(tokenizer: Any, max_model_len: int) -> list[int]:
    """Make a probe for models trained on unknown data: a conversation, then tokens by a hash.

    The tokens by a hash follow because a small vocabulary may have no word of the conversation. A
    training has better text, which its model has learned (`training.probe_text`).
    """
    ids = chat_template.encode(
        tokenizer, chat_template.render(tokenizer, MESSAGES, generation=False)
    )
    special = set(tokenizer.all_special_ids)
    ordinary = [index for index in range(len(tokenizer)) if index not in special]
    for number in range(_EXTRA_TOKENS):
        raw = hashlib.sha256(f"probe {number}".encode()).digest()
        ids.append(ordinary[int.from_bytes(raw[:8], "big") % len(ordinary)])
    return ids[-min(LONGEST, max_model_len) :]


@contextmanager
def apply_adapter(model: Any, files: LoraFiles, *, exact: bool = True) -> Iterator[None]:
    """Within, `model` computes each adapted layer with W + scale B A, in float32.

    Not `exact`, it does so in its own precision, as an engine does: the distance between the two
    comes from rounding alone.
    """
    modules = dict(model.named_modules())

    def hook(name: str) -> Any:
        def add(module: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> Any:
            dtype = torch.promote_types(output.dtype, torch.float32) if exact else output.dtype
            rows, plain = inputs[0].to(dtype), output
            down, up = (half.to(output.device, dtype) for half in files.pairs[name])
            if dtype != output.dtype:
                weight = module.weight.T if is_transposed(module) else module.weight
                bias = None if module.bias is None else module.bias.to(dtype)
                plain = torch.nn.functional.linear(rows, weight.to(dtype), bias)
            return (plain + files.scale(name) * (rows @ down.T) @ up.T).to(output.dtype)

        return modules[name].register_forward_hook(add)

    # Hooks instead of a copy of the weights: no second model has to fit into memory.
    handles = [hook(name) for name in files.pairs]
    try:
        yield
    finally:
        # The engine goes on with this model: a hook that stays would change every answer.
        for handle in handles:
            handle.remove()


def token_logprobs(model: Any, tokens: Sequence[int]) -> list[float]:
    """Compute the log-probability of each token but the first, in nats, by the model's modules."""
    with torch.inference_mode():
        ids = torch.tensor([[*tokens]], device=model.device)
        scores = model(ids).logits[0, :-1].float().log_softmax(-1)
        values: list[float] = scores.gather(1, ids[0, 1:, None])[:, 0].tolist()
    return values


def prove(
    scorer: Scorer,
    loaded: ProvedModel,
    adapter: LoraAdapter,
    files: LoraFiles,
    rivals: Sequence[LoraAdapter],
) -> Proof:
    """Compare `adapter` as served with `files` as saved; `rivals` are the other adapters."""
    tokens = probe_tokens(loaded.tokenizer, loaded.max_model_len)
    tokens = tokens[-_EXTRA_TOKENS if loaded.dtype in _WIDE else 0 :]
    probe = _read_probe_file(files.path, loaded)
    # 1. Score the served adapter by itself, and on the training's tokens in a batch with the base
    #    and the newest of the others: many rows may have another copy of the weights than few.
    fresh = [rival for rival in rivals if rival is rivals[-1] or not rival.logprobs]
    (served_logprobs,) = scorer.score([tokens], [adapter])
    texts = [[*probe.tokens] if probe else tokens, *[tokens] * (1 + len(fresh))]
    batched, base_logprobs, *further = scorer.score(texts, [adapter, None, *fresh])
    for scored, logprobs in zip([adapter, *fresh], [served_logprobs, *further], strict=True):
        scored.logprobs[:] = logprobs  # an adapter gives what it gave when it was proved itself
    # 2. Score the saved adapter and, once, the base, each by itself.
    if not loaded.base_logprobs:
        loaded.base_logprobs[:] = scorer.score_by_library([tokens], [None])[0]
    with apply_adapter(loaded.model, files):
        (saved,) = scorer.score_by_library([tokens], [None])
    # 3. Compare. The base in the batch and by itself differs by rounding alone, and so does the
    #    adapter in float32 and in a lower precision. In float32 they may agree to the bit, and
    #    another batch may not: so the rounding is never zero.
    rounding = max(measure_differences(base_logprobs, loaded.base_logprobs)[1], 1e-7)
    if loaded.dtype not in _WIDE:
        with apply_adapter(loaded.model, files, exact=False):
            (rounded,) = scorer.score_by_library([tokens], [None])
        rounding = max(rounding, measure_differences(rounded, saved)[1])
    rivals_scores = {"base": Scores(base_logprobs, loaded.base_logprobs, files.unchanged)}
    allowed, same = LIMITS[loaded.dtype], SAME_CHANGE[loaded.dtype]
    for rival in rivals:
        theirs, change = rival.logprobs, math.inf
        # Weights that give other figures without noise need not be compared.
        if loaded.dtype not in _WIDE or mean_difference(theirs, saved, allowed.cap) <= allowed.mean:
            change = _measure_change(adapter, rival)
        rivals_scores[rival.name] = Scores(theirs, theirs, change <= _EXACT, change <= same)
    tolerance = _find_tolerance(allowed, rounding)
    matches, figures = judge(
        served_logprobs, saved, rivals_scores, tolerance, rounding, allowed.cap
    )
    base_distance = None if files.unchanged else measure_differences(base_logprobs, saved)[1]
    # 4. The bits of the weights and the figures of the batch must be right too.
    equal = weights_equal(adapter, files)
    matches &= bool(probe) or mean_difference(batched, saved, allowed.cap) <= tolerance
    probe_detail = _judge_probe(scorer, loaded, probe, batched, has_base=True) if probe else {}
    return Proof(
        matches=matches and equal and probe_detail.get("probe_file_matches", True),
        detail={
            "kind": "logprobs",
            "unchanged": files.unchanged,
            "weights_equal": equal,
            "weights_sha256": files.digest,
            "dtype": loaded.dtype,
            "rounding": rounding,
            "base_distance_mean": base_distance,
            "probe_tokens": len(tokens),
            **figures,
            **probe_detail,
        },
    )


def prove_base(scorer: Scorer, loaded: ProvedModel, path: Path) -> Proof:
    """Compare the served base model with the model's files in `path`, tensor by tensor."""
    equals: dict[str, bool] = {}
    state = loaded.model.state_dict()
    for name, tensor in _read_saved_tensors(path, loaded, state):
        on_disk, in_memory = tensor.to(state[name].dtype), state[name].cpu()
        # By bits: a NaN does not equal itself.
        equals[name] = on_disk.shape == in_memory.shape and torch.equal(
            _view_bits(on_disk), _view_bits(in_memory)
        )
    probe_detail = {}
    if probe := _read_probe_file(path, loaded):
        logprobs = scorer.score([probe.tokens], [None])[0]
        probe_detail = _judge_probe(scorer, loaded, probe, logprobs, has_base=False)
    different = [name for name, is_equal in equals.items() if not is_equal]
    equal = bool(equals) and not different
    return Proof(
        matches=equal and probe_detail.get("probe_file_matches", True),
        detail={
            "kind": "weights",
            "weights_equal": equal,
            "tensors": len(equals),
            "different": different[:5],
            "dtype": loaded.dtype,
            **probe_detail,
        },
    )


def _read_saved_tensors(
    path: Path, loaded: ProvedModel, state: dict[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a model's files under their names in the loaded model."""
    from safetensors import safe_open

    index = path / "model.safetensors.index.json"
    try:
        shards = {"model.safetensors"}
        if index.is_file():
            shards = set(parse_json(index.read_text())["weight_map"].values())
        files: list[Any] = [safe_open(path / shard, framework="pt") for shard in sorted(shards)]
        by_key = {key: file for file in files for key in file.keys()}  # noqa: SIM118
        # A tied weight is saved once and loaded under several names.
        tied_addresses = {state[key].data_ptr() for key in by_key if key in state}
        if by_key.keys() <= state.keys() and all(
            t.data_ptr() in tied_addresses for t in state.values()
        ):
            for key, file in by_key.items():
                yield key, file.get_tensor(key)
            return
    # Any error: safetensors has an exception class of its own. It is no failed proof, since nothing
    # was compared.
    except Exception as error:
        raise EngineError(f"the model in {path} can't be read: {error!r}") from error
    # This architecture has other names on disk than in memory: the library maps them.
    try:
        model = chat_template.load_model(path, getattr(torch, loaded.dtype))
    # A RuntimeError comes where tensors don't fit the configuration.
    except (OSError, ValueError, RuntimeError) as error:
        raise EngineError(f"the model in {path} can't be loaded: {error}") from error
    loaded_state = model.state_dict()
    for key in state:
        yield key, loaded_state.get(key, torch.empty(0))


def _read_probe_file(path: Path, loaded: ProvedModel) -> Probe | None:
    """Read the first figures of the training for its saved weights, if they are there."""
    # A model trained elsewhere has no probe, and is judged by its files alone.
    if not (path / PROBE).is_file():
        return None
    # A probe that can't be read is an error: the training's figures are unknown.
    try:
        probe = read_probe(path)
    except ProbeError as error:
        raise EngineError(str(error)) from error
    limit = _EXTRA_TOKENS if {probe.dtype, loaded.dtype} <= {*_WIDE} else LONGEST
    tokens = probe.tokens[: min(limit, loaded.max_model_len)]
    return replace(probe.at(range(len(tokens) - 1)), tokens=tokens)


def _judge_probe(
    scorer: Scorer, loaded: ProvedModel, probe: Probe, logprobs: Sequence[float], *, has_base: bool
) -> dict[str, Any]:
    """Compare the served log-probabilities with the training's."""
    allowed = choose_limits(probe, loaded.dtype)
    distance, noise = mean_difference(logprobs, probe.logprobs, allowed.cap), 0.0
    # The base shows how much two computations differ, which only matters where they do. What a base
    # model was trained from is not served.
    if has_base and not distance <= allowed.mean:
        (base_logprobs,) = scorer.score([probe.tokens], [None])
        noise = mean_difference(base_logprobs, probe.base_logprobs, allowed.cap)
    tolerance = _find_tolerance(allowed, noise)
    return {
        "probe_file_matches": distance <= tolerance,  # False if it is NaN
        "probe_file_distance": distance,
        "probe_file_distance_max": measure_differences(logprobs, probe.logprobs)[0],
        "probe_file_tolerance": tolerance,
    }


def _find_tolerance(allowed: Limits, noise: float) -> float:
    """The largest distance where two computations of the same weights differ by `noise`."""
    return min(max(allowed.mean, OVER_NOISE * noise), allowed.most)


def _view_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _measure_change(adapter: LoraAdapter, rival: LoraAdapter) -> float:
    """Relative distance of two adapters' changes to the weights: 0 if they are the same."""

    def inner(first: LoraAdapter, second: LoraAdapter) -> float:
        # <B A, D C> = sum of (A C^T) * (B^T D): matrices of the ranks' size alone.
        total = 0.0
        for name in first.matrices.keys() & second.matrices.keys():
            (down, up), (second_down, second_up) = first.matrices[name], second.matrices[name]
            downs = down.double().T @ second_down.double()
            total += float((downs * (up.double() @ second_up.double().T)).sum())
        return total

    squares = inner(adapter, adapter), inner(rival, rival)
    # Two adapters that change nothing make the same change.
    if max(squares) == 0.0:
        return 0.0
    distance = max(0.0, sum(squares) - 2 * inner(adapter, rival))
    return float((distance / max(squares)) ** 0.5)


def weights_equal(adapter: LoraAdapter, files: LoraFiles) -> bool:
    """Say whether the matrices in memory are bitwise those of the file in the model's precision."""
    return adapter.matrices.keys() == files.pairs.keys() and all(
        torch.equal(in_memory.cpu(), saved)
        for name, halves in adapter.matrices.items()
        for in_memory, saved in zip(halves, files.matrices(name, halves[0].dtype), strict=True)
    )
