"""Uploaded files and job results: rows in the database, contents as plain files beside it.

An upload is streamed to a temporary file, checked, fsynced, renamed and only then entered in
the table, so that every row has its whole content. Ids are drawn here; a client's file name is
only shown, never used as a path. The next look at the files deletes an expired one, but not while
an unfinished job needs it.

A deletion takes the content from the disk first and marks the row then, because on a full disk the
mark needs the room. A row without content counts as deleted until the content is back: a user may
have lost it, and may put it back.

Content without a row is never deleted: it is set aside, in a directory beside the files. Only a
broken upload is removed: no client knows its id.
"""

import asyncio
import hashlib
import logging
import os
import re
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from nip_base import formats, wire
from nip_base.api_errors import ApiError, not_found
from nip_base.disk import hash_file, sync
from nip_lm_server import aside
from nip_lm_server.state.database import UNFINISHED, Database
from nip_lm_server.state.rows import FileRow, read_row

SET_ASIDE = "set_aside"
PURPOSES = ("fine-tune",)
MAX_ROWS = 1_000_000
"""Most examples in a file, unless set otherwise."""
_IS_NEEDED = f"SELECT id FROM jobs WHERE ?1 IN (training_file, validation_file) AND {UNFINISHED}"  # noqa: S608
_CONTENT = re.compile(r"file-[0-9a-f]{24}")
_UPLOAD = re.compile(rf"{_CONTENT.pattern}\.part")

_log = logging.getLogger("nip.lm_server.files")


@dataclass(frozen=True)
class StagedFile:
    """An upload, written and checked, but not yet admitted."""

    id: str
    part: Path
    filename: str
    size: int
    sha256: str


class FileObject(TypedDict):
    """OpenAI's `file`. Only a file with an expiry has `expires_at`; it is never null."""

    id: str
    object: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str
    expires_at: NotRequired[int]


class DeletedFile(TypedDict):
    """The answer to a deletion."""

    id: str
    object: str
    deleted: bool


