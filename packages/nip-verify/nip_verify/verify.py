"""The command `nip verify`: whether the files of a run are what they were."""

import asyncio
from typing import Any

import typer

from nip_cli.printing.options import AsJson, RunName, RunStoreUrl
from nip_cli.printing.plans_and_runs import print_json
from nip_cli.printing.terminal import say
from nip_core.errors import CorruptionError, SettingsError
from nip_core.evaluation.figures_in_words import amount, file_size

_DAMAGED = 5


def _is_running(tree: Any) -> bool:
    from nip_core.records.status import is_running

    try:
        return is_running(tree)
    except CorruptionError:
        return False  # lease.json is damaged, which is said


def verify(
    run: RunName,
    run_store: RunStoreUrl = "runs",
    as_json: AsJson = False,
) -> None:
    """Check every file of a run against its manifest, every manifest against what it was made from,
    and models and jobs against their server. Writes nothing; exit code 5 if anything is wrong."""
    from nip_core.records.named_run import make_unknown_run_error, name_place, open_runs
    from nip_core.run_store.run import RunStore, list_runs
    from nip_verify.whole import has_begun, summarise_check, verify_all

    run_store, run = name_place(run, run_store)
    store = open_runs(run_store)
    names = [name.rstrip("/") for name in store.list("") if name.endswith("/")]
    if run not in names:  # a run whose run.json is lost is looked at, too
        raise make_unknown_run_error(run, run_store, list_runs(store))
    tree = RunStore(store, run)
    if not has_begun(tree):
        now = "is only starting" if _is_running(tree) else "never began"
        raise SettingsError(
            f"run {run!r} {now}: {run_store}/{run} has no run.json and nothing that was played, so "
            "there is nothing to verify; nip train begins it, or delete the directory"
        )
    findings = asyncio.run(verify_all(tree))
    if _is_running(tree):
        findings.notes.append("the run is being run: what is just written may look missing")
    if as_json:
        print_json(summarise_check(findings))
    else:
        for problem in findings.problems.values():
            say(str(problem))
        for path in findings.unknown:
            say(f"unknown: {path}: no manifest and no record of the run names it")
        for note in findings.notes:
            say(f"not checked: {note}")
        count = len(findings.problems)
        say(
            f"run {run}: {amount(len(findings.present), 'file')}, "
            f"{file_size(findings.bytes)} read, "
            f"{amount(count, 'problem') if count else 'no problems'}, "
            f"{len(findings.unknown):,} unknown"
        )
    if findings.problems:
        raise typer.Exit(_DAMAGED)
