"""The command `nip`.

Exit codes: 0 done; 1 an error that is nobody's fault but ours; 2 wrong settings, data or
arguments (nothing was spent); 3 stopped cleanly, running again continues; 4 another runner holds
the run; 5 damaged files, running again does not help; 6 a fine-tune job ended without a model, see
--retry-failed-jobs; 7 a cap of the run's budget is reached, raising it and running again continues;
130 interrupted and 143 terminated, running again continues.
"""

import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from nip_core import __version__
from nip_core.errors import (
    BudgetError,
    CorruptionError,
    DatasetError,
    JobError,
    LeaseError,
    NipError,
    RunConflictError,
    ServerError,
    SettingsError,
    StageError,
    StoreError,
)
from nip_core.evaluation.report_text import verdict_line
from nip_core.models import resolve_model
from nip_core.parameters import HyperParameters, load_parameters
from nip_lm_server.client import serve_command
from nip_prefect.flows.attack import attack
from nip_prefect.flows.clean import clean
from nip_prefect.flows.compare import compare, diff
from nip_prefect.flows.export import export
from nip_prefect.flows.launch import (
    is_unreachable,
    no_prefect,
    run_flow,
    used_prefect,
    with_view,
)
from nip_prefect.flows.printing import print_json, show_plan, show_run
from nip_prefect.flows.problems import problems
from nip_prefect.flows.stopping import Stopped
from nip_prefect.flows.sweep import declare, sweep
from nip_prefect.flows.temporary_prefect import end_temporary
from nip_prefect.flows.track import track
from nip_prefect.flows.up import up
from nip_prefect.flows.verify import verify

_STOPPED = {
    signal.SIGINT: "interrupted; running again continues",
    signal.SIGTERM: "terminated; running again continues",
}
_LEAVE_S = 25.0
_received: list[signal.Signals] = []
"""A signal other than SIGINT that asked for a stop."""


class _Commands(typer.core.TyperGroup):
    """Turns what a signal has become on its way up into `Stopped`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped((_received or [signal.SIGINT])[0]) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        print(f"nip {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version."),
    ] = False,
) -> None:
    """A durable training loop for language models that play neural interactive proofs."""


Config = Annotated[Path, typer.Argument(help="A YAML configuration.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="A setting on top of the configuration."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show Prefect's logs.")]

_EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (LeaseError, 4),
    (SettingsError, 2),
    (DatasetError, 2),
    (RunConflictError, 2),
    (CorruptionError, 5),
    (JobError, 6),
    (BudgetError, 7),
    (StageError, 3),
    (ServerError, 3),
    (StoreError, 3),
)


def main() -> None:
    """Entry point: errors that nip raises on purpose become one line and an exit code."""
    # Nothing here may need the network; people who want the telemetry can switch it on.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # Prefect's own server takes longer than its default of 20 s on a busy or slow machine.
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "300")
    signal.signal(signal.SIGTERM, _on_sigterm)
    status = 1  # with a traceback
    try:
        status = _ended_with()
    except Stopped as stopped:
        print(f"nip: {_STOPPED[stopped.by]}", file=sys.stderr)
        _leave(128 + stopped.by)
    finally:
        if used_prefect():
            for number in _STOPPED:
                signal.signal(number, lambda *_: _leave(status))
            _leave_by_force(status)
    sys.exit(status)


def _ended_with() -> int:
    """Run the command; returns the exit status, with the reason on standard error."""
    try:
        app(prog_name="nip")
    except NipError as error:
        print(f"nip: {error}", file=sys.stderr)
        return exit_code(error)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        return ended.code or 0
    except Exception as error:
        if not is_unreachable(error):
            raise
        print(f"nip: {no_prefect(error)}; what is committed is kept: run again", file=sys.stderr)
        return exit_code(ServerError(""))
    return 0


def _leave(status: int) -> None:
    """End this process now: nothing that is left to do at its end may print or wait."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any longer
            stream.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    end_temporary(wait_s=0.3)
    os._exit(status)


