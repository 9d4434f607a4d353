"""Fine-tuned models on disk and in the table. `serving.pool` decides whether they answer.

A model is a directory ``models/<digest>`` whose ``manifest.json`` has the SHA-256 of every other
file in it. One rename puts it there, so a directory that exists is whole. There are two kinds: an
`adapter` over a base model, and a `base` of its own. A proof enters a model in the table; the row
keeps the latest proof, or the problem that keeps the model from answering.
"""

import asyncio
import hashlib
import json
import re
import shutil
import time
from dataclasses import asdict
from pathlib import Path

from nip_base.disk import MANIFEST, hash_file, publish
from nip_base.manifest import (
    MANIFEST_FORMAT,
    FileEntry,
    ModelFacts,
    ModelManifest,
    WrittenManifest,
    content_digest,
    has_right_checksum,
    parse_manifest,
    read_manifest,
    seal_manifest,
)
from nip_base.proof import Proof
from nip_lm_server.errors import ModelError
from nip_lm_server.state.database import UNFINISHED, Database, dump
from nip_lm_server.state.files import SET_ASIDE
from nip_lm_server.state.rows import ModelRow, read_row

DIGEST_CHARACTERS = 12
_DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_CHARACTERS}}}")


class AdapterError(ModelError):
    """A model on disk is damaged, or the engine doesn't answer with its weights."""


class NotProvedError(AdapterError):
    """The engine answers, but not with the weights of a model, as far as can be told."""


def adapter_digest(job_key: str, content_digest: str) -> str:
    """Make the digest in a model's name from its job's key and the content of its request."""
    joined = json.dumps([job_key, content_digest]).encode()
    return hashlib.sha256(joined).hexdigest()[:DIGEST_CHARACTERS]


def adapter_name(base_model: str, suffix: str | None, digest: str) -> str:
    """``ft:<base>:<suffix>:<digest>``, as OpenAI's names are built.

    A suffix may be any text. A dash replaces the characters that no name has (spaces, colons,
    slashes).
    """
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", suffix or "").strip("-")
    return f"ft:{base_model}:{readable}:{digest}"


