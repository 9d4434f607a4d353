"""An adapter in training on disk: a sealed directory that PEFT and every engine can read.

write_adapter        ``adapter_model.safetensors`` and ``adapter_config.json`` as PEFT has them,
                     ``training_state.json``, and with the optimizer ``optimizer.safetensors``
read_saved_adapter   read it back; or read another program's adapter, without a training's state

Equal adapters give equal bytes. ``manifest.json`` has the SHA-256 of each file and is written last.
Floats are written as they are in memory, so a loaded adapter goes on with the same bits.
"""

import json
from pathlib import Path
from typing import Any

import torch

from nip_base.disk import MANIFEST, find_damage, seal_directory
from nip_base.formats.bounds import parse_json
from nip_lm_server.engines.base import EngineError
from nip_lm_server.lora.rowwise_lora import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    LoraFiles,
    linear_shape,
    read_lora,
)
from nip_lm_server.training.resident.adapters import Adapter, LoraLayers, make_adapter
from nip_lm_server.training.resident.checks import refuse
from nip_lm_server.training.resident.types import LoraConfig, ResidentError

STATE_FILE = "training_state.json"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FORMAT = 1
_MOMENTS = ("exp_avg", "exp_avg_sq")


def write_adapter(
    adapter: Adapter, directory: Path, layers: LoraLayers, *, optimizer: bool
) -> None:
    """Write an adapter to `directory`, whole or not at all; it replaces the old. Raises OSError."""
    from safetensors.torch import save_file

    config = adapter.config
    with seal_directory(directory) as part:
        weights = {
            f"base_model.model.{name}.lora_{half}.weight": parameter.detach().cpu()
            for name, pair in adapter.pairs.items()
            for half, parameter in zip("AB", pair, strict=True)
        }
        save_file(weights, part / WEIGHTS_FILE, metadata={"format": "pt"})
        alpha = int(config.alpha) if config.alpha == int(config.alpha) else config.alpha
        _write_json(
            part / CONFIG_FILE,
            {
                "base_model_name_or_path": None,  # clients must not see the server's paths
                "bias": "none",
                "fan_in_fan_out": False,
                "inference_mode": True,
                "lora_alpha": alpha,
                "lora_dropout": 0.0,
                "peft_type": "LORA",
                "r": config.rank,
                "target_modules": _target_modules(layers, set(adapter.pairs)),
                "task_type": "CAUSAL_LM",
                "use_rslora": False,
            },
        )
        _write_json(
            part / STATE_FILE,
            {
                "format": STATE_FORMAT,
                "steps": adapter.steps,
                "seed": config.seed,
                "optimizer": optimizer,
                **layers.describe(list(adapter.pairs)),
            },
        )
        if optimizer:
            save_file(_moments(adapter), part / OPTIMIZER_FILE)


def read_saved_adapter(
    directory: Path, config: LoraConfig | None, layers: LoraLayers, device: Any, *, optimizer: bool
) -> Adapter:
    """Read an adapter to train it on. Raises ResidentError.

    A `config` must agree with the files. With `optimizer`, its state must be there and is read.
    """
    # 1. Check that the directory is whole, and read the adapter.
    if (directory / MANIFEST).is_file() and (directory / STATE_FILE).is_file():
        problem = find_damage(directory)
        if problem is not None:
            raise ResidentError("server", "checkpoint_damaged", f"{directory.name}: {problem}")
    try:
        files = read_lora(directory)
    except EngineError as error:
        raise refuse("checkpoint_unreadable", str(error)) from error
    state = _read_state(directory)
    # 2. Compare it with the base and with `config`.
    rank = _check_fits(files, layers)
    held = LoraConfig(
        rank=rank, alpha=files.alpha, seed=state.get("seed"), **layers.describe(list(files.pairs))
    )
    if config is not None:
        for name in ("rank", "alpha", "train_attn", "train_mlp", "train_unembed"):
            setting, has = getattr(config, name), getattr(held, name)
            if setting != has:
                raise refuse(
                    "checkpoint_differs",
                    f"{name} is {setting}, but the weights to load have {has}: ask for the same",
                )
    ordered = {name: files.pairs[name] for name in layers.modules if name in files.pairs}
    adapter = make_adapter(held, ordered, device)
    # 3. Load the optimizer's state.
    if optimizer:
        adapter.steps = int(state.get("steps", 0))
        _load_moments(adapter, directory)
    return adapter


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def _target_modules(layers: LoraLayers, names: set[str]) -> list[str]:
    """List last names, as in PEFT and vLLM, if they choose the same layers; else full names."""
    last = {name.rpartition(".")[2] for name in names}
    matched = {name for name in layers.modules if name.rpartition(".")[2] in last}
    return sorted(last if matched == names else names)


def _moments(adapter: Adapter) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, pair in adapter.pairs.items():
        for half, parameter in zip("AB", pair, strict=True):
            held = adapter.optimizer.state.get(parameter, {})
            for moment in _MOMENTS:
                if moment in held:
                    tensors[f"{name}.{half}.{moment}"] = held[moment].detach().cpu()
    return tensors


def _load_moments(adapter: Adapter, directory: Path) -> None:
    from safetensors.torch import load_file

    path = directory / OPTIMIZER_FILE
    if not path.is_file():
        raise refuse(
            "optimizer_missing",
            f"{directory.name} was saved without the optimizer's state: load the weights alone",
        )
    tensors = load_file(path)
    for name, pair in adapter.pairs.items():
        for half, parameter in zip("AB", pair, strict=True):
            keys = [f"{name}.{half}.{moment}" for moment in _MOMENTS]
            present = [key for key in keys if key in tensors]
            if adapter.steps == 0 and not present:
                continue
            if len(present) != len(keys) or any(
                tensors[key].shape != parameter.shape for key in keys
            ):
                raise ResidentError(
                    "server", "checkpoint_damaged", f"{directory.name}: no moments of {name}"
                )
            adapter.optimizer.state[parameter] = {
                "step": torch.tensor(float(adapter.steps)),
                **{
                    moment: tensors[key].to(parameter.device)
                    for moment, key in zip(_MOMENTS, keys, strict=True)
                },
            }


def _read_state(directory: Path) -> dict[str, Any]:
    path = directory / STATE_FILE
    if not path.is_file():
        return {}  # another program made the adapter
    state: dict[str, Any] = parse_json(path.read_text())
    if state.get("format") != STATE_FORMAT:
        raise ResidentError(
            "server",
            "checkpoint_unreadable",
            f"{directory.name}: {STATE_FILE} has format {state.get('format')}, expected "
            f"{STATE_FORMAT}",
        )
    return state


def _check_fits(files: LoraFiles, layers: LoraLayers) -> int:
    """Return the one rank of an adapter over this base. Raises ResidentError."""
    ranks = {int(down.shape[0]) for down, _ in files.pairs.values()}
    if len(ranks) != 1 or files.rank_stabilised:
        raise refuse(
            "checkpoint_unsupported",
            f"{files.path.name} has ranks {sorted(ranks)}, rank-stabilised: "
            f"{files.rank_stabilised}; only adapters of one rank, scaled by alpha / rank, are "
            "trained on here",
        )
    for name, (down, up) in files.pairs.items():
        module = layers.modules.get(name)
        has = (int(down.shape[1]), int(up.shape[0]))
        if module is None or has != linear_shape(module):
            raise refuse(
                "base_model_differs",
                f"{files.path.name} has {has[0]} -> {has[1]} for {name!r}, which the base model "
                "does not have: it belongs to another base",
            )
    return ranks.pop()
