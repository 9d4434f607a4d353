"""LoRA adapters in training over one model, of which one is switched on at a time.

Adapter        matrices, gradients that add up, and AdamW's state
LoraLayers     the model's linear layers by kind, and the hooks that add an adapter
new_adapter    draw a new adapter

PEFT wraps each layer in modules with a dictionary of adapters, and switching goes through all of
them. Here a hook on each linear layer adds ``x A^T B^T alpha / rank`` of the adapter that is
switched on; without one it only looks. The model's own weights never change, and two adapters share
nothing else.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from nip_lm_server.lora.rowwise_lora import linear_shape
from nip_lm_server.training.resident.checks import LARGEST, refuse
from nip_lm_server.training.resident.types import UNUSABLE_GRADIENT, AdamParams, LoraConfig

KINDS = {"attn": "train_attn", "mlp": "train_mlp", "unembed": "train_unembed"}
"""The kinds of layers, and the flag of each in a configuration."""
_WORDS = {"attn": ("attn", "attention"), "mlp": ("mlp", "feed_forward", "ffn")}


@dataclass
class Adapter:
    """A model in training. `pairs`: layer -> (A [rank, in], B [out, rank]), float32."""

    config: LoraConfig
    pairs: dict[str, tuple[torch.nn.Parameter, torch.nn.Parameter]]
    steps: int = 0
    gradients: list[torch.Tensor] | None = None
    """The sums since the last step, in the order of `parameters`; None: there are none."""
    optimizer: torch.optim.AdamW = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.parameters)

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """A and B of every layer, always in the same order."""
        return [half for pair in self.pairs.values() for half in pair]

    @property
    def scale(self) -> float:
        """The factor on B A."""
        return self.config.alpha / self.config.rank

    def add_gradients(self, gradients: Sequence[torch.Tensor]) -> None:
        """Add the gradients of a call to the sums for the next step."""
        if self.gradients is None:
            self.gradients = list(gradients)
        else:
            for total, gradient in zip(self.gradients, gradients, strict=True):
                total.add_(gradient)

    def step(self, adam: AdamParams) -> dict[str, float]:
        """Step by AdamW with the gradients so far, and forget them; without any, do nothing.

        Raises ResidentError for gradients whose squares float32 does not have, and keeps them.
        """
        if self.gradients is None:
            return {"grad_norm": 0.0}
        parameters, gradients = self.parameters, self.gradients
        # 1. Compute the norm over all gradients, and cut it.
        norms = torch.stack([gradient.norm() for gradient in gradients])
        norm = float(norms.double().norm())
        is_cut = 0 < adam.grad_clip_norm < norm
        # An infinite moment would stay for good, and the model would stop learning.
        if not math.isfinite(norm) or (adam.grad_clip_norm if is_cut else norm) > LARGEST:
            raise refuse(
                UNUSABLE_GRADIENT,
                f"the norm of the gradient is {norm:g}, at most {LARGEST:.3g} can be stepped with: "
                "weights or advantages are too large, or the model's weights have broken",
            )
        if is_cut:
            for gradient in gradients:
                gradient.mul_(adam.grad_clip_norm / norm)
        # 2. Set the numbers, which may differ from step to step, and step.
        (group,) = self.optimizer.param_groups
        group.update(
            lr=float(adam.learning_rate),
            betas=(float(adam.beta1), float(adam.beta2)),
            eps=float(adam.eps),
            weight_decay=float(adam.weight_decay),
        )
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        try:
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        self.gradients = None
        self.steps += 1
        return {"grad_norm": norm}

    def bytes_of(self) -> int:
        """Count the bytes of the adapter with its gradients and the optimizer's state."""
        return 16 * sum(int(parameter.numel()) for parameter in self.parameters)