def _leave_by_force(status: int) -> None:
    """End this process in `_LEAVE_S` seconds at the latest, whatever still waits for something.

    What Prefect's client has not told a server that is gone, it would try to tell for hours.
    """

    def leave() -> None:
        said = (
            f"nip: not at its end after {_LEAVE_S:.0f} s, perhaps for a Prefect server that does "
            f"not answer; left{'; running again continues' if status else ''}\n"
        )
        os.write(2, said.encode())  # whoever holds the lock of sys.stderr may not let it go
        os._exit(status)

    timer = threading.Timer(_LEAVE_S, leave)
    timer.daemon = True
    timer.start()


def _on_sigterm(number: int, frame: Any) -> None:
    """End like an interrupt does."""
    _received.append(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)


def exit_code(error: BaseException) -> int:
    """The exit code for an error, see the module's docstring."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


@app.command()
def train(
    config: Config,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show settings, size and cost; start nothing.")
    ] = False,
    fork: Annotated[
        str | None,
        typer.Option(metavar="NEW_NAME", help="Go on from the run under a new name."),
    ] = None,
    retry_failed_jobs: Annotated[
        bool, typer.Option("--retry-failed-jobs", help="Submit failed fine-tune jobs anew.")
    ] = False,
    rerun_from: Annotated[
        str | None,
        typer.Option(
            metavar="ITERATION[:STAGE]",
            help="Do it anew from there (stages: test, play, dataset, train, swap).",
        ),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Train as CONFIG says; a run that was stopped goes on where it stopped."""
    settings = list(overrides or [])
    parameters = load_parameters(config, settings)
    again = _rerun_from(rerun_from)
    if dry_run:
        show_plan(parameters, as_json)
        return
    if fork is not None:
        parameters, settings = _fork(parameters, config, settings, fork)

    def look(prepared: Any) -> dict[str, Any] | None:
        from nip_core.stages.showing import finished_run

        return None if again else finished_run(prepared)

    def import_flow() -> Any:
        from nip_prefect.flows.train import train as flow

        return lambda: flow(str(config), settings, retry_failed_jobs=retry_failed_jobs, **again)

    result = run_flow(
        parameters,
        look,
        import_flow,
        as_json=as_json,
        verbose=verbose,
        retry_failed_jobs=retry_failed_jobs,
    )
    if as_json:
        print_json(result)
        return
    show_run(result)


@app.command()
def evaluate(
    config: Config, overrides: Overrides = None, as_json: AsJson = False, verbose: Verbose = False
) -> None:
    """Test the newest models of CONFIG's run; the base models if there are none yet."""
    given = list(overrides or [])
    parameters = load_parameters(config, given)

    def look(prepared: Any) -> dict[str, Any] | None:
        from nip_core.stages.showing import finished_test

        return finished_test(prepared)

    def import_flow() -> Any:
        from nip_prefect.flows.evaluate import evaluate as flow

        return lambda: flow(str(config), given)

    result = run_flow(parameters, look, import_flow, as_json=as_json, verbose=verbose)
    if as_json:
        print_json(result)
        return
    print(f"run {result['run']}, models of iteration {result['iteration']}")
    print(verdict_line(result["test"]))


