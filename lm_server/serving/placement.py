"""From a configuration to the slots of the pool: which engine, which trainer, on which device.

Engines are imported where they are made: a server without torch serves `deterministic`, and the
server of a vLLM engine never loads torch at all.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from nip_lm_server.auth import without_secrets
from nip_lm_server.devices import has_cuda
from nip_lm_server.engines.base import Engine
from nip_lm_server.engines.deterministic import DeterministicEngine
from nip_lm_server.engines.reply_rules import load_replies
from nip_lm_server.serving.served_base import MakeEngine, Slot
from nip_lm_server.spec import EngineSpec, ServerSpec, base_served_name
from nip_lm_server.training.deterministic import DeterministicTrainer
from nip_lm_server.training.trainers import SubprocessTrainer, Trainer
from nip_lm_server.version import INSTALL_LOCAL


def make_slots(
    spec: ServerSpec, environment: Mapping[str, str], state_dir: Path
) -> tuple[Slot, ...]:
    """The slots of a server. Raises ValueError if the configuration makes no sense."""
    slots = tuple(_slot(engine, environment, state_dir) for engine in spec.engines())
    names = [slot.base_model for slot in slots]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two engines serve the name {name!r}: set served_model_name")
    return slots


def _slot(spec: EngineSpec, environment: Mapping[str, str], state_dir: Path) -> Slot:
    # 1. Devices: "auto" is CUDA where there is one, but not without a model.
    cuda = spec.engine != "deterministic" and has_cuda(environment)
    automatic = "cuda" if cuda else "cpu"
    training_device = spec.training_device if spec.training_device != "auto" else automatic
    engine_device = str(spec.options.get("device", "auto"))
    # 2. Engine and trainer.
    trainer: Trainer
    if spec.engine == "deterministic":
        make_engine, trainer = _deterministic(spec)
    else:
        make_engine = _with_model(spec, state_dir)
        trainer = SubprocessTrainer(_for_device(without_secrets(environment), training_device))
    # 3. The name. What can't stand in one becomes a dash.
    name = re.sub(r"[^A-Za-z0-9._/-]", "-", base_served_name(spec.model))
    return Slot(
        spec=spec,
        base_model=spec.served_model_name or name,
        make_engine=make_engine,
        trainer=trainer,
        training_device=training_device,
        engine_device=engine_device if engine_device != "auto" else automatic,
    )


def _deterministic(spec: EngineSpec) -> tuple[MakeEngine, Trainer]:
    if spec.options:
        raise ValueError(f"the deterministic engine has no options, got {dict(spec.options)}")
    replies = load_replies(Path(spec.replies) if spec.replies else None)

    def make(path: str, name: str) -> Engine:
        return DeterministicEngine(name, replies, None if path == spec.model else Path(path))

    return make, DeterministicTrainer(replies)


def _with_model(spec: EngineSpec, state_dir: Path) -> MakeEngine:
    if spec.replies is not None:
        raise ValueError("--replies belongs to the deterministic engine")
    if spec.engine == "vllm":
        from nip_lm_server.engines.vllm import VllmEngine
        from nip_lm_server.engines.vllm_options import VllmOptions

        _check_options(VllmOptions, spec)
        return partial(VllmEngine, state_dir=state_dir, **spec.options)
    try:
        from nip_lm_server.engines.embedded import EmbeddedEngine
        from nip_lm_server.engines.loading import EmbeddedOptions
    except ImportError as error:
        raise ValueError(
            f"the embedded engine needs the extra 'local' ({INSTALL_LOCAL}): {error}"
        ) from error
    _check_options(EmbeddedOptions, spec)
    return partial(EmbeddedEngine, **spec.options)


def _check_options(options: Any, spec: EngineSpec) -> None:
    known = [field.name for field in fields(options)]
    for name in spec.options:
        if name not in known:
            raise ValueError(
                f"an option of the {spec.engine} engine is wrong: it has no {name!r}; it has "
                f"{', '.join(known)}"
            )


def _for_device(environment: Mapping[str, str], device: str) -> dict[str, str]:
    """The environment of a training process that is to see this device alone."""
    visible = [n for n in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if n]
    kind, _, numbers = device.partition(":")
    if kind == "cpu":
        return {**environment, "CUDA_VISIBLE_DEVICES": ""}
    if not numbers:
        return dict(environment)
    chosen = [int(number) for number in numbers.split(",")]
    if visible and max(chosen) >= len(visible):
        raise ValueError(f"training_device is {device!r}, but only {visible} are visible")
    names = [visible[number] if visible else str(number) for number in chosen]
    return {**environment, "CUDA_VISIBLE_DEVICES": ",".join(names)}
