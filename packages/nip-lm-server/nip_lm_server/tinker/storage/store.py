"""The tables of Tinker's API, in a database beside the server's own: ``tinker.sqlite3``.

sessions     clients, with their last sign of life
models       models in training, each with its last request that is in a state on disk
requests     numbered requests, with their payloads and results
samplers     the base model or the weights of each sampler
checkpoints  weights on disk, by their paths

A database of its own: a server without clients of this API has none, and one of an older version
still reads the rest. Payloads stay until a state on disk includes them, results until they were
fetched and are `KEPT_S` old.
"""

import json
import sqlite3
from dataclasses import asdict

from nip_lm_server.tinker.storage.records import (
    Category,
    LoraShape,
    RequestRow,
    SessionRow,
    TinkerModelRow,
)
from nip_lm_server.tinker.storage.tables import WeightTables

DATABASE = "tinker.sqlite3"
KEPT_S = 15 * 60.0
"""So long a result stays after it was fetched: a client whose answer was lost asks again soon."""
UNFETCHED_S = 24 * 3600.0
"""... and after it was made, if no client fetched it."""


class TinkerStore(WeightTables):
    """All tables of one server."""

    # Sessions

    def add_session(self, id: str, user_metadata: dict[str, object], sdk_version: str) -> None:
        """Enter a session."""
        now = self._clock()
        self.execute(
            "INSERT INTO sessions (id, created_at, heard_at, user_metadata, sdk_version) "
            "VALUES (?, ?, ?, ?, ?)",
            id, now, now, json.dumps(user_metadata), sdk_version,
        )  # fmt: skip

    def find_session(self, id: str) -> SessionRow | None:
        """Return a session."""
        row = self.fetch_one("SELECT * FROM sessions WHERE id = ?", id)
        return None if row is None else _session(row)

    def list_sessions(self, limit: int, offset: int) -> list[SessionRow]:
        """List sessions, the newest first."""
        rows = self.fetch_all(
            "SELECT * FROM sessions ORDER BY created_at DESC, id LIMIT ? OFFSET ?", limit, offset
        )
        return [_session(row) for row in rows]

    def hear_of(self, id: str) -> None:
        """Note a sign of life."""
        self.execute("UPDATE sessions SET heard_at = ? WHERE id = ?", self._clock(), id)

    def finish_session(self, id: str, finish: str) -> bool:
        """End a session, once; the first reason stays. Returns whether this was the first."""
        count = self.execute(
            "UPDATE sessions SET finished_at = ?, finish = ? "
            "WHERE id = ? AND finished_at IS NULL",
            self._clock(), finish, id,
        )  # fmt: skip
        return count == 1

    def list_silent_sessions(self, silent_s: float) -> list[str]:
        """List sessions that are not over and have given no sign of life for so long."""
        rows = self.fetch_all(
            "SELECT id FROM sessions WHERE finished_at IS NULL AND heard_at < ?",
            self._clock() - silent_s,
        )
        return [row["id"] for row in rows]

    # Models

    def add_model(
        self, id: str, session_id: str, base_model: str, lora: LoraShape, metadata: dict[str, str]
    ) -> None:
        """Enter a model; nothing where it is there."""
        self.execute(
            "INSERT OR IGNORE INTO models (id, session_id, base_model, lora, created_at, "
            "user_metadata) VALUES (?, ?, ?, ?, ?, ?)",
            id, session_id, base_model, json.dumps(asdict(lora)), self._clock(),
            json.dumps(metadata),
        )  # fmt: skip

    def find_model(self, id: str) -> TinkerModelRow | None:
        """Return a model."""
        row = self.fetch_one("SELECT * FROM models WHERE id = ?", id)
        return None if row is None else _model(row)

    def list_models(self, limit: int, offset: int) -> list[TinkerModelRow]:
        """List models, the newest first."""
        rows = self.fetch_all(
            "SELECT * FROM models ORDER BY created_at DESC, id LIMIT ? OFFSET ?", limit, offset
        )
        return [_model(row) for row in rows]

    def list_models_of(self, session_id: str) -> list[TinkerModelRow]:
        """List the models of a session."""
        return [
            _model(row)
            for row in self.fetch_all("SELECT * FROM models WHERE session_id = ?", session_id)
        ]

    def list_open_models(self) -> list[TinkerModelRow]:
        """List the models whose sessions are not over."""
        rows = self.fetch_all(
            "SELECT models.* FROM models JOIN sessions ON sessions.id = session_id "
            "WHERE finished_at IS NULL ORDER BY models.created_at"
        )
        return [_model(row) for row in rows]

    def count(self, table: str) -> int:
        """Count the rows of a table of this package's."""
        row = self.fetch_one(f"SELECT COUNT(*) AS n FROM {table}")  # noqa: S608
        return int(row["n"]) if row else 0

    def note_durable(self, model_id: str, seq: int) -> None:
        """A state on disk has everything up to `seq`: the payloads behind it go."""
        with self.transaction():
            self.execute("UPDATE models SET durable_seq = ? WHERE id = ?", seq, model_id)
            # Not the payload of request 0, from which the model is made.
            self.execute(
                "UPDATE requests SET payload = NULL "
                "WHERE owner = ? AND seq BETWEEN 1 AND ? AND status != 'pending'",
                model_id, seq,
            )  # fmt: skip

    # Requests

    def add_request(self, owner: str, seq: int, kind: str, digest: str, payload: bytes) -> None:
        """Enter a pending request. Its number must be free."""
        self.execute(
            "INSERT INTO requests (owner, seq, kind, digest, payload, status, created_at) "
            "VALUES (?, ?, ?, ?, ?, 'pending', ?)",
            owner, seq, kind, digest, payload, self._clock(),
        )  # fmt: skip

    def find_request(self, owner: str, seq: int) -> RequestRow | None:
        """Return a request with payload and result."""
        row = self.fetch_one(
            "SELECT owner, seq, kind, digest, payload, status, created_at, result, is_protobuf, "
            "error, category FROM requests WHERE owner = ? AND seq = ?",
            owner,
            seq,
        )
        return None if row is None else _request(row)

    def find_digest(self, owner: str, seq: int) -> str | None:
        """Return the digest of the request with a number."""
        row = self.fetch_one("SELECT digest FROM requests WHERE owner = ? AND seq = ?", owner, seq)
        return None if row is None else str(row["digest"])

    def find_last_time(self, owner: str) -> float | None:
        """Return the time of a model's last request, in seconds since 1970."""
        row = self.fetch_one("SELECT MAX(created_at) AS at FROM requests WHERE owner = ?", owner)
        return None if row is None else row["at"]

    def list_pending(self, owner: str) -> list[int]:
        """List the numbers that wait for their turn, in order."""
        rows = self.fetch_all(
            "SELECT seq FROM requests WHERE owner = ? AND status = 'pending' ORDER BY seq", owner
        )
        return [row["seq"] for row in rows]

    def list_pending_samples(self) -> list[tuple[str, int]]:
        """List the samples that were never answered."""
        rows = self.fetch_all(
            "SELECT owner, seq FROM requests WHERE kind = 'sample' AND status = 'pending'"
        )
        return [(row["owner"], row["seq"]) for row in rows]

    def next_seq(self, model_id: str) -> int:
        """Return a model's first number that is not over: all lower ones are over."""
        row = self.fetch_one(
            "SELECT MAX(seq) AS seq FROM requests WHERE owner = ? AND status != 'pending'", model_id
        )
        return 0 if row is None or row["seq"] is None else int(row["seq"]) + 1

    def list_replayed(self, model_id: str, low: int, high: int) -> list[int]:
        """List the executed requests above `low` and below `high` that changed the model."""
        rows = self.fetch_all(
            "SELECT seq FROM requests WHERE owner = ? AND seq > ? AND seq < ? AND status = 'done' "
            "AND void = 0 AND kind IN ('forward_backward', 'optim_step') ORDER BY seq",
            model_id, low, high,
        )  # fmt: skip
        return [row["seq"] for row in rows]

    def void_since_step(self, model_id: str, end: int) -> None:
        """Leave the gradient since the last step, as far as below `end`, out of every replay."""
        self.execute(
            "UPDATE requests SET void = 1, payload = NULL WHERE owner = ?1 "
            "AND kind = 'forward_backward' AND seq < ?2 AND seq > "
            "(SELECT COALESCE(MAX(seq), 0) FROM requests WHERE owner = ?1 "
            "AND kind = 'optim_step' AND status = 'done' AND seq < ?2)",
            model_id, end,
        )  # fmt: skip

    def has_gradient(self, model_id: str) -> bool:
        """Say whether parts of a gradient wait for their step."""
        row = self.fetch_one(
            "SELECT 1 FROM requests WHERE owner = ?1 AND kind = 'forward_backward' "
            "AND status = 'done' AND void = 0 AND seq > (SELECT COALESCE(MAX(seq), 0) "
            "FROM requests WHERE owner = ?1 AND kind = 'optim_step' AND status = 'done') LIMIT 1",
            model_id,
        )
        return row is not None

    def find_broken(self, model_id: str) -> str | None:
        """Say which part of the gradient since the last step failed; None: it is whole."""
        row = self.fetch_one(
            "SELECT seq, error FROM requests WHERE owner = ?1 AND status = 'failed' "
            "AND kind IN ('forward_backward', 'refused', 'create_model', 'load_weights', 'gap') "
            "AND (seq = 0 OR seq > (SELECT COALESCE(MAX(seq), 0) FROM requests WHERE owner = ?1 "
            "AND kind = 'optim_step' AND status != 'pending')) ORDER BY seq LIMIT 1",
            model_id,
        )
        return None if row is None else f"request {row['seq']} failed ({row['error'][:300]})"

    def end_request(self, owner: str, seq: int, result: bytes, is_protobuf: bool) -> None:
        """Write down a result."""
        self.execute(
            "UPDATE requests SET status = 'done', result = ?, is_protobuf = ?, ended_at = ? "
            "WHERE owner = ? AND seq = ? AND status = 'pending'",
            result, is_protobuf, self._clock(), owner, seq,
        )  # fmt: skip

    def fail_request(self, owner: str, seq: int, error: str, category: Category) -> None:
        """Write down the reason of a failure."""
        self.execute(
            "UPDATE requests SET status = 'failed', error = ?, category = ?, ended_at = ? "
            "WHERE owner = ? AND seq = ? AND status = 'pending'",
            error, category, self._clock(), owner, seq,
        )  # fmt: skip

    def note_fetched(self, owner: str, seq: int) -> None:
        """Note that a client has a result; the first time counts."""
        self.execute(
            "UPDATE requests SET fetched_at = ? WHERE owner = ? AND seq = ? AND fetched_at IS NULL",
            self._clock(), owner, seq,
        )  # fmt: skip

    def drop_old_results(self) -> int:
        """Let go of results that were fetched `KEPT_S` ago, or made `UNFETCHED_S` ago."""
        now = self._clock()
        return self.execute(
            "UPDATE requests SET result = NULL WHERE status = 'done' AND result IS NOT NULL "
            "AND (fetched_at < ? OR ended_at < ?)",
            now - KEPT_S, now - UNFETCHED_S,
        )  # fmt: skip

    def is_pending(self, owner: str, seq: int) -> bool:
        """Say whether a request is on record and not over."""
        row = self.fetch_one(
            "SELECT 1 FROM requests WHERE owner = ? AND seq = ? AND status = 'pending'", owner, seq
        )
        return row is not None

    def drop_requests(self, max_rows: int) -> int:
        """Delete requests of sessions that ended `UNFETCHED_S` ago; returns their number.

        The last one of a model stays: it has the time of the model's last request.
        """
        latest = self._clock() - UNFETCHED_S
        dropped = 0
        for table, last in (
            ("models", "AND seq < (SELECT MAX(seq) FROM requests WHERE owner = owners.id)"),
            ("samplers", ""),
        ):
            dropped += self.execute(
                # The tables are joined in this order: few owners have any request left.
                "DELETE FROM requests WHERE rowid IN (SELECT requests.rowid "  # noqa: S608
                f"FROM {table} AS owners CROSS JOIN sessions ON sessions.id = owners.session_id "
                "CROSS JOIN requests ON requests.owner = owners.id "
                f"WHERE finished_at < ? {last} LIMIT ?)",
                latest, max_rows - dropped,
            )  # fmt: skip
        return dropped

    def drop_samplers(self, max_rows: int) -> int:
        """Delete samplers of sessions that ended `UNFETCHED_S` ago, without any request left."""
        return self.execute(
            "DELETE FROM samplers WHERE rowid IN (SELECT samplers.rowid FROM samplers "
            "JOIN sessions ON sessions.id = session_id WHERE finished_at < ?1 AND NOT EXISTS "
            "(SELECT 1 FROM requests WHERE owner = samplers.id) LIMIT ?2)",
            self._clock() - UNFETCHED_S, max_rows,
        )  # fmt: skip

    def drop_payload(self, owner: str, seq: int) -> None:
        """Let go of a payload after its last use."""
        self.execute("UPDATE requests SET payload = NULL WHERE owner = ? AND seq = ?", owner, seq)

    def drop_snapshots(self, max_rows: int) -> int:
        """Delete the records of deleted snapshots of sessions that ended `UNFETCHED_S` ago."""
        return self.execute(
            "DELETE FROM checkpoints WHERE rowid IN (SELECT checkpoints.rowid FROM checkpoints "
            "JOIN sessions ON sessions.id = session_id WHERE finished_at < ? "
            "AND kind = 'snapshot' AND deleted_at IS NOT NULL LIMIT ?)",
            self._clock() - UNFETCHED_S, max_rows,
        )  # fmt: skip

    def payload_bytes(self, owner: str) -> int:
        """Count the bytes of all payloads that a model or sampler still needs."""
        row = self.fetch_one(
            "SELECT COALESCE(SUM(LENGTH(payload)), 0) AS n FROM requests WHERE owner = ?", owner
        )
        return 0 if row is None else int(row["n"])

    def drop_payloads_of(self, owner: str) -> None:
        """Let go of all payloads of a model or sampler that is over."""
        self.execute("UPDATE requests SET payload = NULL WHERE owner = ?", owner)


def _session(row: sqlite3.Row) -> SessionRow:
    return SessionRow(row["id"], row["finished_at"], json.loads(row["user_metadata"]))


def _model(row: sqlite3.Row) -> TinkerModelRow:
    values = dict(row)
    values["lora"] = LoraShape(**json.loads(values["lora"]))
    values["user_metadata"] = json.loads(values["user_metadata"])
    return TinkerModelRow(**values)


def _request(row: sqlite3.Row) -> RequestRow:
    return RequestRow(**{**row, "is_protobuf": bool(row["is_protobuf"])})
