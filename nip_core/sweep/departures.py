"""What of a sweep is not as it was declared.

list_departures  a line for each
"""

from collections.abc import Mapping

from nip_core.run_store.run import RunStore
from nip_core.run_store.store import Store
from nip_core.sweep.declaration import StudyDeclaration
from nip_core.sweep.declared_digests import analysis_digest, settings_digest, settings_digests
from nip_core.sweep.results_document import DAMAGED, FINISHED, NOT_BEGUN
from nip_core.sweep.swept_runs import Sweep


def list_departures(
    store: Store, sweep: Sweep, declaration: StudyDeclaration, status: Mapping[str, str]
) -> tuple[str, ...]:
    """List what is not as declared: runs, their settings, when they began, and code.

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
    for name in [name for name in now if status[name] not in (NOT_BEGUN, DAMAGED)]:
        record = RunStore(store, name).open()
        if settings_digest(record.parameters) != now[name]:
            lines.append(f"{name}: begun with other settings than the sweep's")
        if str(record.created_at) < declaration.declared_at:
            lines.append(f"{name}: begun before the declaration")
        if record.code_version != declaration.code_version:
            lines.append(f"{name}: played with code {record.code_version}")
    # Not an error: the figures are those of the code at hand, and the reader is told.
    if analysis_digest() != declaration.analysis_sha256:
        lines.append("the code of the analysis has changed")
    return tuple(lines)
