"""The parts of the report that say what was learned: jobs, and whether their models were taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nip_core.evaluation.report_tables import nothing, table
from nip_core.evaluation.report_text import (
    DASH,
    THIN,
    Html,
    escape,
    number,
    percent,
    signed,
)

if TYPE_CHECKING:
    from nip_core.evaluation.report import GroupReport, ReportData


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
    return table("Training by iteration", columns, rows, "top")


def _training_cells(group: GroupReport) -> list[Html]:
    job = [f"<code>{escape(group.job_id)}</code>"] if group.job_id else []
    outcome = ": ".join(part for part in (group.status, group.note) if part)
    if outcome:
        job.append(f'<span class="small">{escape(outcome)}</span>')
    if group.method:
        job.append(f'<span class="small">method {escape(group.method)}</span>')
    served = [f"<code>{escape(group.model_before)}</code>"] if group.model_before else []
    if group.model_after and group.model_after != group.model_before:
        served.append(f"→ <code>{escape(group.model_after)}</code>")
    if group.proof:
        served.append(f'<span class="small">{escape(group.proof)}</span>')
    return [
        _examples_cell(group),
        Html("<br>".join(job) or DASH),
        _loss_cell(group.loss),
        _tokens_cell(group),
        Html("<br>".join(served) or DASH),
    ]


def _examples_cell(group: GroupReport) -> Html:
    """How many examples of how many episodes, and what the trainer counted."""
    examples = number(group.examples)
    if group.episodes is not None:
        examples += f" of {number(group.episodes)}"
    counted = "".join(
        f'<span class="range">{escape(name.replace("_", " "))} {escape(number(count))}</span>'
        for name, count in group.counts.items()
    )
    return Html(f"{escape(examples)}{counted}")


def _tokens_cell(group: GroupReport) -> Html:
    """Tokens trained on; what was expected where the back-end does not tell, and the price."""
    if group.status == "skipped":
        return Html(DASH)
    text = escape(number(group.trained_tokens))
    if group.trained_tokens is None and group.tokens is not None:
        text = escape(f"about {number(group.tokens)}")
    if group.training_usd is not None:
        text = Html(f'{text}<span class="range">about ${group.training_usd:,.2f}</span>')
    return text


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


def promotion_part(report: ReportData) -> Html:
    """What the gate decided, by iteration; nothing at all for a run without one."""
    decided = [(e.iteration, e.promotion) for e in report.iterations if e.promotion is not None]
    if not decided:
        return Html("")
    columns = [("Iteration", "text"), ("Compared", "text"), ("Old models", "number")]
    columns += [("New models", "number"), ("Difference", "number"), ("Margin", "number")]
    columns += [("Decision", "text"), ("Candidates", "text")]
    rows = [[escape(iteration), *_promotion_cells(found)] for iteration, found in decided]
    shown = table("Promotion by iteration", columns, rows, "top")
    return Html(
        "<h3>Promotion</h3><p>After training, old and new models play the same validation "
        "problems; the new ones are taken if they are not worse by more than the margin.</p>"
        f"{shown}"
    )


def _promotion_cells(found: Mapping[str, Any]) -> list[Html]:
    is_rate = found["metric"] == "accuracy"
    show = percent if is_rate else signed

    def difference(value: float) -> str:
        return f"{100 * value:+.1f}{THIN}pts" if is_rate else f"{value:+.2f}"

    low, high = found["ci95"]
    models = [
        f"{escape(group)}: <code>{escape(model['model'])}</code>"
        for group, model in found["candidates"].items()
    ]
    return [
        escape(found["metric"].replace("_", " ")),
        escape(show(found["validation"])),
        escape(show(found["candidate"])),
        Html(
            f'<span class="rate">{escape(difference(found["difference"]))}</span>'
            f'<span class="range">{escape(difference(low))} to {escape(difference(high))}</span>'
            f'<span class="range">{escape(number(found["problems"]))} problems</span>'
        ),
        escape(f"{100 * found['margin']:.1f}{THIN}pts" if is_rate else f"{found['margin']:.2f}"),
        Html("<strong>taken</strong>" if found["promoted"] else "<strong>refused</strong>"),
        Html("<br>".join(models) or DASH),
    ]
