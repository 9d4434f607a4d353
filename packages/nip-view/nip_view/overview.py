"""The page of a run: its curves, its tables, the measures of its verdicts.

run_page  values of the template
"""

from collections.abc import Callable

import pyarrow.compute as pc

from nip_core.errors import NipError
from nip_core.evaluation.calibration import Calibration
from nip_core.evaluation.split_metrics import AgentMeasures, Interval95, SplitMetrics
from nip_core.evaluation.verdict_changes import measure_changes
from nip_core.parameters.stored import read_costing_settings
from nip_core.report.embedding import thin_out
from nip_core.report.report import IterationSpending
from nip_core.rollouts.plan import TEST
from nip_core.showing.changes import say_changes
from nip_core.showing.episodes.episode_filters import EpisodeFilters, find_rows
from nip_view.pages import Values, list_iterations, list_splits
from nip_view.parts.charts import SMALL, Chart, Line, lay_out_chart
from nip_view.parts.judged import MOST_READ
from nip_view.parts.measures import count_verdicts, measure_calibration
from nip_view.parts.queries import QueryError
from nip_view.parts.run_index import Episodes
from nip_view.runs import Overview, ShownRun

_MOST_POINTS = 200
_RATES: dict[str, Callable[[SplitMetrics], tuple[float | None, Interval95 | None]]] = {
    "accuracy": lambda measures: (measures.accuracy, measures.accuracy_ci95),
    "completeness": lambda measures: (measures.completeness, measures.completeness_ci95),
    "soundness": lambda measures: (measures.soundness, measures.soundness_ci95),
}


def run_page(run: ShownRun, split: str = "", iteration: str = "") -> Values:
    """Show a run. The verdicts of `split` and `iteration` are counted, "": of the newest."""
    overview, episodes = run.overview(), run.episodes()
    splits = list_splits(episodes.table)
    if split and split not in splits:
        raise QueryError(f"split={split[:40]}: there are {', '.join(splits) or 'none'}")
    split = split or (splits[0] if splits else "")
    tests = episodes.table.filter(pc.equal(episodes.table["split"], split))
    iterations = list_iterations(tests)
    if iteration and iteration not in map(str, iterations):
        raise QueryError(f"iteration={iteration[:20]}: not among those of {split or 'the run'}")
    chosen_iteration = int(iteration) if iteration else (iterations[-1] if iterations else None)
    episodes_here = tests.filter(
        pc.equal(tests["iteration"], -1 if chosen_iteration is None else chosen_iteration)
    )
    scaled = measure_calibration(episodes_here)
    calibrated = (
        "P(accept)"
        if episodes_here["p_accept"].null_count < episodes_here.num_rows
        else "the scale"
    )
    return {
        "overview": overview,
        "episodes": episodes,
        "splits": splits,
        "split": split,
        "iterations": iterations,
        "chosen": chosen_iteration,
        "confusion": count_verdicts(episodes_here) if episodes_here.num_rows else None,
        "calibration": scaled,
        "calibrated": calibrated,
        "calibration_chart": _draw_calibration(scaled, calibrated),
        "curve": _draw_curve(overview),
        "charts": _draw_charts(overview, run),
        "usd": _cost_by_iteration(run),
        "changes": _describe_tests(run, episodes, overview),
        **overview.values,
    }


def _describe_tests(run: ShownRun, episodes: Episodes, overview: Overview) -> list[str]:
    """Say the differences between the first test and the last."""
    tested_iterations = [entry.iteration for entry in overview.values.get("tested", [])]
    if len(tested_iterations) < 2:
        return []
    rows = [
        find_rows(episodes.table, EpisodeFilters(iteration=iteration, split=TEST))
        for iteration in (tested_iterations[0], tested_iterations[-1])
    ]
    # Of more, reading the messages takes longer than the page; a comparison does it.
    is_read = max(map(len, rows)) <= MOST_READ
    sides = [run.judged.read(episodes, row, run.game, is_read) for row in rows]
    if sides[0] is None or sides[1] is None:
        return []
    changes = measure_changes(sides[0], sides[1])
    return (
        [] if changes is None else say_changes(changes, tested_iterations[0], tested_iterations[-1])
    )


