"""The command `nip attack`: does a verifier stay right when its provers try to fool it?

With `--judge` it attacks a judge that is not nip's, which `nip_judges` does.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_cli.launching.launch import run_flow
from nip_cli.printing.options import AsJson, RunStoreUrl, Shown, ShownAs, Verbose, complete_run
from nip_cli.printing.plans_and_runs import show_plan, show_result, show_run
from nip_core.errors import SettingsError

Steps = Annotated[
    int | None,
    typer.Option(min=1, help="sneaky: steps of training; default: 20, to a plateau 100."),
]
_of_judges = partial(typer.Option, rich_help_panel="Judges of others")
Every = Annotated[
    int | None, typer.Option(min=1, help="sneaky: steps from test to test; default: 5.")
]


def attack(
    run: Annotated[
        str | None,
        typer.Argument(
            help="Name of the run, or STORE/NAME; none with --judge.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="best-of-n; sneaky: train provers; script; or an attack of yours, file.py:Class."
        ),
    ] = None,
    judge: Annotated[
        Path | None, _of_judges(metavar="FILE", help="In RUN's place: a judge.yaml.")
    ] = None,
    attacker: Annotated[
        str | None,
        _of_judges(metavar="MODEL", help="Writes the texts; judge: the judge's own model."),
    ] = None,
    against: Annotated[
        str | None, _of_judges(metavar="FILE|VARIANT", help="A second judge, on the same.")
    ] = None,
    kinds: Annotated[str | None, _of_judges(help="Kinds of wordings, as opener,forged.")] = None,
    hold_out: Annotated[
        bool,
        _of_judges("--hold-out", help="--against: by the worst of a fixed half of the kinds."),
    ] = False,
    max_fooled: Annotated[
        float | None, _of_judges(min=0, max=100, help="A bar, in percent.")
    ] = None,
    max_usd: Annotated[float | None, _of_judges(min=0, help="Most US dollars.")] = None,
    max_calls: Annotated[int | None, _of_judges(min=1, help="Most calls.")] = None,
    iteration: Annotated[
        int | None,
        typer.Option(help="Whose models: those that play this iteration; default: the newest."),
    ] = None,
    n: Annotated[
        str | None,
        typer.Option(
            "--n", help="best-of-n: messages to choose from; default: 1,4,16,64; --judge: 1,4,16."
        ),
    ] = None,
    steps: Steps = None,
    every: Every = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="sneaky: steps, all of them (default); plateau, until they take no more."
        ),
    ] = None,
    start_from: Annotated[
        str | None,
        typer.Option(help="sneaky: imitate first what fooled a verifier in a RUN, or chats.jsonl."),
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(help="script: one that comes with the scenario, or path/to/file.py:function."),
    ] = None,
    problems: Annotated[
        int | None, typer.Option(help="Most problems of each label; default: all.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the attack's own run; default: made of RUN's.")
    ] = None,
    run_store: RunStoreUrl = "runs",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="A setting on top of RUN's."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show settings, size and cost; start nothing.")
    ] = False,
    as_json: AsJson = False,
    shown: ShownAs = Shown.auto,
    verbose: Verbose = False,
) -> None:
    """Attack the verifier of RUN, or a judge of others; an attack that was stopped goes on."""
    of_judges = {
        **{"attacker": attacker, "against": against, "kinds": kinds, "hold_out": hold_out or None},
        **{"max_fooled": max_fooled, "max_usd": max_usd, "max_calls": max_calls},
    }
    numbers = None if n is None else _numbers(n)
    if judge is not None:
        for option, value in {"iteration": iteration, "every": every, "RUN": run}.items():
            if value is not None:
                raise SettingsError(f"{option} is not for --judge; leave it out")
        from nip_judges.command import run_judge_attack

        options: dict[str, Any] = {**of_judges, "hold_out": hold_out, "by": by, "script": script}
        options |= {"problems": problems, "run_store": run_store, "overrides": overrides or ()}
        options |= {"steps": steps, "until": until, "start_from": start_from}
        options |= {"name": name, "n": numbers}
        exit_code = run_judge_attack(judge, options, dry_run=dry_run, as_json=as_json, shown=shown)
        raise typer.Exit(exit_code)
    _refuse("a RUN", of_judges)
    if run is None or by is None:
        raise SettingsError("name a RUN and --by, or a judge of yours with --judge judge.yaml")
    from nip_core.attacks import list_options_of_others
    from nip_core.attacks.course import TESTED_EVERY
    from nip_core.parameters.attack_settings import find_way
    from nip_core.records.named_run import name_place
    from nip_study.plan.attack_run import attack_settings

    kind = find_way(by, "--by")
    settings = {"n": numbers, "until": until, "script": script, "start_from": start_from}
    way_options = {**settings, "steps": steps, "every": every}
    _refuse(f"--by {by}", {option: way_options[option] for option in list_options_of_others(kind)})
    attack_options: dict[str, Any] = {"by": by, "iteration": iteration, "problems": problems}
    attack_options |= {name: value for name, value in settings.items() if value is not None}
    run_store, run = name_place(run, run_store)
    parameters = attack_settings(
        run_store,
        run,
        attack_options,
        steps=steps,
        every=every or TESTED_EVERY,
        name=name,
        overrides=overrides or [],
    )
    if dry_run:
        show_plan(parameters, as_json)
        return
    from nip_core.showing.finished import find_finished_run

    def import_flow() -> Any:
        from nip_prefect.flows.train import continue_run as flow

        # The session that is open has created the run, or opened it.
        return lambda: flow(parameters.run_name, parameters.run_store)

    result = run_flow(
        parameters, find_finished_run, import_flow, as_json=as_json, verbose=verbose, display=shown
    )
    show_result(result, as_json, shown, show_run)


def _refuse(attacked: str, options: dict[str, Any]) -> None:
    """Raise SettingsError for an option without a meaning for this attack."""
    for option, value in options.items():
        if value is not None:
            flag = f"--{option.replace('_', '-')}"
            raise SettingsError(f"{flag} is not for {attacked}; leave it out")


def _numbers(text: str) -> list[int]:
    """The numbers of ``--n``. Raises SettingsError unless they ascend from 1 or more."""
    parts = [part.strip() for part in text.split(",")]
    numbers = [int(part) for part in parts if part.isdecimal()]
    ascends = all(a < b for a, b in zip([0, *numbers], numbers, strict=False))
    if len(numbers) != len(parts) or not ascends:
        raise SettingsError(
            f"--n {text!r}: write whole numbers from 1 on, each larger than the one before, such "
            "as 1,4,16,64"
        )
    return numbers
