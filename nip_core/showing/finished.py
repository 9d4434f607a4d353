"""Whether a run, or its newest test, is finished as its settings are now.

Both check the files first.
"""

from typing import Any

from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.parameters.derived.tested_iterations import is_tested
from nip_core.records.intervals import read_shown_metrics
from nip_core.records.iterations import Records
from nip_core.records.status import find_first_incomplete, find_last, has_last_figures
from nip_core.records.transcript_files import name_transcripts_file
from nip_core.rollouts.plan import TEST
from nip_core.run_store.run import read_document
from nip_core.session.prepare import Prepared
from nip_core.showing.reports import write_report
from nip_core.showing.summary import summarise_run
from nip_core.upkeep.verify import check_run


def find_finished_run(prepared: Prepared) -> dict[str, Any] | None:
    """Return the summary of a run with nothing left to do, and bring its report up to date.

    None if anything is left to do. Raises CorruptionError for a file that is damaged or missing.
    """
    run, parameters = prepared.run, prepared.parameters
    if not run.store.exists(f"{run.root}/run.json"):
        return None  # even one that has nothing to play begins
    records = Records(run)
    last = find_last(records, parameters)
    if find_first_incomplete(records, parameters) < last:
        return None
    if is_tested(parameters, last) and not _is_tested(prepared, last):
        return None
    if not has_last_figures(run, records.shown, last):
        return None
    if run.open().parameters["rl"]["num_iterations"] != parameters.rl.num_iterations:
        return None  # the record is brought up to date when the run is opened
    # A finished run is not opened any more, so this is where damage would be seen.
    check_run(run)
    write_report(run, "finished")  # its last process may have been killed before that
    return summarise_run(run)


def find_finished_test(prepared: Prepared) -> dict[str, Any] | None:
    """Return the result of `nip evaluate`, if the newest models were tested before; otherwise None.

    Raises CorruptionError for a file of the run that is damaged or missing.
    """
    run = prepared.run
    newest = run.finished_iterations()
    if not _is_tested(prepared, newest):
        return None
    check_run(run)
    plain_metrics = read_document(run, run.metrics(newest, TEST), SplitMetrics)
    assert plain_metrics is not None  # it was there a moment ago
    metrics = read_shown_metrics(run, newest, TEST, plain_metrics)
    return {"run": run.name, "iteration": newest, "test": metrics.as_json()}


def _is_tested(prepared: Prepared, iteration: int) -> bool:
    """Say whether the test was held, and written out as a file where the settings ask for it."""
    run, text_rl = prepared.run, prepared.parameters.text_rl
    if not run.store.exists(run.metrics(iteration, TEST)):
        return False
    path = name_transcripts_file(run, iteration, TEST, text_rl.transcript_format)
    return not text_rl.save_transcripts or run.store.exists(path)
