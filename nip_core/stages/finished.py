"""What of a run is done already: found out from its files, with nothing started.

is_complete     whether nothing is left to do in an iteration
finished_run    the summary of a run in which nothing is left to do
finished_test   the newest models' test, if it has been held
"""

from typing import Any

from nip_core.parameters import HyperParameters
from nip_core.run_store.run import RunStore
from nip_core.stages.estimate import is_tested
from nip_core.stages.evaluation import summary, write_report
from nip_core.stages.session import Prepared
from nip_core.stages.transcripts import transcripts_path
from nip_core.stages.verification import check_run


def is_complete(run: RunStore, parameters: HyperParameters, iteration: int) -> bool:
    """Whether nothing is left to do in the iteration."""
    return run.store.exists(run.models(iteration)) and (
        not is_tested(parameters, iteration) or run.store.exists(run.metrics(iteration, "test"))
    )


def finished_run(prepared: Prepared) -> dict[str, Any] | None:
    """The summary of a run that is finished as its settings are now, its report brought up to date.

    None if anything is left to do. Raises CorruptionError for a file that is damaged or missing.
    """
    run, parameters = prepared.run, prepared.parameters
    last = parameters.rl.num_iterations
    if not all(is_complete(run, parameters, i) for i in range(last)):
        return None
    if is_tested(parameters, last) and not _is_tested(prepared, last):
        return None
    if run.open().parameters["rl"]["num_iterations"] != last:
        return None  # the record is brought up to date when the run is opened
    check_run(run)
    write_report(run, "finished")  # whoever finished it may have been killed before that
    return summary(run)


def finished_test(prepared: Prepared) -> dict[str, Any] | None:
    """What `nip evaluate` returns, if the newest models were tested before; otherwise None.

    Raises CorruptionError for a file of the run that is damaged or missing.
    """
    run = prepared.run
    newest = run.finished_iterations()
    if not _is_tested(prepared, newest):
        return None
    check_run(run)
    return {
        "run": run.name,
        "iteration": newest,
        "test": run.read_json(run.metrics(newest, "test")),
    }


def _is_tested(prepared: Prepared, iteration: int) -> bool:
    """Whether the test was held, and written out as a file where the settings ask for that."""
    run, text_rl = prepared.run, prepared.parameters.text_rl
    if not run.store.exists(run.metrics(iteration, "test")):
        return False
    path = transcripts_path(run, iteration, "test", text_rl.transcript_format)
    return not text_rl.save_transcripts or run.store.exists(path)
