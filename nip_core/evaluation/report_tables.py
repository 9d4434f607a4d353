"""Pieces that the parts of the report share: tables and cells as HTML."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nip_core.evaluation.report_text import (
    Html,
    escape,
    percent,
    percent_range,
    plain_range,
    signed,
    signed_range,
)

Metrics = Mapping[str, Any]


def nothing(what: str) -> Html:
    """A quiet line where a part has nothing to show."""
    return Html(f'<p class="quiet">{escape(what)}</p>')


def table(
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


def rate_cell(metrics: Metrics, name: str) -> Html:
    """A rate with its interval in small print below; runs of older versions have fewer of them."""
    return _cell(percent(metrics.get(name)), metrics, name, percent_range)


def reward_cell(metrics: Metrics, name: str) -> Html:
    """A mean reward with its interval."""
    return _cell(signed(metrics.get(name)), metrics, name, signed_range)


def mean_cell(metrics: Metrics, name: str) -> Html:
    """A mean with its interval."""
    value = metrics.get(name)
    return _cell(None if value is None else f"{value:.1f}", metrics, name, plain_range)


def _cell(
    value: str | None, metrics: Metrics, name: str, show: Callable[[Sequence[float]], str]
) -> Html:
    interval = metrics.get(f"{name}_ci95")
    text = f'<span class="rate">{escape(value)}</span>'
    if interval is not None:
        text += f'<span class="range">{escape(show(interval))}</span>'
    return Html(text)
