"""The journal of a shard that is still being played: every answer is on disk at once.

GroupCommits      the common part of all journals: appends that wait together
Journal.replay    the records that survived, in order; call it once, before appending
Journal.append    add a record; returns when it is on the disk. append_all: several, without asyncio
Journal.aclose    wait for appends under way, and let go of the file

On a disk, the file begins with a line that names the format. Then come frames, one per group
commit: a header (magic, payload length, CRC-32 of the payload, CRC-32 of the header) and the
payload, one JSON document per line. A frame that a crash left incomplete is the last one. It is
dropped whole: no caller was told that anything in it was durable. A damaged frame with an intact
one behind it is no crash, and is refused. For object stores see
`nip_core.rollouts.storage.journal_segments`.

Covered: the process or machine dies at any instant. Not covered: a lost disk, and damage to the
very last frame, which looks like a torn one.
"""

import asyncio
import fcntl
import json
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self

from nip_base.formats.bounds import parse_json
from nip_core.errors import CorruptionError, NipError, StoreError
from nip_core.rollouts.storage.table_rows import Record
from nip_core.run_store.local_store import make_directories, sync_directory, translate_error

FILE_HEADER = b"nip-journal 1\n"
SYNC_INTERVAL_S = 0.010
_MAGIC = b"\xf5NJ\n"  # not valid UTF-8, so it stands in no payload
_HEADER = struct.Struct("<4sIII")
_HEADER_BODY = struct.Struct("<4sII")
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class GroupCommits:
    """Appends that wait together. A subclass says where a group of lines is made durable."""

    name: str
    """As errors call it."""

    def __init__(self, sync_interval_s: float, clock: Callable[[], float]) -> None:
        self._sync_interval_s, self._clock = sync_interval_s, clock
        self._pending: list[bytes] = []
        self._callers: list[asyncio.Future[None]] = []  # one for each of `_pending`
        self._flusher: asyncio.Task[None] | None = None
        self._last_sync_s = float("-inf")
        self._failed: NipError | None = None
        self._is_replayed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    def replay(self) -> list[Record]:
        """Read all durable records in the order of their commits. Raises CorruptionError."""
        raise NotImplementedError

    def remove(self) -> None:
        """Delete the journal, once its records are committed elsewhere."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the journal; records that are not yet durable are lost, as in a crash."""
        self._thread.shutdown(wait=True)

    def _write(self, lines: list[bytes]) -> None:
        """Make a group durable, as a whole or not at all. Runs in a thread of its own."""
        raise NotImplementedError

    async def append(self, record: Record) -> None:
        """Add a record and return when it is durable.

        A cancelled caller leaves the record in; it is written all the same. Raises StoreError if
        the disk refuses, from then on for every record.
        """
        if not self._is_replayed:
            self.replay()
        if self._failed is not None:
            raise _copy_error(self._failed)
        self._pending.append(encode_line(record))
        caller = asyncio.get_running_loop().create_future()
        self._callers.append(caller)
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
        await caller

    async def aclose(self) -> None:
        """Write the waiting records and close the file. Errors were raised by `append`."""
        try:
            if self._flusher is not None:
                await self._flusher
        finally:
            self.close()  # also when cancelled, or the file would stay locked
            _answer(self._callers, StoreError(f"{self.name}: closed before it was written"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _flush(self) -> None:
        """Group commits until nothing is waiting."""
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                # 1. Wait for company: a sync costs as much for one record as for a hundred.
                wait_s = self._last_sync_s + self._sync_interval_s - self._clock()
                await asyncio.sleep(max(0.0, wait_s))  # even 0 lets others join
                # 2. Take all that waits; a later record is in the next group.
                lines, self._pending = self._pending, []
                callers, self._callers = self._callers, []
                self._last_sync_s = self._clock()
                try:
                    await loop.run_in_executor(self._thread, self._write, lines)
                except NipError as error:
                    self._failed = error
                except BaseException as error:  # callers that wait for the batch must learn of it
                    _answer(callers, StoreError(f"{self.name}: not written: {error!r}"))
                    raise
                # 3. Answer all callers in the group.
                _answer(callers, self._failed)
        finally:
            self._flusher = None


class Journal(GroupCommits):
    """An append-only file of JSON objects, open in one process and one event loop at a time."""

    def __init__(
        self,
        path: Path,
        *,
        sync_interval_s: float = SYNC_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open `path` alone, creating it durably if needed.

        `sync_interval_s` is the least time between two syncs, and so about the longest that a
        record waits for company. Raises StoreError if the file is open elsewhere or can't be
        written.
        """
        super().__init__(sync_interval_s, clock)
        self.path, self.name = path, str(path)
        self._end = 0  # known once replayed
        try:
            make_directories(path.parent)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                sync_directory(path.parent)
            except BaseException:
                os.close(self._file)
                raise
        except BlockingIOError as error:
            raise StoreError(
                f"{path}: another process is playing this shard; wait for it or stop it"
            ) from error
        except OSError as error:
            raise translate_error(error, path, "open") from error

    def replay(self) -> list[Record]:
        """Read all durable records in the order of their commits, and cut off a torn end.

        Raises CorruptionError naming file and offset for damage that no crash explains.
        """
        try:
            # 1. Read what survived.
            data = self.path.read_bytes()
            records, end = _parse(data, self.path)
            # 2. A file that was only begun gets its header: a kill may have come in the middle.
            if end < len(FILE_HEADER):
                os.ftruncate(self._file, 0)
                _write_all(self._file, FILE_HEADER, 0)
                end = len(FILE_HEADER)
            # 3. Cut off a torn end, durably, before anything is appended: an intact frame behind a
            #    torn one is taken for damage.
            os.ftruncate(self._file, end)
            os.fsync(self._file)
        except CorruptionError:
            raise
        except OSError as error:
            raise translate_error(error, self.path, "replay") from error
        self._end, self._is_replayed = end, True
        return records

    def append_all(self, records: Iterable[Record]) -> None:
        """Add records at once, without an event loop; they are durable on return."""
        if not self._is_replayed:
            self.replay()
        self._write([encode_line(record) for record in records])

    def close(self) -> None:
        super().close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _write(self, lines: list[bytes]) -> None:
        """Write and sync one frame. On failure the file is cut back to the frame before."""
        if self._failed is not None:
            raise self._failed
        payload = b"\n".join(lines)
        frame = _make_frame(payload)
        try:
            _write_all(self._file, frame, self._end)
            os.fsync(self._file)
        except OSError as error:
            # Waiting callers are told that it is not durable, so it must not come back either.
            with suppress(OSError):  # else replay will drop it
                os.ftruncate(self._file, self._end)
            raise translate_error(error, self.path, "append to") from error
        self._end += len(frame)


def _answer(callers: Iterable[asyncio.Future[None]], failure: NipError | None) -> None:
    """Tell those who wait, and were not cancelled, that their records are durable, or why not."""
    for caller in callers:
        if caller.done():
            continue
        if failure is None:
            caller.set_result(None)
        else:
            caller.set_exception(_copy_error(failure))
            caller.exception()  # known, if it is cancelled before it hears


def _copy_error(error: NipError) -> NipError:
    """Make the same error for another caller."""
    return type(error)(str(error))


def _make_frame(payload: bytes) -> bytes:
    body = _HEADER_BODY.pack(_MAGIC, len(payload), zlib.crc32(payload))
    return body + struct.pack("<I", zlib.crc32(body)) + payload


def _read_frame(data: bytes, offset: int) -> bytes | None:
    """Return the payload of the frame at `offset`; None if no intact one begins there."""
    if offset + _HEADER.size > len(data):
        return None
    magic, length, payload_crc, header_crc = _HEADER.unpack_from(data, offset)
    start = offset + _HEADER.size
    if magic != _MAGIC or zlib.crc32(data[offset : offset + _HEADER_BODY.size]) != header_crc:
        return None
    payload = data[start : start + length]
    return payload if len(payload) == length and zlib.crc32(payload) == payload_crc else None


def encode_line(record: Record) -> bytes:
    """Encode a record as a line of a frame."""
    return _ENCODER.encode(record).encode()


def make_journal(lines: list[bytes]) -> bytes:
    """Make a whole journal with these lines in one frame."""
    return FILE_HEADER + _make_frame(b"\n".join(lines))


def parse_begun(data: bytes, path: str) -> list[Record]:
    """Read the records of a journal whose last frame may be incomplete. Raises CorruptionError."""
    return _parse(data, path)[0]


def parse_whole(data: bytes, path: str) -> list[Record]:
    """Read the records of a journal written as a whole. Raises CorruptionError for any damage."""
    records, end = _parse(data, path)
    if end != len(data) or end <= len(FILE_HEADER):
        raise CorruptionError(
            f"{path}: damaged at byte {end} of {len(data)}; nothing is repaired: restore the file, "
            "or delete the journal it is part of to play the shard again"
        )
    return records


def _parse(data: bytes, path: Path | str) -> tuple[list[Record], int]:
    """Read the records of `data`, and find the offset behind the last intact frame."""
    if not data.startswith(FILE_HEADER):
        if FILE_HEADER.startswith(data):
            return [], 0
        raise CorruptionError(f"{path}: damaged at byte 0, not a journal of this version")
    records: list[Record] = []
    offset = len(FILE_HEADER)
    while offset < len(data):
        payload = _read_frame(data, offset)
        if payload is None:
            _refuse_if_more(data, offset, path)
            break
        try:
            records.extend(parse_json(line) for line in payload.split(b"\n"))
        except ValueError as error:
            raise CorruptionError(f"{path}: damaged at byte {offset}: {error}") from error
        offset += _HEADER.size + len(payload)
    return records, offset


def _refuse_if_more(data: bytes, offset: int, path: Path | str) -> None:
    """Raise CorruptionError if an intact frame lies behind the damaged one at `offset`."""
    # A crash tears the last frame alone, as each is synced before the next is written. Answers that
    # were paid for stand behind, so a cut here would lose them without a word.
    later = data.find(_MAGIC, offset + 1)
    while later >= 0:
        if _read_frame(data, later) is not None:
            raise CorruptionError(
                f"{path}: damaged at byte {offset}, with intact records from byte {later} on; "
                "nothing is repaired: restore the file, or delete it to play the shard again"
            )
        later = data.find(_MAGIC, later + 1)


def _write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        size = os.pwrite(file, view, offset)
        view, offset = view[size:], offset + size
