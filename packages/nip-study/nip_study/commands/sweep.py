"""The command `nip sweep`: many runs, a few at a time, and a table of them.

Each run is a `nip train` of its own, in a process of its own, so it is as durable as any: a sweep
that is killed leaves runs that the next start goes on with. The processes end with the sweep. An
attack on a run is another run, which begins when the attacked one is finished. On a cluster the
processes are those of its machines (`remote_runs`).
"""

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_cli.printing.options import AsJson, Shown, ShownAs
from nip_cli.printing.plans_and_runs import print_json, show_result, warn_of_models
from nip_cli.printing.terminal import say
from nip_core.errors import NipError, SettingsError, StoreError
from nip_core.evaluation.figures_in_words import amount
from nip_study.commands.printed_plans import PlannedLine, show_planned
from nip_study.commands.runs_view import RunsView
from nip_study.plan.planned import find_attack

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="A setting of all runs, on top of the file."),
]


def sweep(
    file: Annotated[
        Path | None, typer.Argument(help="A YAML file with the sweep.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Runs at a time.")] = 1,
    task_runner: Annotated[
        str | None,
        typer.Option("--task-runner", help="Where: local, or as tasks of a dask or ray cluster."),
    ] = None,
    task_runner_address: Annotated[
        str | None,
        typer.Option("--task-runner-address", help="The cluster's; default: one on this machine."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs, their size and cost; start nothing.")
    ] = False,
    collect_only: Annotated[
        bool, typer.Option("--collect", help="Write the results of what is there; start nothing.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where results are written; default: beside the runs."),
    ] = None,
    recompute: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Compute the results in DIR again from the files there, and compare; no FILE.",
        ),
    ] = None,
    as_json: AsJson = False,
    shown: ShownAs = Shown.auto,
) -> None:
    """Run every combination that FILE names; finished runs are skipped, failed ones shown."""
    if recompute is not None:
        if file is not None or overrides or dry_run or collect_only or out is not None:
            raise SettingsError(
                "--recompute reads one directory and writes nothing; give no FILE and no other "
                "option but --json"
            )
        _recompute(recompute, as_json)
        return
    if file is None:
        raise SettingsError("FILE is missing: name the YAML file of a sweep, or --recompute DIR")
    if plans_judges(file):
        if jobs > 1 or task_runner or task_runner_address or collect_only or out is not None:
            raise SettingsError(
                "attacks on judges play one after the other, here and beside their store; leave "
                "--jobs, --task-runner, --collect and --out out"
            )
        from nip_judges.sweeps.sweep_command import sweep_judges

        sweep_judges(file, overrides or (), dry_run=dry_run, as_json=as_json, shown=shown)
        return
    from nip_core.run_store.store import open_store
    from nip_study.compute.arm_baselines import baseline_lines
    from nip_study.facts_on_record import collect_sweep
    from nip_study.pages.page import arms_table, differences_summary
    from nip_study.plan.swept_runs import read_sweep
    from nip_study.results import write_results

    sweep_plan = read_sweep(file, tuple(overrides or ()))
    cluster = None
    if task_runner is not None or task_runner_address is not None:
        # Before Prefect is imported, which sets its logging up.
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        from nip_cli.launching.launch import import_prefect

        import_prefect()
        from nip_study.remote_runs import cluster_settings

        cluster = cluster_settings(sweep_plan, task_runner, task_runner_address)
    if dry_run:
        if collect_only or out is not None:
            raise SettingsError("--dry-run writes nothing; leave --collect and --out out")
        _show_plan(sweep_plan, as_json)
        return
    count = sum(1 + len(run.attacks) for run in sweep_plan.runs)
    view = RunsView(count, sys.stderr if as_json else sys.stdout, shown)
    store = open_store(sweep_plan.run_store)
    failures, status = dict[str, str](), 0
    if collect_only:
        _check_begun(store, sweep_plan)
    else:
        with view:
            failures, status = _run_all(sweep_plan, jobs, view, cluster)
    elsewhere = None if out is None else open_store(str(out), setting="--out")
    collected = collect_sweep(store, sweep_plan, failures)
    results, place = write_results(store, sweep_plan, collected, elsewhere)

    def show(_: Any) -> None:
        lines = "".join(f"{line}\n" for line in baseline_lines(results.baselines))
        differences = differences_summary(results.differences, results.intervals)
        say(f"\n{arms_table(results)}\n{differences}{lines}{place}")

    show_result(results.as_json(), as_json, shown, show)
    if status:
        raise typer.Exit(status)


def plans_judges(file: Path) -> bool:
    """Tell whether a plan is one of judges: it has the key `judges`."""
    try:
        return re.search(r"^judges\s*:", file.read_text(encoding="utf-8"), re.MULTILINE) is not None
    except (OSError, UnicodeDecodeError):  # said where it is read
        return False