class FileStore:
    """Files of one server, under one directory. `clock` tells seconds since 1970."""

    def __init__(
        self,
        directory: Path,
        database: Database,
        max_bytes: int,
        max_rows: int = MAX_ROWS,
        clock: Callable[[], float] = time.time,
    ):
        self._directory = directory
        self._database = database
        self._clock = clock
        self.max_bytes = max_bytes
        self.max_rows = max_rows
        directory.mkdir(exist_ok=True)
        known_ids = {
            row["id"] for row in database.fetch_all("SELECT id FROM files WHERE deleted_at IS NULL")
        }
        on_disk = {path.name for path in directory.iterdir()}
        for name in sorted(on_disk - known_ids):
            # A user may have put an older copy of the table back, so content without a row is kept.
            self._put_away(name)
        # Not marked as deleted: the user may put them back.
        self._lost = known_ids - on_disk
        if self._lost:
            _log.warning(
                "%d files are missing in %s, put them back and start again: %s",
                len(self._lost),
                directory,
                ", ".join(sorted(self._lost)),
            )
        self._unmarked: set[str] = set()

    async def stage(self, chunks: AsyncIterator[bytes], filename: str) -> StagedFile:
        """Write an upload beside the files and check it; `admit` or `discard` it afterwards.

        Raises ApiError 400 if the upload isn't JSONL, is empty or has more than `max_rows` lines,
        413 if it is larger than `max_bytes`.
        """
        id = "file-" + secrets.token_hex(12)
        part = self._directory / f"{id}.part"
        size, digest = 0, hashlib.sha256()
        try:
            with part.open("wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self.max_bytes:
                        raise too_large_error(self.max_bytes)
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            rows = await aside.check_file(formats.check_jsonl, part, self.max_rows)
            if rows > self.max_rows:
                raise ApiError(
                    400,
                    f"Invalid file {filename!r}: it has more than {self.max_rows} examples",
                    code="too_many_examples",
                    param="file",
                )
        except formats.JsonlError as error:
            part.unlink(missing_ok=True)
            code = "empty_file" if error.line == 0 else "invalid_jsonl"
            raise ApiError(
                400, f"Invalid file {filename!r}: {error}", code=code, param="file"
            ) from None
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return StagedFile(id, part, filename, size, digest.hexdigest())

    def admit(
        self, staged: StagedFile, purpose: str, expires_after_s: int | None = None
    ) -> FileObject:
        """Make a staged upload a file, and return its object."""
        now = self._clock()
        # The content first: a row always has its whole content.
        staged.part.rename(self._directory / staged.id)
        sync(self._directory)
        self._database.insert(
            "files",
            id=staged.id,
            filename=staged.filename,
            purpose=purpose,
            bytes=staged.size,
            sha256=staged.sha256,
            created_at=now,
            expires_at=None if expires_after_s is None else int(now) + expires_after_s,
        )
        return self.retrieve(staged.id)

    def discard(self, staged: StagedFile) -> None:
        """Drop a staged upload."""
        staged.part.unlink(missing_ok=True)

    def store_result(self, job_id: str, content: bytes, filename: str) -> str:
        """Store a job's result file and return its id; a file that is there already is kept."""
        id = "file-" + hashlib.sha256(f"result of {job_id}".encode()).hexdigest()[:24]
        if self._database.fetch_one("SELECT id FROM files WHERE id = ?", id) is not None:
            return id
        part = self._directory / f"{id}.part"
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        digest = hashlib.sha256(content).hexdigest()
        self.admit(StagedFile(id, part, filename, len(content), digest), "fine-tune-results")
        return id

    def retrieve(self, id: str) -> FileObject:
        """The object of a file. Raises ApiError 404."""
        return _build_object(self._get_row(id))

    def find_content(self, id: str) -> Path:
        """Return the path of the content, without reading it. Raises ApiError 404."""
        self._get_row(id)
        return self._directory / id

    async def find_intact(self, id: str) -> Path:
        """Return the path of the content after a check of its digest. Raises ApiError 404, 500."""
        path, expected = self.find_content(id), self._get_row(id).sha256
        try:
            if await asyncio.to_thread(hash_file, path) == expected:
                return path
            problem = "it is no longer what was uploaded"
        except OSError as error:
            problem = error.strerror or str(error)
        _log.error("%s is damaged: %s", path, problem)
        raise ApiError(
            500,
            f"The file {id} is damaged ({path}: {problem}): upload it again",
            code="file_damaged",
        )

    def get_purpose(self, id: str) -> str:
        """Return the file's purpose. Raises ApiError 404."""
        return self._get_row(id).purpose

    def list(
        self, *, purpose: str | None, limit: int, after: str | None, descending: bool
    ) -> wire.PageWithEnds[FileObject]:
        """One page of files. The ids of its ends are "" when it is empty: the description of the
        API does not allow null.
        """
        self._expire()
        conditions, values = ["deleted_at IS NULL"], []
        if purpose is not None:
            conditions.append("purpose = ?")
            values.append(purpose)
        if after is not None:
            row = self._database.fetch_one("SELECT seq FROM files WHERE id = ?", after)
            if row is None:
                raise not_found("file", after, "after")
            conditions.append("seq < ?" if descending else "seq > ?")
            values.append(row["seq"])
        order = "DESC" if descending else "ASC"
        rows = self._database.fetch_all(
            f"SELECT * FROM files WHERE {' AND '.join(conditions)} ORDER BY seq {order} LIMIT ?",  # noqa: S608
            *values,
            limit + 1 + len(self._unmarked | self._lost),
        )
        # Rows without content are left out here. The query asked for as many more, so that a page
        # is full.
        rows = [row for row in rows if not self._is_gone(row["id"])]
        data = [_build_object(read_row(FileRow, row)) for row in rows[:limit]]
        # The API's description allows only a text here.
        return wire.list_with_ends(data, len(rows) > limit, none="")

    def delete(self, id: str) -> DeletedFile:
        """Delete a file. Raises ApiError 404, or 409 while an unfinished job needs it."""
        self._get_row(id)
        job = self._database.fetch_one(_IS_NEEDED, id)
        if job is not None:
            raise ApiError(
                409,
                f"The file {id} is used by the unfinished job {job['id']}",
                code="file_in_use",
                param="id",
            )
        self._remove(id)
        return {"id": id, "object": "file", "deleted": True}

    def _put_away(self, name: str) -> None:
        """Set content without a row aside, and remove a broken upload; all else stays."""
        path, aside = self._directory / name, self._directory.with_name(SET_ASIDE)
        if _UPLOAD.fullmatch(name):
            path.unlink()
        elif _CONTENT.fullmatch(name) and not (aside / name).exists():
            aside.mkdir(exist_ok=True)
            path.rename(aside / name)
            _log.warning("%s is in no table: set aside in %s", path, aside)
        else:
            _log.warning("%s is no file of this server: left where it is", path)

    def _is_gone(self, id: str) -> bool:
        return id in self._unmarked or id in self._lost

    def _remove(self, id: str) -> None:
        # The content goes first: on a full disk the mark needs the room. Without its content, the
        # row counts as deleted from now on, marked or not.
        (self._directory / id).unlink(missing_ok=True)
        self._unmarked.add(id)
        self._mark_deleted()

    def _mark_deleted(self) -> None:
        for id in tuple(self._unmarked):
            try:
                self._database.execute(
                    "UPDATE files SET deleted_at = ? WHERE id = ?", self._clock(), id
                )
            except sqlite3.OperationalError:
                return  # the disk is full; the next look at the files tries again
            self._unmarked.discard(id)

    def _expire(self) -> None:
        self._mark_deleted()
        for row in self._database.fetch_all(
            "SELECT id FROM files WHERE deleted_at IS NULL AND expires_at <= ?", self._clock()
        ):
            id = row["id"]
            if not self._is_gone(id) and self._database.fetch_one(_IS_NEEDED, id) is None:
                self._remove(id)

    def _get_row(self, id: str) -> FileRow:
        self._expire()
        row = self._database.fetch_one(
            "SELECT * FROM files WHERE id = ? AND deleted_at IS NULL", id
        )
        if row is None or self._is_gone(id):
            raise not_found("File object", id)
        return read_row(FileRow, row)


def too_large_error(max_bytes: int) -> ApiError:
    """413 for an upload."""
    return ApiError(
        413, f"The file is larger than {max_bytes} bytes", code="file_too_large", param="file"
    )


def _build_object(row: FileRow) -> FileObject:
    value: FileObject = {
        "id": row.id,
        "object": "file",
        "bytes": row.bytes,
        "created_at": int(row.created_at),
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
    }
    return value if row.expires_at is None else {**value, "expires_at": int(row.expires_at)}
