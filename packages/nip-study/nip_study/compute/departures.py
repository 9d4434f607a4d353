"""What of a sweep is not as it was declared.

list_departures  a line for each
find_stamp       the time stamp over the declaration, and what of it is in doubt
"""

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
    declared, now = declaration.plan.runs, settings_digests(sweep)
    lines = [f"{name}: not declared" for name in sorted(now.keys() - declared.keys())]
    lines += [f"{name}: declared, and not in the sweep" for name in declared if name not in now]
    for name in sorted(now.keys() & declared.keys()):
        if now[name] != declared[name]:
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
    """Find the time stamp over a declaration, and say what it does not show, a line each."""
    try:
        stamp = read_stamp(store, declaration.plan.sweep)
    except (CorruptionError, SettingsError) as error:
        # It takes nothing from the figures, so they are collected all the same.
        return None, (f"time stamp: {error}",)
    if stamp is None:
        return None, ()
    names = [name for name in status if status[name] not in (NOT_BEGUN, DAMAGED)]
    begun = {name: str(RunStore(store, name).open().created_at) for name in names}
    # A token has whole seconds: what began in the same one may have begun before.
    before = [
        name
        for name in names
        if datetime.fromisoformat(begun[name]).replace(microsecond=0) <= stamp.at
    ]
    facts = StampFacts(time=stamp.time, begun_before=len(before))
    doubts = []
    if stamp.at < datetime.fromisoformat(declaration.declared_at).replace(microsecond=0):
        doubts.append(
            f"time stamp: of {stamp.time}, before the declaration was made by its own clock, "
            f"{declaration.declared_at}"
        )
    if before:
        first = min(before, key=begun.__getitem__)
        doubts.append(
            f"time stamp: of {stamp.time}, when {amount(len(before), 'run')} had begun (the first "
            f"{first}, at {begun[first]})"
        )
    return facts, tuple(doubts)


def _list_changed_files(sweep: Sweep, declared: Mapping[str, str] | None) -> Iterator[str]:
    """List the user's files that are not what they were when the plan was declared."""
    if declared is None:  # of a version that did not look
        return
    try:
        now = file_digests(sweep)
    except SettingsError as error:
        # Results are collected all the same: they are of what was played.
        yield f"files that settings name can't be looked at: {error}"
        return
    for name in sorted({*declared, *now}):
        if name not in now:
            yield f"{name}: declared, and not there any longer"
        elif name not in declared:
            yield f"{name}: not declared"
        elif now[name] != declared[name]:
            yield f"{name}: other content than declared"


def _list_of_begin(record: RunRecord, declaration: StudyDeclaration) -> Iterator[str]:
    """List what was otherwise when a run began: its declaration, and the files it was given."""
    under, declared = record.declaration, declaration.plan.files
    if under is None:
        # Runs of earlier versions have none, and neither had their declarations anything of it.
        if declaration.format >= 2:
            yield "begun outside of the declared sweep"
        return
    if under.sha256 != declaration.sha256:
        yield "begun under another declaration"
    if declared is None:
        return
    for name, content in under.files.items():
        if content != declared.get(name):
            yield f"begun with another content of {name} than declared"
