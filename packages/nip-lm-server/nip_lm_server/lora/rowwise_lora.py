"""LoRA adapters on a running model, row by row.

read_lora       the files of an adapter -> checked matrices; safetensors only
LoraFiles       the matrices as read, with their digest
LoraAdapter     the matrices on the model's device, scaled, ready to be applied
RowwiseLora     applies to each row of a batch the adapter that the row names

The model's own modules stay as they are: a hook on each adapted linear layer adds
``x A^T B^T scale`` to the rows of the adapter. So loading and unloading never touch weights that
another request uses, and the rows of one adapter cost one matrix product per layer.

Covered: LoRA on linear layers as PEFT saves it, also rank-stabilised, ranks differing by layer (the
scale of a layer goes by its own rank, as with PEFT's rank_pattern).
Not covered, and refused: DoRA, trained biases or whole modules, embeddings, per-layer alpha, a
beginning within the prompt (aLoRA), beginnings that change the base (PiSSA, OLoRA).
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nip_base.api_errors import EngineError
from nip_base.formats.bounds import parse_json

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
_PREFIX = "base_model.model."
_CHANGE_BASE = ("pissa", "olora", "corda", "loftq")
_SUFFIXES = {".lora_A.weight": 0, ".lora_B.weight": 1}


@dataclass(frozen=True)
class LoraFiles:
    """An adapter as it lies on disk. `pairs`: module name -> (A [rank, in], B [out, rank])."""

    path: Path
    pairs: dict[str, tuple[torch.Tensor, torch.Tensor]]
    alpha: float
    rank_stabilised: bool
    digest: str  # SHA-256 of the weights' file and of their scaling

    def scale(self, module: str) -> float:
        """The factor on B A of one module."""
        rank = self.pairs[module][0].shape[0]
        return self.alpha / (math.sqrt(rank) if self.rank_stabilised else rank)

    def matrices(self, module: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """(A^T, scale B^T) of one module, in a precision."""
        # Scaled in float32, once: a pass has one product less, and rounding comes last.
        down, up = self.pairs[module]
        return down.float().T.to(dtype), (up.float() * self.scale(module)).T.to(dtype)

    @property
    def unchanged(self) -> bool:
        """Say whether every A or B is zero: such an adapter changes nothing."""
        return not any(bool(up.any()) and bool(down.any()) for down, up in self.pairs.values())

    @property
    def rank(self) -> int:
        """The largest rank of a module."""
        return max(int(down.shape[0]) for down, _ in self.pairs.values())


def read_lora(path: Path) -> LoraFiles:
    """Read and check an adapter's directory. Raises EngineError, naming what is wrong."""
    # 1. Read both files.
    weights, config_path = path / WEIGHTS_FILE, path / CONFIG_FILE
    for file in (weights, config_path):
        if not file.is_file():
            raise EngineError(f"{path} is not an adapter: {file.name} is missing")
    from safetensors.torch import load

    try:
        config = parse_json(config_path.read_text())
        raw = weights.read_bytes()
        tensors = load(raw)
    # Any error: safetensors has an exception class of its own, and a file of unknown origin may be
    # broken in any way.
    except Exception as error:
        raise EngineError(f"the adapter in {path} can't be read: {error}") from error
    # 2. Refuse an adapter that would be served otherwise than it was trained.
    _check_config(path, config)
    # 3. Pair A and B of each module.
    halves: dict[str, list[torch.Tensor | None]] = {}
    for key, tensor in tensors.items():
        suffix = next((s for s in _SUFFIXES if key.endswith(s)), None)
        if suffix is None or not key.startswith(_PREFIX):
            raise EngineError(
                f"{weights}: can't serve the tensor {key!r}: only LoRA on linear layers is known"
            )
        module = key[len(_PREFIX) : -len(suffix)]
        halves.setdefault(module, [None, None])[_SUFFIXES[suffix]] = tensor
    pairs = {}
    for module, (down, up) in sorted(halves.items()):
        if down is None or up is None or down.shape[0] != up.shape[1]:
            raise EngineError(f"{weights}: A and B of {module!r} are missing or don't fit")
        # It can answer no request, and a proof on a few tokens need not show that.
        if not (down.isfinite().all() and up.isfinite().all()):
            raise EngineError(f"{weights}: A or B of {module!r} has a number that is not finite")
        pairs[module] = (down, up)
    # It would be served as the base, under an adapter's name.
    if not pairs:
        raise EngineError(f"{weights} has no tensors")
    alpha, rank_stabilised = float(config["lora_alpha"]), bool(config.get("use_rslora"))
    digest = hashlib.sha256(raw)
    digest.update(f"\nlora_alpha {alpha} use_rslora {rank_stabilised}".encode())
    return LoraFiles(path, pairs, alpha, rank_stabilised, digest.hexdigest())


