"""The command `nip harden`: a verifier is attacked and trained further, round by round.

Each training and each attack is a `nip train` of its own, in a process of its own, one after
another, as in a sweep. So finished runs are kept, and the same command goes on after any end.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_cli.printing.options import AsJson, RunStoreUrl, Shown, ShownAs, complete_run
from nip_cli.printing.plans_and_runs import show_result, warn_of_models
from nip_cli.printing.terminal import say
from nip_core.errors import NipError, RunConflictError, SettingsError
from nip_core.evaluation.figures_in_words import amount
from nip_study.commands.attack import Every, Steps
from nip_study.commands.printed_plans import PlannedLine, show_planned
from nip_study.commands.runs_view import RunsView


def harden(
    run: Annotated[
        str | None, typer.Argument(help="None with --judge.", autocompletion=complete_run)
    ] = None,
    *,
    rounds: Annotated[int, typer.Option(help="Rounds of training; each ends with an attack.")],
    attack: Annotated[
        list[str] | None,
        typer.Option(help="sneaky, script or script:NAME; several: all of them in each round."),
    ] = None,
    judge: Annotated[
        Path | None, typer.Option(metavar="FILE", help="In RUN's place: a judge.yaml.")
    ] = None,
    show: Annotated[
        str | None,
        typer.Option(help="chats.jsonl to imitate first in each round; --judge: gold verdicts."),
    ] = None,
    mix: Annotated[
        str, typer.Option(help="Shares of the training episodes; attackers share theirs equally.")
    ] = "honest=0.5,attackers=0.5",
    on: Annotated[
        str,
        typer.Option(help="The problems on which attackers play in training: all, or wrong."),
    ] = "all",
    iterations: Annotated[
        int | None, typer.Option(help="Of training in a round; default: RUN's, for a judge 3.")
    ] = None,
    steps: Steps = None,
    every: Every = None,
    until: Annotated[
        str | None, typer.Option(help="sneaky: steps (default) or plateau, as in nip attack.")
    ] = None,
    problems: Annotated[
        int | None, typer.Option(help="Most problems of each label in attacks; default: all.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The names of all runs begin with it; default: RUN-harden.")
    ] = None,
    run_store: RunStoreUrl = "runs",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="A setting of the training in each round."),
    ] = None,
    attack_overrides: Annotated[
        list[str] | None,
        typer.Option("--attack-set", metavar="A.B=C", help="A setting of the attacks."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show all runs, their size and cost; start nothing.")
    ] = False,
    as_json: AsJson = False,
    shown: ShownAs = Shown.auto,
) -> None:
    """Attack the verifier of RUN and train it against the attackers, in rounds that can go on."""
    if judge is not None:
        from nip_judges.harden.command import run_judge_hardening

        options: dict[str, Any] = {
            "rounds": rounds,
            "passes": iterations,
            "problems": problems,
        }
        options |= {"name": name, "run_store": run_store, "overrides": overrides or ()}
        if show is not None:
            if not show.isdecimal():
                raise SettingsError(f"--show {show}: with --judge it is a number of gold verdicts")
            options["show"] = int(show)
        refused_options = {"RUN": run, "--attack": attack, "--steps": steps, "--every": every}
        refused_options |= {"--until": until, "--attack-set": attack_overrides}
        raise typer.Exit(
            run_judge_hardening(
                judge, options, refused_options, dry_run=dry_run, as_json=as_json, shown=shown
            )
        )
    if run is None or not attack:
        raise SettingsError("name a RUN and --attack, or a judge of yours with --judge judge.yaml")
    from nip_core.records.named_run import name_place
    from nip_core.run_store.store import open_store
    from nip_study.harden.hardening import (
        HardeningSettings,
        parse_attack,
        parse_mix,
        plan_hardening,
    )
    from nip_study.harden.hardening_results import (
        collect_hardening,
        rounds_table,
        write_hardening,
    )

    run_store, run = name_place(run, run_store)
    settings = HardeningSettings(
        rounds=rounds,
        attacks=tuple(parse_attack(text) for text in attack),
        **parse_mix(mix),
        played_problems=on,
        iterations=iterations,
        show=show,
        steps=steps,
        every=every,
        until=until,
        problems=problems,
        name=name,
        overrides=tuple(overrides or ()),
        attack_overrides=tuple(attack_overrides or ()),
    )
    hardening = plan_hardening(run_store, run, settings)
    if dry_run:
        _show_plan(hardening, as_json)
        return
    store = open_store(run_store)

    def put_results(failures: dict[str, str]) -> tuple[Any, str]:
        results = collect_hardening(store, hardening, failures)
        return results, write_hardening(store, results)

    stream = sys.stderr if as_json else sys.stdout
    if shown not in (Shown.json, Shown.none):
        size = (
            f"{amount(hardening.settings.rounds, 'round')}, {amount(len(hardening.steps), 'run')}"
        )
        place = f"{hardening.run_store}/hardening/{hardening.name}"
        say(f"{hardening.name}: {size}; results in {place}", file=stream, flush=True)
    with RunsView(len(hardening.steps), stream, shown) as view:
        failures, status = _run_all(hardening, put_results, view)
    results, place = put_results(failures)

    def say_table(_: Any) -> None:
        say(f"\n{rounds_table(results)}\n{place}")

    show_result(results.as_json(), as_json, shown, say_table)
    if status:
        raise typer.Exit(status)


def _run_all(hardening: Any, put_results: Any, view: RunsView) -> tuple[dict[str, str], int]:
    """Run the unfinished runs, one after another; by run why it did not end, and an exit code."""
    from nip_cli.launching.launch import with_prefect
    from nip_cli.launching.stopping import stoppable
    from nip_study.commands.sweep import PlayedHere

    place = Path(hardening.run_store if "://" not in hardening.run_store else ".") / "hardening"
    machine = PlayedHere(place / hardening.name, jobs=1)
    _refuse_others(hardening)
    # A run that can't go on is named before anything is started; later runs need the earlier ones.
    steps_left = [*hardening.steps]
    while steps_left and _is_finished(steps_left[0]):
        view.ended(steps_left.pop(0).name, "was finished before")
    failures: dict[str, str] = {}
    codes: list[int] = []

    def work(stop: Any) -> None:
        with with_prefect(verbose=False) as wait_for_prefect, machine:
            wait_for_prefect()
            for step in steps_left:
                if _is_finished(step):
                    view.ended(step.name, "was finished before")
                    continue
                outcome = machine.play_one(step, view.started)
                if outcome is None:  # it was stopped
                    return
                if outcome.status:
                    codes.append(outcome.status if 0 < outcome.status < 128 else 1)
                    failures[step.name] = f"{outcome.words} ({outcome.log})"
                    words = f"failed with exit code {outcome.status}: {outcome.words}"
                    view.ended(step.name, words, is_failed=True)
                    return  # all that follows is built on it
                view.ended(step.name, "finished")
                put_results({})

    def on_stop() -> None:
        say("nip: stopping, what is finished is kept", file=sys.stderr, flush=True)
        machine.stop()

    if steps_left:
        stoppable(work, on_stop)
    return failures, next(iter(codes), 0)


def _refuse_others(hardening: Any) -> None:
    """Refuse a name under which another hardening has runs, before anything is paid for.

    Raises the fault of the first run in the store that is not the planned one.
    """
    from nip_core.run_store.run import list_runs
    from nip_core.run_store.store import open_store

    existing = {*list_runs(open_store(hardening.run_store))}
    rounds = hardening.settings.rounds
    if f"{hardening.name}-{rounds + 1}" in existing:
        raise SettingsError(
            f"--rounds {rounds}: {hardening.name} has more rounds in {hardening.run_store}; give "
            "as many, or another --name"
        )
    for step in hardening.steps:
        if step.name in existing:
            _is_finished(step)


def _is_finished(step: Any) -> bool:
    """Tell whether a run of the rounds is finished. Raises the error of a run that can't start."""
    from nip_core.session.prepare import prepare
    from nip_core.showing.finished import find_finished_run

    try:
        return find_finished_run(prepare(step.parameters)) is not None
    except RunConflictError as error:
        raise RunConflictError(
            f"{step.name}: {error}; a hardening by other settings needs another --name"
        ) from error
    except NipError as error:
        raise type(error)(f"{step.name}: {error}") from error


def _show_plan(hardening: Any, as_json: bool) -> None:
    """Show the runs of all rounds with their estimates."""
    from nip_core.session.prepare import estimate_settings

    warn_of_models(step.parameters for step in hardening.steps)
    lines = []
    for step in hardening.steps:
        try:
            # Most of their models are still to be trained, so none is looked for.
            estimate = estimate_settings(step.parameters)
        except NipError as error:
            raise type(error)(f"{step.name}: {error}") from error
        verb = "trains" if step.label is None else "attacks"
        facts = {"attack": step.label}
        lines.append(PlannedLine(step.name, step.parameters, estimate, facts, verb))
    show_planned(lines, as_json)
