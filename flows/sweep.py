"""The commands `nip sweep` and `nip declare`: many runs, a few at a time, and a table of them.

Each run is a `nip train` of its own, in a process of its own, so it is as durable as any: a sweep
that is killed leaves runs that the next start goes on with. The processes end with the sweep.
"""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from nip_core.errors import NipError, StoreError
from nip_prefect.flows.printing import print_json

_CHILD = (
    "import sys; sys.path[:] = {path!r}; from nip_core import processes; "
    "processes.end_with({caller}); from nip_prefect.flows.cli import main; main()"
)
_LEAVE_S = 30.0

File = Annotated[Path, typer.Argument(help="A YAML file with the sweep.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="A setting of all runs, on top of the file."),
]
Jobs = Annotated[int, typer.Option(min=1, max=64, help="Runs at a time.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the runs, their size and cost; start nothing.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]


def sweep(
    file: File,
    overrides: Overrides = None,
    jobs: Jobs = 1,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run every combination that FILE names; finished runs are skipped, failed ones shown."""
    from nip_core.run_store.store import open_store
    from nip_core.sweep.page import table
    from nip_core.sweep.plan import read_sweep
    from nip_core.sweep.results import collect, write

    planned = read_sweep(file, tuple(overrides or ()))
    if dry_run:
        _show_plan(planned, as_json)
        return
    say = _Said(len(planned.runs), sys.stderr if as_json else sys.stdout)
    failures, status = _run_all(planned, jobs, say)
    store = open_store(planned.run_store)
    results = collect(store, planned, failures)
    place = write(store, results)
    if as_json:
        print_json(results)
    else:
        print(f"\n{table(results)}\n{place}")
    if status:
        raise typer.Exit(status)


def declare(
    plan: Annotated[Path, typer.Argument(help="A YAML file with the plan.", show_default=False)],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Declare what PLAN's sweep is expected to show, before its first run."""
    from nip_core.run_store.store import open_store
    from nip_core.sweep.declaration import declare, read_plan

    read = read_plan(plan, tuple(overrides or ()))
    declaration, is_new = declare(open_store(read.sweep.run_store), read)
    if as_json:
        print_json(declaration)
        return
    for hypothesis in declaration["plan"]["hypotheses"]:
        primary = "primary: " if hypothesis["primary"] else ""
        print(f"{primary}{hypothesis['says']} ({hypothesis['figure']}, {hypothesis['expected']})")
    print(f"{len(declaration['plan']['runs'])} runs; nothing was started")
    how = "declared" if is_new else f"was declared at {declaration['declared_at']}"
    print(f"{how}: {declaration['sha256']}")


class _Said:
    """Lines about the runs, as they end."""

    def __init__(self, count: int, to: Any):
        self._count, self._to = count, to
        self._ended = 0
        self._started = time.monotonic()
        self._lock = threading.Lock()

    def started(self, run: str) -> None:
        self._say(f"{run}: started")

    def ended(self, run: str, how: str) -> None:
        with self._lock:
            self._ended += 1
        self._say(f"{run}: {how} ({self._ended} of {self._count})")

    def _say(self, text: str) -> None:
        seconds = time.monotonic() - self._started
        try:
            print(f"[{seconds:6.1f} s] {text}", file=self._to, flush=True)
        except OSError:  # nobody reads it any longer; the runs go on
            self._to = open(os.devnull, "w")  # noqa: SIM115


def _run_all(planned: Any, jobs: int, say: _Said) -> tuple[dict[str, str], int]:
    """Run what is not finished; by run why it did not end, and the exit code of the first such."""
    from nip_prefect.flows.launch import with_prefect
    from nip_prefect.flows.stopping import stoppable

    # 1. What is finished needs no process, and what can't be run is told before anything is.
    place = Path(planned.run_store if "://" not in planned.run_store else ".") / "sweeps"
    team = _Team(place / planned.name, say)
    left = [run for run in planned.runs if not team.is_ended(run)]

    # 2. The rest, a few at a time, with one Prefect server for all.
    def work(stop: Any) -> None:
        with with_prefect(verbose=False) as wait_for_prefect, ThreadPoolExecutor(jobs) as pool:
            wait_for_prefect()
            for ending in [pool.submit(team.run, run) for run in left]:
                ending.result()

    if left:
        stoppable(work, team.stop)
    return team.failures, next(iter(team.codes.values()), 0)


class _Team:
    """The processes of the runs, and what became of them."""

    def __init__(self, place: Path, say: _Said):
        self.failures: dict[str, str] = {}
        self.codes: dict[str, int] = {}
        self._place, self._say = place, say
        self._lock = threading.Lock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._is_stopped = False

    def is_ended(self, run: Any) -> bool:
        """Return whether nothing can be done for the run: it is finished, or damaged.

        Raises what keeps a run from being started at all.
        """
        from nip_core.stages.prepare import prepare
        from nip_core.stages.showing import finished_run
        from nip_prefect.flows.cli import exit_code

        try:
            finished = finished_run(prepare(run.parameters))
        except StoreError as error:
            self.failures[run.name], self.codes[run.name] = str(error), exit_code(error)
            self._say.ended(run.name, f"failed: {error}")
            return True
        except NipError as error:
            raise type(error)(f"{run.name}: {error}") from error
        if finished is not None:
            self._say.ended(run.name, "was finished before")
        return finished is not None

    def run(self, run: Any) -> None:
        """Train one run to its end, with the settings that were planned."""
        settings = self._place / "settings" / f"{run.name}.yaml"
        log = self._place / "logs" / f"{run.name}.log"
        for path in (settings, log):
            path.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(yaml.safe_dump(run.settings, sort_keys=False, allow_unicode=True))
        # Another sweep may be at the same run: its lines are not to be lost.
        with log.open("ab") as out:
            with self._lock:
                if self._is_stopped:
                    return
                process = subprocess.Popen(
                    self._command(settings),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=dict(os.environ),
                    start_new_session=True,  # signals are the sweep's to pass on
                )
                self._processes[run.name] = process
            self._say.started(run.name)
            status = process.wait()
        with self._lock:
            del self._processes[run.name]
            if self._is_stopped:
                return
            if status:
                self.codes[run.name] = status if 0 < status < 128 else 1
                self.failures[run.name] = f"exit code {status}: {_last_line(log)} ({log})"
        failed = f"failed with exit code {status}: {_last_line(log)}"
        self._say.ended(run.name, failed if status else "finished")

    def _command(self, settings: Path) -> list[str]:
        start = _CHILD.format(path=sys.path, caller=os.getpid())
        return [sys.executable, "-c", start, "train", str(settings)]

    def stop(self) -> None:
        """Interrupt all of them, and wait until they have put away what they have."""
        print("nip: stopping, what is finished is kept", file=sys.stderr, flush=True)
        with self._lock:
            self._is_stopped = True
            processes = [*self._processes.values()]
            for process in processes:
                process.terminate()
        until = time.monotonic() + _LEAVE_S
        for process in processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("nip: ")]
    return (said or lines or ["it said nothing"])[-1].removeprefix("nip: ")


def _show_plan(planned: Any, as_json: bool) -> None:
    """The runs with what they would take."""
    from nip_core.stages.prepare import plan_run

    rows = []
    for run in planned.runs:
        try:
            _, estimate = plan_run(run.parameters)
        except NipError as error:
            raise type(error)(f"{run.name}: {error}") from error
        rows.append((run, estimate))
    if as_json:
        print_json(
            [
                {"run": run.name, "values": dict(run.values), "calls": e.calls, "usd": e.usd}
                for run, e in rows
            ]
        )
        return
    width = max(len(run.name) for run, _ in rows)
    for run, estimate in rows:
        cost = "cost unknown" if estimate.usd is None else f"${estimate.usd:.2f}"
        print(f"{run.name:<{width}}  {estimate.calls:>9} calls  {cost}")
    known = [e.usd for _, e in rows if e.usd is not None]
    total = f"${sum(known):.2f}" if len(known) == len(rows) else "cost unknown"
    print(f"{len(rows)} runs, at most {sum(e.calls for _, e in rows)} calls, {total}; none started")
