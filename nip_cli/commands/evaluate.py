"""`nip evaluate`: a test of the newest models."""

from typing import Any

from nip_cli.printing.options import AsJson, Config, Overrides, Shown, ShownAs, Verbose
from nip_cli.printing.terminal import say


def evaluate(
    config: Config,
    overrides: Overrides = None,
    as_json: AsJson = False,
    display: ShownAs = Shown.auto,
    verbose: Verbose = False,
) -> None:
    """Test the newest models of CONFIG's run; the base models if there are none yet."""
    from nip_cli.launching.launch import run_flow
    from nip_cli.printing.plans_and_runs import show_result
    from nip_core.evaluation.baseline_words import believed_line
    from nip_core.evaluation.figures_in_words import verdict_line
    from nip_core.evaluation.invalid import find_help, invalid_line, invalid_warning
    from nip_core.evaluation.split_metrics import SplitMetrics
    from nip_core.parameters import load_parameters

    settings = list(overrides or [])
    parameters = load_parameters(config, settings)

    def look(prepared: Any) -> dict[str, Any] | None:
        from nip_core.showing.finished import find_finished_test

        return find_finished_test(prepared)

    def import_flow() -> Any:
        from nip_prefect.flows.evaluate import evaluate as flow

        return lambda: flow(config, settings)

    def show_test(result: dict[str, Any]) -> None:
        say(f"run {result['run']}, models of iteration {result['iteration']}")
        test = SplitMetrics.model_validate(result["test"])
        say(verdict_line(test))
        invalid = test.invalid_answers
        warning = invalid_warning(invalid, find_help(parameters))
        for line in filter(None, (believed_line(test), invalid_line(invalid), warning)):
            say(line)

    result = run_flow(
        parameters, look, import_flow, as_json=as_json, verbose=verbose, display=display
    )
    show_result(result, as_json, display, show_test)
