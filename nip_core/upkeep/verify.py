"""Verifying a run: every file against its manifest, every manifest against its inputs.

verify_run      the problems of a whole run, its unchecked files, and its unknown ones
check_run       raise for missing or damaged files, before a run is taken for finished
check_presence  the same for the newest iterations, without reading the tables

Covered are all files that a manifest names (there, size, SHA-256, rows), all documents with a
checksum, and all statements of files about others: shards and their split, splits and their plan
and models, datasets and the rollouts they were made from, jobs and their dataset, models and their
job, metrics and their split. Not covered are a run that was rewritten as a whole, checksums
included; the last file in ``openings/``, which nothing else names; and the content of a server's
files that have no digest (logs, keys).

Nothing is written and no lease is taken. A problem names the file that is damaged or missing. Its
consequences in other files are no further problems.
"""

from collections.abc import Iterator

from nip_core.errors import CorruptionError
from nip_core.records.blocks import BLOCK
from nip_core.records.rewinds import list_unfinished_rewinds
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import list_files
from nip_core.upkeep.file_checks import Check
from nip_core.upkeep.verify_records import check_records

_SHOWN = 3


def verify_run(run: RunStore, *, deep: bool = True, since: int = 0) -> Check:
    """Compare all statements of the run's files about each other, without the state of its server.

    `deep` reads every file; otherwise only documents are read, and of the rest the sizes. `since`
    is the first iteration that is checked; above 0, the files set aside are not checked. Raises
    StoreError if the store can't be read.
    """
    paths = _newest_paths(run, since) if since else list_files(run.store, run.root)
    # Notes of people are no results: with and without them the run is the same.
    check = Check(run, frozenset(paths) - {run.notes}, deep, since)
    check_records(check)
    return check


def _newest_paths(run: RunStore, since: int) -> Iterator[str]:
    """The files of the run itself, of its openings, and of its iterations from `since` on."""
    names = run.store.list(run.root)
    yield from (f"{run.root}/{name}" for name in names if not name.endswith("/"))
    yield from list_files(run.store, f"{run.root}/openings")
    yield run.models(since - 1)
    for name in run.store.list(f"{run.root}/iterations"):
        if name.rstrip("/").isdigit() and int(name.rstrip("/")) >= since:
            yield from list_files(run.store, f"{run.root}/iterations/{name.rstrip('/')}")


def check_run(run: RunStore) -> None:
    """Raise CorruptionError if a file that the run names is missing or damaged.

    On a disk every file is read, in a bucket only the documents are.
    """
    _raise_for(run, deep=run.store.local_path(run.root) is not None)


def check_presence(run: RunStore) -> None:
    """As `check_run`, looking at the sizes of data files alone, and at the newest iterations."""
    _raise_for(run, deep=False, since=max(0, run.finished_iterations() - BLOCK))


def _raise_for(run: RunStore, *, deep: bool, since: int = 0) -> None:
    """Raise CorruptionError with the first of the problems, if there are any."""
    if list_unfinished_rewinds(run):
        return  # half of it is moved, and the next opening completes that first
    check = verify_run(run, deep=deep, since=since)
    problems = [problem for problem in check.problems.values() if not problem.derived]
    if problems:
        more = len(problems) - _SHOWN
        listed = "\n".join(str(problem) for problem in problems[:_SHOWN])
        rest = f"\nand {more} more" if more > 0 else ""
        raise CorruptionError(f"{listed}{rest}\nnip verify {run.name} lists all")
