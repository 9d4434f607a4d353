"""The texts of models, kept beside the index in a file without a name.

Shard       a committed shard
CALLS       the columns kept of each call
read_calls  makes it of the tables of a shard
KeptCalls   keeps it shard by shard, and gives it back in pieces
refuse_full_disk  keeps such files from taking the last room on the disk

A search reads every text of a run. In the run's own files they are packed, among other columns, and
checked by digest each time, which takes seconds; here they are plain, and checked once. The file
lies in the system's temporary folder, and is gone with the process; the run's directory is never
written. Plain reads bring a piece into memory and let it go again, so that a run's texts may be
larger than the memory.

Covered: a full disk. Then texts are read from the run's files as before, and `KeptCalls.trouble`
says so. While texts are still being kept, a caller that asks for others waits for these alone.
Not covered: a folder for temporary files that is in memory; there they take of it.
"""

import errno
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.errors import NipError
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.rollouts.trees import TREE_COLUMNS, for_each_episode
from nip_core.run_store.manifest import Manifest
from nip_core.run_store.store import Store

CALLS = pa.schema(
    [
        pa.field("places", pa.list_(pa.int32())),  # rows in the shard; of a tree every leaf's
        pa.field("agent", pa.string()),
        pa.field("round", pa.int16()),
        pa.field("is_valid", pa.bool_()),
        pa.field("text", pa.string()),
        pa.field("reasoning", pa.string()),
    ]
)
OF_GENERATIONS = ("episode", "branch_path", "agent", "round", "invalid_reason", "text", "reasoning")
OF_EPISODES = ("key", "branch_path", *TREE_COLUMNS)
_PER_PIECE = 4096  # calls, a megabyte or two
_BEGIN_AFTER_S = 1.0  # so that the page that has asked for the run comes first
_LEFT_FREE = 1 << 30  # bytes of the disk, which others need too


@dataclass(frozen=True)
class Shard:
    """A committed shard, whether its split is or not."""

    directory: str
    name: str
    manifest: Manifest

    @property
    def identity(self) -> tuple[str, str]:
        """Its name with its digest: a split that is played again has shards of the same names."""
        return self.name, self.manifest.digest


def read_calls(episodes: pa.Table, generations: pa.Table) -> pa.Table:
    """Make `CALLS` of a shard's tables, which need the columns named above."""
    # 1. The rows of each call's episodes; in a tree one call belongs to several.
    numbers = pa.array(np.arange(generations.num_rows, dtype=np.int64))
    numbered = generations.select(["episode", "branch_path"]).append_column("number", numbers)
    pairs = for_each_episode(episodes, numbered)
    indices = pc.index_in(pairs["episode"], value_set=episodes["key"].combine_chunks())
    is_row = pc.is_valid(indices)
    places = pc.filter(indices, is_row).to_numpy()
    owners = pc.filter(pairs["number"], is_row).to_numpy()
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=generations.num_rows))
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    # 2. The texts, and their agents.
    return pa.table(
        [
            pa.ListArray.from_arrays(offsets, pa.array(places[order].astype(np.int32))),
            generations["agent"],
            generations["round"],
            pc.is_null(generations["invalid_reason"]),
            generations["text"],
            generations["reasoning"],
        ],
        schema=CALLS,
    )


def refuse_full_disk(number: int, size: int = 0) -> None:
    """Raise OSError if `size` more bytes in the open file would leave others too little room."""
    disk = os.fstatvfs(number)
    if disk.f_bavail * disk.f_frsize < size + _LEFT_FREE:
        raise OSError(errno.ENOSPC, "less than 1 GB is free there")


@dataclass(frozen=True)
class _Piece:
    """A part of the file."""

    offset: int
    size: int


class KeptCalls:
    """The calls of a run by shard. Others are read from the run's files, and then kept."""

    def __init__(self, store: Store) -> None:
        """Keeps nothing yet."""
        self._store, self._lock = store, Lock()
        self._file: IO[bytes] | None = None
        self._end = 0
        self._pieces: dict[tuple[str, str], list[_Piece]] = {}
        self._offered: set[tuple[str, str]] = set()
        self._waiting: deque[Shard] = deque()
        self._worker = ThreadPoolExecutor(1)
        self.trouble = ""
        """In words, why not all is kept; "" where it is."""

    def keep_soon(self, shards: Sequence[Shard]) -> None:
        """Keep the calls of these shards too, in a thread, one shard after the other."""
        with self._lock:
            fresh = [shard for shard in shards if shard.identity not in self._offered]
            self._offered |= {shard.identity for shard in fresh}
            is_idle = not self._waiting
            self._waiting.extend(fresh)
        if fresh and is_idle:
            self._worker.submit(self._keep_next, _BEGIN_AFTER_S)

    def _keep_next(self, begin_after_s: float = 0.0) -> None:
        """Keep the next shard. A task each, so that the end of the program waits for one alone."""
        time.sleep(begin_after_s)
        with self._lock:
            if not self._waiting or self.trouble:
                return
            shard = self._waiting[0]
        with suppress(NipError, OSError, pa.ArrowException, KeyError, ValueError):
            if shard.identity not in self._pieces:
                self.keep(shard, self._read_from_run(shard))  # damage is told to who asks for it
        with self._lock:
            if self._waiting:
                self._waiting.popleft()
        with suppress(RuntimeError):  # the program ends
            self._worker.submit(self._keep_next)

    def forget(self) -> None:
        """Keep nothing more: the run is another by now."""
        with self._lock:
            self._waiting.clear()

    def keep(self, shard: Shard, calls: pa.Table) -> None:
        """Write the calls of a shard, if there is room for them."""
        if self.trouble:
            return
        try:
            batches = calls.combine_chunks().to_batches(max_chunksize=_PER_PIECE)
            pieces = [self._write(batch.serialize()) for batch in batches]
        except OSError as error:
            self.trouble = f"folder for temporary files: {error.strerror or error}"
            return
        with self._lock:
            self._pieces[shard.identity] = pieces

    def _write(self, data: pa.Buffer) -> _Piece:
        view = memoryview(data)
        with self._lock:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="nip-view-")  # noqa: SIM115 kept open
            number, piece = self._file.fileno(), _Piece(self._end, len(view))
            refuse_full_disk(number, len(view))
            self._end += len(view)
        count = 0
        while count < len(view):
            count += os.pwrite(number, view[count:], piece.offset + count)
        return piece

    def read(self, shard: Shard) -> Iterator[pa.RecordBatch]:
        """Yield the calls of a shard in pieces of `CALLS`. Raises CorruptionError."""
        if shard.identity not in self._pieces:
            calls = self._read_from_run(shard)
            self.keep(shard, calls)
            yield from calls.combine_chunks().to_batches(max_chunksize=_PER_PIECE)
            return
        assert self._file is not None
        for piece in self._pieces[shard.identity]:
            data = os.pread(self._file.fileno(), piece.size, piece.offset)
            yield pa.ipc.read_record_batch(pa.py_buffer(data), CALLS)

    def _read_from_run(self, shard: Shard) -> pa.Table:
        rollouts = StoredRollouts.of_shard(self._store, shard.manifest)
        return read_calls(rollouts.episodes(OF_EPISODES), rollouts.generations(OF_GENERATIONS))
