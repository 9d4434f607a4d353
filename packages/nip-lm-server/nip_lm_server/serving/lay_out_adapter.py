"""An adapter from elsewhere, laid out as a model of a server's state.

lay_out_adapter   copies its files, with a manifest, into a folder for `import_models`

Nothing is run and nothing is loaded: an adapter that can't be served is refused when it is to be
served. Its name says where it comes from, and is the same wherever it is laid out from equal files.
"""

import hashlib
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from pydantic import ValidationError

from nip_base.disk import hash_file, publish
from nip_base.formats.bounds import parse_json
from nip_base.manifest import (
    MANIFEST_FORMAT,
    FileEntry,
    WrittenManifest,
    content_digest,
    seal_manifest,
)
from nip_base.wire import METHOD_HYPERPARAMETERS, EffectiveSettings
from nip_lm_server.engines.base import EngineError
from nip_lm_server.lora.adapter_files import read_adapter
from nip_lm_server.lora.probes import PROBE, ProbeError, read_probe
from nip_lm_server.state.directory import MODELS
from nip_lm_server.state.models import AdapterError, adapter_digest, adapter_name

# All that serving needs: a publisher's other files are not taken over.
_FILES = ("adapter_config.json", "adapter_model.safetensors", PROBE)


@dataclass(frozen=True)
class LaidOut:
    """An adapter under its served name, with the digest of its content."""

    name: str
    digest: str
    rank: int
    has_probe: bool


class _Training(TypedDict):
    method: str
    settings: dict[str, Any]
    seed: int
    training: dict[str, Any]


def lay_out_adapter(
    source: Path,
    folder: Path,
    *,
    base_model: str,
    suffix: str,
    key: str,
    facts: Mapping[str, Any],
) -> LaidOut:
    """Copy the adapter in `source` to ``folder/models``, as a model over `base_model`.

    `key` says where it comes from, once and for all; `suffix` the same for people. `facts` may have
    its publisher's words on the training: method, settings, seed; nonsense is left out. Raises
    AdapterError if it is no LoRA adapter.
    """
    try:
        adapter = read_adapter(source)
        has_probe = (source / PROBE).is_file()
        # It may have none; one that can't be read would fail every proof.
        if has_probe:
            read_probe(source)
    except (EngineError, ProbeError) as error:
        # An error of the adapter, before anything is copied: no engine has it yet.
        raise AdapterError(str(error)) from None
    # 1. Its files, their digest, and its name.
    present = [name for name in _FILES if (source / name).is_file()]
    files: dict[str, FileEntry] = {
        name: {"sha256": hash_file(source / name), "bytes": (source / name).stat().st_size}
        for name in present
    }
    content = content_digest(files)
    digest = adapter_digest(key, content)
    name = adapter_name(base_model, suffix, digest)
    # 2. The folder, as a training here would have left it.
    (folder / MODELS).mkdir(parents=True, exist_ok=True)
    part = folder / MODELS / f".{digest}.part"
    part.mkdir()
    for file in present:
        shutil.copyfile(source / file, part / file)
    manifest: WrittenManifest = {
        "format": MANIFEST_FORMAT,
        "digest": digest,
        "content_digest": content,
        "kind": "adapter",
        "name": name,
        "base_model": base_model,
        "job": f"ftjob-{hashlib.sha256(f'{key} {content}'.encode()).hexdigest()[:24]}",
        "job_key": key,
        "parent": None,
        "parent_content_digest": None,
        "lora_rank": adapter.rank,
        **_describe_training(source, facts),
        "created_at": time.time(),
        "files": files,
    }
    publish(part, folder / MODELS / digest, seal_manifest(manifest))
    return LaidOut(name, content, adapter.rank, has_probe)


def _describe_training(source: Path, facts: Mapping[str, Any]) -> _Training:
    """Describe a training as the server's table does. Its publisher may have said anything."""
    method, seed = facts.get("method"), facts.get("seed")
    try:
        settings = EffectiveSettings.model_validate(facts.get("settings"))
    except ValidationError:
        # The settings are for people and for later jobs; serving needs the weights alone.
        settings = _read_settings(source)
    # The seed fits into a column of SQLite.
    return {
        "method": method if method in METHOD_HYPERPARAMETERS else "supervised",
        "settings": settings.model_dump(),
        "seed": seed if isinstance(seed, int) and 0 <= seed < 2**63 else 0,
        "training": {"unchanged": False},
    }


def _read_settings(source: Path) -> EffectiveSettings:
    """Read the settings in the adapter itself, and take the lowest values for the others."""
    try:
        config = parse_json((source / "adapter_config.json").read_text(encoding="utf-8"))
        targets = config.get("target_modules")
        return EffectiveSettings(
            n_epochs=1,
            batch_size=1,
            learning_rate_multiplier=1.0,
            learning_rate=0.0,
            lora_rank=config["r"],
            lora_alpha=config["lora_alpha"],
            lora_dropout=config.get("lora_dropout") or 0.0,
            lora_target_modules=targets if isinstance(targets, list) else "all-linear",
            max_length=2,
            start_from="base",
        )
    except (ValueError, KeyError, AttributeError) as error:
        # Rank and alpha are needed to serve it, so without them it is no adapter.
        raise AdapterError(f"{source / 'adapter_config.json'} can't be used: {error}") from None