def _check_config(path: Path, config: Any) -> None:
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else config
        raise EngineError(f"{path / CONFIG_FILE}: expected peft_type LORA, got {kind!r}")
    if not isinstance(config.get("lora_alpha"), int | float):
        raise EngineError(f"{path / CONFIG_FILE}: lora_alpha is missing")
    # Each would be served without a part of its training, and without an error.
    limits = {
        "use_dora": bool(config.get("use_dora")),
        "bias": config.get("bias", "none") != "none",
        "lora_bias": bool(config.get("lora_bias")),
        "modules_to_save": bool(config.get("modules_to_save")),
        "alpha_pattern": bool(config.get("alpha_pattern")),
        # Its matrices apply from a place in the prompt on.
        "alora_invocation_tokens": bool(config.get("alora_invocation_tokens")),
        # These change the base.
        "init_lora_weights": str(config.get("init_lora_weights")).startswith(_CHANGE_BASE),
    }
    for name, is_set in limits.items():
        if is_set:
            raise EngineError(
                f"{path / CONFIG_FILE}: {name}={config[name]!r} can't be served by this engine"
            )


@dataclass(frozen=True)
class LoraAdapter:
    """A loaded adapter. `matrices`: module name -> (A^T [in, rank], scale B^T [rank, out])."""

    name: str
    digest: str
    unchanged: bool
    matrices: dict[str, tuple[torch.Tensor, torch.Tensor]]
    logprobs: list[float] = field(default_factory=list, init=False)  # at the last proof

    def move(self, device: str) -> None:
        """Bring the matrices to another device, in place."""
        for module, (down, up) in self.matrices.items():
            self.matrices[module] = (down.to(device), up.to(device))


class RowwiseLora:
    """Adds adapters to a model's linear layers; see the module's docstring."""

    def __init__(self, model: Any):
        self._modules = dict(model.named_modules())
        self._hooked: set[str] = set()
        self._plan: list[tuple[int, int, LoraAdapter]] = []
        self._rows = 0

    def attach(self, name: str, files: LoraFiles) -> LoraAdapter:
        """Bring an adapter to the model's device and precision; call it between two forward passes.

        Raises EngineError if a module isn't there or has another shape.
        """
        matrices = {}
        for module_name, (down, up) in files.pairs.items():
            module = self._modules.get(module_name)
            weight = getattr(module, "weight", None)
            if weight is None or weight.dim() != 2 or isinstance(module, torch.nn.Embedding):
                raise EngineError(
                    f"the adapter in {files.path} is for {module_name!r}, which is not a linear "
                    "layer of the base model: it belongs to another base"
                )
            # Another base may have the same names. Shapes that don't fit would make a product fail
            # in the middle of a batch.
            expected = linear_shape(module)
            if (down.shape[1], up.shape[0]) != expected:
                raise EngineError(
                    f"the adapter in {files.path} has {down.shape[1]} -> {up.shape[0]} for "
                    f"{module_name!r}, the base model {expected[0]} -> {expected[1]}: it belongs "
                    "to another base"
                )
            halves = files.matrices(module_name, weight.dtype)
            matrices[module_name] = (
                halves[0].to(weight.device).contiguous(),
                halves[1].to(weight.device).contiguous(),
            )
        # One hook for each layer and all adapters: the plan of a pass says which rows go through
        # which adapter.
        for module_name in matrices.keys() - self._hooked:
            self._modules[module_name].register_forward_hook(self._hook(module_name))
            self._hooked.add(module_name)
        return LoraAdapter(name, files.digest, files.unchanged, matrices)

    @contextmanager
    def rows(self, adapters: Sequence[LoraAdapter | None]) -> Iterator[None]:
        """Within, row i of every forward pass goes through `adapters[i]`; None is the base."""
        # Neighbours with one adapter are one slice; the base and adapters of zeros need none.
        self._rows = len(adapters)
        self._plan = []
        start = 0
        for index in range(1, len(adapters) + 1):
            if index == len(adapters) or adapters[index] is not adapters[start]:
                adapter = adapters[start]
                if adapter is not None and not adapter.unchanged:
                    self._plan.append((start, index, adapter))
                start = index
        try:
            yield
        finally:
            # The hooks stay. A pass outside of this is the base's, after any error within.
            self._plan = []

    @property
    def adapting(self) -> bool:
        """Say if any row of the pass has an adapter."""
        return bool(self._plan)

    def add(self, name: str, inputs: torch.Tensor, output: torch.Tensor) -> None:
        """Add the products of the rows' adapters to a layer's output, in place."""
        for start, end, adapter in self._plan:
            matrices = adapter.matrices.get(name)
            if matrices is None:  # the layer was hooked for another adapter
                continue
            # A layer of experts, for example, sees rows by token: slices of them would mix the
            # adapters of requests without an error.
            if inputs.shape[0] != self._rows:
                raise EngineError(
                    f"{name} does not see one row per request, so adapters can't be applied"
                )
            output[start:end] += (inputs[start:end] @ matrices[0]) @ matrices[1]

    def _hook(self, name: str) -> Any:
        def add(_module: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            self.add(name, inputs[0], output)

        return add


def linear_shape(module: Any) -> tuple[int, int]:
    """Return (inputs, outputs) of a linear layer, also of GPT-2's transposed kind."""
    rows, columns = module.weight.shape
    return (rows, columns) if is_transposed(module) else (columns, rows)


def is_transposed(module: Any) -> bool:
    """Say whether the layer keeps its weight as [inputs, outputs]."""
    return type(module).__name__ == "Conv1D"
