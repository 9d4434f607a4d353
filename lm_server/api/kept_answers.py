"""Answers that are kept, so that the same request with the same Idempotency-Key gets the same one.

ResponseTable    claims of keys in flight, and the durable table ``responses.sqlite3``
Recording        an answer on its way into the table
key_of           the key of a request, checked
answer_once      what a route wraps around its work

The first request with a key does the work; one that comes meanwhile waits for it; one that comes
later, also after a restart, is answered from the table, byte for byte. An answer is sent, or a
stream ended, only after it is on disk. Only successes are kept: after an error, the next request
with the key does the work. The work of a request with a key goes on when its client is gone, for
it will come back with the key.

One thread writes, and what comes while it waits for the disk is written with the next commit.
What is covered: a killed process, a lost connection, a race. What is not: a lost disk.
"""

import asyncio
import hashlib
import json
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from nip_lm_server import aside
from nip_lm_server.api.background import BackgroundTasks
from nip_lm_server.errors import ApiError, given_twice, unsupported_value
from nip_lm_server.state.database import (
    UNUSABLE,
    connect,
    make_private,
    refuse_damage,
    unusable,
)
from nip_lm_server.state.directory import StateError

HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"
MAX_KEY_CHARACTERS = 255
MAX_GROUP = 256
"""Answers in one commit, at most."""
PRUNE_EVERY_S = 60.0
_PRUNED_AT_ONCE = 1000
_CLOSE_TIMEOUT_S = 10.0
_FORMAT = 1
_NOTHING_ELSE = "remove it (kept answers are lost, nothing else)"
_SCHEMA = """
CREATE TABLE responses (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    payload_digest BLOB NOT NULL,
    status INTEGER NOT NULL,
    content_type TEXT NOT NULL,
    body BLOB NOT NULL,
    created_at REAL NOT NULL
);
"""

_log = logging.getLogger("nip.lm_server.responses")


@dataclass(frozen=True)
class Kept:
    """An answer from the table."""

    payload_digest: bytes
    status: int
    content_type: str
    body: bytes


class Recording:
    """The answer of one claimed key. Give it to the table by `commit`, or give it up."""

    def __init__(self, table: "ResponseTable", key: str, payload_digest: bytes):
        self._table = table
        self.key, self.payload_digest = key, payload_digest
        self.ended = asyncio.Event()
        self._parts: list[bytes] = []

    def add(self, data: bytes) -> None:
        """Note bytes that are sent before the end is known."""
        self._parts.append(data)

    async def commit(self, status: int, content_type: str, rest: bytes) -> None:
        """Keep what was noted, then `rest`. Returns once it is on disk; OSError if it can't be."""
        body = b"".join([*self._parts, rest])
        await self._table.write(self.key, Kept(self.payload_digest, status, content_type, body))


class ResponseTable:
    """The kept answers of one server. Used from one event loop."""

    def __init__(self, path: Path, ttl_s: float, clock: Callable[[], float] = time.time):
        """Open or create the table. Raises StateError if it can't be read."""
        self._ttl_s, self._clock = ttl_s, clock
        self._claims: dict[str, Recording] = {}
        self._loop = asyncio.get_running_loop()
        try:
            self._reader = _connect(path)
            refuse_damage(self._reader, path, _NOTHING_ELSE)
            writer = _connect(path)
        except UNUSABLE as error:
            raise unusable(path, error, _NOTHING_ELSE) from error
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._writer = threading.Thread(
            target=self._write_all, args=(writer,), name="responses", daemon=True
        )
        self._writer.start()

    async def close(self) -> None:
        """Write what is waiting, and end."""
        self._queue.put(None)
        await asyncio.to_thread(self._writer.join, _CLOSE_TIMEOUT_S)
        self._reader.close()

    async def claim(self, key: str, payload_digest: bytes) -> Kept | Recording:
        """The answer kept under `key`, or the right and duty to find one and `release` the key.

        Waits while another request works on it. Raises ApiError 409 if the key was used with
        another payload.
        """
        while (first := self._claims.get(key)) is not None:
            if first.payload_digest != payload_digest:
                raise _reused(key)
            await first.ended.wait()
        row = self._reader.execute(
            "SELECT payload_digest, status, content_type, body FROM responses "
            "WHERE key = ? AND created_at > ?",
            (key, self._clock() - self._ttl_s),
        ).fetchone()
        if row is not None:
            if row[0] != payload_digest:
                raise _reused(key)
            return Kept(*row)
        recording = self._claims[key] = Recording(self, key, payload_digest)
        return recording

    def release(self, recording: Recording) -> None:
        """Let requests that wait for the key go on: with the answer if it was committed."""
        del self._claims[recording.key]
        recording.ended.set()

    async def write(self, key: str, kept: Kept) -> None:
        """Write an answer; returns once it is on disk. Raises what SQLite raises."""
        done = self._loop.create_future()
        self._queue.put(_Write(key, kept, self._clock(), done))
        await done

    # The writer's thread

    def _write_all(self, connection: sqlite3.Connection) -> None:
        pruned_at = 0.0
        while (first := self._queue.get()) is not None:
            group, last = [first], False
            while len(group) < MAX_GROUP and not self._queue.empty():
                write = self._queue.get()
                if write is None:
                    last = True
                    break
                group.append(write)
            try:
                _insert(connection, group)
            except Exception as error:
                self._tell(group, error)
            else:
                self._tell(group, None)
            if time.monotonic() - pruned_at > PRUNE_EVERY_S:
                pruned_at = time.monotonic()
                _prune(connection, self._clock() - self._ttl_s)
            if last:
                break
        connection.close()

    def _tell(self, group: "list[_Write]", error: Exception | None) -> None:
        def tell() -> None:
            for write in group:
                if write.done.cancelled():
                    continue
                if error is None:
                    write.done.set_result(None)
                else:
                    write.done.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(tell)
        except RuntimeError:  # the loop is closed: nobody waits any more
            _log.warning("%d answers were written after the end", len(group))


