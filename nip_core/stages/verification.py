"""Verifying a run: every file against its manifest, every manifest against its inputs.

verify_all       the problems of a whole run, what was not checked, and the files nobody knows
verify_run       the same without the servers that have trained its models
check_run        raise for what a run lacks or has damaged, before it is taken for finished
check_presence   the same without reading the tables
Findings         what was found

What is covered: all files that a manifest names (there, size, SHA-256, rows), all documents with
a checksum, and that each says of the others what these say of themselves: shards and their split,
splits and their plan and models, datasets and the rollouts they were made from, jobs and their
dataset, models and their job, metrics and their split. What is not: a run that was rewritten as a
whole, checksums included; the last file in ``openings/``, which nothing else names; and what the
files of a server that have no digest (logs, keys) say.

Nothing is written and no lease is taken. A problem is named at the file that is damaged or missing;
what only follows from it is not named once more.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nip_core.errors import CorruptionError, StoreError
from nip_core.run_store.manifest import MANIFEST, Manifest, measure, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError, Store, walk

_SHOWN = 3
_MISSING = "missing"


@dataclass(frozen=True)
class Problem:
    """Something in a run that is not what it was."""

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
class Findings:
    """The result of a verification."""

    problems: dict[str, Problem] = field(default_factory=dict)  # by path, the first of each
    notes: list[str] = field(default_factory=list)  # what was not checked, and why
    known: set[str] = field(default_factory=set)  # paths that something accounts for
    unknown: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    def add(
        self,
        path: str,
        what: str,
        expected: object,
        got: object,
        remedy: str | None = None,
        *,
        derived: bool = False,
    ) -> None:
        """Note a problem, unless the file has one."""
        self.known.add(path)
        if path not in self.problems:
            remedy = remedy or _remedy(path)
            self.problems[path] = Problem(path, what, str(expected), str(got), remedy, derived)

    def compare(
        self, path: str, what: str, expected: object, got: object, remedy: str | None = None
    ) -> None:
        """Note a problem of the file unless `expected` and `got` are the same."""
        if expected != got:
            self.add(path, what, expected, got, remedy)

    def has(self, path: str) -> bool:
        """Return whether the file has a problem."""
        return path in self.problems


def verify_run(run: RunStore, *, deep: bool = True) -> Findings:
    """Everything that the run's files say of each other; without the state of its server.

    `deep` reads every file; otherwise only documents are read, and of the rest the size is looked
    at. Raises StoreError if the store can't be read.
    """
    from nip_core.stages.verified_records import check_records

    present = frozenset(walk(run.store, run.root))
    findings = Findings(files=len(present))
    check_records(Check(run, findings, present, deep))
    return findings


async def verify_all(run: RunStore) -> Findings:
    """`verify_run`, and the models and jobs at the servers that have trained them."""
    from nip_core.stages.verified_server import check_own_server, check_remote, parameters_of

    findings = verify_run(run)
    check = Check(run, findings, frozenset(walk(run.store, run.root)), deep=True)
    parameters = parameters_of(check)
    if parameters is not None:
        check_own_server(check, parameters)
        await check_remote(check, parameters)
    return findings


def check_run(run: RunStore) -> None:
    """Raise CorruptionError if the run lacks or has damaged what it says is there.

    On a disk every file is read, in a bucket only the documents are.
    """
    _raise_for(run, deep=run.store.local_path(run.root) is not None)


def check_presence(run: RunStore) -> None:
    """As `check_run`, looking at the sizes of data files alone."""
    _raise_for(run, deep=False)


def _raise_for(run: RunStore, *, deep: bool) -> None:
    """Raise CorruptionError with the first of the problems, if there are any."""
    from nip_core.stages.rerun import unfinished_rewinds

    if unfinished_rewinds(run):
        return  # half of it is moved, and whoever opens the run completes that first
    findings = verify_run(run, deep=deep)
    problems = [problem for problem in findings.problems.values() if not problem.derived]
    if problems:
        more = len(problems) - _SHOWN
        listed = "\n".join(str(problem) for problem in problems[:_SHOWN])
        rest = f"\nand {more} more" if more > 0 else ""
        raise CorruptionError(f"{listed}{rest}\nnip verify {run.name} lists all")


@dataclass
class Check:
    """The files of a run while they are checked."""

    run: RunStore
    findings: Findings
    present: frozenset[str]
    deep: bool

    def document(
        self, path: str, *, demanded_by: str | None = None, derived: bool = False
    ) -> Any | None:
        """A document, or None if it is not there or damaged, which then is a problem.

        That it is not there is one only if it is `demanded_by` something.
        """
        if path not in self.present:
            if demanded_by is not None:
                expected = f"the file that {demanded_by} speaks of"
                self.findings.add(path, _MISSING, expected, "none", derived=derived)
            return None
        self.findings.known.add(path)
        try:
            return self.run.read_json(path)
        except MissingFileError:
            return None  # deleted meanwhile
        except CorruptionError as error:
            self.damaged(path, error)
            return None

    def damaged(self, path: str, error: Exception) -> None:
        """Note that a file can't be read."""
        text = " ".join(str(error).partition(";")[0].removeprefix(f"{path}: ").split())
        self.findings.add(path, "damaged", "what nip wrote", text.removeprefix("damaged, ")[:200])

    def manifest(
        self, directory: str, name: str = MANIFEST, *, demanded_by: str | None = None
    ) -> Manifest | None:
        """As `document`, a manifest."""
        path = f"{directory}/{name}"
        if path not in self.present:
            if demanded_by is not None:
                self.findings.add(path, _MISSING, f"the manifest that {demanded_by} names", "none")
            return None
        self.findings.known.add(path)
        try:
            return read_manifest(self.run.store, directory, name)
        except StoreError as error:
            self.damaged(path, error)
            return None

    def files_of(self, manifest: Manifest) -> None:
        """Every file of a commit: there, size, SHA-256, and the rows of its Parquet file."""
        place = f"{manifest.directory}/{manifest.name}"
        for name, entry in manifest.files.items():
            path = manifest.path(name)
            self.findings.known.add(path)
            if path not in self.present:
                self.findings.add(path, _MISSING, f"the file that {place} names", "none")
                continue
            table = Path(name).stem.partition("-")[0]
            rows = manifest.rows.get(table) if name.endswith(".parquet") else None
            self.content(path, entry.bytes, entry.sha256, rows)

    def content(self, path: str, size_bytes: int, sha256: str, rows: int | None = None) -> None:
        """Compare a file with its size, SHA-256 and number of rows. Holds none in memory."""
        store, add = self.run.store, self.findings.add
        try:
            found_bytes = store.size(path)
            if found_bytes != size_bytes:
                add(path, "damaged", f"{size_bytes} bytes", f"{found_bytes}")
            elif self.deep:
                with as_local(store, path) as file:
                    actual = measure(file)[1]
                    if actual != sha256:
                        add(path, "damaged", f"SHA-256 {sha256}", actual)
                    elif rows is not None and rows != (actual_rows := _rows(file)):
                        add(path, "wrong number of rows", rows, actual_rows)
                self.findings.bytes += size_bytes
        except MissingFileError:
            add(path, _MISSING, f"{size_bytes} bytes", "none")

    def sha256(self, path: str) -> str:
        """Of a file of the run."""
        with as_local(self.run.store, path) as file:
            return measure(file)[1]

    def names(self, directory: str) -> list[str]:
        """The names directly below a directory of the run, without the slashes of directories."""
        below = (path.removeprefix(f"{directory}/") for path in self.under(directory))
        return sorted({name.partition("/")[0] for name in below})

    def under(self, directory: str) -> list[str]:
        """The paths below a directory of the run."""
        return sorted(path for path in self.present if path.startswith(f"{directory}/"))


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
    try:
        return int(pq.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError) as error:
        return f"no Parquet file ({error})"


def _remedy(path: str) -> str:
    copy = "restore the file from a copy"
    parts = path.split("/")
    if "iterations" in parts[:2]:
        again = f"nip train CONFIG --rerun-from {_place(parts[2:])}"
        return f"{copy}, or do its part of the run again ({again})"
    return copy


def _place(parts: list[str]) -> str:
    """Return what ``--rerun-from`` takes for a file below ``iterations/``."""
    from nip_core.stages.rerun import stage_of

    return f"{int(parts[0])}:{stage_of('/'.join(parts[1:]))}"


def summarise(run: RunStore, findings: Findings) -> Mapping[str, Any]:
    """The findings as a JSON document."""
    return {
        "run": run.name,
        "files": findings.files,
        "bytes_read": findings.bytes,
        "problems": [vars(problem) for problem in findings.problems.values()],
        "unknown": findings.unknown,
        "not_checked": findings.notes,
    }
