"""Check every file with a digest in a server's state directory, from outside.

examine     its damaged and missing files, and the jobs and models that its database has
stored_ids  the ids of its jobs, or of its uploads

Covered: the database's structure and its cells (`cells`), uploads, models. Logs, locks and the key
have no digest. Nothing is written.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from nip_base.disk import MANIFEST, hash_file
from nip_base.manifest import ModelManifest, has_right_checksum, read_manifest
from nip_lm_server.state.at_rest.cells import find_broken_cells
from nip_lm_server.state.directory import DATABASE, FILES, MODELS


@dataclass(frozen=True)
class Damage:
    """A file that has changed since it was written, or is missing."""

    path: Path
    problem: str
    expected: str
    actual: str


@dataclass
class Examined:
    """The contents of a state directory, and their damages."""

    jobs: dict[str, tuple[str, str]] = field(default_factory=dict)  # by id: status, its model
    models: dict[str, str] = field(default_factory=dict)  # by name: content digest
    damages: list[Damage] = field(default_factory=list)
    unknown: list[Path] = field(default_factory=list)  # files among uploads and models

    def add(self, path: Path, problem: str, expected: object, actual: object) -> None:
        """Note a damage."""
        self.damages.append(Damage(path, problem, str(expected), str(actual)))


def examine(state_dir: Path) -> Examined:
    """Compare the files with the database and the manifests; nothing where there is no state."""
    result = Examined()
    database = state_dir / DATABASE
    paths = [path for name in (FILES, MODELS) for path in files_under(state_dir / name)]
    if not database.exists():
        if paths:
            result.add(database, "missing", f"the database of {len(paths)} files", "none")
        return result
    # The files that the database and the manifests name are compared; all others are unknown.
    known_paths: set[Path] = set()
    try:
        with closing(open_to_read(database)) as connection:
            problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if problem != "ok":
                raise ValueError(problem)
            jobs = connection.execute("SELECT id, status, adapter_name FROM jobs").fetchall()
            result.jobs = {id: (status, name) for id, status, name in jobs}
            for row in connection.execute(
                "SELECT id, bytes, sha256 FROM files WHERE deleted_at IS NULL"
            ):
                known_paths.add(state_dir / FILES / row[0])
                _check_file(result, state_dir / FILES / row[0], row[1], row[2])
            for row in connection.execute(
                "SELECT name, digest, content_digest, base_model, job_id FROM models "
                "WHERE deleted_at IS NULL"
            ):
                result.models[row[0]] = row[2]
                known_paths |= _check_model(result, state_dir / MODELS / row[1], row)
            for cell, problem in find_broken_cells(connection, partial(_read_manifest, state_dir)):
                result.add(database, f"damaged: {cell}", "what the server wrote", problem)
    except (sqlite3.Error, ValueError) as error:
        result.add(database, "damaged", "the server's database", error)
        return result
    result.unknown = sorted(set(paths) - known_paths)
    return result


def stored_ids(state_dir: Path, table: Literal["jobs", "files"]) -> set[str]:
    """Return the ids in a table of the server's database; none where there is no state."""
    database = state_dir / DATABASE
    if not database.exists():
        return set()
    with closing(open_to_read(database)) as connection:
        return {row[0] for row in connection.execute(f"SELECT id FROM {table}")}  # noqa: S608


def open_to_read(database: Path) -> sqlite3.Connection:
    """Open the database of a server, perhaps a running one, without writing anything."""
    # Where no process has a database in WAL mode open, SQLite would write files beside it.
    still = "" if database.with_name(f"{database.name}-wal").exists() else "&immutable=1"
    return sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro{still}", uri=True)


def _read_manifest(state_dir: Path, digest: str) -> ModelManifest | None:
    """Read a model's manifest. None if it can't be read, or is damaged: `_check_model` says so."""
    try:
        folder = state_dir / MODELS / digest
        return read_manifest(folder) if has_right_checksum(folder) else None
    except (OSError, ValueError):
        return None


def _check_model(result: Examined, folder: Path, row: tuple[str, str, str, str, str]) -> set[Path]:
    """Check one model; returns its files."""
    name, digest, of_content, base_model, job = row
    path = folder / MANIFEST
    try:
        if not has_right_checksum(folder):
            raise ValueError("its own checksum does not match")
        manifest = read_manifest(folder)
        facts = {
            "name": (name, manifest.name),
            "digest": (digest, manifest.digest),
            "content_digest": (of_content, manifest.content_digest),
            "base_model": (base_model, manifest.base_model),
            "job": (job, manifest.job),
        }
        for key, (expected, actual) in facts.items():
            if actual != expected:
                result.add(path, f"another {key}", expected, actual)
                break
        else:
            if manifest.digest_of_files() != of_content:
                result.add(path, "contradicts itself", of_content, manifest.digest_of_files())
        for file, entry in manifest.files.items():
            _check_file(result, folder / file, entry.bytes, entry.sha256)
    except FileNotFoundError:
        result.add(path, "missing", f"the manifest of model {name}", "none")
        return set(files_under(folder))
    except (OSError, ValueError) as error:
        result.add(path, "damaged", f"the manifest of model {name}", repr(error))
        return {path, *files_under(folder)}
    return {path, *(folder / file for file in manifest.files)}


def _check_file(result: Examined, path: Path, size_bytes: int, sha256: str) -> None:
    if not path.is_file():
        result.add(path, "missing", f"{size_bytes} bytes", "none")
    elif path.stat().st_size != size_bytes:
        result.add(path, "damaged", f"{size_bytes} bytes", path.stat().st_size)
    elif (actual_sha256 := hash_file(path)) != sha256:
        result.add(path, "damaged", f"SHA-256 {sha256}", actual_sha256)


def files_under(folder: Path) -> list[Path]:
    """Every file in a folder and the folders in it; none where there is no folder."""
    return [path for path in folder.rglob("*") if path.is_file()]
