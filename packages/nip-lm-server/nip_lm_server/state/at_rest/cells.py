"""Check every cell of a server's database, by itself and against the other cells.

find_broken_cells   a database that is open to read -> its broken cells, each with its problem

Covered: the kind of value in every cell, JSON, words, ids, digests, times, and each fact that two
cells, or a cell and a model's manifest, have in common. Not covered: a changed text that stands
nowhere else (a file's name, the message of an event), as long as it is a text.
"""

import math
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nip_base import wire
from nip_base.formats.bounds import parse_json
from nip_base.manifest import ModelManifest
from nip_base.wire import EffectiveSettings
from nip_lm_server.state.database import JSON_COLUMNS, TABLES
from nip_lm_server.state.files import PURPOSES
from nip_lm_server.state.models import adapter_name
from nip_lm_server.state.rows import FileRow, JobRow, ModelRow, read_row

Row = Mapping[str, Any]
"""Values of any kind, by column; a row of an older format lacks some."""
Cell = tuple[str, str]
"""The place of a cell ("row 3 of jobs, status"), and its problem."""

_KINDS = {"TEXT": "text", "INTEGER": "integer", "REAL": "real"}
_LATEST_S = 2.0**33
"""No time is later; it is in the year 2242."""
_RESULTS = "fine-tune-results"
_ROWID = "rowid "
"""SQLite's number of a row; no column of ours has this name."""

Holds = Callable[[Any], bool]


@dataclass(frozen=True)
class _Tables:
    """The rows of all tables, each cell of the right kind. A job's `seq` is its row's number."""

    jobs: Sequence[JobRow]
    models: Mapping[int, ModelRow]  # by the number of the row
    files: Sequence[FileRow]
    meta: Mapping[int, tuple[str, str]]  # by the number of the row: key and value


def _one_of(*words: str) -> Holds:
    return lambda value: value in words


def _matches(pattern: str) -> Holds:
    return lambda value: re.fullmatch(pattern, value) is not None


def _is_time(value: float) -> bool:
    return math.isfinite(value) and 0 < value < _LATEST_S


def _is_count(value: int) -> bool:
    return value >= 0


_RULES: Mapping[tuple[str, str], Holds] = {
    ("files", "id"): _matches(r"file-[0-9a-f]{24}"),
    ("files", "purpose"): _one_of(*PURPOSES, _RESULTS),
    ("files", "bytes"): _is_count,
    ("files", "sha256"): _matches(r"[0-9a-f]{64}"),
    ("jobs", "id"): _matches(r"ftjob-[0-9a-f]{24}"),
    ("jobs", "payload_digest"): _matches(r"([0-9a-f]{64})?"),
    ("jobs", "method"): _one_of(*wire.METHODS),
    ("jobs", "status"): _one_of(*wire.ACTIVE_STATUSES, *wire.ENDED_STATUSES),
    ("jobs", "paused"): lambda value: value in (0, 1),
    ("jobs", "attempts"): _is_count,
    ("events", "id"): _matches(r"ftevent-[0-9a-f]{24}"),
    ("events", "level"): _one_of("info", "warn", "error"),
    ("events", "type"): _one_of("message", "metrics"),
    ("models", "kind"): _one_of("adapter", "base"),
    ("models", "content_digest"): _matches(r"[0-9a-f]{64}"),
    ("models", "engine_epoch"): _is_count,
}
_TIMES = ("created_at", "started_at", "finished_at", "expires_at", "deleted_at")
_OBJECTS = {table: set(columns) for table, columns in JSON_COLUMNS.items() if table != "meta"}


