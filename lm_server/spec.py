"""What a server is: the engine, the model and their settings. Standard library only.

Both sides need it: whoever starts a server writes it as a command line, the server reads it from
there, and both derive the same digest, by which a running server is known to be the right one.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from nip_lm_server.version import SERVER_VERSION

ENGINES = ("deterministic", "embedded", "vllm")
DEFAULT_MAX_UPLOAD_BYTES = 512 * 1024 * 1024
DEFAULT_LOADED_ADAPTERS = 32
SHARING = ("auto", "yes", "no")


@dataclass(frozen=True)
class EngineSpec:
    """One engine: the base model that it serves, and where fine-tunes of that are trained."""

    engine: str
    model: str  # a name, or the path of a model
    replies: str | None = None  # replies file of the deterministic engine; None: the packaged one
    served_model_name: str | None = None  # None: derived from `model`
    options: Mapping[str, Any] = field(default_factory=dict)  # arguments of the engine, JSON
    training_device: str = "auto"
    """"cpu", "cuda" (all that are visible) or "cuda:0,1"; "auto": CUDA where there is one."""
    share_device: str = "auto"
    """Whether the engine leaves the device while a job trains: "yes", "no", or "auto": if both
    use CUDA devices of the same number."""
    loaded_adapters: int = DEFAULT_LOADED_ADAPTERS
    bases_at_once: int = 1
    """How many base models run beside each other once full training has made more of them."""

    def __post_init__(self) -> None:
        """Raises ValueError, naming the setting."""
        if self.engine not in ENGINES:
            raise ValueError(f"unknown engine {self.engine!r}, expected one of {list(ENGINES)}")
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
        """Everything that changes what the engine does; a replies file counts by its content."""
        replies = Path(self.replies).read_bytes() if self.replies is not None else b""
        path = Path(self.model).expanduser()
        return {
            "engine": self.engine,
            "model": str(path.resolve()) if path.exists() else self.model,
            "served_model_name": self.served_model_name,
            "replies": hashlib.sha256(replies).hexdigest(),
            "options": dict(self.options),
            "training_device": self.training_device,
            "share_device": self.share_device,
            "loaded_adapters": self.loaded_adapters,
            "bases_at_once": self.bases_at_once,
        }

    def to_json(self) -> str:
        """What --add-engine takes: the fields that aren't their default."""
        default = EngineSpec(self.engine, self.model)
        return json.dumps(
            {
                f.name: getattr(self, f.name)
                for f in fields(EngineSpec)
                if f.name in ("engine", "model")
                or getattr(self, f.name) != getattr(default, f.name)
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "EngineSpec":
        """The reverse of `to_json`. Raises ValueError, naming what is wrong."""
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError(f"expected a JSON object with engine and model, got {text[:60]!r}")
        unknown = sorted(value.keys() - {f.name for f in fields(EngineSpec)})
        if unknown or not {"engine", "model"} <= value.keys():
            known = ", ".join(f.name for f in fields(EngineSpec))
            raise ValueError(f"an engine needs engine and model and may have {known}; got {value}")
        return cls(**value)


@dataclass(frozen=True)
class ServerSpec(EngineSpec):
    """One server's configuration: its first engine, more of them, and its limits."""

    more_engines: tuple[EngineSpec, ...] = ()
    max_upload_bytes: int = DEFAULT_MAX_UPLOAD_BYTES

    def engines(self) -> tuple[EngineSpec, ...]:
        """All engines, the first one first."""
        own = {f.name: getattr(self, f.name) for f in fields(EngineSpec)}
        return (EngineSpec(**own), *self.more_engines)

    def digest(self) -> str:
        """SHA-256 of everything that changes what the server does."""
        value = {
            "version": SERVER_VERSION,
            "engines": [engine.facts() for engine in self.engines()],
            "max_upload_bytes": self.max_upload_bytes,
        }
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

    def arguments(self) -> list[str]:
        """The command line that `nip_lm_server.__main__` reads this back from."""
        arguments = ["--engine", self.engine, "--model", self.model]
        if self.replies is not None:
            arguments += ["--replies", self.replies]
        if self.served_model_name is not None:
            arguments += ["--served-model-name", self.served_model_name]
        for name in sorted(self.options):
            arguments += ["--option", f"{name}={json.dumps(self.options[name])}"]
        for engine in self.more_engines:
            arguments += ["--add-engine", engine.to_json()]
        for name in (
            "training_device",
            "share_device",
            "loaded_adapters",
            "bases_at_once",
            "max_upload_bytes",
        ):
            arguments += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        return arguments