class ModelStore:
    """The fine-tuned models of one server."""

    def __init__(self, directory: Path, database: Database):
        self._directory = directory
        self._database = database
        directory.mkdir(exist_ok=True)
        # A kill in `commit` left these. Only names that `commit` gives are touched.
        for leftover in directory.glob(".*.part"):
            if _DIGEST.fullmatch(leftover.name[1 : -len(".part")]):
                shutil.rmtree(leftover)

    # Disk

    def path(self, digest: str) -> Path:
        """Return the path of an adapter's directory."""
        return self._directory / digest

    def is_committed(self, digest: str) -> bool:
        """Return whether the adapter's directory is there; then it is whole."""
        return (self.path(digest) / MANIFEST).exists()

    def manifest(self, digest: str) -> ModelManifest:
        """Read the manifest of a committed adapter. Raises OSError, ValueError."""
        return read_manifest(self.path(digest))

    def commit(self, output_dir: Path, digest: str, facts: ModelFacts) -> ModelManifest:
        """Publish a trained adapter by one rename, and return its manifest.

        `facts` go into the manifest. `output_dir` is moved.
        Raises AdapterError if it is empty, OSError if the disk refuses.
        """
        # 1. The files go under a name that no reader looks at.
        part = self._directory / f".{digest}.part"
        shutil.rmtree(part, ignore_errors=True)
        output_dir.rename(part)
        files: dict[str, FileEntry] = {
            str(file.relative_to(part)): {"sha256": hash_file(file), "bytes": file.stat().st_size}
            for file in sorted(part.rglob("*"))
            if file.is_file()
        }
        if not files:
            raise AdapterError("the training left no files in its output directory")
        # 2. Its manifest.
        manifest: WrittenManifest = {
            "format": MANIFEST_FORMAT,
            "digest": digest,
            "content_digest": content_digest(files),
            **facts,
            "files": files,
        }
        sealed = seal_manifest(manifest)
        # 3. One rename makes it a model.
        publish(part, self.path(digest), sealed)
        return parse_manifest(sealed)

    def verify(self, digest: str) -> ModelManifest:
        """Check every file against the manifest, and the manifest against the table; return it.

        Raises AdapterError.
        """
        return self._compare_with_record(digest, self._verify_files(digest))

    async def verify_aside(self, digest: str) -> ModelManifest:
        """`verify`, but read the files in another thread and the table in this one."""
        return self._compare_with_record(
            digest, await asyncio.to_thread(self._verify_files, digest)
        )

    def _verify_files(self, digest: str) -> ModelManifest:
        path = self.path(digest)
        try:
            if not has_right_checksum(path):
                raise AdapterError(f"{path / MANIFEST} is damaged: its own checksum differs")
            manifest = read_manifest(path)
            for name, expected in manifest.files.items():
                sha256 = hash_file(path / name)
                if sha256 != expected.sha256:
                    raise AdapterError(
                        f"{path / name} has SHA-256 {sha256[:12]}…, its manifest says "
                        f"{expected.sha256[:12]}…: the adapter is damaged"
                    )
            if manifest.digest_of_files() != manifest.content_digest:
                raise AdapterError(f"{path / MANIFEST} contradicts itself")
        except (OSError, ValueError) as error:
            raise AdapterError(f"the adapter in {path} can't be read: {error!r}") from error
        return manifest

    def _compare_with_record(self, digest: str, manifest: ModelManifest) -> ModelManifest:
        # A whole directory of another model is as wrong as one file of it.
        row = self._database.fetch_one("SELECT content_digest FROM models WHERE digest = ?", digest)
        on_record = manifest.content_digest if row is None else row["content_digest"]
        if manifest.digest != digest or manifest.content_digest != on_record:
            raise AdapterError(
                f"{self.path(digest)} has another model's files, those of "
                f"{manifest.digest[:12]}… with the content {manifest.content_digest[:12]}…, "
                f"on record {on_record[:12]}…"
            )
        return manifest

    def remove(self, digest: str) -> None:
        """Remove a model's directory, if it is there."""
        if not _DIGEST.fullmatch(digest):
            raise AdapterError(f"{digest!r} names no model's directory")
        shutil.rmtree(self.path(digest), ignore_errors=True)

    def set_aside(self, digest: str) -> Path | None:
        """Move a model to a folder that no server reads, and return its new path.

        Returns None if there is no such model. An earlier one of the same digest there is removed.
        """
        path, aside = self.path(digest), self._directory.with_name(SET_ASIDE) / digest
        if not path.is_dir():
            return None
        aside.parent.mkdir(0o700, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        return path.rename(aside)

    # Table

    def record(self, manifest: ModelManifest, parent: str | None, proof: Proof) -> None:
        """Enter a proved model in the table. Part of the caller's transaction."""
        self._database.insert(
            "models",
            name=manifest.name,
            digest=manifest.digest,
            kind=manifest.kind,
            base_model=manifest.base_model,
            job_id=manifest.job,
            parent=parent,
            content_digest=manifest.content_digest,
            created_at=time.time(),
            proof=dump(asdict(proof)),
            engine_epoch=proof.detail.get("engine_epoch", 0),
        )

    def note_proof(self, name: str, proof: Proof) -> None:
        """Write down a model's new proof: it answers."""
        self._database.execute(
            "UPDATE models SET problem = NULL, proof = ?, engine_epoch = ? WHERE name = ?",
            dump(asdict(proof)),
            proof.detail.get("engine_epoch", 0),
            name,
        )

    def note_problem(self, name: str, problem: str) -> None:
        """Write down why a model does not answer."""
        self._database.execute("UPDATE models SET problem = ? WHERE name = ?", problem, name)

    def problems(self) -> list[str]:
        """List the models unable to answer, with the reason."""
        rows = self._database.fetch_all(
            "SELECT name, problem FROM models WHERE deleted_at IS NULL AND problem IS NOT NULL"
        )
        return [f"{row['name']}: {row['problem']}" for row in rows]

    def get_row(self, name: str) -> ModelRow | None:
        """Return the table's row of a model, None if it is unknown or deleted."""
        row = self._database.fetch_one(
            "SELECT * FROM models WHERE name = ? AND deleted_at IS NULL", name
        )
        return None if row is None else read_row(ModelRow, row)

    def list_rows(self) -> list[ModelRow]:
        """List all models but deleted ones, oldest first."""
        rows = self._database.fetch_all(
            "SELECT * FROM models WHERE deleted_at IS NULL ORDER BY created_at, name"
        )
        return [read_row(ModelRow, row) for row in rows]

    def list_adapters(self, base_model: str) -> list[ModelRow]:
        """The adapters over a base model, newest first."""
        rows = self._database.fetch_all(
            "SELECT * FROM models WHERE deleted_at IS NULL AND kind = 'adapter' "
            "AND base_model = ? ORDER BY created_at DESC, name",
            base_model,
        )
        return [read_row(ModelRow, row) for row in rows]

    def find_user(self, name: str) -> str | None:
        """Name a user of a model: a fine-tune of it, an adapter over it, or an unfinished job."""
        child = self._database.fetch_one(
            "SELECT name FROM models WHERE (parent = ?1 OR base_model = ?1) "
            "AND name != ?1 AND deleted_at IS NULL",
            name,
        )
        if child is not None:
            return f"the model {child['name']}"
        job = self._database.fetch_one(
            f"SELECT id FROM jobs WHERE ?1 IN (model, base_model) AND {UNFINISHED}",  # noqa: S608
            name,
        )
        return None if job is None else f"the unfinished job {job['id']}"

    def mark_deleted(self, name: str) -> None:
        """Mark a model as deleted; neither its name nor its digest is ever given again."""
        self._database.execute("UPDATE models SET deleted_at = ? WHERE name = ?", time.time(), name)
