"""Rows of the server's tables, as the code hands them around.

JobRow, EventRow, ModelRow, FileRow   one row, by column; JSON is still the text in the cell
read_row                              a row of SQLite's -> one of these

A column of a later format has its default here, so that a row of an older format can be read, too.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from nip_base.wire import EffectiveSettings


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A fine-tuning job. Times are seconds since 1970."""

    seq: int
    id: str
    idempotency_key: str | None
    payload_digest: str  # "" for a job that came with an imported model
    method: Literal["supervised", "dpo", "trajectories"]
    model: str
    base_model: str
    parent: str | None
    training_file: str
    validation_file: str | None
    settings: str  # JSON
    seed: int
    metadata: str | None  # JSON
    suffix: str | None
    adapter_name: str
    adapter_digest: str
    status: str
    paused: int = 0
    error: str | None  # JSON
    created_at: float
    started_at: float | None
    finished_at: float | None
    attempts: int
    child_pid: int | None
    child_identity: str | None
    progress: str | None  # JSON
    result: str | None  # JSON
    result_file: str | None

    def read_settings(self) -> EffectiveSettings:
        """Parse the settings. Raises ValueError if no server can have written them."""
        return EffectiveSettings.model_validate_json(self.settings)


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """An event of a job."""

    seq: int
    id: str
    job_id: str
    created_at: float
    level: Literal["info", "warn", "error"]
    type: Literal["message", "metrics"]
    message: str
    data: str | None  # JSON


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """An adapter or a base model that was trained here, with its latest proof or its problem."""

    name: str
    digest: str
    kind: Literal["adapter", "base"] = "adapter"
    base_model: str
    job_id: str
    parent: str | None
    content_digest: str
    created_at: float
    proof: str  # JSON
    engine_epoch: int
    problem: str | None  # None: it can answer
    deleted_at: float | None


@dataclass(frozen=True, kw_only=True)
class FileRow:
    """An uploaded file, or a job's result."""

    seq: int
    id: str
    filename: str
    purpose: str
    bytes: int
    sha256: str
    created_at: float
    expires_at: float | None = None
    deleted_at: float | None


_Row = TypeVar("_Row", JobRow, EventRow, ModelRow, FileRow)


def read_row(kind: type[_Row], row: sqlite3.Row | Mapping[str, Any]) -> _Row:
    """Make a typed row of one that was selected with all its columns; others are left out."""
    columns = {*row.keys()}
    return kind(**{field.name: row[field.name] for field in fields(kind) if field.name in columns})
