"""The departures of a sweep from its declaration."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from nip_core.errors import CorruptionError, SettingsError
from nip_core.evaluation.figures_in_words import amount
from nip_core.run_store.run import RunRecord, RunStore
from nip_core.run_store.store import Store
from nip_study.declare.declaration import StudyDeclaration
from nip_study.declare.declared_digests import (
    analysis_digest,
    file_digests,
    settings_digest,
    settings_digests,
)
from nip_study.declare.timestamp import read_stamp
from nip_study.documents.results_document import DAMAGED, FINISHED, NOT_BEGUN
from nip_study.documents.swept_facts import StampFacts
from nip_study.plan.swept_runs import Sweep


def list_departures(
    store: Store, sweep: Sweep, declaration: StudyDeclaration, status: Mapping[str, str]
) -> tuple[str, ...]:
    """List what is not as declared: runs, settings, files, under what runs began, and code.

    `status` is that of each run and attack of the sweep, by name.
    """
    declared_digests, now = declaration.plan.runs, settings_digests(sweep)
    lines = [f"{name}: not declared" for name in sorted(now.keys() - declared_digests.keys())]
    lines += [
        f"{name}: declared, and not in the sweep" for name in declared_digests if name not in now
    ]
    for name in sorted(now.keys() & declared_digests.keys()):
        if now[name] != declared_digests[name]:
            lines.append(f"{name}: other settings than declared")
        if status[name] != FINISHED:
            lines.append(f"{name}: {status[name]}")
    lines += _list_changed_files(sweep, declaration.plan.files)
    for name in [name for name in now if status[name] not in (NOT_BEGUN, DAMAGED)]:
        record = RunStore(store, name).open()
        if settings_digest(record.parameters) != now[name]:
            lines.append(f"{name}: begun with other settings than the sweep's")
        if str(record.created_at) < declaration.declared_at:
            lines.append(f"{name}: begun before the declaration")
        if record.code_version != declaration.code_version:
            lines.append(f"{name}: played with code {record.code_version}")
        lines += [f"{name}: {line}" for line in _list_of_begin(record, declaration)]
    # Not an error: the figures are those of the code at hand, and the reader is told.
    if analysis_digest() != declaration.analysis_sha256:
        lines.append("the code of the analysis has changed")
    return tuple(lines)


def find_stamp(
    store: Store, declaration: StudyDeclaration, status: Mapping[str, str]
) -> tuple[StampFacts | None, tuple[str, ...]]:
    """Find the time stamp over a declaration, and say its limits, a line each."""
    try:
        stamp = read_stamp(store, declaration.plan.sweep)
    except (CorruptionError, SettingsError) as error:
        # It takes nothing from the figures, so they are collected all the same.
        return None, (f"time stamp: {error}",)
    if stamp is None:
        return None, ()
    names = [name for name in status if status[name] not in (NOT_BEGUN, DAMAGED)]
    start_times = {name: str(RunStore(store, name).open().created_at) for name in names}
    # A token has whole seconds: a run that began in the same one may have begun before.
    early_runs = [
        name
        for name in names
        if datetime.fromisoformat(start_times[name]).replace(microsecond=0) <= stamp.at
    ]
    facts = StampFacts(time=stamp.time, begun_before=len(early_runs))
    doubts = []
    if stamp.at < datetime.fromisoformat(declaration.declared_at).replace(microsecond=0):
        doubts.append(
            f"time stamp: of {stamp.time}, before the declaration was made by its own clock, "
            f"{declaration.declared_at}"
        )
    if early_runs:
        first = min(early_runs, key=start_times.__getitem__)
        doubts.append(
            f"time stamp: of {stamp.time}, when {amount(len(early_runs), 'run')} had begun (the "
            f"first {first}, at {start_times[first]})"
        )
    return facts, tuple(doubts)


def _list_changed_files(sweep: Sweep, declared_files: Mapping[str, str] | None) -> Iterator[str]:
    """List the user's files that changed after the plan was declared."""
    if declared_files is None:  # of a version that did not look
        return
    try:
        now = file_digests(sweep)
    except SettingsError as error:
        # Results are collected all the same: they are of the played runs.
        yield f"files that settings name can't be looked at: {error}"
        return
    for name in sorted({*declared_files, *now}):
        if name not in now:
            yield f"{name}: declared, and not there any longer"
        elif name not in declared_files:
            yield f"{name}: not declared"
        elif now[name] != declared_files[name]:
            yield f"{name}: other content than declared"


def _list_of_begin(record: RunRecord, declaration: StudyDeclaration) -> Iterator[str]:
    """List the departures when a run began: of its declaration, and of its files."""
    under, declared_files = record.declaration, declaration.plan.files
    if under is None:
        # Runs of earlier versions have none, and neither had their declarations anything of it.
        if declaration.format >= 2:
            yield "begun outside of the declared sweep"
        return
    if under.sha256 != declaration.sha256:
        yield "begun under another declaration"
    if declared_files is None:
        return
    for name, content in under.files.items():
        if content != declared_files.get(name):
            yield f"begun with another content of {name} than declared"