def find_broken_cells(
    connection: sqlite3.Connection, find_manifest: Callable[[str], ModelManifest | None]
) -> Iterator[Cell]:
    """Yield every broken cell: no server can have written it.

    `find_manifest` returns a model's manifest by its digest; None where it can't be read.
    Raises sqlite3.Error for a table that can't be read at all.
    """
    connection.row_factory = sqlite3.Row
    rows: dict[str, list[Row]] = {
        table: [*map(dict, connection.execute(f"SELECT rowid AS '{_ROWID}', * FROM {table}"))]  # noqa: S608
        for table in TABLES
    }
    # 1. Each cell by itself. Broken cells are not compared with others.
    broken_cells = [
        cell for table in TABLES for cell in _check_alone(connection, table, rows[table])
    ]
    yield from broken_cells
    if broken_cells:
        return
    # 2. Cells with a fact in common.
    tables = _Tables(
        jobs=[read_row(JobRow, row) for row in rows["jobs"]],
        models={row[_ROWID]: read_row(ModelRow, row) for row in rows["models"]},
        files=[read_row(FileRow, row) for row in rows["files"]],
        meta={row[_ROWID]: (row["key"], row["value"]) for row in rows["meta"]},
    )
    yield from _check_references(connection, tables)
    yield from _check_jobs(tables)
    metadata = connection.execute("SELECT job_seq, key, value FROM job_metadata").fetchall()
    yield from _check_metadata(tables, metadata)
    # 3. Facts that a model's manifest has, too.
    yield from _check_manifests(tables, find_manifest)


def _broken(table: str, rowid: int, column: str, problem: str) -> Cell:
    return f"row {rowid} of {table}, {column}", problem


def _check_alone(connection: sqlite3.Connection, table: str, rows: list[Row]) -> Iterator[Cell]:
    types = {
        column["name"]: (_KINDS[column["type"]], bool(column["notnull"]))
        for column in connection.execute("SELECT * FROM pragma_table_info(?)", (table,))
    }
    python = {"text": str, "integer": int, "real": float}
    for row in rows:
        for column, (kind, is_needed) in types.items():
            value = row[column]
            if value is None:
                if is_needed:
                    yield _broken(table, row[_ROWID], column, "it is empty")
            elif not isinstance(value, python[kind]):
                yield _broken(
                    table, row[_ROWID], column, f"it is no {kind} but {str(value)[:60]!r}"
                )
            elif problem := _find_problem(table, column, value):
                yield _broken(table, row[_ROWID], column, problem)


def _find_problem(table: str, column: str, value: Any) -> str | None:
    rule = _is_time if column in _TIMES else _RULES.get((table, column))
    if rule is not None and not rule(value):
        return f"no server writes {str(value)[:60]!r} there"
    if column in JSON_COLUMNS.get(table, ()):
        try:
            parsed = parse_json(value)
            if column in _OBJECTS.get(table, ()) and not isinstance(parsed, dict):
                return f"{value[:60]!r} is no JSON object"
            if (table, column) == ("jobs", "settings"):
                EffectiveSettings.model_validate_json(value)
        except ValueError as error:
            return " ".join(str(error).split())[:200]
    return None


def _check_references(connection: sqlite3.Connection, tables: _Tables) -> Iterator[Cell]:
    """Yield references to missing rows. No row is ever removed: a deletion is only a mark."""
    for table, rowid, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield f"row {rowid} of {table}", f"it names a row of {parent} that is not there"
    files = {row.id for row in tables.files}
    models = {row.name for row in tables.models.values()}
    for job in tables.jobs:
        for column, id in (
            ("training_file", job.training_file),
            ("validation_file", job.validation_file),
            ("result_file", job.result_file),
        ):
            if id and id not in files:  # the job of an imported model has no file
                yield _broken("jobs", job.seq, column, f"there is no file {id!r}")
    for rowid, (key, value) in tables.meta.items():
        kind = list if key.startswith("active ") else int
        if type(parse_json(value)) is not kind:
            yield _broken("meta", rowid, "value", f"{key} is no {kind.__name__}: {value!r}")
    # A parent doesn't come with an imported model.
    own = {job.id for job in tables.jobs if job.payload_digest}
    children = [("jobs", job.seq, job.id, job.parent) for job in tables.jobs]
    children += [("models", n, row.job_id, row.parent) for n, row in tables.models.items()]
    for table, rowid, job_id, parent in children:
        if job_id in own and parent is not None and parent not in models:
            yield _broken(table, rowid, "parent", f"there is no model {parent!r}")


