"""The report of a run: one HTML file that needs nothing but itself.

`report.html.jinja` has every section of the page, `report_macros.html.jinja` its tables;
`figures_in_words` shows values as text; `report.css`
and `report.js` are put into the page.

Covered: text that models or data sets wrote can't run as script. It is embedded as JSON
in which no character can end the element, the page shows it as text only, and its content
security policy allows no request and no script but its own, named by its hash.
Not covered: a reader who copies code out of the page and runs it.
"""

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import yaml
from jinja2 import (
    BaseLoader,
    ChoiceLoader,
    Environment,
    PackageLoader,
    StrictUndefined,
    Template,
)
from markupsafe import Markup

from nip_core.attack_figures.report_section import make_section, name_course_problems
from nip_core.evaluation.baseline_words import believed_line
from nip_core.evaluation.episode_transcripts import Transcript
from nip_core.evaluation.figures_in_words import (
    DASH,
    THIN,
    GateDecision,
    how_much,
    number,
    p_value,
    percent,
    percent_range,
    plain_range,
    points,
    probability,
    problems_words,
    promotion_words,
    seconds,
    signed,
    signed_range,
    true_minus,
)
from nip_core.evaluation.league_figures import opponent_words
from nip_core.evaluation.split_metrics import Measures, PairedDifference, SplitMetrics
from nip_core.progress.phases import by_stage, describe_phases, sort_phases, sum_stage
from nip_core.report.embedding import Embedded, embed_transcript, embedded_json, thin_out
from nip_core.report.plots import (
    MetricsByIteration,
    learning_curve_svg,
)

_MOST_POINTS = 30  # of the learning curve: more can hardly be told apart, and take long to draw
_LEFT_OUT = {
    "failed": "failed",
    "wrong": "wrong",
    "invalid": "right with invalid answers",
    "changed": "right with a changed verdict",
    "sample": "right",
}


@dataclass(frozen=True)
class GroupReport:
    """The training of one shared model group in one iteration; None where nothing is known."""

    episodes: int | None = None  # episodes that examples could be chosen from
    examples: int | None = None  # examples chosen
    job_id: str | None = None
    status: str | None = None
    loss: Sequence[tuple[int, float]] = ()  # (step, loss)
    trained_tokens: int | None = None
    model_before: str | None = None  # served while the iteration was played
    model_after: str | None = None
    proof: str | None = None  # how it was shown that the new weights answer
    note: str | None = None  # for example why nothing was trained
    method: str | None = None  # of the training: supervised, dpo or trajectories
    counts: Mapping[str, int] = field(default_factory=dict)  # examples left out, by reason
    tokens: int | None = None  # of the examples, before the job
    training_usd: float | None = None  # the expected price of training on them


