"""The cells of a server's database, each compared with what can stand there and with the others.

find_broken_cells   a database that is open to read -> what is wrong in which cell

What is covered: the kind of value in every cell, JSON, words, ids, digests, times, and whatever two
cells, or a cell and a model's manifest, say of the same thing. What is not: a text that is told
nowhere else (a file's name, the message of an event) and that is still a text.
"""

import math
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nip_lm_server import wire
from nip_lm_server.formats.bounds import parse_json
from nip_lm_server.state.database import JSON_COLUMNS, TABLES
from nip_lm_server.state.files import PURPOSES
from nip_lm_server.state.manifest import ModelManifest
from nip_lm_server.state.models import adapter_name
from nip_lm_server.wire import EffectiveSettings

Row = Mapping[str, Any]
"""By column; those of an older format lack some."""
Rows = Mapping[str, list[Row]]
"""All rows, by table."""
Cell = tuple[str, str]
"""Where it is ("row 3 of jobs, status"), and what is wrong there."""

_KINDS = {"TEXT": "text", "INTEGER": "integer", "REAL": "real"}
_LATEST_S = 2.0**33
"""No time is later: in the year 2242."""
_RESULTS = "fine-tune-results"

Holds = Callable[[Any], bool]


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
    connection: sqlite3.Connection, manifest_of: Callable[[str], ModelManifest | None]
) -> Iterator[Cell]:
    """Yield every cell no server can have written. `manifest_of` has a model's manifest by digest.

    Raises sqlite3.Error for a table that can't be read at all.
    """
    connection.row_factory = sqlite3.Row
    rows: dict[str, list[Row]] = {
        table: [*map(dict, connection.execute(f"SELECT rowid AS 'rowid ', * FROM {table}"))]  # noqa: S608
        for table in TABLES
    }
    # 1. Each cell by itself. What is wrong there is not compared with others.
    alone = [cell for table in TABLES for cell in _check_alone(connection, table, rows[table])]
    yield from alone
    if alone:
        return
    # 2. What two of them say of the same thing.
    yield from _check_references(connection, rows)
    yield from _check_jobs(rows)
    metadata = connection.execute("SELECT job_seq, key, value FROM job_metadata").fetchall()
    yield from _check_metadata(rows, metadata)
    # 3. What a model's manifest says too.
    yield from _check_manifests(rows, manifest_of)


def _name_cell(table: str, row: Row, column: str) -> str:
    return f"row {row['rowid ']} of {table}, {column}"


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
                    yield _name_cell(table, row, column), "it is empty"
            elif not isinstance(value, python[kind]):
                yield _name_cell(table, row, column), f"it is no {kind} but {str(value)[:60]!r}"
            elif problem := _find_problem(table, column, value):
                yield _name_cell(table, row, column), problem


def _find_problem(table: str, column: str, value: Any) -> str | None:
    rule = _is_time if column in _TIMES else _RULES.get((table, column))
    if rule is not None and not rule(value):
        return f"no server writes {str(value)[:60]!r} there"
    if column in JSON_COLUMNS.get(table, ()):
        try:
            told = parse_json(value)
            if column in _OBJECTS.get(table, ()) and not isinstance(told, dict):
                return f"{value[:60]!r} is no JSON object"
            if (table, column) == ("jobs", "settings"):
                EffectiveSettings.model_validate_json(value)
        except ValueError as error:
            return " ".join(str(error).split())[:200]
    return None


def _check_references(connection: sqlite3.Connection, rows: Rows) -> Iterator[Cell]:
    """Yield references to missing rows. No row is ever removed: a deletion is only a mark."""
    for table, rowid, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield f"row {rowid} of {table}", f"it names a row of {parent} that is not there"
    files = {row["id"] for row in rows["files"]}
    models = {row["name"] for row in rows["models"]}
    for row in rows["jobs"]:
        for column in ("training_file", "validation_file", "result_file"):
            if row[column] and row[column] not in files:  # a job that was imported has no file
                yield _name_cell("jobs", row, column), f"there is no file {row[column]!r}"
    for row in rows["meta"]:
        kind = list if row["key"].startswith("active ") else int
        if type(parse_json(row["value"])) is not kind:
            yield (
                _name_cell("meta", row, "value"),
                f"{row['key']} is no {kind.__name__}: {row['value']!r}",
            )
    # What was imported came without its parent.
    own = {row["id"] for row in rows["jobs"] if row["payload_digest"]}
    for table, id in (("jobs", "id"), ("models", "job_id")):
        for row in rows[table]:
            if row[id] in own and row["parent"] is not None and row["parent"] not in models:
                yield _name_cell(table, row, "parent"), f"there is no model {row['parent']!r}"


