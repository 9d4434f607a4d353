"""`nip ls`: the runs of a store."""

import shutil
import sys
from datetime import UTC, datetime
from typing import Any

from nip_cli.printing.options import AsJson, RunStoreUrl
from nip_cli.printing.terminal import say


def ls(run_store: RunStoreUrl = "runs", as_json: AsJson = False) -> None:
    """List the runs of a store, the newest first.

    Iterations are finished and planned ones; accuracy, with its 95 % interval, is that of the
    newest test; cost is the amount spent so far.
    """
    from nip_core.records.named_run import open_runs
    from nip_core.showing.listing import list_summaries

    def tell(reason: str) -> None:
        say(f"nip: {reason}", file=sys.stderr)

    summaries = list_summaries(open_runs(run_store), tell)
    if as_json:
        from nip_cli.printing.plans_and_runs import print_json

        print_json(summaries)
    elif summaries:
        _print(summaries)
    else:
        say(f"no runs in {run_store}; nip quickstart makes one")


def _print(summaries: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from nip_cli.printing.console import make_console
    from nip_core.showing.listing import describe_age

    now = datetime.now(UTC)
    # As wide as a terminal usually is, or wider; a long name is broken rather than a figure.
    console = make_console(width=max(shutil.get_terminal_size((80, 24)).columns, 80))
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("status", no_wrap=True)
    for heading in ("iterations", "accuracy", "95 % interval", "cost", "age"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in summaries:
        if "finished" not in run:
            table.add_row(run["run"], run["status"])
            continue
        interval = run["accuracy_ci95"]
        table.add_row(
            run["run"],
            run["status"],
            f"{run['finished']}/{run['iterations']}",
            "-" if run["accuracy"] is None else f"{100 * run['accuracy']:.1f} %",
            f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}" if interval else "-",
            _cost(run),
            describe_age(run["created_at"], now),
        )
    console.print(table)


def _cost(run: dict[str, Any]) -> str:
    """Show US dollars where a provider is paid, else tokens."""
    if run["usd"]:
        return f"${run['usd']:,.2f}"
    tokens = run["tokens"]
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if tokens >= size:
            return f"{tokens / size:.1f}{unit} tok"
    return f"{tokens:.0f} tok"