@dataclass(frozen=True)
class _Write:
    key: str
    kept: Kept
    created_at: float
    done: "asyncio.Future[None]"


def _connect(path: Path) -> sqlite3.Connection:
    connection = connect(path, timeout_s=30)
    make_private(path)
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}")
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found == 0:
        connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_FORMAT}; COMMIT;")
    elif found != _FORMAT:
        connection.close()
        raise StateError(
            f"{path} has format {found}, this server knows {_FORMAT}: {_NOTHING_ELSE}, or use the "
            "server's version that wrote it"
        )
    return connection


def _insert(connection: sqlite3.Connection, group: list[_Write]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # A row that is there has expired: its key was free to be claimed again.
        connection.executemany(
            "INSERT OR REPLACE INTO responses "
            "(key, payload_digest, status, content_type, body, created_at) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [
                (
                    write.key,
                    write.kept.payload_digest,
                    write.kept.status,
                    write.kept.content_type,
                    write.kept.body,
                    write.created_at,
                )
                for write in group
            ],
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _prune(connection: sqlite3.Connection, before: float) -> None:
    """Remove expired rows, a few at a time so that no answer waits long."""
    try:
        # Rows are in the order of time, so the oldest have the lowest numbers.
        connection.execute(
            "DELETE FROM responses WHERE created_at <= ? AND seq IN "
            "(SELECT seq FROM responses ORDER BY seq LIMIT ?)",
            (before, _PRUNED_AT_ONCE),
        )
    except sqlite3.Error as error:
        _log.warning("expired answers can't be removed: %s", error)


# Routes


def key_of(request: web.Request) -> str | None:
    """The Idempotency-Key of a request. Raises ApiError 400 for one that is none, or for two."""
    keys = request.headers.getall(HEADER, ())
    if not keys:
        return None
    if len(keys) > 1:
        raise given_twice(HEADER)
    if not 1 <= len(keys[0]) <= MAX_KEY_CHARACTERS or not keys[0].isprintable():
        raise ApiError(
            400,
            f"Invalid '{HEADER}': it has {len(keys[0])} characters, expected 1 to "
            f"{MAX_KEY_CHARACTERS} printable ones",
            code="invalid_value",
            param=HEADER,
        )
    return keys[0]


Produce = Callable[[Recording | None], Awaitable[web.StreamResponse]]


async def answer_once(
    request: web.Request,
    table: ResponseTable | None,
    background: BackgroundTasks,
    size: int,
    body: Any,
    produce: Produce,
) -> web.StreamResponse:
    """Answer by `produce`, unless the request has a key whose answer is kept.

    `body` is the decoded payload, which came as `size` bytes: the same JSON in another order is
    the same payload. What `produce` sends as a stream it notes in the recording and commits itself;
    any other success is committed here. `table` is None where nothing is kept; then a key is
    refused.
    """
    key = key_of(request)
    if key is None:
        return await produce(None)
    if table is None:
        raise unsupported_value(HEADER, "this server keeps no answers (idempotency_ttl_s is 0)")
    digest = await aside.run(size, _payload_digest, request.path, body)
    found = await table.claim(key, digest)
    if isinstance(found, Kept):
        return web.Response(
            body=found.body,
            status=found.status,
            headers={"Content-Type": found.content_type, REPLAYED_HEADER: "true"},
        )
    return await background.finish(_record(table, found, produce))


async def _record(
    table: ResponseTable, recording: Recording, produce: Produce
) -> web.StreamResponse:
    try:
        response = await produce(recording)
        if isinstance(response, web.Response) and response.status < 300:
            body = response.body
            assert isinstance(body, bytes)
            await recording.commit(response.status, response.headers["Content-Type"], body)
        return response
    finally:
        table.release(recording)


def _payload_digest(path: str, body: Any) -> bytes:
    # Piece by piece: written at once, a large payload would stop all other threads.
    canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).iterencode([path, body])
    digest = hashlib.sha256()
    for piece in canonical:
        digest.update(piece.encode())
    return digest.digest()


def _reused(key: str) -> ApiError:
    return ApiError(
        409,
        f"{HEADER} {key!r} was used with another payload: use a new key for a new request",
        code="idempotency_key_reused",
        param=HEADER,
    )