def _check_jobs(rows: Rows) -> Iterator[Cell]:
    """Compare a job's status with its other cells, and with its model."""
    models = {row["job_id"]: row for row in rows["models"]}
    for row in rows["jobs"]:
        status, model = row["status"], models.get(row["id"])
        facts = {
            "finished_at": (status in wire.ENDED_STATUSES, row["finished_at"]),
            "error": (status == "failed", row["error"]),
            "result": (status == "succeeded", row["result"]),
        }
        for column, (is_expected, value) in facts.items():
            if is_expected != (value is not None):
                there = "is empty" if value is None else "is not"
                yield _name_cell("jobs", row, "status"), f"it is {status!r}, but {column} {there}"
        if (status == "succeeded") != (model is not None):
            there = "no model" if model is None else f"the model {model['name']}"
            yield _name_cell("jobs", row, "status"), f"it is {status!r}, but the job has {there}"
        name = adapter_name("", row["suffix"], row["adapter_digest"]).removeprefix("ft::")
        if not row["payload_digest"]:  # imported, without its suffix
            name = row["adapter_digest"]
        if not row["adapter_name"].endswith(f":{name}"):
            expected = f"suffix and digest make a name on {name!r}"
            yield (
                _name_cell("jobs", row, "adapter_name"),
                f"{row['adapter_name']!r}, but {expected}",
            )
        if model is not None:
            pairs = (("adapter_name", "name"), ("adapter_digest", "digest"))
            for column, same in (*pairs, ("base_model", "base_model"), ("parent", "parent")):
                if row[column] != model[same]:
                    got = f"{row[column]!r}, but its model has {model[same]!r}"
                    yield _name_cell("jobs", row, column), got


def _check_metadata(rows: Rows, stored: list[sqlite3.Row]) -> Iterator[Cell]:
    by_job: dict[int, dict[str, str]] = {}
    for pair in stored:
        by_job.setdefault(pair["job_seq"], {})[pair["key"]] = pair["value"]
    for row in rows["jobs"]:
        told = parse_json(row["metadata"]) if row["metadata"] else {}
        if told != by_job.get(row["seq"], {}):
            yield _name_cell("jobs", row, "metadata"), "job_metadata has other pairs of this job"


def _check_manifests(
    rows: Rows, manifest_of: Callable[[str], ModelManifest | None]
) -> Iterator[Cell]:
    """Compare each job with its model's manifest, where there is one."""
    jobs = {row["id"]: row for row in rows["jobs"]}
    for model in rows["models"]:
        manifest = None if model["deleted_at"] is not None else manifest_of(model["digest"])
        row = jobs.get(model["job_id"])
        if manifest is None or row is None:
            continue
        if model.get("kind", "adapter") != manifest.kind:
            yield _name_cell("models", model, "kind"), f"its manifest says {manifest.kind!r}"
        told = {
            "method": (row["method"], manifest.method),
            "seed": (row["seed"], manifest.seed),
            "parent": (row["parent"], manifest.parent),
        }
        if row["payload_digest"]:  # imported ones left their key behind
            told["idempotency_key"] = (row["idempotency_key"] or row["id"], manifest.job_key)
        for column, (got, stated) in told.items():
            if stated is not None and got != stated:
                yield (
                    _name_cell("jobs", row, column),
                    f"{got!r}, but its model's manifest {stated!r}",
                )
        # Later versions may have written more of either.
        for column, expected in (("settings", manifest.settings), ("result", manifest.training)):
            got = parse_json(row[column] or "{}")
            other = [key for key in got.keys() & expected.keys() if got[key] != expected[key]]
            if other:
                yield (
                    _name_cell("jobs", row, column),
                    f"its model's manifest has another {min(other)}",
                )
