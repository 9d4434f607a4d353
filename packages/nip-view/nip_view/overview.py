"""The page of a run: its curves, its tables, what its verdicts come to.

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
from nip_core.showing.episodes.episode_index import Episodes
from nip_view.pages import Values, list_iterations, list_splits
from nip_view.parts.charts import SMALL, Chart, Line, lay_out_chart
from nip_view.parts.judged import MOST_READ
from nip_view.parts.measures import count_verdicts, measure_calibration
from nip_view.parts.queries import QueryError
from nip_view.runs import Overview, ShownRun

_MOST_POINTS = 200
_RATES: dict[str, Callable[[SplitMetrics], tuple[float | None, Interval95 | None]]] = {
    "accuracy": lambda of: (of.accuracy, of.accuracy_ci95),
    "completeness": lambda of: (of.completeness, of.completeness_ci95),
    "soundness": lambda of: (of.soundness, of.soundness_ci95),
}


def run_page(run: ShownRun, split: str = "", iteration: str = "") -> Values:
    """Show a run. The verdicts of `split` and `iteration` are counted, "": of the newest."""
    overview, episodes = run.overview(), run.episodes()
    splits = list_splits(episodes.table)
    if split and split not in splits:
        raise QueryError(f"split={split[:40]}: there are {', '.join(splits) or 'none'}")
    split = split or (splits[0] if splits else "")
    played = episodes.table.filter(pc.equal(episodes.table["split"], split))
    iterations = list_iterations(played)
    if iteration and iteration not in map(str, iterations):
        raise QueryError(f"iteration={iteration[:20]}: not among those of {split or 'the run'}")
    chosen = int(iteration) if iteration else (iterations[-1] if iterations else None)
    here = played.filter(pc.equal(played["iteration"], -1 if chosen is None else chosen))
    scaled = measure_calibration(here)
    calibrated = "P(accept)" if here["p_accept"].null_count < here.num_rows else "the scale"
    return {
        "overview": overview,
        "episodes": episodes,
        "splits": splits,
        "split": split,
        "iterations": iterations,
        "chosen": chosen,
        "confusion": count_verdicts(here) if here.num_rows else None,
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
    """Say what differs between the first test and the last."""
    tested = [entry.iteration for entry in overview.values.get("tested", [])]
    if len(tested) < 2:
        return []
    rows = [
        find_rows(episodes.table, EpisodeFilters(iteration=iteration, split=TEST))
        for iteration in (tested[0], tested[-1])
    ]
    # Of more, reading what was said takes longer than the page; a comparison does it.
    is_read = max(map(len, rows)) <= MOST_READ
    sides = [run.judged.read(episodes, of, run.game, is_read) for of in rows]
    if sides[0] is None or sides[1] is None:
        return []
    changes = measure_changes(sides[0], sides[1])
    return [] if changes is None else say_changes(changes, tested[0], tested[-1])


def _draw_curve(overview: Overview) -> Chart | None:
    """Draw the rates of tests by iteration."""
    tested = thin_out(overview.values.get("tested", []), _MOST_POINTS)
    tests: list[tuple[int, SplitMetrics]] = [(e.iteration, e.test) for e in tested]
    lines = [Line(name, name, [(i, *rate(of)) for i, of in tests]) for name, rate in _RATES.items()]
    # What an obedient verifier would reach stands beside what this one did.
    believed = [(i, of.believed_accuracy) for i, of in tests]
    if any(accuracy is not None for _, accuracy in believed):
        points = [(i, accuracy, None) for i, accuracy in believed]
        lines.append(Line("believing the prover", "believed", points))
    return lay_out_chart("Test problems", lines, is_rate=True, chance=0.5)


def _draw_calibration(scaled: Calibration | None, calibrated: str) -> Chart | None:
    if scaled is None:
        return None
    points = [(of.said, of.seen, of.interval) for of in scaled.groups]
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
        return [(i, of[agent]) for i, of in tests if agent in of]

    rewards, retries = [], []
    for k, agent in enumerate(agents):
        known = measures(agent)
        earned = [(i, of.mean_reward, of.mean_reward_ci95) for i, of in known]
        rewards.append(Line(agent, f"s{k}", earned))
        retried = [(i, of.retry_rate, of.retry_rate_ci95) for i, of in known]
        retries.append(Line(agent, f"s{k}", retried))

    def losses(group: str) -> list[tuple[float, float | None, None]]:
        known = [(e.iteration, e.groups[group].loss) for e in entries if group in e.groups]
        return [(i, loss[-1][1] if loss else None, None) for i, loss in known]

    spent = _list_spent(overview)
    shown = {i for i, _ in spent}
    costs = _cost_by_iteration(run).items()
    usd = [(i, value, None) for i, value in costs if value and i in shown]
    made = [
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
                Line("prompt tokens", "s0", [(i, of.prompt_tokens, None) for i, of in spent]),
                Line("generated tokens", "s1", [(i, of.generated_tokens, None) for i, of in spent]),
                Line("trained tokens", "s2", [(i, of.trained_tokens, None) for i, of in spent]),
            ],
            sizes=(SMALL, SMALL),
        ),
        lay_out_chart("Cost, US dollars", [Line("US dollars", "s0", usd)], sizes=(SMALL, SMALL)),
    ]
    return [of for of in made if of is not None]


def _list_spent(overview: Overview) -> list[tuple[float, IterationSpending]]:
    rows = overview.values.get("spending", [])
    played = [(i, spent, entry) for i, spent, entry in rows if entry is not None]
    # Of the last iteration there is mostly a test alone: beside whole ones it seems cheap.
    if len(played) > 1 and played[-1][2].train is None:
        played = played[:-1]
    return [(i, spent) for i, spent, _ in played]


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
