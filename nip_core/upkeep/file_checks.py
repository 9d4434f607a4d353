"""The files of a run while they are verified: how they are read and compared.

A finding names the file that is damaged or missing. Its consequences in other files are no further
findings.
"""

import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from nip_core.errors import CorruptionError, StoreError
from nip_core.parameters import HyperParameters
from nip_core.parameters.stored import read_settings
from nip_core.records.rewinds import find_stage
from nip_core.records.run_shown import RunShown, open_shown
from nip_core.run_store.manifest import MANIFEST, Manifest, measure_file, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError, Store

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """A changed, damaged or missing file of a run."""

    path: str
    what: str
    expected: str
    got: str
    remedy: str
    derived: bool = False
    """Made of other files, and read by people alone."""

    def __str__(self) -> str:
        return f"{self.path}: {self.what}, expected {self.expected}, got {self.got}; {self.remedy}"


@dataclass
class Check:
    """The files of a run while they are checked, and the findings."""

    run: RunStore
    present: frozenset[str]
    deep: bool
    since: int = 0
    """The first iteration that is checked; nothing is held against those before."""
    problems: dict[str, Finding] = field(default_factory=dict)  # by path, the first of each
    notes: list[str] = field(default_factory=list)  # each names unchecked files, and why
    known: set[str] = field(default_factory=set)  # paths that something accounts for
    unknown: list[str] = field(default_factory=list)
    bytes: int = 0

    # Findings

    def add(
        self,
        path: str,
        fault: str,
        expected: object,
        found_value: object,
        remedy: str | None = None,
        *,
        derived: bool = False,
    ) -> None:
        """Note a problem, unless the file has one."""
        self.known.add(path)
        # The first is the cause; later findings mostly follow from it.
        if path not in self.problems:
            remedy = remedy or _remedy(path)
            self.problems[path] = Finding(
                path, fault, str(expected), str(found_value), remedy, derived
            )

    def compare(
        self,
        path: str,
        fault: str,
        expected: object,
        found_value: object,
        remedy: str | None = None,
    ) -> None:
        """Note a problem of the file unless `expected` and `got` are the same."""
        if expected != found_value:
            self.add(path, fault, expected, found_value, remedy)

    def lacks(
        self, path: str, expected: str, remedy: str | None = None, *, derived: bool = False
    ) -> None:
        """Note a missing file; `expected` says which file names it."""
        self.add(path, "missing", expected, "none", remedy, derived=derived)

    # Reading

    @cached_property
    def shown(self) -> RunShown:
        """The run's record and settings, read once. Raises StoreError where they are damaged."""
        return open_shown(self.run)

    @cached_property
    def settings(self) -> HyperParameters:
        """Its settings in the form of this version. Raises ValueError if they have none."""
        return read_settings(self.shown.record.parameters)

    def read(
        self,
        path: str,
        reader: Callable[[], T],
        demanded: str | None = None,
        damage: type[StoreError] = CorruptionError,
        *,
        derived: bool = False,
    ) -> T | None:
        """Return the file as `reader` returns it; None, with a problem, if it is gone or damaged.

        A missing file is a problem only if it is `demanded`, which names the file that demands it.
        `damage` is the error that the reader raises for a damaged one.
        """
        if path not in self.present:
            if demanded is not None and not self._is_before(path):
                self.lacks(path, demanded, derived=derived)
            return None
        self.known.add(path)
        try:
            return reader()
        except MissingFileError:
            return None  # deleted meanwhile
        except damage as error:
            text = " ".join(str(error).partition(";")[0].removeprefix(f"{path}: ").split())
            text = text.removeprefix("damaged, ")[:200]
            self.add(path, "damaged", "what nip wrote", text)
            return None

    def document(
        self, path: str, *, demanded_by: str | None = None, derived: bool = False
    ) -> Any | None:
        """Read a document as `read` does; `demanded_by` is another file."""
        demanded = demanded_by and f"the file that {demanded_by} speaks of"
        return self.read(path, lambda: self.run.read_json(path), demanded, derived=derived)

    def manifest(
        self, directory: str, name: str = MANIFEST, *, demanded_by: str | None = None
    ) -> Manifest | None:
        """As `document`, a manifest."""
        demanded = demanded_by and f"the manifest that {demanded_by} names"
        store, path = self.run.store, f"{directory}/{name}"
        return self.read(path, lambda: read_manifest(store, directory, name), demanded, StoreError)

    def files_of(self, manifest: Manifest) -> None:
        """Every file of a commit: there, size, SHA-256, and the rows of its Parquet file."""
        for name, entry in manifest.files.items():
            path = manifest.path(name)
            self.known.add(path)
            if path not in self.present:
                self.lacks(path, f"the file that {manifest.directory}/{manifest.name} names")
                continue
            table = Path(name).stem.partition("-")[0]
            rows = manifest.rows.get(table) if name.endswith(".parquet") else None
            self.content(path, entry.bytes, entry.sha256, rows)

    def content(self, path: str, size_bytes: int, sha256: str, rows: int | None = None) -> None:
        """Compare a file with its size, SHA-256 and number of rows. Holds none in memory."""
        store = self.run.store
        try:
            found_bytes = store.size(path)
            if found_bytes != size_bytes:
                self.add(path, "damaged", f"{size_bytes} bytes", f"{found_bytes}")
            elif self.deep:
                with as_local(store, path) as file:
                    actual = measure_file(file)[1]
                    if actual != sha256:
                        self.add(path, "damaged", f"SHA-256 {sha256}", actual)
                    elif rows is not None:
                        self.compare(path, "wrong number of rows", rows, _rows(file))
                self.bytes += size_bytes
        except MissingFileError:
            self.lacks(path, f"{size_bytes} bytes")

    # Names of files

    def names(self, directory: str) -> list[str]:
        """The names directly below a directory of the run, without the slashes of directories."""
        inner_paths = (path.removeprefix(f"{directory}/") for path in self.under(directory))
        return sorted({name.partition("/")[0] for name in inner_paths})

    def under(self, directory: str) -> list[str]:
        """The paths below a directory of the run, in order."""
        prefix = f"{directory}/"
        first = bisect_left(self._in_order, prefix)
        return self._in_order[
            first : bisect_left(self._in_order, f"{directory}0")
        ]  # "0" follows "/"

    @cached_property
    def _in_order(self) -> list[str]:
        return sorted(self.present)

    def _is_before(self, path: str) -> bool:
        _, *parts = path.split("/")
        return parts[:1] == ["iterations"] and int(parts[1]) < self.since


@contextmanager
def as_local(store: Store, path: str) -> Iterator[Path]:
    """The file on this machine's disk: itself, or a copy for as long as it is looked at."""
    local = store.local_path(path)
    if local is not None:
        yield local
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "file"
        store.download(path, copy)
        yield copy


def _rows(file: Path) -> int | str:
    import pyarrow as pa  # a look that the files are there does without
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError) as error:
        return f"no Parquet file ({error})"


def _remedy(path: str) -> str:
    copy = "restore the file from a copy"
    _, *parts = path.split("/")
    if parts[:1] == ["iterations"]:
        # As ``--rerun-from`` takes it.
        place = f"{int(parts[1])}:{find_stage('/'.join(parts[2:]))}"
        return f"{copy}, or do its part of the run again (nip train CONFIG --rerun-from {place})"
    return copy