@app.command()
def play(
    config: Config,
    out: Annotated[Path, typer.Option(help="Directory for the Parquet files.")],
    overrides: Overrides = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    iteration: Annotated[
        int | None, typer.Option(help="Whose models play; default: the newest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play the rollouts of one iteration and write their Parquet files to OUT.

    They are the run's own: a later `nip train` uses them instead of playing again.
    """
    from nip_core.rollouts.plan import SPLITS
    from nip_core.rollouts.progress import Progress
    from nip_core.stages.export import export_rollouts

    if split not in SPLITS:
        raise SettingsError(f"--split {split!r}: use one of {', '.join(SPLITS)}")
    parameters = load_parameters(config, overrides or [])
    progress = Progress("checking the settings and the problems")

    async def run() -> dict[str, Any]:
        from nip_core.loop import play
        from nip_core.stages.session import open_session

        async with open_session(parameters, progress=progress) as session:
            finished = session.run.finished_iterations()
            which = finished if iteration is None else iteration
            if which > finished:
                raise SettingsError(
                    f"--iteration {which}: run {session.run.name!r} has finished {finished} "
                    "iterations, so the models of that one are not there yet"
                )
            played = await play(session, which, split)
            files = export_rollouts(session.run, which, split, out)
            return {
                "run": session.run.name,
                "iteration": which,
                "split": split,
                **played,
                "files": [str(file) for file in files],
            }

    result = with_view(parameters, progress, lambda stop: stop.run(run), as_json)
    if as_json:
        print_json(result)
        return
    print(f"{result['rows']['episodes']} episodes, {result['rows']['generations']} generations")
    print(f"canonical digest {result['canonical_digest']}")
    for file in result["files"]:
        print(file)


@app.command()
def show(
    run: Annotated[str | None, typer.Argument(help="Name of the run; default: newest.")] = None,
    run_store: Annotated[str, typer.Option(help="Where runs are kept.")] = "runs",
    as_json: AsJson = False,
) -> None:
    """Show a run: status, accuracy by iteration, models and jobs."""
    from nip_core.run_store.run import RunStore, list_runs
    from nip_core.run_store.store import open_store
    from nip_core.stages.showing import newest_run, summary
    from nip_core.stages.verification import check_presence

    if "://" not in run_store and not Path(run_store).is_dir():
        raise SettingsError(f"--run-store {run_store!r}: there is no such directory")
    store = open_store(run_store, read_only=True)

    def left_out(reason: str) -> None:
        print(f"nip: left out: {reason}", file=sys.stderr)

    name = run or newest_run(store, left_out)
    if name is None:
        if list_runs(store):
            raise CorruptionError(f"--run-store {run_store!r}: none of its runs can be read")
        raise SettingsError(f"--run-store {run_store!r}: there are no runs in it")
    if name not in list_runs(store):
        there = ", ".join(list_runs(store)) or "none"
        raise SettingsError(f"run {name!r} is not in {run_store!r}; there are {there}")
    tree = RunStore(store, name)
    result = summary(tree)
    if result["status"] != "running":
        check_presence(tree)
    if as_json:
        print_json(result)
        return
    show_run(result)


app.command()(sweep)
app.command()(declare)
app.command()(attack)
app.command()(verify)
app.command()(diff)
app.command()(compare)
app.command()(track)
app.command()(export)
app.command()(clean)
app.add_typer(problems, name="problems")
app.command("serve", context_settings={"obj": resolve_model})(serve_command())
app.command()(up)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Tell what is installed, which engines can run, and what is missing."""
    from nip_prefect.flows.doctor import examine, summary

    findings = examine()
    if as_json:
        print_json([vars(finding) for finding in findings])
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.ok else 'no  '}{finding.what:<22}{finding.detail}")
        print(f"\n{summary(findings)}")
    if any(finding.needed and not finding.ok for finding in findings):
        raise typer.Exit(1)


def _rerun_from(text: str | None) -> dict[str, Any]:
    """The flow's parameters for ``--rerun-from``."""
    if text is None:
        return {}
    from nip_core.stages.rerun import STAGES

    number, colon, stage = text.partition(":")
    if not number.isdecimal() or int(number) > 9999 or (colon and stage not in STAGES):
        raise SettingsError(
            f"--rerun-from {text!r}: write it as 3 or 3:dataset; stages are {', '.join(STAGES)}"
        )
    return {"rerun_from_iteration": int(number), **({"rerun_from_stage": stage} if stage else {})}


def _fork(
    parameters: HyperParameters, config: Path, settings: list[str], new_name: str
) -> tuple[HyperParameters, list[str]]:
    """Start NEW_NAME from what the run has finished, with the settings given now."""
    from nip_core.stages.prepare import fork_run

    # The flow reads its overrides as YAML once more: quoted, the name is what was typed.
    settings = [*settings, f"run_name={json.dumps(new_name)}"]
    forked = load_parameters(config, settings)
    fork_run(parameters, forked)
    return forked, settings


if __name__ == "__main__":
    main()
