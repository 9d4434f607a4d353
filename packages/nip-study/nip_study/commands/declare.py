"""The command `nip declare`: the hypotheses of a sweep, before its first run."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_cli.printing.options import AsJson
from nip_cli.printing.plans_and_runs import print_json
from nip_cli.printing.terminal import say
from nip_core.errors import CorruptionError, SettingsError
from nip_core.evaluation.figures_in_words import amount
from nip_study.commands.sweep import Overrides, plans_judges


def declare(
    plan: Annotated[Path, typer.Argument(help="A YAML file with the plan.", show_default=False)],
    overrides: Overrides = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Have the declaration stamped by a time-stamping authority (RFC 3161).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Declare what PLAN's sweep is expected to show, before its first run."""
    from nip_core.run_store.store import open_store
    from nip_study.declare.declaration import declare, read_plan
    from nip_study.declare.timestamp import check_authority

    stream = sys.stderr if as_json else sys.stdout
    if timestamp is not None:
        check_authority(timestamp)
    if plans_judges(plan):
        from nip_judges.sweeps.sweep_command import declare_judges

        of_judges, run_store = declare_judges(plan, overrides or (), as_json=as_json)
        _show_stamp(open_store(run_store), of_judges, timestamp, stream)
        return
    study_plan = read_plan(plan, tuple(overrides or ()))
    store = open_store(study_plan.sweep.run_store)
    declaration, is_new = declare(store, study_plan)
    if as_json:
        print_json(declaration.as_json())
    else:
        _show_hypotheses(declaration)
        say(f"{amount(len(declaration.plan.runs), 'run')}; nothing was started")
        state = "declared" if is_new else f"was declared at {declaration.declared_at}"
        say(f"{state}: {declaration.sha256}")
    _show_stamp(store, declaration, timestamp, stream)


def _show_hypotheses(declaration: Any) -> None:
    for hypothesis in declaration.plan.hypotheses:
        primary = "primary: " if hypothesis.primary else ""
        gate = ", gate of all others" if hypothesis.gate else ""
        expected: str = hypothesis.expected
        if hypothesis.number is not None:
            expected += f" {'to' if expected == 'equal' else 'than'} {hypothesis.number:g}"
        if hypothesis.margin is not None:
            expected += f" within ± {100 * hypothesis.margin:g} points"
        say(f"{primary}{hypothesis.says} ({hypothesis.figure}, {expected}{gate})")


def _show_stamp(store: Any, declaration: Any, url: str | None, stream: Any) -> None:
    """Say when a third party saw the declaration, after asking one if an address is given."""
    from nip_core.run_store.run import list_runs
    from nip_study.declare.declaration import timestamp_path
    from nip_study.declare.timestamp import read_stamp, stamp

    sweep = declaration.plan.sweep
    if url is not None:
        token, is_new = stamp(store, sweep, url)
        state = "time-stamped" if is_new else "was time-stamped"
    else:
        try:
            earlier_stamp = read_stamp(store, sweep)
        except SettingsError as error:  # no library or root, which a declaration does not need
            say(f"{timestamp_path(sweep)} is there, and was not looked at: {error}", file=stream)
            return
        except CorruptionError as error:
            say(f"{error}; --timestamp URL asks for another one", file=stream)
            return
        if earlier_stamp is None:
            return
        token, state, is_new = earlier_stamp, "was time-stamped", False
    say(f"{state}: {timestamp_path(sweep)} says that it existed at {token.time}", file=stream)
    lines = (
        "its signature is genuine; whose it is, with the authority's certificate as CA.pem,",
        "  openssl ts -verify -data declaration.json -in declaration.tsr -CAfile CA.pem",
    )
    say("\n".join(lines), file=stream)
    begun_runs = sorted({*declaration.plan.runs} & {*list_runs(store)})
    if begun_runs and is_new:
        say(
            f"{amount(len(begun_runs), 'run')} had begun before that (as {begun_runs[0]}): the "
            "stamp does not show that the declaration is older than they are",
            file=stream,
        )
