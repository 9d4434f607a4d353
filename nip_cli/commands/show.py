"""`nip show`: one run in tables."""

from nip_cli.printing.options import AsJson, RunNameOrNone, RunStoreUrl, say_left_out


def show(
    run: RunNameOrNone = None, run_store: RunStoreUrl = "runs", as_json: AsJson = False
) -> None:
    """Show a run: status, accuracy by iteration, models and jobs.

    Of one that was stopped also how far it is, and the command that goes on with it.
    """
    from pathlib import Path

    from nip_cli.launching.going_on import command_for
    from nip_cli.printing.plans_and_runs import print_json, show_run
    from nip_core.records.iterations import Records
    from nip_core.records.named_run import find_run, name_place
    from nip_core.showing.how_far import describe_progress
    from nip_core.showing.summary import summarise_run
    from nip_core.upkeep.verify import check_presence

    tree = find_run(run, run_store, say_left_out)
    records = Records(tree)
    result = summarise_run(tree, records)
    if result["status"] != "running":
        check_presence(tree)
    if result["status"] == "stopped":
        place = run_store if run is None else name_place(run, run_store)[0]
        command = command_for(records.shown.record, place, Path.cwd())
        result["stopped"] = {**describe_progress(records), "go_on": command}
    if as_json:
        print_json(result)
        return
    show_run(result)
