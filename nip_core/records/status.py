"""How far a run is: running, finished or stopped, and the first iteration with something to do.

find_newest_run        the name of the run that was created last, damaged ones left out
find_status            running, finished, or stopped
is_complete            whether nothing is left to do in an iteration
find_first_incomplete  the first iteration with something left to do
find_last              the iteration with the last test

Three words of iterations: one is *finished* once its swap is on record; it is *over*, so that
nothing of it changes, once a test that the settings ask for is there as well
(`IterationRecord.is_over`); it is *complete* if that is so by the settings of now, which may ask
for more tests than those on record.
"""

from collections.abc import Callable

from nip_core.errors import StoreError
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.tested_iterations import is_tested
from nip_core.records.iterations import Records
from nip_core.records.liveness import watch_lease
from nip_core.records.run_shown import RunShown, open_shown
from nip_core.rollouts.plan import TEST
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import Store


def find_newest_run(store: Store, on_damaged: Callable[[str], None]) -> str | None:
    """Name the run with the newest creation time, or None if none can be read.

    `on_damaged` is told of each run that is left out because its run.json can't be read.
    """
    created = []
    for name in list_runs(store):
        try:
            created.append((str(open_shown(RunStore(store, name)).record.created_at), name))
        except StoreError as error:  # one of another format version, too
            on_damaged(str(error))
    return max(created)[1] if created else None


def find_status(run: RunStore, records: Records | None = None) -> str:
    """Say whether the run is running, finished or stopped. A stopped run goes on when run again."""
    records = records or Records(run)
    run_shown = records.shown
    is_tested = run_shown.last not in run_shown.tested or run.store.exists(
        run.metrics(run_shown.last, TEST)
    )
    is_tested &= has_last_figures(run, run_shown, run_shown.last)
    # Before the lease: also while its runner still publishes the end.
    if is_tested and records.finished() >= run_shown.last:
        return "finished"
    return "running" if is_running(run) else "stopped"


def has_last_figures(run: RunStore, run_shown: RunShown, last: int) -> bool:
    """Return whether all is measured that is measured with the last iteration, but its test."""
    return all(run.store.exists(run.metrics(last, split)) for split in run_shown.measured_last)


def is_running(run: RunStore) -> bool:
    """Return whether a process that may be alive holds the run. Raises CorruptionError."""
    sighting = watch_lease(run)
    # One look can't tell a silent owner from a live one, so it counts as alive.
    return sighting.owner is not None and not sighting.is_gone


def is_complete(run: RunStore, parameters: HyperParameters, iteration: int) -> bool:
    """Return whether nothing is left to do in the iteration."""
    return run.store.exists(run.models(iteration)) and (
        not is_tested(parameters, iteration) or run.store.exists(run.metrics(iteration, TEST))
    )


def find_last(records: Records, parameters: HyperParameters) -> int:
    """The iteration with the last test: `num_iterations`, or where a verdict ended an attack."""
    iteration_count, run_shown = parameters.rl.num_iterations, records.shown
    may_have_ended = parameters.may_end_early and not run_shown.may_end
    return min(iteration_count, run_shown.last) if may_have_ended else iteration_count


def find_first_incomplete(records: Records, parameters: HyperParameters) -> int:
    """The first iteration with something left to do; `find_last` if there is none."""
    last = find_last(records.look_again(), parameters)
    over = min(records.look_again().over(), last)
    for i in range(over):  # the settings may ask for a test by now that was not held
        if is_tested(parameters, i) and records.of(i).stored_metrics(TEST) is None:
            return i
    return next((i for i in range(over, last) if not is_complete(records.run, parameters, i)), last)
