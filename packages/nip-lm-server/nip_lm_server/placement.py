"""From a configuration to the slots of the pool: each one's engine, trainer and device.

Engines are imported where they are made: a server without torch serves `deterministic`, and the
server of a vLLM engine never loads torch at all.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from nip_base.machine.devices import compile_caches, has_cuda, only_on, training_memory
from nip_base.spec import ENGINES, EngineSpec, ServerSpec, base_served_name
from nip_lm_server.auth import without_secrets
from nip_lm_server.engines.base import Engine
from nip_lm_server.engines.own_engines import check_arguments, find_capabilities, load_engine
from nip_lm_server.engines.scripted.deterministic_engine import DeterministicEngine
from nip_lm_server.engines.scripted.reply_rules import load_replies
from nip_lm_server.jobs.training_process import SubprocessTrainer
from nip_lm_server.serving.device_memory import share_memory
from nip_lm_server.serving.served_base import MakeEngine, Slot
from nip_lm_server.serving.training_place import Trainer
from nip_lm_server.training.deterministic_trainer import DeterministicTrainer


def make_slots(
    spec: ServerSpec, environment: Mapping[str, str], state_dir: Path
) -> tuple[Slot, ...]:
    """The slots of a server. Raises ValueError if the configuration makes no sense."""
    slots = tuple(_make_slot(engine, environment, state_dir) for engine in spec.engines())
    names = [slot.base_model for slot in slots]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two engines serve the name {name!r}: set served_model_name")
    return share_memory(slots)


def _make_slot(spec: EngineSpec, environment: Mapping[str, str], state_dir: Path) -> Slot:
    # 1. Devices: "auto" is CUDA where there is one, but not without a model.
    cuda = find_capabilities(spec.engine).has_weights and has_cuda(environment)
    automatic = "cuda" if cuda else "cpu"
    training_device = spec.training_device if spec.training_device != "auto" else automatic
    # 2. Engine and trainer.
    trainer: Trainer
    if spec.engine == "deterministic":
        engine_device = "cpu"
        make_engine, trainer = _make_deterministic(spec)
    else:
        make = _make_with_model if spec.engine in ENGINES else _make_own
        make_engine, engine_device = make(spec, environment, state_dir)
        children = {**compile_caches(state_dir / "caches"), **without_secrets(environment)}
        children |= training_memory(environment)
        trainer = SubprocessTrainer(only_on(children, training_device, "training_device"))
    # 3. The name. A character that can't stand in one becomes a dash.
    name = re.sub(r"[^A-Za-z0-9._/-]", "-", base_served_name(spec.model))
    return Slot(
        spec=spec,
        base_model=spec.served_model_name or name,
        make_engine=make_engine,
        trainer=trainer,
        training_device=training_device,
        engine_device=engine_device,
    )


def _make_deterministic(spec: EngineSpec) -> tuple[MakeEngine, Trainer]:
    if spec.options:
        raise ValueError(f"the deterministic engine has no options, got {dict(spec.options)}")
    replies = load_replies(Path(spec.replies) if spec.replies else None)

    def make(path: str, name: str) -> Engine:
        return DeterministicEngine(name, replies, None if path == spec.model else Path(path))

    return make, DeterministicTrainer(replies)


def _make_with_model(
    spec: EngineSpec, environment: Mapping[str, str], state_dir: Path
) -> tuple[MakeEngine, str]:
    """The way to make the engine, and the device it will be on."""
    if spec.replies is not None:
        raise ValueError("--replies belongs to the deterministic engine")
    cuda = has_cuda(environment)
    if spec.engine == "vllm":
        from nip_lm_server.engines.vllm.options import VllmOptions
        from nip_lm_server.engines.vllm.vllm_engine import VllmEngine

        _check_options(VllmOptions, spec)
        options = VllmOptions(**spec.options)
        device = options.cuda_device if cuda else "cpu"
        only_on(environment, device, "device")  # or it is refused
        make = partial(VllmEngine, state_dir=state_dir, environment=environment, **spec.options)
        return make, device
    try:
        from nip_lm_server.engines.embedded.decoding.loaded_model import EmbeddedOptions
        from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine
    except ImportError as error:
        raise ValueError(
            "the embedded engine needs the extra 'local' (pip install 'nip-lm-server[local]'; of "
            f"all of nip `nip doctor` says how to install it): "
            f"{error}"
        ) from error
    _check_options(EmbeddedOptions, spec)
    device = str(EmbeddedOptions(**spec.options).device)
    if device in ("auto", "cuda"):
        device = "cuda:0" if cuda else "cpu"  # as torch understands it
    return partial(EmbeddedEngine, **spec.options), device


def _make_own(
    spec: EngineSpec, environment: Mapping[str, str], state_dir: Path
) -> tuple[MakeEngine, str]:
    """The same of a class outside of this package: it takes a path, a name and its options."""
    del state_dir
    if spec.replies is not None:
        raise ValueError("--replies belongs to the deterministic engine")
    kind = load_engine(spec.engine)
    check_arguments(kind, spec.engine, spec.options)
    device = str(spec.options.get("device", "auto"))
    if device == "auto":
        # All of them, as its device is not known: it leaves while a job trains on any.
        is_on_cuda = find_capabilities(spec.engine).has_weights and has_cuda(environment)
        device = "cuda" if is_on_cuda else "cpu"
    return partial(kind, **spec.options), device


def _check_options(options: Any, spec: EngineSpec) -> None:
    names = [field.name for field in fields(options)]
    for name in spec.options:
        if name not in names:
            raise ValueError(
                f"an option of the {spec.engine} engine is wrong: it has no {name!r}; it has "
                f"{', '.join(names)}"
            )
    variables = spec.options.get("chat_template_kwargs", {})
    if not isinstance(variables, Mapping):
        raise ValueError(
            f"chat_template_kwargs is {variables!r}, expected an object of the chat template's "
            'variables, like {"enable_thinking": false}'
        )
