"""Adapters: their directories and manifests, their names, and which of them the engine serves.

An adapter is a directory ``models/<digest>`` whose ``manifest.json`` has the SHA-256 of every
other file in it. It is put there by one rename, so a directory that exists is whole. A model is
in the list once its proof stands in the table, and served once this start of the engine has
loaded and proved it again.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nip_core.lm_server import wire
from nip_core.lm_server.database import Database, dump, load
from nip_core.lm_server.engines.base import Engine, EngineError, Proof
from nip_core.lm_server.errors import ApiError, model_not_found
from nip_core.lm_server.files import sync_directory

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
TRAINING_RESULT = "training_result.json"
"""Has times in it, so it is left out of the digest that says whether two adapters are equal."""
DIGEST_CHARACTERS = 12


class AdapterError(Exception):
    """An adapter on disk is damaged, or the engine doesn't answer with its weights."""


def adapter_digest(job_key: str, payload_digest: str) -> str:
    """The digest in an adapter's name: 12 hex characters of its job's key and payload."""
    joined = json.dumps([job_key, payload_digest]).encode()
    return hashlib.sha256(joined).hexdigest()[:DIGEST_CHARACTERS]


def adapter_name(base_model: str, suffix: str | None, digest: str) -> str:
    """``ft:<base>:<suffix>:<digest>``, as OpenAI's names are built."""
    return f"ft:{base_model}:{suffix or ''}:{digest}"


def served_name(model: str) -> str:
    """The name under which a base model given by name or path is served, unless one is chosen."""
    name = Path(model).name if os.path.sep in model and Path(model).exists() else model
    return re.sub(r"[^A-Za-z0-9._/-]", "-", name)


