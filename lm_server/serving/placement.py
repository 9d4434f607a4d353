"""From a configuration to the slots of the pool: which engine, which trainer, on which device.

Engines are imported where they are made: a server without torch serves `deterministic`, and the
server of a vLLM engine never loads torch at all.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nip_lm_server.api.auth import without_secrets
from nip_lm_server.engines.base import Engine
from nip_lm_server.engines.deterministic import DeterministicEngine, DeterministicTrainer
from nip_lm_server.engines.reply_rules import load_replies
from nip_lm_server.serving.pool import Slot
from nip_lm_server.spec import EngineSpec, ServerSpec
from nip_lm_server.state.models import served_name
from nip_lm_server.training.trainers import SubprocessTrainer, Trainer
from nip_lm_server.version import INSTALL_LOCAL

MakeEngine = Callable[[str, str], Engine]


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
    device = _training_device(spec, environment)
    if spec.engine != "deterministic" and spec.replies is not None:
        raise ValueError("--replies belongs to the deterministic engine")
    make, trainer = _MAKERS[spec.engine](
        spec, _for_device(without_secrets(environment), device), state_dir
    )
    return Slot(
        spec=spec,
        base_model=spec.served_model_name or served_name(spec.model),
        make_engine=make,
        trainer=trainer,
        training_device=device,
        engine_device=_engine_device(spec, environment),
    )


def _deterministic(
    spec: EngineSpec, environment: Mapping[str, str], state_dir: Path
) -> tuple[MakeEngine, Trainer]:
    if spec.options:
        raise ValueError(f"the deterministic engine has no options, got {dict(spec.options)}")
    replies = load_replies(Path(spec.replies) if spec.replies else None)

    def make(path: str, name: str) -> Engine:
        made_here = {} if path == spec.model else {"path": Path(path)}
        return DeterministicEngine(name, replies, **made_here)

    return make, DeterministicTrainer(replies)


def _embedded(
    spec: EngineSpec, environment: Mapping[str, str], state_dir: Path
) -> tuple[MakeEngine, Trainer]:
    try:
        from nip_lm_server.engines.embedded import EmbeddedEngine
    except ImportError as error:
        raise ValueError(
            f"the embedded engine needs the extra 'local' ({INSTALL_LOCAL}): {error}"
        ) from error
    _check_options(EmbeddedEngine, spec)

    def make(path: str, name: str) -> Engine:
        return EmbeddedEngine(path, name, **spec.options)

    return make, SubprocessTrainer(environment)


def _vllm(
    spec: EngineSpec, environment: Mapping[str, str], state_dir: Path
) -> tuple[MakeEngine, Trainer]:
    from nip_lm_server.engines.vllm import VllmEngine

    _check_options(VllmEngine, spec)

    def make(path: str, name: str) -> Engine:
        return VllmEngine(path, name, state_dir=state_dir, **spec.options)

    return make, SubprocessTrainer(environment)


_MAKERS = {"deterministic": _deterministic, "embedded": _embedded, "vllm": _vllm}
_NOT_OPTIONS = ("model_path", "base_path", "served_name", "epoch", "state_dir", "environment")


def _check_options(engine: type[Any], spec: EngineSpec) -> None:
    known = [n for n in inspect.signature(engine).parameters if n not in _NOT_OPTIONS]
    for name in spec.options:
        if name not in known:
            raise ValueError(
                f"an option of the {spec.engine} engine is wrong: it has no {name!r}; it has "
                f"{', '.join(known)}"
            )


# Devices


def _has_cuda(environment: Mapping[str, str]) -> bool:
    """Whether there is a CUDA device, found out without loading torch."""
    return Path("/dev/nvidiactl").exists() and environment.get("CUDA_VISIBLE_DEVICES") != ""


def _training_device(spec: EngineSpec, environment: Mapping[str, str]) -> str:
    if spec.training_device != "auto":
        return spec.training_device
    return "cuda" if spec.engine != "deterministic" and _has_cuda(environment) else "cpu"


def _engine_device(spec: EngineSpec, environment: Mapping[str, str]) -> str:
    chosen = str(spec.options.get("device", "auto"))
    if chosen != "auto":
        return chosen
    return "cuda" if spec.engine != "deterministic" and _has_cuda(environment) else "cpu"


def _for_device(environment: Mapping[str, str], device: str) -> dict[str, str]:
    """The environment of a training process that is to see this device alone."""
    own = dict(environment)
    kind, _, numbers = device.partition(":")
    if kind == "cpu":
        own["CUDA_VISIBLE_DEVICES"] = ""
    elif numbers:
        visible = [n for n in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if n]
        chosen = [int(number) for number in numbers.split(",")]
        if visible and max(chosen) >= len(visible):
            raise ValueError(f"training_device is {device!r}, but only {visible} are visible")
        own["CUDA_VISIBLE_DEVICES"] = ",".join(
            visible[number] if visible else str(number) for number in chosen
        )
    return own