def _draw_curve(overview: Overview) -> Chart | None:
    """Draw the rates of tests by iteration."""
    tested_entries = thin_out(overview.values.get("tested", []), _MOST_POINTS)
    tests: list[tuple[int, SplitMetrics]] = [(e.iteration, e.test) for e in tested_entries]
    lines = [
        Line(name, name, [(i, *rate(measures)) for i, measures in tests])
        for name, rate in _RATES.items()
    ]
    # An obedient verifier's accuracy stands beside this one's.
    believed = [(i, measures.believed_accuracy) for i, measures in tests]
    if any(accuracy is not None for _, accuracy in believed):
        points = [(i, accuracy, None) for i, accuracy in believed]
        lines.append(Line("believing the prover", "believed", points))
    return lay_out_chart("Test problems", lines, is_rate=True, chance=0.5)


def _draw_calibration(scaled: Calibration | None, calibrated: str) -> Chart | None:
    if scaled is None:
        return None
    points = [(group.said, group.seen, group.interval) for group in scaled.groups]
    return lay_out_chart(
        f"What {calibrated} says, and what was so",
        [Line("solutions that were right", "accuracy", points, is_joined=False)],
        x_name=f"how likely right, by {calibrated}",
        is_rate=True,
        sizes=((460, 320), (340, 260)),
        diagonal=True,
    )


def _draw_charts(overview: Overview, run: ShownRun) -> list[Chart]:
    """Draw small curves: rewards, losses, invalid answers, tokens, costs."""
    report = overview.report
    if report is None:
        return []
    entries = thin_out(list(report.iterations), _MOST_POINTS)
    agents = sorted({agent for e in entries if e.test for agent in e.test.agents})
    groups = sorted({group for e in entries for group in e.groups})

    def measures(agent: str) -> list[tuple[int, AgentMeasures]]:
        tests = [(e.iteration, e.test.agents) for e in entries if e.test]
        return [(i, values[agent]) for i, values in tests if agent in values]

    rewards, retries = [], []
    for k, agent in enumerate(agents):
        agent_metrics = measures(agent)
        earned = [
            (i, metrics.mean_reward, metrics.mean_reward_ci95) for i, metrics in agent_metrics
        ]
        rewards.append(Line(agent, f"s{k}", earned))
        retried = [(i, metrics.retry_rate, metrics.retry_rate_ci95) for i, metrics in agent_metrics]
        retries.append(Line(agent, f"s{k}", retried))

    def losses(group: str) -> list[tuple[float, float | None, None]]:
        losses = [(e.iteration, e.groups[group].loss) for e in entries if group in e.groups]
        return [(i, loss[-1][1] if loss else None, None) for i, loss in losses]

    amounts = _list_spent(overview)
    iterations = {i for i, _ in amounts}
    costs = _cost_by_iteration(run).items()
    usd = [(i, value, None) for i, value in costs if value and i in iterations]
    charts = [
        lay_out_chart("Reward of a test episode", rewards, sizes=(SMALL, SMALL)),
        lay_out_chart(
            "Loss at the end of training",
            [Line(group, f"s{k}", losses(group)) for k, group in enumerate(groups)],
            sizes=(SMALL, SMALL),
        ),
        lay_out_chart("Invalid answers in tests", retries, is_rate=True, sizes=(SMALL, SMALL)),
        lay_out_chart(
            "Tokens",
            [
                Line(
                    "prompt tokens",
                    "s0",
                    [(i, amount.prompt_tokens, None) for i, amount in amounts],
                ),
                Line(
                    "generated tokens",
                    "s1",
                    [(i, amount.generated_tokens, None) for i, amount in amounts],
                ),
                Line(
                    "trained tokens",
                    "s2",
                    [(i, amount.trained_tokens, None) for i, amount in amounts],
                ),
            ],
            sizes=(SMALL, SMALL),
        ),
        lay_out_chart("Cost, US dollars", [Line("US dollars", "s0", usd)], sizes=(SMALL, SMALL)),
    ]
    return [chart for chart in charts if chart is not None]


def _list_spent(overview: Overview) -> list[tuple[float, IterationSpending]]:
    rows = overview.values.get("spending", [])
    finished = [(i, amount, entry) for i, amount, entry in rows if entry is not None]
    # Of the last iteration there is mostly a test alone: beside whole ones it seems cheap.
    if len(finished) > 1 and finished[-1][2].train is None:
        finished = finished[:-1]
    return [(i, amount) for i, amount, _ in finished]


def _cost_by_iteration(run: ShownRun) -> dict[int, float | None]:
    """Add up the US dollars of each iteration's stages; None where a price is missing."""
    with run.lock:
        try:
            parameters = read_costing_settings(run.records.shown.record.parameters)
            return {
                record.iteration: record.all_spent.usd(parameters) for record in run.records.all()
            }
        except (NipError, KeyError, TypeError, ValueError, AttributeError):
            return {}