def _recompute(directory: Path, as_json: bool) -> None:
    """Compute the results in a directory again; a difference is an error."""
    facts = directory / "facts.json"
    if facts.is_file() and b'"kind": "judges"' in facts.read_bytes()[:100]:
        from nip_judges.sweeps.sweep_command import recompute_judges

        recompute_judges(directory, as_json=as_json)
        return
    from nip_study.recompute import recompute_results

    recomputed = recompute_results(directory)
    if recomputed.is_declared_code is False:
        # Not on the page, which is the same by whatever code it is computed again.
        say(
            f"{directory}: analysis code other than declared: figures are those of the code at "
            "hand",
            file=sys.stderr if as_json else sys.stdout,
        )
    if as_json:
        print_json(recomputed.results.as_json())
        return
    say(
        f"{directory}: results.json, README.md and the figures are as computed from "
        f"{amount(recomputed.verdicts, 'verdict')}, byte for byte "
        f"({amount(recomputed.numbers, 'number')})"
    )


def _check_begun(store: Any, sweep_plan: Any) -> None:
    """Raise SettingsError where there is nothing to collect: results would forbid a declaration."""
    from nip_core.run_store.run import list_runs

    if not {run.name for run in sweep_plan.runs} & {*list_runs(store)}:
        raise SettingsError(
            f"--collect: no run of sweep {sweep_plan.name!r} has begun in {sweep_plan.run_store}; "
            "name the store by --set run_store=…, or leave --collect out to run it"
        )


def _run_all(
    sweep_plan: Any, jobs: int, view: RunsView, cluster: Any
) -> tuple[dict[str, str], int]:
    """Run the unfinished runs; by run why it did not end, and the exit code of the first such."""
    from nip_base.machine.allowed_memory import allowed_bytes
    from nip_cli.launching.launch import with_prefect
    from nip_cli.launching.stopping import stoppable
    from nip_core.run_store.store import open_store
    from nip_study.declare.declaration import find_declared
    from nip_study.plan.memory_for_jobs import check_memory

    # 1. A finished run needs no process; one that can't be run is named before any is started.
    place = Path(sweep_plan.run_store if "://" not in sweep_plan.run_store else ".") / "sweeps"
    if cluster is None:
        store = open_store(sweep_plan.run_store)
        find_declared(store, sweep_plan.name)  # one that is damaged is said before anything is paid

        def declared() -> str | None:
            return find_declared(store, sweep_plan.name)

        machines: Any = PlayedHere(place / sweep_plan.name, jobs, declared)
    else:
        from nip_study.remote_runs import Cluster

        machines = Cluster(sweep_plan, cluster, jobs)
    team = _Team(machines, view)
    runs_left = [run for run in sweep_plan.runs if team.is_left(run)]
    if cluster is None:
        check_memory(jobs, (run.parameters for run in runs_left), allowed_bytes())

    # 2. The rest, a few at a time, with one Prefect server for all.
    def work(stop: Any) -> None:
        with with_prefect(verbose=False) as wait_for_prefect, machines:
            wait_for_prefect()
            machines.play_all(team.run, runs_left)

    def stop() -> None:
        say("nip: stopping, what is finished is kept", file=sys.stderr, flush=True)
        machines.stop()

    if runs_left:
        stoppable(work, stop)
    return team.failures, next(iter(team.codes.values()), 0)