@dataclass(frozen=True)
class IterationReport:
    """One iteration. `test` measures the models that play it, before its training."""

    iteration: int
    test: SplitMetrics | None = None
    train: SplitMetrics | None = None
    groups: Mapping[str, GroupReport] = field(default_factory=dict)
    stage_s: Mapping[str, float] = field(default_factory=dict)  # seconds by phase
    promotion: GateDecision | None = None  # the gate's decision after the training
    gate: Sequence[SplitMetrics] = ()  # metrics of both sides' episodes for it
    rows: dict[tuple[object, ...], Markup] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Its rows of tables, made once: most of a page with many iterations stays the same."""


@dataclass(frozen=True)
class Comparison:
    """A later test beside the first one."""

    iteration: int
    change: PairedDifference
    p_holm: float | None = None  # its p-value, adjusted for all comparisons of the run


@dataclass(frozen=True)
class IterationSpending:
    """The tokens of an iteration, or of all, and the time it took."""

    prompt_tokens: int
    generated_tokens: int
    trained_tokens: int
    stage_s: Sequence[float]  # seconds by stage, in the order of the table's columns


@dataclass(frozen=True)
class ReportData:
    """Everything the page shows."""

    run: str
    status: str
    iterations: Sequence[IterationReport]
    parameters: Mapping[str, Any] = field(default_factory=dict)  # resolved, JSON-encodable
    transcripts: Sequence[Transcript | Embedded] = ()
    transcripts_left_out: Sequence[tuple[int, str, Mapping[str, int]]] = ()
    """Iteration, split, and how many episodes are not among the transcripts, by reason."""
    passed_over: tuple[int, int] = (0, 0)
    """How many iterations have no transcripts in the report, and how many episodes these have."""
    baselines: Mapping[str, Measures] = field(default_factory=dict)  # by name
    changes: Sequence[str] = ()  # between the first test and the last; the first line heads others
    remarks: Sequence[str] = ()  # on the last test, see `baselines.remarks`
    sections: Mapping[str, Any] = field(default_factory=dict)
    """Values of further sections, by their names in the templates; see `make_section`."""
    comparisons: Sequence[Comparison] = ()
    created_at: str | None = None  # when the run was created
    code_version: str | None = None
    costs: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """By kind of token, and "US dollars": spent, expected, at most, and the budget."""
    expected_by: str = ""  # the source of the expectation, in words; "": not on record
    left_out: str | None = None  # how many problems were too long to be played, in words
    facets: tuple[str, str] = ("Difficulty", "Mutation")  # as the scenario calls them


def build_report(report: ReportData) -> str:
    """Make the page as HTML text, to be written as UTF-8. The same data gives the same text."""
    # The one script that the page's policy lets run is named by its hash.
    script = asset("report.js")
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    tests = [(e.iteration, e.test) for e in report.iterations if e.test]
    curve = thin_out(tests, _MOST_POINTS)
    hidden = [(f"iteration {i}, {split}", n) for i, split, n in report.transcripts_left_out if n]
    return _page().render(
        **page_values(report),
        script=Markup(script),  # noqa: S704
        script_hash=script_hash,
        style=Markup(asset("report.css")),  # noqa: S704
        curve=Markup(learning_curve_svg(curve)) if curve else None,  # noqa: S704
        is_thinned=len(curve) < len(tests),
        left_out=[f"{place}: {_reasons(counts)}" for place, counts in hidden],
        total_left_out=sum(sum(counts.values()) for _, counts in hidden) + report.passed_over[1],
        transcripts=Markup(embedded_json([_ready(t) for t in report.transcripts])),  # noqa: S704
    )


def page_values(report: ReportData) -> dict[str, Any]:
    """Compute by name the values of the tables in `report_macros.html.jinja`."""
    test_entries = [entry for entry in report.iterations if entry.test]
    verdicts: list[tuple[object, str, Measures, IterationReport | None]] = [
        (entry.iteration, split, metrics, entry)
        for entry in report.iterations
        for split, metrics in (("test", entry.test), ("train", entry.train))
        if metrics
    ]
    verdicts += [(name, "baseline", metrics, None) for name, metrics in report.baselines.items()]
    tests = [entry.test for entry in test_entries if entry.test]
    by_iteration = {entry.iteration: entry for entry in report.iterations}
    stages = sort_phases({s: 0.0 for entry in report.iterations for s in by_stage(entry.stage_s)})
    return {
        **make_section(None),
        **report.sections,
        "report": report,
        "tested": test_entries,
        "tested_on": name_course_problems(report.parameters),
        "change": _change(test_entries, report.comparisons) if len(tests) > 1 else "",
        "comparisons": [
            (comparison, by_iteration.get(comparison.iteration))
            for comparison in report.comparisons
        ],
        "verdicts": verdicts,
        "asked_again": _asked_again(test_entries),
        "has_neither": _has_neither(metrics for _, _, metrics, _ in verdicts),
        "labels": [
            (entry.iteration, split, metrics.labels)
            for entry in report.iterations
            for split, metrics in (("test", entry.test), ("train", entry.train))
            if metrics and metrics.labels
        ],
        "groups": [(e, name, group) for e in report.iterations for name, group in e.groups.items()],
        "league": [
            (e.iteration, row) for e in report.iterations if e.train for row in e.train.by_opponent
        ],
        "promotions": [
            (e.iteration, e.promotion) for e in report.iterations if e.promotion is not None
        ],
        "agents": [
            (entry, *agent)
            for entry in test_entries
            for agent in sorted(entry.test.agents.items() if entry.test else ())
        ],
        "spending": _spending(report.iterations, stages),
        "times": describe_phases([entry.stage_s for entry in report.iterations]),
        "stage_columns": [f"#{stage.replace('_', ' ')}" for stage in stages],
        "scalars": {k: v for k, v in report.parameters.items() if not isinstance(v, Mapping)},
    }


@cache
def _page() -> Template:
    return report_environment().get_template("report.html.jinja")


def report_environment(*loaders: BaseLoader) -> Environment:
    """Make the templates of the report, after those of `loaders`, and their filters for values."""
    # Everything is escaped but the page's own script, style, curve and embedded JSON (`Markup`).
    environment = Environment(
        loader=ChoiceLoader([*loaders, PackageLoader("nip_core.report", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
    )
    filters = (
        percent,
        percent_range,
        probability,
        number,
        signed,
        signed_range,
        plain_range,
        points,
        seconds,
    )
    environment.filters |= {function.__name__: function for function in (*filters, p_value)}
    environment.globals |= {"bound": _bound, "problems_words": problems_words}
    environment.globals |= {"opponent_words": opponent_words, "once": _once}
    environment.globals |= {"believed_line": believed_line, "no_measures": Measures()}
    environment.filters |= {
        "across": lambda share, width: f"{5 + (width - 10) * share:.1f}",
        "dash": lambda value: DASH if value is None else value,
        "dollars": lambda amount: f"${amount:,.2f}",
        "sparkline": _sparkline,
        "yaml": _yaml,
    }
    return environment


def _once(entry: IterationReport | None, *row: Any, caller: Callable[[], Markup]) -> Markup:
    """Fill a call block of the template, once for each `row` of an iteration."""
    if entry is None:
        return caller()
    if row not in entry.rows:
        entry.rows[row] = caller()
    return entry.rows[row]


def _ready(transcript: Transcript | Embedded) -> Embedded:
    return embed_transcript(transcript) if isinstance(transcript, Transcript) else transcript


def metrics_table(
    rows: MetricsByIteration, promotions: Mapping[int, GateDecision] | None = None
) -> list[dict[str, str | int | None]]:
    """Make a flat row of short texts and counts for each iteration, for a table artifact.

    `rows` are (iteration, metrics); `promotions` has the decisions of the gate by iteration, also
    of such as were not tested.
    """
    promotions = promotions or {}
    metrics_by_iteration = dict(rows)
    rows = [
        (i, metrics_by_iteration.get(i, SplitMetrics()))
        for i in sorted({*metrics_by_iteration, *promotions})
    ]
    scaled = _has_neither(metrics for _, metrics in rows)
    return [
        {
            "iteration": iteration,
            "episodes": metrics.episodes,
            "accuracy": percent(metrics.accuracy),
            "95 % interval": percent_range(metrics.accuracy_ci95),
            "completeness": percent(metrics.completeness),
            "soundness": percent(metrics.soundness),
            **(
                {"believing the prover": percent(metrics.believed_accuracy)}
                if any(figures.believed_accuracy is not None for _, figures in rows)
                else {}
            ),
            "precision": percent(metrics.precision),
            "no decision": percent(metrics.no_decision_rate),
            **({"neither": percent(metrics.neither_rate)} if scaled else {}),
            "failed": percent(metrics.failed_rate),
            **{
                f"reward {name}": signed(values.mean_reward)
                for name, values in metrics.agents.items()
            },
            **({"new models": promotion_words(promotions.get(iteration))} if promotions else {}),
        }
        for iteration, metrics in rows
    ]


def asset(name: str) -> str:
    """Read a file beside this one, such as `report.css`."""
    return (resources.files("nip_core.report") / name).read_text(encoding="utf-8")


def _asked_again(entries: Sequence[IterationReport]) -> list[IterationReport]:
    """Find the first test and the last with several plays of a problem."""
    several = [entry for entry in entries if entry.test and entry.test.any_of]
    return [*several[:1], *several[1:][-1:]]


def _has_neither(metrics: Iterable[Measures]) -> bool:
    """Return whether a verdict was in the middle of a scale, so a column is needed for it."""
    return any(figures.neither_rate for figures in metrics)


def _change(entries: Sequence[IterationReport], comparisons: Sequence[Comparison]) -> str:
    """Say how the accuracy changed; "" where it can't be said.

    The earlier accuracy of believing the prover is said too: a verifier may just have come to do
    so.
    """
    first, last = entries[0].test, entries[-1].test
    if first is None or last is None or first.accuracy is None or last.accuracy is None:
        return ""
    if comparisons and comparisons[-1].change.difference is not None:
        change = how_much(comparisons[-1].change)
    else:
        change = f"{100 * (last.accuracy - first.accuracy):+.1f} points"
    believed = first.believed_accuracy
    more = (
        ""
        if believed is None
        else f" In iteration {entries[0].iteration}, believing the prover would have given "
        f"{percent(believed)}."
    )
    return f"Accuracy changed by {true_minus(change)}.{more}"


def _bound(name: str, rate: float | None, metrics: SplitMetrics) -> str:
    """Say how many exceptions may be behind a rate of 0 or 1; "" for another one."""
    bound = metrics.bounds.get(name)
    if bound is None or bound.at_most is None:
        return ""
    exception = "error" if rate == 1 else "right verdict"
    plural = "" if bound.questions == 1 else "s"
    return (
        f"no {exception} in {number(bound.questions)} question{plural}: at most "
        f"{percent(bound.at_most)} (95{THIN}%, one-sided)"
    )


def _spending(
    iterations: Sequence[IterationReport], stages: Sequence[str]
) -> list[tuple[object, IterationSpending, IterationReport | None]]:
    """Add up the tokens, and the seconds by stage, of each iteration, and of all together."""
    rows = [(entry.iteration, _iteration_spending(entry, stages), entry) for entry in iterations]
    if not rows:
        return []
    all_ = [spending for _, spending, _ in rows]
    totals = IterationSpending(
        prompt_tokens=sum(spending.prompt_tokens for spending in all_),
        generated_tokens=sum(spending.generated_tokens for spending in all_),
        trained_tokens=sum(spending.trained_tokens for spending in all_),
        stage_s=[sum(spending.stage_s[k] for spending in all_) for k in range(len(stages))],
    )
    return [*rows, ("all", totals, None)]


def _iteration_spending(entry: IterationReport, stages: Sequence[str]) -> IterationSpending:
    splits = [metrics for metrics in (entry.test, entry.train, *entry.gate) if metrics]
    return IterationSpending(
        prompt_tokens=sum(metrics.prompt_tokens or 0 for metrics in splits),
        generated_tokens=sum(metrics.completion_tokens or 0 for metrics in splits),
        trained_tokens=sum(group.trained_tokens or 0 for group in entry.groups.values()),
        stage_s=[sum_stage(entry.stage_s, stage) for stage in stages],
    )


def _sparkline(losses: Sequence[tuple[int, float]], width: int, height: int) -> str:
    """Compute the points of a small curve without axes; "" where there are less than two."""
    finite = [(x, y) for x, y in losses if math.isfinite(y)]
    if len(finite) < 2:
        return ""
    xs, ys = zip(*finite, strict=True)
    x_span, y_span = max(xs) - min(xs) or 1, max(ys) - min(ys) or 1
    return " ".join(
        f"{2 + (width - 4) * (x - min(xs)) / x_span:.1f},"
        f"{2 + (height - 4) * (max(ys) - y) / y_span:.1f}"
        for x, y in finite
    )


def _yaml(section: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(section, default=str))  # the safe dumper knows plain types only
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=88)).rstrip()


def _reasons(counts: Mapping[str, int]) -> str:
    """Say why so many episodes are not among the transcripts, as "1 wrong, 2 right"."""
    return ", ".join(f"{counts[r]:,} {words}" for r, words in _LEFT_OUT.items() if r in counts)
