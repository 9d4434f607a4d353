"""The journal of a shard where there is no disk: numbered objects, one per group commit.

``<shard>.journal/000004-000017`` is the 17th segment of the runner with epoch 4. A segment is
written whole, if it is absent, so none is torn. Records that a lost machine had not sent yet, of at
most one interval, are lost. A runner that takes over writes the records that it found as its own
first segment. Only the newest epoch's segments count, so no reader takes the segments that a
replaced runner still sends.
"""

import time
from collections.abc import Callable

from nip_core.errors import CorruptionError, StoreError
from nip_core.rollouts.storage.journal import (
    GroupCommits,
    Journal,
    encode_line,
    make_journal,
    parse_begun,
    parse_whole,
)
from nip_core.rollouts.storage.table_rows import Record
from nip_core.run_store.store import Store

SEGMENT_INTERVAL_S = 0.5
"""Least time between two segments of a shard: every one is a request that is paid for."""


def open_journal(store: Store, path: str, epoch: int) -> GroupCommits:
    """Open the journal at `path` in the store, for the runner with this epoch.

    Raises StoreError.
    """
    local = store.local_path(path)
    return SegmentJournal(store, path, epoch) if local is None else Journal(local)


def remove_journal(store: Store, path: str) -> None:
    """Delete the journal at `path`, once its records are committed elsewhere."""
    if store.local_path(path) is not None:
        store.delete(path)
        return
    for name in store.list(path):
        store.delete(f"{path}/{name}")


def read_journal(store: Store, path: str) -> list[Record]:
    """Read the durable records of a journal, and change nothing; a runner may be writing to it.

    No records, if it is not there or is removed meanwhile. Raises CorruptionError for a damaged
    one.
    """
    path = path.rstrip("/")
    try:
        return _read_journal(store, path)
    except FileNotFoundError:  # of a disk or, as MissingFileError, of a bucket
        return []


def _read_journal(store: Store, path: str) -> list[Record]:
    if (local := store.local_path(path)) is not None:
        return parse_begun(local.read_bytes(), path)
    segments = sorted(_parse_segment(path, name) for name in store.list(path))
    records: list[Record] = []
    for epoch, number in segments:
        if epoch == segments[-1][0]:
            segment = _name_segment(path, epoch, number)
            records += parse_whole(store.get(segment), segment)
    return records


class SegmentJournal(GroupCommits):
    """Segments under one path of a store, written by one runner and one event loop at a time."""

    def __init__(
        self,
        store: Store,
        path: str,
        epoch: int,
        *,
        sync_interval_s: float = SEGMENT_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the journal, and read and write nothing yet. `epoch` is the lease's."""
        super().__init__(sync_interval_s, clock)
        self.name = f"{store.url}/{path}"
        self._store, self._path, self._epoch = store, path, epoch
        self._next = 1

    def replay(self) -> list[Record]:
        """Read all durable records in the order of their commits.

        Raises CorruptionError naming a segment that is damaged or missing.
        """
        segments = sorted(_parse_segment(self._path, name) for name in self._store.list(self._path))
        newest = max((epoch for epoch, _ in segments), default=self._epoch)
        if newest > self._epoch:
            raise StoreError(
                f"{self.name}: written by a later runner (epoch {newest}, this is {self._epoch}); "
                "if the run's lease.json was deleted, delete this journal too"
            )
        records: list[Record] = []
        numbers = [number for epoch, number in segments if epoch == newest]
        for expected, number in enumerate(numbers, 1):
            if number != expected:
                raise CorruptionError(
                    f"{self._name_segment(newest, expected)}: missing, although later segments are "
                    "there; restore it, or delete the journal to play the shard again"
                )
            segment = self._name_segment(newest, number)
            records += parse_whole(self._store.get(segment), segment)
        self._next = len(numbers) + 1
        if newest < self._epoch:
            self._next = 1
            if records:
                self._write([encode_line(record) for record in records])
            for epoch, number in segments:
                self._store.delete(self._name_segment(epoch, number))
        self._is_replayed = True
        return records

    def remove(self) -> None:
        remove_journal(self._store, self._path)

    def _write(self, lines: list[bytes]) -> None:
        if self._failed is not None:
            raise self._failed
        segment = self._name_segment(self._epoch, self._next)
        if not self._store.put_if_absent(segment, make_journal(lines)):
            raise StoreError(
                f"{segment}: there already, so another process is playing this shard; wait for it "
                "or stop it"
            )
        self._next += 1

    def _name_segment(self, epoch: int, number: int) -> str:
        return _name_segment(self._path, epoch, number)


def _name_segment(path: str, epoch: int, number: int) -> str:
    return f"{path}/{epoch:06d}-{number:06d}"


def _parse_segment(path: str, name: str) -> tuple[int, int]:
    epoch, _, number = name.partition("-")
    if not (epoch.isdigit() and number.isdigit()):
        raise CorruptionError(f"{path}/{name}: not a segment of a journal; move it away")
    return int(epoch), int(number)
