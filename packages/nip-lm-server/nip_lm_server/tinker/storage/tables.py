"""The database of Tinker's API, and its tables of weights and samplers.

Tables         the connection, and the schema
WeightTables   samplers, and weights on disk by their paths
"""

import json
import sqlite3
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from nip_lm_server.state.database import SqliteFile
from nip_lm_server.state.directory import StateError
from nip_lm_server.tinker.storage.records import (
    CheckpointRow,
    LoraShape,
    SamplerRow,
)

FORMAT = 1
_SCHEMA = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, created_at REAL NOT NULL, heard_at REAL NOT NULL, finished_at REAL,
    finish TEXT, user_metadata TEXT NOT NULL, sdk_version TEXT
);
CREATE TABLE models (
    id TEXT PRIMARY KEY, session_id TEXT NOT NULL REFERENCES sessions (id),
    base_model TEXT NOT NULL, lora TEXT NOT NULL, created_at REAL NOT NULL,
    durable_seq INTEGER NOT NULL DEFAULT -1, user_metadata TEXT NOT NULL
);
CREATE TABLE requests (
    owner TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL, digest TEXT NOT NULL,
    payload BLOB, status TEXT NOT NULL, created_at REAL NOT NULL, ended_at REAL, fetched_at REAL,
    result BLOB, is_protobuf INTEGER NOT NULL DEFAULT 0, error TEXT, category TEXT,
    void INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (owner, seq)
);
CREATE INDEX requests_pending ON requests (owner, seq) WHERE status = 'pending';
CREATE TABLE samplers (
    id TEXT PRIMARY KEY, session_id TEXT NOT NULL REFERENCES sessions (id),
    base_model TEXT NOT NULL, model_path TEXT, served_name TEXT NOT NULL, created_at REAL NOT NULL
);
CREATE TABLE checkpoints (
    path TEXT PRIMARY KEY, model_id TEXT NOT NULL, session_id TEXT NOT NULL,
    base_model TEXT NOT NULL, kind TEXT NOT NULL,
    name TEXT NOT NULL, folder TEXT NOT NULL, content_digest TEXT NOT NULL, bytes INTEGER NOT NULL,
    lora TEXT NOT NULL, created_at REAL NOT NULL, expires_at REAL, user_metadata TEXT NOT NULL,
    has_optimizer INTEGER NOT NULL, deleted_at REAL
);
CREATE INDEX checkpoints_by_model ON checkpoints (model_id, created_at);
"""


class Tables(SqliteFile):
    """One connection, on the event loop's thread."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time):
        """Open or create the database. Raises StateError if it can't be used."""
        self._clock = clock
        super().__init__(path)

    def _prepare(self) -> None:
        version = self._read_version()
        if version > FORMAT:
            raise StateError(
                f"{self.path} has format {version}, this server knows {FORMAT}: use the version "
                "that wrote it"
            )
        self._make_durable()
        if not version:
            self._change_schema(_SCHEMA, FORMAT)


class WeightTables(Tables):
    """Samplers and weights."""

    def add_sampler(
        self, id: str, session_id: str, base_model: str, model_path: str | None, served_name: str
    ) -> bool:
        """Enter a sampler; nothing where it is there. False: another one has its id."""
        self.execute(
            "INSERT OR IGNORE INTO samplers VALUES (?, ?, ?, ?, ?, ?)",
            id, session_id, base_model, model_path, served_name, self._clock(),
        )  # fmt: skip
        row = self.fetch_one("SELECT served_name FROM samplers WHERE id = ?", id)
        return row is not None and row["served_name"] == served_name

    def find_sampler(self, id: str) -> SamplerRow | None:
        """Return a sampler."""
        row = self.fetch_one("SELECT * FROM samplers WHERE id = ?", id)
        return None if row is None else SamplerRow(**row)

    def list_samplers_of(self, session_id: str) -> list[SamplerRow]:
        """List the samplers of a session."""
        rows = self.fetch_all("SELECT * FROM samplers WHERE session_id = ?", session_id)
        return [SamplerRow(**row) for row in rows]

    def put_checkpoint(self, row: CheckpointRow) -> None:
        """Enter weights that are on disk, in the place of those under the same path."""
        values = asdict(row)
        values["lora"] = json.dumps(asdict(row.lora))
        values["user_metadata"] = json.dumps(row.user_metadata)
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        self.execute(
            f"INSERT OR REPLACE INTO checkpoints ({names}) VALUES ({marks})",  # noqa: S608
            *values.values(),
        )

    def find_checkpoint(self, path: str) -> CheckpointRow | None:
        """Return weights by their path, deleted ones too: a name is given once."""
        row = self.fetch_one("SELECT * FROM checkpoints WHERE path = ?", path)
        return None if row is None else _checkpoint(row)

    def list_checkpoints(
        self, model_id: str | None, limit: int, offset: int
    ) -> list[CheckpointRow]:
        """List named weights that are there, the newest first: of a model, or all."""
        rows = self.fetch_all(
            "SELECT * FROM checkpoints WHERE deleted_at IS NULL AND kind != 'snapshot' "
            "AND (?1 IS NULL OR model_id = ?1) ORDER BY created_at DESC, path LIMIT ?2 OFFSET ?3",
            model_id, limit, offset,
        )  # fmt: skip
        return [_checkpoint(row) for row in rows]

    def count_checkpoints(self) -> int:
        """Count the named weights that are there."""
        row = self.fetch_one(
            "SELECT COUNT(*) AS n FROM checkpoints WHERE deleted_at IS NULL AND kind != 'snapshot'"
        )
        return int(row["n"]) if row else 0

    def list_snapshots_of(self, session_id: str) -> list[CheckpointRow]:
        """List the unnamed weights of a session that are there, the oldest first."""
        rows = self.fetch_all(
            "SELECT * FROM checkpoints WHERE session_id = ? AND kind = 'snapshot' "
            "AND deleted_at IS NULL ORDER BY created_at",
            session_id,
        )
        return [_checkpoint(row) for row in rows]

    def list_expired(self) -> list[CheckpointRow]:
        """List weights whose time is over."""
        rows = self.fetch_all(
            "SELECT * FROM checkpoints WHERE deleted_at IS NULL AND expires_at < ?", self._clock()
        )
        return [_checkpoint(row) for row in rows]

    def list_folders(self) -> set[str]:
        """List the folders of all weights that are there."""
        return {
            row["folder"]
            for row in self.fetch_all("SELECT folder FROM checkpoints WHERE deleted_at IS NULL")
        }

    def set_expiry(self, path: str, ttl_s: float | None) -> None:
        """Set the seconds from now for which weights are kept; None: for ever."""
        until = None if ttl_s is None else self._clock() + ttl_s
        self.execute("UPDATE checkpoints SET expires_at = ? WHERE path = ?", until, path)

    def mark_deleted(self, path: str) -> None:
        """Take weights out of view; their path is not given again."""
        self.execute("UPDATE checkpoints SET deleted_at = ? WHERE path = ?", self._clock(), path)


def _checkpoint(row: sqlite3.Row) -> CheckpointRow:
    values = dict(row)
    values |= {
        "lora": LoraShape(**json.loads(values["lora"])),
        "user_metadata": json.loads(values["user_metadata"]),
        "has_optimizer": bool(values["has_optimizer"]),
    }
    return CheckpointRow(**values)