class LoraLayers:
    """The linear layers of `model`, and the adapter that is added to their outputs."""

    def __init__(self, model: Any):
        self.kinds = _sort_layers(model)
        self.modules: dict[str, Any] = {
            name: module
            for name, module in model.named_modules()
            if any(name in names for names in self.kinds.values())
        }
        self._on: Adapter | None = None
        for name, module in self.modules.items():
            module.register_forward_hook(self._hook(name))

    @contextmanager
    def switched_on(self, adapter: Adapter) -> Iterator[None]:
        """Let the model compute with `adapter` in the block, forward and backward."""
        self._on = adapter
        try:
            yield
        finally:
            self._on = None

    def list_names(self, config: LoraConfig) -> list[str]:
        """List the names of the layers of a configuration. Raises ResidentError."""
        kinds = [kind for kind, flag in KINDS.items() if getattr(config, flag)]
        if not kinds:
            raise refuse("nothing_to_train", f"none of {', '.join(KINDS.values())} is true")
        for kind in kinds:
            if not self.kinds[kind]:
                raise refuse(
                    "layers_unsupported",
                    f"{KINDS[kind]}: this model has no linear layers of that kind that LoRA could "
                    f"be added to; create it with {KINDS[kind]} false",
                )
        return [name for name in self.modules if any(name in self.kinds[kind] for kind in kinds)]

    def describe(self, names: Sequence[str]) -> dict[str, bool]:
        """Return the flags of a configuration for the layers of an adapter."""
        return {
            flag: any(name in self.kinds[kind] for name in names) for kind, flag in KINDS.items()
        }

    def shape(self, name: str) -> tuple[int, int]:
        """(inputs, outputs) of a layer."""
        return linear_shape(self.modules[name])

    def _hook(self, name: str) -> Any:
        def add(_module: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> Any:
            pair = None if self._on is None else self._on.pairs.get(name)
            if self._on is None or pair is None:
                return None
            x = inputs[0]
            down, up = (half.to(x.dtype) for half in pair)
            inner = torch.nn.functional.linear(x, down) * self._on.scale
            return output + torch.nn.functional.linear(inner, up)

        return add


def new_adapter(model_id: str, config: LoraConfig, layers: LoraLayers, device: Any) -> Adapter:
    """Draw a new adapter without an effect yet: B is 0, A is uniform as in PEFT."""
    seed = config.seed
    if seed is None:
        seed = int.from_bytes(hashlib.sha256(model_id.encode()).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(seed)  # on the CPU: the same on every device
    pairs = {}
    for name in layers.list_names(config):
        inputs, outputs = layers.shape(name)
        bound = 1 / math.sqrt(inputs)
        down = torch.empty(config.rank, inputs).uniform_(-bound, bound, generator=generator)
        pairs[name] = (down, torch.zeros(outputs, config.rank))
    return make_adapter(config, pairs, device)


def make_adapter(
    config: LoraConfig, pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]], device: Any
) -> Adapter:
    """Make an adapter from its matrices, ready to be trained."""

    def parameter(values: torch.Tensor) -> torch.nn.Parameter:
        return torch.nn.Parameter(values.to(device, torch.float32, copy=True).contiguous())

    return Adapter(
        config, {name: (parameter(down), parameter(up)) for name, (down, up) in pairs.items()}
    )


def _sort_layers(model: Any) -> dict[str, frozenset[str]]:
    """Sort the names of a model's linear layers by kind. Layers of no kind are not trained."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    kinds: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for name, module in model.named_modules():
        if module is head and isinstance(module, torch.nn.Linear):
            kinds["unembed"].add(name)
        elif isinstance(module, torch.nn.Linear | Conv1D):
            path = name.lower()
            # The last of these words decides: an attention may lie in a block of another name.
            places = {
                kind: max(path.rfind(word) for word in words) for kind, words in _WORDS.items()
            }
            kind = max(places, key=lambda kind: places[kind])
            if places[kind] >= 0:
                kinds[kind].add(name)
    # Experts lie in their own tensors, and see tokens instead of sequences: engines could not tell
    # the adapter of a row.
    config = model.config.get_text_config()
    if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts")):
        kinds["mlp"].clear()
    return {kind: frozenset(names) for kind, names in kinds.items()}
