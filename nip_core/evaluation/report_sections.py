"""The parts of the report as HTML, one function each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from nip_core.evaluation.report_text import (
    DASH,
    THIN,
    Html,
    escape,
    number,
    percent,
    percent_range,
    seconds,
    signed,
)

if TYPE_CHECKING:
    from nip_core.evaluation.report import GroupReport, IterationReport, ReportData

Metrics = Mapping[str, Any]


def nothing(what: str) -> Html:
    """A quiet line where a part has nothing to show."""
    return Html(f'<p class="quiet">{escape(what)}</p>')


def header(report: ReportData) -> Html:
    """The name of the run and what identifies it."""
    facts = [
        ("status", report.status),
        ("created", report.created_at),
        ("code", report.code_version),
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


def _table(
    label: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Html]], kind: str = ""
) -> Html:
    """A table that scrolls by itself; `columns` are (heading, "text" or "number")."""
    heads = "".join(
        f'<th scope="col" class="{alignment}">{escape(heading)}</th>'
        for heading, alignment in columns
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{alignment}">{cell}</td>'
            for cell, (_, alignment) in zip(row, columns, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return Html(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'
        f'<table class="{kind}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _rate_cell(metrics: Metrics, name: str) -> Html:
    """A rate with its interval in small print."""
    interval = percent_range(metrics.get(f"{name}_ci95"))
    return Html(
        f'<span class="rate">{escape(percent(metrics.get(name)))}</span>'
        f' <span class="small">{escape(interval)}</span>'
    )


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
            row.append(escape(percent(metrics.get("neither_rate"))))
            row.append(escape(signed(metrics.get("mean_decision_value"))))
    return _table("Verdicts by iteration", columns, rows)


def has_neither(metrics: Iterable[Metrics]) -> bool:
    """Whether a verifier decided in the middle of a scale; where none can, it needs no column."""
    return any(found.get("neither_rate") for found in metrics)


def _verdict_cells(metrics: Metrics) -> list[Html]:
    return [
        escape(number(metrics.get("episodes"))),
        *(_rate_cell(metrics, name) for name in ("accuracy", "completeness", "soundness")),
        *(
            escape(percent(metrics.get(name)))
            for name in ("precision", "no_decision_rate", "always_fail_rate")
        ),
    ]


def training_table(report: ReportData) -> Html:
    """One row per iteration and shared model group: what was learned from, and the result."""
    rows = [
        [escape(entry.iteration), escape(name), *_training_cells(group)]
        for entry in report.iterations
        for name, group in entry.groups.items()
    ]
    if not rows:
        return nothing("Nothing was trained.")
    columns = [("Iteration", "text"), ("Group", "text"), ("Examples", "number")]
    columns += [("Job", "text"), ("Loss", "text"), ("Tokens", "number"), ("Served", "text")]
    return _table("Training by iteration", columns, rows, "top")


def _training_cells(group: GroupReport) -> list[Html]:
    examples = number(group.examples)
    if group.episodes is not None:
        examples += f" of {number(group.episodes)}"
    job = [f"<code>{escape(group.job_id)}</code>"] if group.job_id else []
    if group.status:
        job.append(f'<span class="small">{escape(group.status)}</span>')
    if group.note:
        job.append(f'<span class="small">{escape(group.note)}</span>')
    served = [f"<code>{escape(group.model_before)}</code>"] if group.model_before else []
    if group.model_after and group.model_after != group.model_before:
        served.append(f"→ <code>{escape(group.model_after)}</code>")
    if group.proof:
        served.append(f'<span class="small">{escape(group.proof)}</span>')
    return [
        escape(examples),
        Html("<br>".join(job) or DASH),
        _loss_cell(group.loss),
        escape(number(group.trained_tokens)),
        Html("<br>".join(served) or DASH),
    ]


def _loss_cell(loss: Sequence[tuple[int, float]]) -> Html:
    if not loss:
        return Html(DASH)
    words = f"{number(loss[0][1])} → {number(loss[-1][1])}"
    return Html(f'<span class="nowrap">{escape(words)}</span><br>{_sparkline(loss)}')


def _sparkline(points: Sequence[tuple[int, float]], width: int = 110, height: int = 24) -> Html:
    """A small curve without axes, decorative: the numbers stand beside it."""
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    if len(finite) < 2:
        return Html("")
    xs, ys = zip(*finite, strict=True)
    x_span, y_span = max(xs) - min(xs) or 1, max(ys) - min(ys) or 1
    path = " ".join(
        f"{2 + (width - 4) * (x - min(xs)) / x_span:.1f},"
        f"{2 + (height - 4) * (max(ys) - y) / y_span:.1f}"
        for x, y in finite
    )
    return Html(
        f'<svg class="spark" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'aria-hidden="true"><polyline points="{path}"/></svg>'
    )


def agent_table(report: ReportData) -> Html:
    """How the game went on test problems: lengths, rewards, invalid and cut answers."""
    tested = [(entry.iteration, entry.test) for entry in report.iterations if entry.test]
    names = sorted({name for _, metrics in tested for name in metrics.get("agents") or {}})
    if not names:
        return nothing("No agent has played a test episode yet.")
    columns = [("Iteration", "text"), ("Rounds", "number")]
    for name in names:
        columns += [
            (f"{name}: reward", "number"),
            (f"{name}: invalid", "number"),
            (f"{name}: cut off", "number"),
        ]
    columns += [("Agreement", "number"), ("Failed", "number")]
    rows = []
    for iteration, metrics in tested:
        rounds = metrics.get("mean_rounds")
        row = [escape(iteration), escape(None if rounds is None else f"{rounds:.1f}")]
        for name in names:
            agent = (metrics.get("agents") or {}).get(name, {})
            row += [
                escape(signed(agent.get("mean_reward"))),
                escape(percent(agent.get("retry_rate"))),
                escape(percent(agent.get("token_limit_rate"))),
            ]
        row += [
            escape(percent(metrics.get("agreement"))),
            escape(percent(metrics.get("failed_rate"))),
        ]
        rows.append(row)
    return _table("Play by iteration", columns, rows)


def breakdown_table(report: ReportData, key: str, heading: str) -> Html:
    """Accuracy of the first and the last tested iteration by a property of the problem."""
    tested = [entry.test for entry in report.iterations if entry.test]
    first = (tested[0].get(key) or {}) if tested else {}
    last = (tested[-1].get(key) or {}) if tested else {}
    if not last:
        return nothing(f"Nothing to break down by {heading.lower()}.")
    columns = [(heading, "text"), ("Episodes", "number"), ("First", "number"), ("Last", "number")]
    columns += [(f"0 to 100{THIN}%", "text"), ("Completeness", "number")]
    columns += [("Soundness", "number")]
    rows = []
    for name, after in last.items():
        before = first.get(name, {})
        rows.append(
            [
                escape(name),
                escape(number(after.get("episodes"))),
                escape(percent(before.get("accuracy"))),
                escape(percent(after.get("accuracy"))),
                _dumbbell(before.get("accuracy"), after.get("accuracy"), after["accuracy_ci95"]),
                escape(percent(after.get("completeness"))),
                escape(percent(after.get("soundness"))),
            ]
        )
    return _table(f"Accuracy by {heading.lower()}", columns, rows)


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
    return _table("Tokens and time by iteration", columns, rows, "totals")


def _spent(entry: IterationReport, stages: Sequence[str]) -> list[float]:
    """Prompt, generated and trained tokens, dollars, then seconds by stage."""
    played = [metrics for metrics in (entry.test, entry.train) if metrics]
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


def transcripts_note(report: ReportData) -> Html:
    """How many transcripts are in the page, and how they were chosen."""
    return Html(
        f"<p>{len(report.transcripts):,} transcripts: at most "
        f"{report.transcripts_per_group:,} of each iteration and split, chosen by a hash of the "
        "problem, so that an iteration can be compared with another on the same problem.</p>"
    )
