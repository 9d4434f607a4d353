"""The records of a run compared with each other: each against the files that it was made from."""

from typing import Any

from nip_core.costs.spent_and_estimated import ESTIMATE
from nip_core.errors import StoreError
from nip_core.records.blocks import BLOCKS
from nip_core.records.status import find_status
from nip_core.report.report_checksum import report_is_whole
from nip_core.run_store.lease import read_lease
from nip_core.run_store.manifest import MANIFEST, MANIFEST_NAME
from nip_core.upkeep.file_checks import Check
from nip_core.upkeep.verify_iteration import IterationCheck

_SERVER = ("lm_server", "adapters")
_READ_ANEW = "running nip train once more writes it anew"


def check_records(check: Check) -> None:
    """Check all records of the run, and list its unknown files."""
    root = check.run.root
    # 1. The run as a whole.
    forked_from = _root(check)
    # 2. The iterations in order: each has its models from the one before.
    highest_epoch = 0
    for name in check.names(f"{root}/iterations"):
        if name.isdigit() and int(name) >= check.since:
            iteration = IterationCheck(check, int(name))
            iteration.check()
            highest_epoch = max(highest_epoch, iteration.epoch)
    _lease(check, 0 if forked_from else highest_epoch)
    # 3. The files set aside.
    for name in check.names(f"{root}/superseded"):
        _superseded(check, f"{root}/superseded/{name}")
    # 4. The rest.
    _unknown(check)


def _root(check: Check) -> Any:
    """Check run.json, openings, problems left out, the report. Returns the run it is a fork of."""
    root = check.run.root
    record = check.document(f"{root}/run.json", demanded_by="every file of the run")
    if isinstance(record, dict):
        check.compare(f"{root}/run.json", "another run's", check.run.name, record.get("run"))
    openings = check.names(f"{root}/openings")
    for number in range(1, len(openings) + 1):
        due = f"{number:04d}.json"
        if due not in openings:
            check.lacks(f"{root}/openings/{due}", f"one before {openings[-1]}")
            break
    for name in openings:
        check.document(f"{root}/openings/{name}")
    check.document(f"{root}/left_out.json")
    check.document(f"{root}/{ESTIMATE}")
    check.known |= set(
        check.under(f"{root}/{BLOCKS}")
    )  # derived, and read only where they are whole
    _tracking(check)
    path = f"{root}/report.html"
    if path in check.present:
        check.known.add(path)
        whole = report_is_whole(check.run.store.get(path))
        if whole is None:
            check.notes.append(f"{path}: it has no checksum; {_READ_ANEW}")
        elif not whole:
            check.add(path, "damaged", "its checksum", "another", _READ_ANEW, derived=True)
    elif _is_finished(check):
        check.lacks(path, "the report of a finished run", _READ_ANEW, derived=True)
    return record.get("forked_from") if isinstance(record, dict) else None


def _is_finished(check: Check) -> bool:
    try:
        return find_status(check.run) == "finished"
    except StoreError:
        return False


def _lease(check: Check, highest_epoch: int) -> None:
    store, path = check.run.store, f"{check.run.root}/lease.json"
    check.known |= set(check.under(f"{check.run.root}/fences"))
    demanded = f"a lease of epoch {highest_epoch} or later, which the manifests name"
    epoch = check.read(
        path, lambda: read_lease(store, path)[0].epoch, demanded if highest_epoch else None
    )
    if epoch is not None and epoch < highest_epoch:
        check.add(path, "of an earlier time", f"epoch {highest_epoch} or later", epoch)


def _tracking(check: Check) -> None:
    """Check the points sent to trackers, and the notes of those each has received."""
    place = f"{check.run.root}/tracking"
    files = set(check.under(place))
    for path in sorted(files):
        if path.endswith(".json"):
            check.document(path)
    check.known |= files  # beside documents, the leases and logs of the processes that send


def _superseded(check: Check, directory: str) -> None:
    """Check the files set aside by a rewind: all are there, and as their manifests say."""
    plan = check.document(f"{directory}/plan.json", demanded_by=directory)
    is_done = f"{directory}/done.json" in check.present
    check.document(f"{directory}/done.json")
    files = plan.get("files", []) if isinstance(plan, dict) else []
    if files and not is_done:
        check.notes.append(f"{directory}: a rewind was killed half-way; nip train completes it")
    for relative in files:
        path = f"{directory}/{relative}"
        if path not in check.present:
            if is_done:
                check.lacks(path, f"the file that {directory}/plan.json names")
            continue
        check.known.add(path)
        folder, _, name = path.rpartition("/")
        if MANIFEST_NAME.fullmatch(name):
            manifest = check.manifest(folder, name)
            if manifest is not None:
                check.files_of(manifest)
        elif name.endswith(".json") and not name.startswith("transcripts-"):
            check.document(path)


def _unknown(check: Check) -> None:
    """List unknown files; one that a reader by pattern would read is an error."""
    root = check.run.root
    journals = check.under(f"{root}/journals")
    if journals:
        check.notes.append(f"{root}/journals: {len(journals)} files of what is being played")
    check.known |= set(journals)
    server = tuple(f"{root}/{name}/" for name in _SERVER)
    # A file without its manifest, which is a problem already, is no stray file.
    folders_without_manifest = {
        path.rpartition("/")[0] for path in check.problems if "/manifest" in path
    }
    for path in sorted(check.present - check.known):
        if path.startswith(server):
            continue  # see `verify_servers`
        folder = path.rpartition("/")[0]
        in_commit = "/rollouts/" in folder or "/datasets/" in folder
        is_read = (
            in_commit and path.endswith(".parquet") and f"{folder}/{MANIFEST}" in check.present
        )
        if (
            is_read
            and folder not in folders_without_manifest
            and not path.startswith(f"{root}/superseded/")
        ):
            check.add(
                path,
                "beside committed files, and no manifest names it",
                "nothing, as a pattern like *.parquet would read it",
                f"{check.run.store.size(path)} bytes",
                "move it away; nip clean deletes what a killed writer left",
            )
        else:
            check.unknown.append(path)