def _check_jobs(tables: _Tables) -> Iterator[Cell]:
    """Compare a job's status with its other cells, and with its model."""
    models = {row.job_id: row for row in tables.models.values()}
    for job in tables.jobs:
        status, model = job.status, models.get(job.id)
        facts = {
            "finished_at": (status in wire.ENDED_STATUSES, job.finished_at),
            "error": (status == "failed", job.error),
            "result": (status == "succeeded", job.result),
        }
        for column, (is_expected, value) in facts.items():
            if is_expected != (value is not None):
                says = "is empty" if value is None else "is not"
                yield _broken("jobs", job.seq, "status", f"it is {status!r}, but {column} {says}")
        if (status == "succeeded") != (model is not None):
            says = "no model" if model is None else f"the model {model.name}"
            yield _broken("jobs", job.seq, "status", f"it is {status!r}, but the job has {says}")
        name = adapter_name("", job.suffix, job.adapter_digest).removeprefix("ft::")
        if not job.payload_digest:  # the job of an imported model has no suffix
            name = job.adapter_digest
        if not job.adapter_name.endswith(f":{name}"):
            expected = f"suffix and digest make a name on {name!r}"
            yield _broken("jobs", job.seq, "adapter_name", f"{job.adapter_name!r}, but {expected}")
        if model is not None:
            for column, jobs_value, models_value in (
                ("adapter_name", job.adapter_name, model.name),
                ("adapter_digest", job.adapter_digest, model.digest),
                ("base_model", job.base_model, model.base_model),
                ("parent", job.parent, model.parent),
            ):
                if jobs_value != models_value:
                    problem = f"{jobs_value!r}, but its model has {models_value!r}"
                    yield _broken("jobs", job.seq, column, problem)


def _check_metadata(tables: _Tables, rows: list[sqlite3.Row]) -> Iterator[Cell]:
    by_job: dict[int, dict[str, str]] = {}
    for seq, key, value in rows:
        by_job.setdefault(seq, {})[key] = value
    for job in tables.jobs:
        metadata = parse_json(job.metadata) if job.metadata else {}
        if metadata != by_job.get(job.seq, {}):
            yield _broken("jobs", job.seq, "metadata", "job_metadata has other pairs of this job")


def _check_manifests(
    tables: _Tables, find_manifest: Callable[[str], ModelManifest | None]
) -> Iterator[Cell]:
    """Compare each job with its model's manifest, where there is one."""
    jobs = {job.id: job for job in tables.jobs}
    for rowid, model in tables.models.items():
        manifest = None if model.deleted_at is not None else find_manifest(model.digest)
        job = jobs.get(model.job_id)
        if manifest is None or job is None:
            continue
        if model.kind != manifest.kind:
            yield _broken("models", rowid, "kind", f"its manifest says {manifest.kind!r}")
        facts: dict[str, tuple[Any, Any]] = {
            "method": (job.method, manifest.method),
            "seed": (job.seed, manifest.seed),
            "parent": (job.parent, manifest.parent),
        }
        if job.payload_digest:  # the job of an imported model has no key
            facts["idempotency_key"] = (job.idempotency_key or job.id, manifest.job_key)
        for column, (jobs_value, manifests_value) in facts.items():
            if manifests_value is not None and jobs_value != manifests_value:
                problem = f"{jobs_value!r}, but its model's manifest {manifests_value!r}"
                yield _broken("jobs", job.seq, column, problem)
        # A later version may have written more keys.
        for column, text, expected in (
            ("settings", job.settings, manifest.settings),
            ("result", job.result, manifest.training),
        ):
            figures = parse_json(text or "{}")
            different_keys = [
                k for k in figures.keys() & expected.keys() if figures[k] != expected[k]
            ]
            if different_keys:
                problem = f"its model's manifest has another {min(different_keys)}"
                yield _broken("jobs", job.seq, column, problem)
