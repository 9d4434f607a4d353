"""The parts of the report as HTML, one function each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from nip_core.evaluation.report_tables import (
    Metrics,
    mean_cell,
    nothing,
    rate_cell,
    reward_cell,
    table,
)
from nip_core.evaluation.report_text import (
    THIN,
    Html,
    escape,
    number,
    percent,
    percent_range,
    seconds,
)

if TYPE_CHECKING:
    from nip_core.evaluation.report import IterationReport, ReportData


def header(report: ReportData) -> Html:
    """The name of the run and what identifies it."""
    facts = [
        ("status", report.status),
        ("created", report.created_at),
        ("code", report.code_version),
        ("not played", report.left_out),
    ]
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in facts
        if value is not None
    )
    return Html(f'<h1>{escape(report.run)}</h1><dl class="facts">{items}</dl>')


def headline(report: ReportData) -> Html:
    """First against last: accuracy, completeness, soundness."""
    tested = [(entry.iteration, entry.test) for entry in report.iterations if entry.test]
    if not tested:
        return nothing("No iteration has been tested yet.")
    (first_iteration, first), (last_iteration, last) = tested[0], tested[-1]
    several = len(tested) > 1
    cards = []
    for name in ("accuracy", "completeness", "soundness"):
        before = (
            f"from {percent(first.get(name))} in iteration {first_iteration}"
            if several
            else f"in iteration {first_iteration}"
        )
        cards.append(
            f'<div class="card {name}"><h3>{name.capitalize()}</h3>'
            f'<p class="big">{escape(percent(last.get(name)))}</p>'
            f'<p class="interval">95{THIN}% interval '
            f"{escape(percent_range(last.get(f'{name}_ci95')))}</p>"
            f"<p>{escape(before)}</p></div>"
        )
    line = (
        f"{number(last.get('episodes'))} test episodes on "
        f"{number(last.get('distinct_problems'))} distinct problems in iteration {last_iteration}."
    )
    change = _change(first, last, report.paired) if several else ""
    return Html(f'<div class="cards">{"".join(cards)}</div><p>{escape(f"{change} {line}")}</p>')


def _change(first: Metrics, last: Metrics, paired: Metrics | None) -> str:
    if paired is not None and paired.get("difference") is not None:
        low, high = paired["ci95"]
        return (
            f"Accuracy changed by {100 * paired['difference']:+.1f} points (95{THIN}% interval "
            f"{100 * low:+.1f} to {100 * high:+.1f}, paired over "
            f"{number(paired.get('problems'))} problems)."
        )
    if first.get("accuracy") is None or last.get("accuracy") is None:
        return ""
    return f"Accuracy changed by {100 * (last['accuracy'] - first['accuracy']):+.1f} points."


def verdict_table(report: ReportData) -> Html:
    """How the verifier decided, by iteration and split, with the baselines below."""
    columns = [("Iteration", "text"), ("Split", "text"), ("Episodes", "number")]
    columns += [(name, "number") for name in ("Accuracy", "Completeness", "Soundness")]
    columns += [(name, "number") for name in ("Precision", "No decision", "Always wrong")]
    found: list[tuple[object, str, Metrics]] = []
    for entry in report.iterations:
        for split, metrics in (("test", entry.test), ("train", entry.train)):
            if metrics:
                found.append((entry.iteration, split, metrics))
    found += [(name, "baseline", metrics) for name, metrics in report.baselines.items()]
    if not found:
        return nothing("No metrics yet.")
    rows = [[escape(name), escape(kind), *_verdict_cells(m)] for name, kind, m in found]
    if has_neither(metrics for _, _, metrics in found):
        columns += [("Neither", "number"), ("Mean value", "number")]
        for row, (_, _, metrics) in zip(rows, found, strict=True):
            row.append(rate_cell(metrics, "neither_rate"))
            row.append(reward_cell(metrics, "mean_decision_value"))
    return table("Verdicts by iteration", columns, rows)


def has_neither(metrics: Iterable[Metrics]) -> bool:
    """Whether a verifier decided in the middle of a scale; where none can, it needs no column."""
    return any(found.get("neither_rate") for found in metrics)


def _verdict_cells(metrics: Metrics) -> list[Html]:
    return [
        escape(number(metrics.get("episodes"))),
        *(rate_cell(metrics, name) for name in ("accuracy", "completeness", "soundness")),
        *(rate_cell(metrics, name) for name in ("precision", "no_decision_rate")),
        rate_cell(metrics, "always_fail_rate"),
    ]


def episode_table(report: ReportData) -> Html:
    """How test episodes went, whoever spoke: length, repeated plays, invalid and cut answers."""
    tested = [(entry.iteration, entry.test) for entry in report.iterations if entry.test]
    if not tested:
        return nothing("No test episode has been played yet.")
    columns = [("Iteration", "text"), ("Rounds", "number")]
    columns += [(name, "number") for name in ("Agreement", "Worst problem", "Terminated", "Failed")]
    columns += [("Invalid answers", "number"), ("Cut off", "number")]
    names = (
        *("agreement", "worst_problem_accuracy", "terminated_rate", "failed_rate"),
        *("retry_rate", "token_limit_rate"),
    )
    rows = [
        [
            escape(iteration),
            mean_cell(metrics, "mean_rounds"),
            *(rate_cell(metrics, name) for name in names),
        ]
        for iteration, metrics in tested
    ]
    return table("Episodes by iteration", columns, rows)


def agent_table(report: ReportData) -> Html:
    """How each agent did on test problems: reward, invalid and cut answers."""
    rows = [
        [
            escape(entry.iteration),
            escape(name),
            reward_cell(agent, "mean_reward"),
            rate_cell(agent, "retry_rate"),
            rate_cell(agent, "token_limit_rate"),
        ]
        for entry in report.iterations
        if entry.test
        for name, agent in sorted((entry.test.get("agents") or {}).items())
    ]
    if not rows:
        return nothing("No agent has played a test episode yet.")
    columns = [("Iteration", "text"), ("Agent", "text"), ("Reward", "number")]
    columns += [("Invalid answers", "number"), ("Cut off", "number")]
    return table("Agents by iteration", columns, rows)


def breakdown_table(report: ReportData, key: str, heading: str) -> Html:
    """Accuracy of the first and the last tested iteration by a property of the problem."""
    tested = [entry.test for entry in report.iterations if entry.test]
    first = (tested[0].get(key) or {}) if tested else {}
    last = (tested[-1].get(key) or {}) if tested else {}
    if not last:
        return nothing(f"Nothing to break down by {heading.lower()}.")
    columns = [(heading, "text"), ("Episodes", "number"), ("First", "number"), ("Last", "number")]
    columns += [(f"0 to 100{THIN}%", "text"), ("Completeness", "number")]
    columns += [(name, "number") for name in ("Soundness", "Precision", "No decision")]
    rows = []
    for name, after in last.items():
        before = first.get(name, {})
        rows.append(
            [
                escape(name),
                escape(number(after.get("episodes"))),
                rate_cell(before, "accuracy"),
                rate_cell(after, "accuracy"),
                _dumbbell(
                    before.get("accuracy"), after.get("accuracy"), after.get("accuracy_ci95")
                ),
                *(rate_cell(after, name) for name in ("completeness", "soundness", "precision")),
                rate_cell(after, "no_decision_rate"),
            ]
        )
    return table(f"Accuracy by {heading.lower()}", columns, rows)


def _dumbbell(
    first: float | None, last: float | None, interval: Sequence[float] | None, width: int = 150
) -> Html:
    """First (hollow) and last (full) on a line from 0 to 1, with the interval of the last."""

    def at(value: float) -> str:
        return f"{5 + (width - 10) * value:.1f}"

    marks = [f'<line class="axis" x1="5" x2="{width - 5}" y1="9" y2="9"/>']
    marks.append(f'<line class="axis" x1="{at(0.5)}" x2="{at(0.5)}" y1="4" y2="14"/>')
    if interval is not None:
        low, high = interval
        marks.append(f'<line class="range" x1="{at(low)}" x2="{at(high)}" y1="9" y2="9"/>')
    if first is not None:
        marks.append(f'<circle class="first" cx="{at(first)}" cy="9" r="3.5"/>')
    if last is not None:
        marks.append(f'<circle class="last" cx="{at(last)}" cy="9" r="4"/>')
    return Html(
        f'<svg class="dumbbell" width="{width}" height="18" viewBox="0 0 {width} 18" '
        f'aria-hidden="true">{"".join(marks)}</svg>'
    )


def resource_table(report: ReportData) -> Html:
    """Tokens, money and seconds by iteration, and in all."""
    stages = list(dict.fromkeys(stage for entry in report.iterations for stage in entry.stage_s))
    priced = any(entry.cost_usd is not None for entry in report.iterations)
    columns = [("Iteration", "text"), ("Prompt tokens", "number"), ("Generated", "number")]
    columns += [("Trained", "number")]
    columns += [("Cost", "number")] if priced else []
    columns += [*((stage.replace("_", " "), "number") for stage in stages), ("Total", "number")]
    spent = [_spent(entry, stages) for entry in report.iterations]
    if not spent:
        return nothing("No iteration has been played yet.")
    totals = [sum(amounts) for amounts in zip(*spent, strict=True)]
    labels = [*(escape(entry.iteration) for entry in report.iterations), Html("all")]
    rows = []
    for label, amounts in zip(labels, [*spent, totals], strict=True):
        prompt, generated, trained, cost, *times = amounts
        row = [label, *(escape(number(int(count))) for count in (prompt, generated, trained))]
        row += [escape(f"${cost:,.2f}")] if priced else []
        # A dash, not 0.0 s, where a stage didn't run.
        shown = [seconds(time or None) for time in (*times, sum(times))]
        rows.append([*row, *map(escape, shown)])
    return table("Tokens and time by iteration", columns, rows, "totals")


def _spent(entry: IterationReport, stages: Sequence[str]) -> list[float]:
    """Prompt, generated and trained tokens, dollars, then seconds by stage."""
    played = [metrics for metrics in (entry.test, entry.train, *entry.gate) if metrics]
    return [
        sum(metrics.get("prompt_tokens") or 0 for metrics in played),
        sum(metrics.get("completion_tokens") or 0 for metrics in played),
        sum(group.trained_tokens or 0 for group in entry.groups.values()),
        entry.cost_usd or 0.0,
        *(entry.stage_s.get(stage, 0.0) for stage in stages),
    ]


def parameter_tree(parameters: Mapping[str, Any]) -> Html:
    """The resolved parameters as YAML: scalars together, each section in a fold of its own."""
    if not parameters:
        return nothing("No parameters were recorded.")
    plain = {key: value for key, value in parameters.items() if not isinstance(value, Mapping)}
    folds = [f'<pre class="yaml">{escape(_yaml(plain))}</pre>'] if plain else []
    folds += [
        f"<details><summary>{escape(name)}</summary>"
        f'<pre class="yaml">{escape(_yaml(value))}</pre></details>'
        for name, value in parameters.items()
        if isinstance(value, Mapping)
    ]
    return Html("".join(folds))


def _yaml(value: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(value, default=str))  # YAML's safe dumper knows plain types only
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=88)).rstrip()


_LEFT_OUT = {
    "failed": "failed",
    "wrong": "wrong",
    "invalid": "right with invalid answers",
    "changed": "right with a changed verdict",
    "sample": "right",
}


def transcripts_note(report: ReportData) -> Html:
    """How many transcripts are in the page, how they were chosen, and what is not shown."""
    note = (
        f"<p>{len(report.transcripts):,} transcripts. Of each iteration and split first those that "
        "failed, whose verdict is wrong, that have invalid answers, and whose verdict changed "
        "since the iteration before; then a sample by a hash of the problem, the same in every "
        "iteration."
    )
    hidden = [(f"iteration {i}, {split}", n) for i, split, n in report.transcripts_left_out if n]
    if not hidden:
        return Html(f"{note} No episode is left out.</p>")
    rows = [
        f"{place}: " + ", ".join(f"{counts[r]:,} {_LEFT_OUT[r]}" for r in _LEFT_OUT if r in counts)
        for place, counts in hidden
    ]
    total = sum(sum(counts.values()) for _, counts in hidden)
    listed = "".join(f"<li>{escape(row)}</li>" for row in rows)
    return Html(
        f"{note}</p><details><summary>{total:,} more episodes are not shown here; the run's "
        f"tables have all of them</summary><ul>{listed}</ul></details>"
    )
