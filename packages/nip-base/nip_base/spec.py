"""The specification of a server: its engines, models and limits, and the start of its process.

Capabilities  the abilities of an engine; ENGINES has those of ours, by name
EngineSpec    one engine
ServerSpec    all of them, and the server's limits
Start         what the process of a server is told, as JSON of one argument

Standard library only. The starter of a server and the server itself derive the same digest, by
which a running server is known to be the right one.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from nip_base.importing import find_file
from nip_base.version import SERVER_VERSION

SHARING = ("auto", "yes", "no")


@dataclass(frozen=True)
class Capabilities:
    """The abilities of an engine. Asking for more is refused by name before it gets there."""

    has_weights: bool = True
    """It computes with a model; the deterministic engine draws what it says."""
    runs_on_torch: bool = False
    """It computes in the server's process by torch and transformers: the extra `local`."""
    trains: bool = False
    """Jobs fine-tune its base model, and it loads the adapters that they make."""
    trains_resident: bool = False
    """Tinker's API is served over it: it samples given tokens from adapters that are in training
    step by step over the same base."""
    scores_given_tokens: bool = False
    """It gives log-probabilities of given tokens by itself, and repeats a prompt (`echo`)."""
    proves_weights: bool = False
    """It compares the weights in memory with saved ones, so an adapter without a probe is proved,
    too."""
    serves_several_bases: bool = False
    """Base models that were made here fit beside the first one."""
    quantizes: bool = False
    """It holds weights quantized if it is asked to."""
    sleep: bool = False
    """It gives its device's memory back and comes back with its adapters."""
    logprobs: bool = False
    max_top_logprobs: int = 0
    max_lora_rank: int = 512


ENGINES: Mapping[str, Capabilities] = {
    "deterministic": Capabilities(
        has_weights=False,
        trains=True,
        serves_several_bases=True,
        quantizes=True,  # there is nothing to be held otherwise
        sleep=True,
    ),
    "embedded": Capabilities(
        runs_on_torch=True,
        trains=True,
        trains_resident=True,
        scores_given_tokens=True,
        proves_weights=True,
        serves_several_bases=True,
        sleep=True,
    ),
    "vllm": Capabilities(trains=True, quantizes=True, sleep=True),
}
"""Our engines, with the abilities that each has whatever its options are."""


def name_engines(ability: str) -> str:
    """Name our engines with an ability, for people."""
    return " or ".join(name for name, can in ENGINES.items() if getattr(can, ability))


def check_engine_name(engine: str) -> str:
    """Return the name or address of an engine. Raises ValueError for a text that is neither."""
    if engine in ENGINES or ":" in engine:
        return engine
    raise ValueError(
        f"there is no engine {engine!r}; there are {', '.join(ENGINES)}, and one of your own is "
        'named like "path/to/file.py:Class" or "package.module:Class"'
    )


def base_served_name(model: str) -> str:
    """The name of a base model where none is chosen: a directory's own, else `model` itself."""
    path = Path(os.path.expanduser(model))
    return path.resolve().name if os.path.isdir(path) else model


@dataclass(frozen=True)
class EngineSpec:
    """One engine: its base model, and the place where fine-tunes of it are trained."""

    engine: str  # a key of ENGINES, or the address of a class: path/to/file.py:Class
    model: str  # a name, or the path of a model
    replies: str | None = None  # replies file of the deterministic engine; None: the packaged one
    served_model_name: str | None = None  # None: derived from `model`
    options: Mapping[str, Any] = field(default_factory=dict)  # arguments of the engine, JSON
    training_device: str = "auto"
    """"cpu", "cuda" (all that are visible) or "cuda:0,1"; "auto": CUDA where there is one."""
    share_device: str = "auto"
    """Whether the engine leaves the device while a job trains: "yes", "no", or "auto": if both
    use CUDA devices of the same number."""
    loaded_adapters: int = 32
    bases_at_once: int = 1
    """How many base models run beside each other once full training has made more of them."""

    def __post_init__(self) -> None:
        """Raises ValueError, naming the setting."""
        check_engine_name(self.engine)
        if self.share_device not in SHARING:
            raise ValueError(f"share_device is {self.share_device!r}, expected one of {SHARING}")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+(,\d+)*)?", self.training_device):
            raise ValueError(
                f"training_device is {self.training_device!r}, expected auto, cpu, cuda or cuda:0,1"
            )
        for name in ("loaded_adapters", "bases_at_once"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1")

    def facts(self) -> dict[str, Any]:
        """List all settings of the engine's behaviour; a named file counts by its content."""
        path = Path(os.path.expanduser(self.model))
        file = find_file(self.engine)
        engine_facts: dict[str, Any] = {}
        if file is not None:
            name = self.engine.rpartition(":")[2]
            engine_facts["engine"] = f"{file}:{name}"
            engine_facts["engine_file"] = _content_digest(str(file), "engine file")
        return {
            **{setting.name: getattr(self, setting.name) for setting in fields(EngineSpec)},
            "model": str(path.resolve()) if os.path.exists(path) else self.model,
            "replies": _content_digest(self.replies, "replies file"),
            "options": dict(self.options),
            **engine_facts,
        }

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a JSON object of settings. Raises ValueError, naming what is wrong."""
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError(f"expected a JSON object with engine and model, got {text[:60]!r}")
        names = [setting.name for setting in fields(cls)]
        if not {"engine", "model"} <= value.keys() <= set(names):
            raise ValueError(
                f"an engine needs engine and model and may have {', '.join(names)}; got {value}"
            )
        return cls(**value)


def _content_digest(path: str | None, name: str) -> str:
    """SHA-256 of a file, read in parts; of a pipe or a device it would have no end."""
    if path is None:
        return hashlib.sha256().hexdigest()
    if not os.path.isfile(path):
        raise ValueError(f"{name} {path}: there is no such file")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class ServerSpec(EngineSpec):
    """One server's configuration: its first engine, more of them, and its limits."""

    more_engines: tuple[EngineSpec, ...] = ()
    max_upload_bytes: int = 512 * 1024 * 1024

    def engines(self) -> tuple[EngineSpec, ...]:
        """All engines, the first one first."""
        first = {setting.name: getattr(self, setting.name) for setting in fields(EngineSpec)}
        return (EngineSpec(**first), *self.more_engines)

    def digest(self) -> str:
        """Return the SHA-256 over all settings of the server's behaviour."""
        value = {
            "version": SERVER_VERSION,
            "engines": [engine.facts() for engine in self.engines()],
            "max_upload_bytes": self.max_upload_bytes,
        }
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Start:
    """The start of a server's process: its configuration, its place, and its keys."""

    spec: ServerSpec
    state: Path
    host: str = "127.0.0.1"
    port: int = 8000  # 0: the system chooses one
    api_keys_file: Path | None = None
    no_auth: bool = False
    parent: int | None = None
    """The process with which the server ends."""
    parent_pipe: int | None = None
    """A descriptor whose other end the parent alone holds."""

    def to_json(self) -> str:
        """Write what `from_json` reads."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote. Raises ValueError, naming what is wrong."""
        value = json.loads(text)
        spec = value.pop("spec")
        spec["more_engines"] = tuple(EngineSpec(**engine) for engine in spec["more_engines"])
        keys_file = value.pop("api_keys_file")
        return cls(
            spec=ServerSpec(**spec),
            state=Path(value.pop("state")),
            api_keys_file=keys_file and Path(keys_file),
            **value,
        )