class _Team:
    """The runs, and how they ended."""

    def __init__(self, machines: Any, view: RunsView):
        self.failures: dict[str, str] = {}
        self.codes: dict[str, int] = {}
        self._machines, self._view = machines, view
        self._lock = threading.Lock()
        self._finished: set[str] = set()

    def is_left(self, run: Any) -> bool:
        """Return whether the run is to be trained, or attacked."""
        return not self._is_ended(run) or (
            run.name not in self.failures
            and not all(
                [
                    self._can_begin(run, attack) and self._is_ended(attack)
                    for attack in run.attacks_in_order
                ]
            )
        )

    def _can_begin(self, run: Any, attack: Any) -> bool:
        """Return whether the imitated attack is finished, or the attack has begun before."""
        from nip_core.run_store.run import list_runs
        from nip_core.run_store.store import open_store

        source = None if attack.imitates is None else find_attack(run, attack.imitates)
        if source is None or source in self._finished:
            return True
        return attack.name in list_runs(open_store(attack.parameters.run_store))

    def _is_ended(self, run: Any) -> bool:
        """Return whether nothing can be done for a run: it is finished, or damaged.

        Raises the error that keeps it from being started at all.
        """
        from nip_core.session.prepare import prepare
        from nip_core.showing.finished import find_finished_run

        try:
            finished = find_finished_run(prepare(run.parameters))
        except StoreError as error:
            self._failed(run, error)
            return True
        except NipError as error:
            raise type(error)(f"{run.name}: {error}") from error
        if finished is not None:
            self._finished.add(run.name)
            self._view.ended(run.name, "was finished before")
        return finished is not None

    def _failed(self, run: Any, error: NipError) -> None:
        from nip_cli.cli import exit_code

        with self._lock:
            self.failures[run.name], self.codes[run.name] = str(error), exit_code(error)
        self._view.ended(run.name, f"failed: {error}", is_failed=True)

    def run(self, run: Any) -> None:
        """Train one run to its end, then attack it, each attack behind the one it imitates."""
        attacks = run.attacks_in_order
        self._play_left(run)
        if run.name not in self._finished:
            for attack in attacks if run.name in self.failures else ():
                self._view.ended(attack.name, "not begun, as the run failed", is_failed=True)
            return
        for attack in attacks:
            if self._can_begin(run, attack):
                self._play_left(attack)
            elif (source := find_attack(run, attack.imitates)) in self.failures:
                # It is as if it had failed itself, so that its imitators do not begin either.
                with self._lock:
                    self.failures[attack.name] = f"not begun, as {source} failed"
                self._view.ended(attack.name, self.failures[attack.name], is_failed=True)

    def _play_left(self, run: Any) -> None:
        if run.name not in self._finished and run.name not in self.failures:
            self._play(run)

    def _play(self, run: Any) -> None:
        """Play one run, with its settings from the plan."""
        try:
            outcome = self._machines.play_one(run, self._view.started)
        except NipError as error:
            self._failed(run, error)
            return
        if outcome is None:  # the sweep was stopped
            return
        if not outcome.status:
            with self._lock:
                self._finished.add(run.name)
            self._view.ended(run.name, "finished")
            return
        words = f"exit code {outcome.status}: {outcome.words}"
        with self._lock:
            self.codes[run.name] = outcome.status if 0 < outcome.status < 128 else 1
            self.failures[run.name] = f"{words} ({outcome.log})"
        self._view.ended(run.name, f"failed with {words}", is_failed=True)


class PlayedHere:
    """Plays runs on this machine, each in a process of its own, a few at a time."""

    def __init__(self, place: Path, jobs: int, declared: Callable[[], str | None] = lambda: None):
        """`declared` gives the SHA-256 of the declaration under which a run begins."""
        self._place, self._jobs, self._declared = place, jobs, declared
        self._lock = threading.Lock()
        self._processes: dict[str, Any] = {}
        self._is_stopped = False

    def __enter__(self) -> "PlayedHere":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def play_all(self, play: Callable[[Any], None], runs: Sequence[Any]) -> None:
        """Call `play` with each run, as many at a time as jobs; `play` may call `play_one`."""
        with ThreadPoolExecutor(self._jobs) as pool:
            for ending in [pool.submit(play, run) for run in runs]:
                ending.result()

    def play_one(self, run: Any, on_start: Callable[[str], None]) -> Any:
        """Play a run, or an attack; None if the sweep was stopped meanwhile."""
        from nip_study.run_process import (
            Ended,
            RunProcess,
            last_line,
            name_declaration,
            write_settings,
        )

        settings = self._place / "settings" / f"{run.name}.yaml"
        log = self._place / "logs" / f"{run.name}.log"
        write_settings(run.settings, settings)
        environment = name_declaration(os.environ, self._declared())
        log.parent.mkdir(parents=True, exist_ok=True)
        # Another sweep may be at the same run: its lines are not to be lost.
        with log.open("ab") as out:
            with self._lock:
                if self._is_stopped:
                    return None
                process = RunProcess(settings, out, environment)
                self._processes[run.name] = process
            on_start(run.name)
            status = process.wait()
        with self._lock:
            del self._processes[run.name]
            if self._is_stopped:
                return None
        return Ended(status or 0, last_line(log.read_text(errors="replace")), str(log))

    def stop(self) -> None:
        """Interrupt all of them, and wait until they have saved their work."""
        from nip_study.run_process import LEAVE_S

        with self._lock:
            self._is_stopped = True
            processes = [*self._processes.values()]
            for process in processes:
                process.ask_to_stop()
        until = time.monotonic() + LEAVE_S
        for process in processes:
            process.stop(until)


def _show_plan(sweep_plan: Any, as_json: bool) -> None:
    """The runs with their estimates."""
    from nip_core.run_store.store import check_location
    from nip_core.session.prepare import estimate_settings, plan_run

    check_location(sweep_plan.run_store)
    warn_of_models(run.parameters for run in sweep_plan.runs)
    lines = []
    for run in sweep_plan.runs:
        facts = {"values": dict(run.values)}
        try:
            estimate = plan_run(run.parameters)[1]
            lines.append(PlannedLine(run.name, run.parameters, estimate, facts))
            for attack in run.attacks_in_order:
                # Their victims do not exist yet, so their models are not looked for.
                estimate = estimate_settings(attack.parameters)
                source = attack.imitates
                note = "" if source is None else f"  after {source}, which it imitates"
                lines.append(
                    PlannedLine(attack.name, attack.parameters, estimate, facts, note=note)
                )
        except NipError as error:
            raise type(error)(f"{run.name}: {error}") from error
    show_planned(lines, as_json)
