"""`nip train`: the whole loop."""

import json
import shutil
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from nip_cli.printing.options import (
    AsJson,
    ConfigOrNone,
    Overrides,
    Shown,
    ShownAs,
    Verbose,
)
from nip_cli.printing.terminal import say
from nip_core.configurations import list_of_bundled
from nip_core.errors import SettingsError

if TYPE_CHECKING:
    from nip_core.parameters import HyperParameters


def train(
    config: ConfigOrNone = None,
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
    display: ShownAs = Shown.auto,
    verbose: Verbose = False,
) -> None:
    """Train as CONFIG says; a run that was stopped goes on where it stopped.

    Without CONFIG the bundled configurations are listed.
    """
    if config is None:
        _refuse_nothing()
    from nip_cli.launching.launch import run_flow
    from nip_cli.printing.plans_and_runs import show_plan, show_result, show_run
    from nip_core.parameters import load_parameters

    settings = list(overrides or [])
    parameters = load_parameters(config, settings)
    rerun = _rerun_from(rerun_from)
    if dry_run:
        show_plan(parameters, as_json)
        return
    if fork is not None:
        parameters, settings = _fork(parameters, config, settings, fork)

    def look(prepared: Any) -> dict[str, Any] | None:
        from nip_core.showing.finished import find_finished_run

        return None if rerun else find_finished_run(prepared)

    def import_flow() -> Any:
        from nip_prefect.flows.train import train as flow

        return lambda: flow(config, settings, retry_failed_jobs=retry_failed_jobs, **rerun)

    result = run_flow(
        parameters,
        look,
        import_flow,
        as_json=as_json,
        verbose=verbose,
        retry_failed_jobs=retry_failed_jobs,
        display=display,
    )
    show_result(result, as_json, display, show_run)


def _refuse_nothing() -> NoReturn:
    width = min(shutil.get_terminal_size((80, 24)).columns, 100)
    say(f"nip train: CONFIG is missing: a YAML file, or one of\n\n{list_of_bundled(width)}\n")
    say("For example: nip train quickstart. nip init writes a configuration of your own.")
    raise typer.Exit(2)


def _rerun_from(text: str | None) -> dict[str, Any]:
    """The flow's parameters for ``--rerun-from``."""
    if text is None:
        return {}
    from nip_core.records.rewinds import STAGES

    number, colon, stage = text.partition(":")
    if not number.isdecimal() or int(number) > 9999 or (colon and stage not in STAGES):
        raise SettingsError(
            f"--rerun-from {text!r}: write it as 3 or 3:dataset; stages are {', '.join(STAGES)}"
        )
    return {"rerun_from_iteration": int(number), **({"rerun_from_stage": stage} if stage else {})}


def _fork(
    parameters: "HyperParameters", config: str, settings: list[str], new_name: str
) -> tuple["HyperParameters", list[str]]:
    """Start NEW_NAME from the run's finished iterations, with the settings given now."""
    from nip_core.parameters import load_parameters
    from nip_core.session.prepare import fork_run

    # The flow reads its overrides as YAML once more: quoted, the name is as it was typed.
    settings = [*settings, f"run_name={json.dumps(new_name)}"]
    forked = load_parameters(config, settings)
    fork_run(parameters, forked)
    return forked, settings
