"""`nip report`: the page of a run."""

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from nip_cli.printing.options import RunNameOrNone, RunStoreUrl, say_left_out
from nip_cli.printing.terminal import say
from nip_core.errors import StoreError


def report(
    run: RunNameOrNone = None,
    run_store: RunStoreUrl = "runs",
    open_it: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    anew: Annotated[bool, typer.Option("--anew", help="Make it again, of what is there.")] = False,
) -> None:
    """Print where a run's report is; make it if there is none.

    The report is one HTML file, which can be sent to a reader: learning curve, trainings,
    transcripts, costs.
    """
    from nip_core.records.named_run import find_run
    from nip_core.run_store.lease import refuse_if_held
    from nip_core.run_store.run import RunStore
    from nip_core.run_store.store import open_store
    from nip_core.showing.reports import write_report
    from nip_core.showing.summary import find_report

    tree = find_run(run, run_store, say_left_out)
    if anew or find_report(tree) is None:
        refuse_if_held(tree.store, tree.root)  # who runs it writes the report after each stage
        write_report(RunStore(open_store(tree.store.url), tree.name))
    place = find_report(tree)
    if place is None:
        raise StoreError(f"{tree.root}/report.html: was written and is not there; run it again")
    say(place)
    if open_it:
        _open(place)


def _open(place: str) -> None:
    if "://" in place:
        say("nip: a report in a bucket is not opened; download it first", file=sys.stderr)
        return
    address = Path(place).absolute().as_uri()
    if not webbrowser.open(address):
        say(f"nip: there is no browser here; copy the file, or open {address}", file=sys.stderr)
