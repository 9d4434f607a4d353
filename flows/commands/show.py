"""`nip show`: one run in tables."""

from nip_prefect.flows.options import AsJson, RunNameOrNone, RunStoreUrl, say_left_out


def show(
    run: RunNameOrNone = None, run_store: RunStoreUrl = "runs", as_json: AsJson = False
) -> None:
    """Show a run: status, accuracy by iteration, models and jobs."""
    from nip_core.stages.named_run import find_run
    from nip_core.stages.showing import summary
    from nip_core.stages.verification import check_presence
    from nip_prefect.flows.printing import print_json, show_run

    tree = find_run(run, run_store, say_left_out)
    result = summary(tree)
    if result["status"] != "running":
        check_presence(tree)
    if as_json:
        print_json(result)
        return
    show_run(result)
