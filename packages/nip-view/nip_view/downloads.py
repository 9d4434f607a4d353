"""The rows of a list as a file to take away: CSV or JSONL, with all texts.

Download        a file to be sent: its name, its kind, its parts
download_episodes, download_pairs  the rows of a query, and the pairs of a comparison
write_line, write_store  the line of Python that gives the rows of a query, and where they lie

Rows come in the order of the list, and stand in the run by shards. So each shard is read once, its
rows are put into a file without a name, and from there they are sent: memory holds one shard,
however many rows there are. Unreadable parts are found before anything is sent: a file that was
cut short looks like a whole one.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nip_core.errors import StoreError
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.showing.episodes.episode_filters import EpisodeFilters
from nip_core.showing.episodes.episode_rows import ReadableEpisode, read_episode_rows
from nip_core.showing.episodes.row_formats import (
    CSV_BEGIN,
    CsvColumns,
    as_cell,
    decode_row,
    encode_row,
    write_csv_lines,
)
from nip_view.parts.kept_calls import refuse_full_disk
from nip_view.parts.run_index import Episodes
from nip_view.runs import ShownRun

Format = Literal["csv", "jsonl"]
FORMATS: Mapping[Format, str] = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}
_PART_BYTES = 1 << 18
_NAME_CHARACTERS = 100
_USUAL_STORE = "runs"
_LOOK_BYTES = 1 << 26


@dataclass(frozen=True)
class Download:
    """A file to be sent."""

    name: str
    media_type: str
    make_parts: Callable[[], Iterator[bytes]]
    """Reads the rows, which takes a while, and gives the parts of the file. Raises StoreError."""


class SpooledRows:
    """Rows of episodes in a file without a name, by their number."""

    def __init__(self, count: int, with_asked: bool) -> None:
        """Makes the file, in the system's folder for these; it is gone with the object."""
        with _explaining():
            self._file = tempfile.TemporaryFile(buffering=1 << 20)  # noqa: SIM115, as it lives as long as this
        self._begins = np.zeros(count, np.int64)
        self._sizes = np.zeros(count, np.int64)
        self._end = self._looked_at = 0
        self.columns = CsvColumns(with_asked)
        self._with_asked = with_asked

    def put(self, number: int, row: ReadableEpisode) -> None:
        """Write a row."""
        line = encode_row(row, self._with_asked)
        self.columns.add(row)
        with _explaining():
            if self._end > self._looked_at + _LOOK_BYTES:
                refuse_full_disk(self._file.fileno())
                self._looked_at = self._end
            self._file.write(line)
        self._begins[number], self._sizes[number] = self._end, len(line)
        self._end += len(line)

    def flush(self) -> None:
        """Call it before the first `get`."""
        with _explaining():
            self._file.flush()

    def get(self, number: int) -> bytes:
        """Read the line of a row."""
        return os.pread(self._file.fileno(), int(self._sizes[number]), int(self._begins[number]))


@contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{tempfile.gettempdir()}: the rows can't be put together there ({error.strerror}); "
            "ask for fewer, or start nip view with TMPDIR set to a place with more room"
        ) from error


def _spool(
    run: ShownRun, episodes: Episodes, rows: NDArray[np.int64], with_asked: bool
) -> SpooledRows:
    """Read some episodes shard by shard. Raises CorruptionError, or StoreError on a full disk."""
    game = run.game if with_asked else None
    table = episodes.table.select(["shard", "place"]).take(pa.array(rows, pa.int64()))
    shards, places = (np.asarray(table[name].to_numpy()) for name in ("shard", "place"))
    notes, spooled = run.notes.read(), SpooledRows(len(rows), with_asked)
    for shard in np.unique(shards):
        indices = np.flatnonzero(shards == shard)
        rollouts = StoredRollouts.of_shard(run.tree.store, episodes.shards[shard].manifest)
        rows_read = read_episode_rows(rollouts, places[indices].tolist(), notes, game)
        for number, row in zip(indices.tolist(), rows_read, strict=True):
            spooled.put(number, row)
    spooled.flush()
    return spooled


