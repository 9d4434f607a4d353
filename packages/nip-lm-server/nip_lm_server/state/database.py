"""The server's tables, in SQLite with a write-ahead log. One connection, one thread.

files    uploaded and result files (their contents are plain files, see `files`)
jobs     fine-tuning jobs; a row is never removed, so neither key nor name is ever given twice
events   the events of jobs, as their endpoint shows them
models   adapters and base models that were committed, with their latest proof
meta     counters, such as the engines' epochs

A database of an older format is brought up to date when it is opened, in one transaction. Every
statement runs on the event loop's thread: statements are short, and a transition must be on disk
before a client is told of it (synchronous=FULL).
"""

import contextlib
import json
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nip_base import wire
from nip_base.version import STATE_FORMAT
from nip_lm_server.state.directory import StateError, refuse_lost_database

_SCHEMA = """
CREATE TABLE files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    deleted_at REAL
);
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    idempotency_key TEXT UNIQUE,
    payload_digest TEXT NOT NULL,
    method TEXT NOT NULL,
    model TEXT NOT NULL,
    base_model TEXT NOT NULL,
    parent TEXT,
    training_file TEXT NOT NULL,
    validation_file TEXT,
    settings TEXT NOT NULL,
    seed INTEGER NOT NULL,
    metadata TEXT,
    suffix TEXT,
    adapter_name TEXT NOT NULL UNIQUE,
    adapter_digest TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    paused INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    created_at REAL NOT NULL,
    started_at REAL,
    finished_at REAL,
    attempts INTEGER NOT NULL DEFAULT 0,
    child_pid INTEGER,
    child_identity TEXT,
    progress TEXT,
    result TEXT,
    result_file TEXT
);
CREATE INDEX jobs_by_status ON jobs (status);
CREATE TABLE job_metadata (
    job_seq INTEGER NOT NULL REFERENCES jobs (seq),
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (key, value, job_seq)
) WITHOUT ROWID;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    job_id TEXT NOT NULL REFERENCES jobs (id),
    created_at REAL NOT NULL,
    level TEXT NOT NULL,
    type TEXT NOT NULL,
    message TEXT NOT NULL,
    data TEXT
);
CREATE INDEX events_by_job ON events (job_id, seq);
CREATE TABLE models (
    name TEXT PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL DEFAULT 'adapter',
    base_model TEXT NOT NULL,
    job_id TEXT NOT NULL REFERENCES jobs (id),
    parent TEXT,
    content_digest TEXT NOT NULL,
    created_at REAL NOT NULL,
    proof TEXT NOT NULL,
    engine_epoch INTEGER NOT NULL,
    problem TEXT,
    deleted_at REAL
);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

_MIGRATIONS = {
    1: """
    ALTER TABLE files ADD COLUMN expires_at REAL;
    ALTER TABLE jobs ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE models ADD COLUMN kind TEXT NOT NULL DEFAULT 'adapter';
    """,
}
"""From each older format to the next one."""
TABLES = ("files", "jobs", "events", "models", "meta")
"""Of every format."""
JSON_COLUMNS = {
    "jobs": ("settings", "metadata", "error", "progress", "result"),
    "events": ("data",),
    "models": ("proof",),
    "meta": ("value",),
}
"""Columns that are read as JSON."""
UNFINISHED = f"status IN {wire.ACTIVE_STATUSES}"
"""SQL: a job that is not over."""
UNUSABLE = (sqlite3.Error, UnicodeDecodeError)
"""Errors of a database that can't be used; SQLite can't decode a damaged name for its message."""
_REMEDY = "put a copy of it back, or move everything beside it to another place and start anew"


class SqliteFile(ABC):
    """A thin wrapper over one SQLite connection. Rows come back as `sqlite3.Row`."""

    def __init__(self, path: Path):
        """Open or create the database. Raises StateError if it can't be used."""
        self.path = path
        self._connection = _connect(path)
        self._connection.row_factory = sqlite3.Row
        try:
            self._prepare()
        except UNUSABLE as error:
            self._connection.close()
            raise unusable_error(path, error) from error
        except StateError:
            self._connection.close()
            raise

    @abstractmethod
    def _prepare(self) -> None:
        """Check the database, and bring it to its format. Raises StateError."""

    def _read_version(self) -> int:
        """Return the format of the database; 0 for a new one."""
        version: int = self._connection.execute("PRAGMA user_version").fetchone()[0]
        return version

    def _make_durable(self) -> None:
        # FULL: a transition that a client was told of must outlive a power loss. WAL: `nip
        # verify` and others read while the server writes.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            self._connection.execute(f"PRAGMA {pragma}")

    def _change_schema(self, script: str, version: int) -> None:
        # A kill in the middle leaves the older format whole: tables and version change in one
        # transaction.
        self._connection.executescript(f"BEGIN; {script} PRAGMA user_version = {version}; COMMIT;")

    def close(self) -> None:
        """Close the connection; the write-ahead log is folded in."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is written together or not at all. Not to be held over an await.

        Inside another one it is a part of that.
        """
        if self._connection.in_transaction:
            yield
            return
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # On a full disk SQLite may have rolled it back already; one that stayed open would take
            # in all that is written later.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def execute(self, sql: str, *values: Any) -> int:
        """Run a statement and return how many rows it changed."""
        return self._connection.execute(sql, values).rowcount

    def fetch_one(self, sql: str, *values: Any) -> sqlite3.Row | None:
        """The first row, or None."""
        row: sqlite3.Row | None = self._connection.execute(sql, values).fetchone()
        return row

    def fetch_all(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        """All rows."""
        return self._connection.execute(sql, values).fetchall()


class Database(SqliteFile):
    """The server's own tables."""

    def __init__(self, path: Path):
        """Open or create the database, or bring an older one up to date.

        Raises StateError if it can't be read, if a newer server wrote it, or if it would be a new
        one in the place of a lost one.
        """
        if not path.exists() or not path.stat().st_size:
            refuse_lost_database(path.parent)  # before SQLite deletes a log that has no database
        super().__init__(path)

    def _prepare(self) -> None:
        version = self._format()
        problem = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok":  # pages or indices don't fit together
            raise damage_error(self.path, " ".join(problem.split()))
        _make_private(self.path)
        self._make_durable()
        steps = (
            [_MIGRATIONS[step] for step in range(version, STATE_FORMAT)] if version else [_SCHEMA]
        )
        if steps:
            self._change_schema(" ".join(steps), STATE_FORMAT)
        self._refuse_broken_rows()

    def _format(self) -> int:
        """Read the format; 0 for a new database. Writes nothing.

        Raises StateError if the database isn't a server's, or if its format is too new.
        """
        version = self._read_version()
        if version > STATE_FORMAT:
            raise StateError(
                f"{self.path} has format {version}, this server knows up to {STATE_FORMAT}: "
                "use another state directory or the server's version that wrote it"
            )
        if not version:
            refuse_lost_database(self.path.parent)
        rows = self._connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        tables = {row["name"] for row in rows}
        if version < 0 or (not tables >= {*TABLES} if version else tables):
            raise StateError(
                f"{self.path} is another program's database, or damaged (its format is {version}): "
                f"name another state directory, or {_REMEDY}"
            )
        return version

    def _refuse_broken_rows(self) -> None:
        for table, columns in JSON_COLUMNS.items():
            for column in columns:
                row = self.fetch_one(
                    f"SELECT rowid FROM {table} WHERE {column} IS NOT NULL "  # noqa: S608
                    f"AND NOT json_valid({column}) LIMIT 1"
                )
                if row is not None:
                    raise damage_error(
                        self.path, f"row {row[0]} of {table} has no JSON in {column}"
                    )

    def insert(self, table: str, **values: Any) -> int:
        """Insert a row and return its seq. `table` and the names come from this package only."""
        names = ", ".join(values)
        marks = ", ".join("?" * len(values))
        cursor = self._connection.execute(
            f"INSERT INTO {table} ({names}) VALUES ({marks})",  # noqa: S608
            tuple(values.values()),
        )
        return int(cursor.lastrowid or 0)

    def get_meta(self, key: str, default: int = 0) -> int:
        """A counter."""
        row = self.fetch_one("SELECT value FROM meta WHERE key = ?", key)
        try:
            return int(row["value"]) if row else default
        except ValueError:
            raise damage_error(self.path, f"{key} in meta is no number") from None

    def set_meta(self, key: str, value: int) -> None:
        """Set a counter."""
        self.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", key, str(value))


def _connect(path: Path) -> sqlite3.Connection:
    """Connect to a database; only its owner can read a new one. Raises StateError."""
    try:
        if not path.is_file():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        return sqlite3.connect(path, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise StateError(f"{path} can't be used: {error}") from error


def _make_private(path: Path) -> None:
    """Let only its owner read a database and its logs; later logs get the database's mode."""
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(PermissionError, FileNotFoundError):  # not ours; no log
            path.with_name(path.name + end).chmod(0o600)


def unusable_error(path: Path, error: Exception) -> StateError:
    """Build the error for a database SQLite can't open, read or write."""
    if isinstance(error, sqlite3.OperationalError):  # the disk is full, or away
        return StateError(f"{path} can't be used: {error}")
    return damage_error(path, str(error))


def damage_error(path: Path, problem: str) -> StateError:
    """Build the error for a damaged database."""
    return StateError(f"{path} is damaged ({problem}): {_REMEDY}")


def dump(value: Any) -> str | None:
    """A JSON column; None stays NULL."""
    return None if value is None else json.dumps(value, ensure_ascii=False)


def load(text: str | None) -> Any:
    """The value of a JSON column."""
    return None if text is None else json.loads(text)
