"""What a server is: the engine, the model and their settings. Standard library only.

Both sides need it: whoever starts a server writes it as a command line, the server reads it from
there, and both derive the same digest, by which a running server is known to be the right one.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nip_core.lm_server.version import SERVER_VERSION

ENGINES = ("deterministic", "embedded")
DEFAULT_MAX_UPLOAD_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True)
class ServerSpec:
    """One server's configuration. `options` are arguments of the engine, JSON-encodable."""

    engine: str
    model: str  # a name, or the path of a model
    replies: str | None = None  # replies file of the deterministic engine; None: the packaged one
    served_model_name: str | None = None  # None: derived from `model`
    options: Mapping[str, Any] = field(default_factory=dict)
    max_upload_bytes: int = DEFAULT_MAX_UPLOAD_BYTES

    def digest(self) -> str:
        """SHA-256 of everything that changes what the server does; a replies file by content."""
        replies = Path(self.replies).read_bytes() if self.replies is not None else b""
        path = Path(self.model).expanduser()
        value = {
            "version": SERVER_VERSION,
            "engine": self.engine,
            "model": str(path.resolve()) if path.exists() else self.model,
            "served_model_name": self.served_model_name,
            "replies": hashlib.sha256(replies).hexdigest(),
            "options": dict(self.options),
            "max_upload_bytes": self.max_upload_bytes,
        }
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

    def arguments(self) -> list[str]:
        """The command line that `nip_core.lm_server.__main__` reads this back from."""
        arguments = ["--engine", self.engine, "--model", self.model]
        if self.replies is not None:
            arguments += ["--replies", self.replies]
        if self.served_model_name is not None:
            arguments += ["--served-model-name", self.served_model_name]
        for name in sorted(self.options):
            arguments += ["--option", f"{name}={json.dumps(self.options[name])}"]
        return [*arguments, "--max-upload-bytes", str(self.max_upload_bytes)]