def download_episodes(
    run: ShownRun,
    episodes: Episodes,
    rows: NDArray[np.int64],
    filters: EpisodeFilters,
    kind: Format,
    with_asked: bool = False,
) -> Download:
    """Make the file of some episodes, if wanted with the requests."""

    def make_lines() -> Iterator[bytes]:
        spooled, numbers = _spool(run, episodes, rows, with_asked), range(len(rows))
        if kind == "jsonl":
            return (spooled.get(number) + b"\n" for number in numbers)
        columns = spooled.columns
        cells = (columns.cells(decode_row(spooled.get(number))) for number in numbers)
        return _write_csv(columns.names(), cells)

    values = [str(v) for name, v in filters.given.items() if name != "order"]
    names = [run.name, *(values or ["episodes"])]
    return _make_download(names, kind, make_lines, "-asked" if with_asked else "")


@dataclass(frozen=True)
class ComparedSide:
    """The episodes of one side of pairs, in the order of the pairs."""

    place: str
    run: ShownRun
    episodes: Episodes
    rows: NDArray[np.int64]


def download_pairs(
    sides: tuple[ComparedSide, ComparedSide], changes: Sequence[str], kind: Format
) -> Download:
    """Make the file of pairs of episodes: both, and the changes between them."""

    def make_lines() -> Iterator[bytes]:
        a, b = (_spool(side.run, side.episodes, side.rows, False) for side in sides)
        numbered = enumerate(changes)
        if kind == "jsonl":
            line = b'{"change":"%s","a":%s,"b":%s}\n'
            return (line % (change.encode(), a.get(k), b.get(k)) for k, change in numbered)
        both = {"a": a, "b": b}
        names = [f"{side}_{name}" for side, half in both.items() for name in half.columns.names()]
        cells = (
            [
                as_cell(change),
                *a.columns.cells(decode_row(a.get(k))),
                *b.columns.cells(decode_row(b.get(k))),
            ]
            for k, change in numbered
        )
        return _write_csv(["change", *names], cells)

    return _make_download([*(side.place for side in sides), "pairs"], kind, make_lines)


def _write_csv(names: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[bytes]:
    yield CSV_BEGIN.encode()
    yield from write_csv_lines(chain([[as_cell(name) for name in names]], rows))


def _make_download(
    name_parts: Sequence[str],
    kind: Format,
    make_lines: Callable[[], Iterator[bytes]],
    end: str = "",
) -> Download:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(name_parts)).strip("-.")[:_NAME_CHARACTERS]
    return Download(f"{name}{end}.{kind}", FORMATS[kind], lambda: _join_parts(make_lines()))


def _join_parts(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Join lines to parts worth being sent."""
    while part := b"".join(_take_part(lines)):
        yield part


def _take_part(lines: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for line in lines:
        yield line
        size += len(line)
        if size >= _PART_BYTES:
            return


def write_line(run: ShownRun, filters: EpisodeFilters) -> str:
    """Write the line of Python that gives the rows of filters. It can be run as it stands."""
    place = _name_store(run.tree.store.url)
    store = "" if place == _USUAL_STORE else f", {write_store(run)}"
    filters_text = ", ".join(
        f"{name}={_write_literal(value)}" for name, value in filters.given.items()
    )
    return f"run({_write_literal(run.tree.name)}{store}).where({filters_text}).rows"


def write_store(run: ShownRun) -> str:
    """Write the argument that names the store of a run wherever a line of Python is run."""
    parts = urlsplit(run.tree.store.url)
    place = unquote(parts.path) if parts.scheme == "file" else run.tree.store.url
    return f"store={_write_literal(place)}"


def _write_literal(value: str | float | bool) -> str:
    """Write a value in Python; a text in double quotes, where these are not in it."""
    if not isinstance(value, str) or '"' in value:
        return repr(value)
    return f'"{repr(chr(39) + value)[2:]}'  # with an apostrophe in it, repr takes double quotes


def _name_store(url: str, working: Callable[[], Path] = Path.cwd) -> str:
    """Name a store as `nip_core.run` takes it: of a directory the path, of a bucket the address."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        return url
    folder = Path(unquote(parts.path))
    return _USUAL_STORE if folder == working() / _USUAL_STORE else str(folder)