class ModelStore:
    """The adapters of one engine."""

    def __init__(self, directory: Path, database: Database, engine: Engine):
        self._directory = directory
        self._database = database
        self._engine = engine
        self._served: set[str] = set()
        self.started_at = time.time()
        directory.mkdir(exist_ok=True)
        for leftover in directory.glob(".*.part"):
            shutil.rmtree(leftover)

    # Disk

    def path(self, digest: str) -> Path:
        """Where an adapter lies."""
        return self._directory / digest

    def is_committed(self, digest: str) -> bool:
        """Whether the adapter's directory is there; then it is whole."""
        return (self.path(digest) / MANIFEST).exists()

    def manifest(self, digest: str) -> dict[str, Any]:
        """The manifest of a committed adapter."""
        manifest: dict[str, Any] = json.loads((self.path(digest) / MANIFEST).read_text())
        return manifest

    def commit(self, output_dir: Path, digest: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Publish a trained adapter by one rename, and return its manifest.

        `facts` (name, job, parent, settings ...) go into the manifest. `output_dir` is moved.
        Raises AdapterError if it is empty, OSError if the disk refuses.
        """
        part = self._directory / f".{digest}.part"
        shutil.rmtree(part, ignore_errors=True)
        output_dir.rename(part)
        files = {
            str(file.relative_to(part)): {"sha256": _sha256(file), "bytes": file.stat().st_size}
            for file in sorted(part.rglob("*"))
            if file.is_file()
        }
        if not files:
            raise AdapterError("the training left no files in its output directory")
        manifest = {
            "format": MANIFEST_FORMAT,
            "digest": digest,
            "content_digest": _content_digest(files),
            **facts,
            "files": files,
        }
        (part / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
        for path in part.rglob("*"):
            if path.is_dir():
                sync_directory(path)
            else:
                _sync_file(path)
        sync_directory(part)
        part.rename(self.path(digest))
        sync_directory(self._directory)
        return manifest

    def verify(self, digest: str) -> dict[str, Any]:
        """Check every file against the manifest and return that. Raises AdapterError."""
        path = self.path(digest)
        try:
            manifest = self.manifest(digest)
            files: dict[str, dict[str, Any]] = manifest["files"]
            for name, expected in files.items():
                found = _sha256(path / name)
                if found != expected["sha256"]:
                    raise AdapterError(
                        f"{path / name} has SHA-256 {found[:12]}…, its manifest says "
                        f"{expected['sha256'][:12]}…: the adapter is damaged"
                    )
            if _content_digest(files) != manifest["content_digest"]:
                raise AdapterError(f"{path / MANIFEST} contradicts itself")
        except (OSError, ValueError, KeyError) as error:
            raise AdapterError(f"the adapter in {path} can't be read: {error!r}") from error
        return manifest

    # Serving

    async def load_and_prove(self, name: str, digest: str) -> Proof:
        """Make the engine answer to `name` with the committed weights, and prove that it does.

        Raises AdapterError (and unloads it) if it does not.
        """
        await asyncio.to_thread(self.verify, digest)
        path = self.path(digest)
        try:
            try:
                await self._engine.load_adapter(name, path)
            except EngineError as error:
                raise AdapterError(f"the engine can't load {name}: {error}") from error
            proof = await self._engine.prove(name, path)
            if not proof.matches:
                raise AdapterError(
                    f"{name} does not answer with the weights that were saved: {proof.detail}"
                )
        except BaseException:
            # Cancellation included: an adapter that isn't proved must not answer.
            with contextlib.suppress(EngineError):
                await self._engine.unload_adapter(name)
            raise
        self._served.add(name)
        return proof

    def record(self, manifest: Mapping[str, Any], parent: str | None, proof: Proof) -> None:
        """Enter a proved adapter in the table. Part of the caller's transaction."""
        self._database.insert(
            "models",
            name=manifest["name"],
            digest=manifest["digest"],
            base_model=manifest["base_model"],
            job_id=manifest["job"],
            parent=parent,
            content_digest=manifest["content_digest"],
            created_at=time.time(),
            proof=dump(asdict(proof)),
            engine_epoch=self._engine.epoch,
        )

    async def restore(self) -> list[str]:
        """Load and prove every adapter of this base model again, and return what went wrong.

        An adapter with a problem is not served; the others are.
        """
        problems = []
        rows = self._database.all(
            "SELECT * FROM models WHERE deleted_at IS NULL AND base_model = ? ORDER BY created_at",
            self._engine.base_model,
        )
        for row in rows:
            try:
                proof = await self.load_and_prove(row["name"], row["digest"])
            except AdapterError as error:
                problems.append(f"{row['name']}: {error}")
                self._database.execute(
                    "UPDATE models SET problem = ? WHERE name = ?", str(error), row["name"]
                )
            else:
                self._database.execute(
                    "UPDATE models SET problem = NULL, proof = ?, engine_epoch = ? WHERE name = ?",
                    dump(asdict(proof)),
                    self._engine.epoch,
                    row["name"],
                )
        return problems

    async def discard(self, name: str, digest: str) -> None:
        """Unload and remove an adapter that was never entered in the table."""
        if name in self._served:
            self._served.discard(name)
            await self._engine.unload_adapter(name)
        shutil.rmtree(self.path(digest), ignore_errors=True)

    def is_served(self, name: str) -> bool:
        """Whether chat completions may name this model now."""
        return name in self._served or name == self._engine.base_model

    def problems(self) -> list[str]:
        """Adapters that exist and are not served, with the reason."""
        rows = self._database.all(
            "SELECT name, problem FROM models WHERE deleted_at IS NULL AND problem IS NOT NULL "
            "AND base_model = ?",
            self._engine.base_model,
        )
        return [f"{row['name']}: {row['problem']}" for row in rows]

    # API

    def row(self, name: str) -> sqlite3.Row | None:
        """The table's row of an adapter that is not deleted."""
        return self._database.one(
            "SELECT * FROM models WHERE name = ? AND deleted_at IS NULL", name
        )

    def list(self) -> dict[str, Any]:
        """All served models, the base first."""
        rows = self._database.all(
            "SELECT * FROM models WHERE deleted_at IS NULL ORDER BY created_at, name"
        )
        served = [self._object(row) for row in rows if row["name"] in self._served]
        return {"object": "list", "data": [self._base_object(), *served]}

    def retrieve(self, name: str) -> dict[str, Any]:
        """The object of a model. Raises ApiError 404, or 503 with the reason it isn't served."""
        if name == self._engine.base_model:
            return self._base_object()
        row = self.row(name)
        if row is None:
            raise model_not_found(name)
        if name not in self._served:
            raise ApiError(
                503,
                f"The model {name!r} exists but is not served: "
                f"{row['problem'] or 'it belongs to the base model ' + row['base_model']}",
                code="model_not_served",
                param="model",
            )
        return self._object(row)

    async def delete(self, name: str) -> dict[str, Any]:
        """Delete an adapter. Raises ApiError 403 for the base, 404, or 409 while it is needed."""
        if name == self._engine.base_model:
            raise ApiError(
                403, f"{name!r} is the base model: only fine-tuned models can be deleted",
                code="base_model", param="model",
            )  # fmt: skip
        row = self.row(name)
        if row is None:
            raise model_not_found(name)
        child = self._database.one(
            "SELECT name FROM models WHERE parent = ? AND deleted_at IS NULL", name
        )
        job = self._database.one(
            "SELECT id FROM jobs WHERE model = ? AND status IN "
            "('validating_files', 'queued', 'running')",
            name,
        )
        if child is not None or job is not None:
            user = f"the model {child['name']}" if child else f"the unfinished job {job['id']}"  # type: ignore[index]
            raise ApiError(
                409, f"{name!r} is the parent of {user}", code="model_in_use", param="model"
            )
        self._database.execute("UPDATE models SET deleted_at = ? WHERE name = ?", time.time(), name)
        await self.discard(name, row["digest"])
        return {"id": name, "object": "model", "deleted": True}

    def _base_object(self) -> dict[str, Any]:
        return wire.model_object(
            id=self._engine.base_model,
            created_at=self.started_at,
            owned_by="nip",
            nip={"engine": self._engine.name, "engine_epoch": self._engine.epoch,
                 "max_model_len": self._engine.max_model_len},
        )  # fmt: skip

    def _object(self, row: sqlite3.Row) -> dict[str, Any]:
        return wire.model_object(
            id=row["name"],
            created_at=row["created_at"],
            owned_by=wire.ORGANIZATION_ID,
            nip={
                "digest": row["digest"],
                "content_digest": row["content_digest"],
                "job": row["job_id"],
                "base_model": row["base_model"],
                "parent": row["parent"],
                "proof": load(row["proof"]),
                "engine_epoch": row["engine_epoch"],
            },
        )


def _content_digest(files: Mapping[str, Mapping[str, Any]]) -> str:
    listed = "".join(
        f"{name} {files[name]['sha256']}\n" for name in sorted(files) if name != TRAINING_RESULT
    )
    return hashlib.sha256(listed.encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
