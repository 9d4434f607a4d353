"""The command `nip track`: sends trackers the points that they lack of a run."""

from dataclasses import asdict
from typing import Annotated

import typer

from nip_base.formats.bounds import ReadError
from nip_base.formats.untrusted import parse_yaml
from nip_cli.printing.options import RunName
from nip_cli.printing.plans_and_runs import print_json
from nip_cli.printing.terminal import say
from nip_core.errors import ServerError, SettingsError
from nip_core.parameters.blocks.tracking import TRACKERS
from nip_core.parameters.load import load_trackers
from nip_core.parameters.stored import complete_settings


def track(
    run: RunName,
    tracker_values: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="TRACKER",
            help=f"{', '.join(TRACKERS)}, or a block such as '{{kind: mlflow, uri: ...}}'; may be "
            "repeated. Default: those of the run's settings.",
        ),
    ] = None,
    run_store: Annotated[str, typer.Option(help="Where runs are kept.")] = "runs",
    patience: Annotated[
        float, typer.Option(min=1.0, help="Seconds that a tracker may be silent.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Send trackers the points that they lack of RUN, and no others. Exit code 3 if a tracker
    does not take them."""
    from nip_bridges.tracking.feeders import Feeders
    from nip_bridges.tracking.places import check_trackers
    from nip_core.records.named_run import find_run
    from nip_core.records.rewinds import list_unfinished_rewinds
    from nip_core.run_store.run import RunStore
    from nip_core.run_store.store import open_store

    tree = find_run(run, run_store)
    run, tree = tree.name, RunStore(open_store(tree.store.url), tree.name)
    if tracker_values:
        try:
            trackers = load_trackers([parse_yaml(text) for text in tracker_values], "--to")
        except ReadError as error:
            raise SettingsError(f"--to: the value {error}") from None
    else:
        settings = complete_settings(tree.open().parameters)
        trackers = load_trackers(settings["tracking"], f"run {run!r}")
    if not trackers:
        raise SettingsError(
            f"run {run!r} has no tracking in its settings; name a tracker: --to {TRACKERS[0]}"
        )
    check_trackers(trackers)
    if list_unfinished_rewinds(tree):
        raise SettingsError(
            f"run {run!r} is half set aside to be done again; run nip train first, which goes on"
        )
    # Trouble is printed below.
    feedings = Feeders(tree, trackers, warn=lambda _: None).finish(patience)
    if as_json:
        print_json({"run": run, "trackers": [asdict(feeding) for feeding in feedings]})
    else:
        for feeding in feedings:
            say(f"{feeding.tracker:<12}{feeding.trouble or 'has everything'}  ({feeding.place})")
    lacking = [feeding.tracker for feeding in feedings if feeding.trouble is not None]
    if lacking:
        raise ServerError(
            f"run {run!r}: not everything was sent to {', '.join(lacking)}; running again continues"
        )
