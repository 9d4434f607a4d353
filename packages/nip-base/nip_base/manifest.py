"""The manifest of a model, ``manifest.json`` in its directory: its name, its making, its files.

ModelFacts                    the part of it about the making
WrittenManifest              all of it, as it is written; `seal_manifest` adds its checksum
ModelManifest                 the document, as read
parse_manifest                the text of one -> it
read_manifest                 that of a model's directory
has_right_checksum            whether damage to it can be ruled out
checksum_of, content_digest   over a manifest, and over what it says of the files
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, ValidationError

from nip_base.disk import MANIFEST
from nip_base.formats.bounds import parse_json

MANIFEST_FORMAT = 1
CHECKSUM = "checksum"
"""In a manifest, over all of it; earlier versions wrote none."""
TRAINING_RESULT = "training_result.json"
"""Has times in it, so it is left out of the digest that says whether two adapters are equal."""


class FileEntry(TypedDict):
    """A file of a model, as its manifest is written."""

    sha256: str
    bytes: int


class ModelFacts(TypedDict):
    """A model's making, as its manifest is written. `ModelManifest` says more of each key."""

    kind: Literal["adapter", "base"]
    name: str
    base_model: str
    job: str
    job_key: str
    parent: str | None
    parent_content_digest: str | None
    method: str
    settings: dict[str, Any]
    lora_rank: int | None
    seed: int
    training: dict[str, Any]
    created_at: float


class WrittenManifest(ModelFacts):
    """A manifest as it is written, without its checksum."""

    format: int
    digest: str
    content_digest: str
    files: dict[str, FileEntry]


class SealedManifest(WrittenManifest):
    """The whole document; its last key is the checksum over the others."""

    checksum: str


class ModelFile(BaseModel):
    """A file of a model."""

    model_config = ConfigDict(frozen=True, extra="allow")

    sha256: str
    bytes: int


class ModelManifest(BaseModel):
    """A model: its name, the job that made it, and its files by their names in its directory.

    Fields of a later version are kept; a field that an earlier one did not write has a default.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    digest: str
    content_digest: str
    kind: Literal["adapter", "base"] = "adapter"
    name: str
    base_model: str
    job: str
    job_key: str | None = None
    parent: str | None = None
    method: str | None = None
    settings: dict[str, Any] = {}
    """`EffectiveSettings`, as they were when it was trained."""
    lora_rank: int | None = None  # of an adapter; None in those of earlier versions, too
    seed: int | None = None
    training: dict[str, Any] = {}
    """The figures of `TrainingResult`, with those of the method."""
    created_at: float = 0.0
    files: dict[str, ModelFile]

    def digest_of_files(self) -> str:
        """Return the digest that `content_digest` has to be."""
        return digest_files({name: file.sha256 for name, file in self.files.items()})

    @property
    def rank(self) -> int:
        """The adapter's LoRA rank. Raises KeyError for a base model."""
        return self.lora_rank or int(self.settings["lora_rank"])


def parse_manifest(value: Any) -> ModelManifest:
    """Check a parsed manifest. Raises ValueError with the first key that is wrong."""
    try:
        return ModelManifest.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place or 'it'}: {first['msg']}") from None


def read_manifest(folder: Path) -> ModelManifest:
    """Read the manifest of the model in `folder`. Raises OSError, or ValueError if it is wrong."""
    return parse_manifest(parse_json((folder / MANIFEST).read_text()))


def has_right_checksum(folder: Path) -> bool:
    """Say whether a manifest is as it was written; one without a checksum counts as right.

    Raises OSError, or ValueError for a file that is no JSON.
    """
    # Over the document itself and not the model of it: fields of a later version count, too.
    value = parse_json((folder / MANIFEST).read_text())
    has_checksum = isinstance(value, dict) and CHECKSUM in value
    return not has_checksum or value[CHECKSUM] == checksum_of(value)


def seal_manifest(manifest: WrittenManifest) -> SealedManifest:
    """Add the checksum, which tells damage to a manifest from damage to the files."""
    return {**manifest, "checksum": checksum_of(manifest)}


def checksum_of(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 over all other keys of a manifest. Earlier ones had no checksum."""
    rest = {key: value for key, value in manifest.items() if key != CHECKSUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def content_digest(files: Mapping[str, FileEntry]) -> str:
    """Digest the names and digests of a model's files: equal models have equal ones."""
    return digest_files({name: entry["sha256"] for name, entry in files.items()})


def digest_files(sha256_by_name: Mapping[str, str]) -> str:
    """As `content_digest`, of the files' SHA-256 by their names."""
    listed = "".join(
        f"{name} {sha256_by_name[name]}\n"
        for name in sorted(sha256_by_name)
        if name != TRAINING_RESULT
    )
    return hashlib.sha256(listed.encode()).hexdigest()
