"""The directory of an adapter, as far as it can be read without torch."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from nip_base.api_errors import EngineError
from nip_base.disk import hash_file
from nip_base.formats.bounds import parse_json


@dataclass(frozen=True)
class ServedAdapter:
    """An adapter in the directory `path`. `digest` covers its weights and their settings."""

    path: Path
    digest: str
    rank: int


def read_adapter(path: Path) -> ServedAdapter:
    """Read the adapter in `path`. Raises EngineError if it is no adapter."""
    try:
        settings = parse_json((path / "adapter_config.json").read_text())
        weights = hash_file(path / "adapter_model.safetensors")
        ranks = [int(settings["r"]), *(settings.get("rank_pattern") or {}).values()]
    # The files may be wrong in any way. The server answers for an EngineError, and would take any
    # other error for a mistake of its own.
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{path} is no LoRA adapter: {error!r}") from error
    # The same matrices, scaled otherwise, are another adapter.
    scaling = {
        key: settings.get(key)
        for key in ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
    }
    joined = json.dumps([weights, scaling], sort_keys=True)
    return ServedAdapter(path, hashlib.sha256(joined.encode()).hexdigest(), max(ranks))


def is_unchanged(path: Path) -> bool:
    """Say whether the training reported no change of the weights."""
    try:
        result = parse_json((path / "training_result.json").read_text())
        return bool(result.get("unchanged", False))
    except (OSError, ValueError, AttributeError):
        # Only shown beside the proof, whose result does not depend on it.
        return False
