"""Curves as points of an SVG, which a template draws: no script, no picture to load.

lay_out_chart  lines with their axes, in two sizes: for a wide page, and for a narrow one
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nip_core.evaluation.figures_in_words import axis_tick, number, percent, true_minus

WIDE, NARROW = (1160, 300), (358, 220)
SMALL = (358, 170)
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 12, 26
_MOST_TICKS = {WIDE: 12, NARROW: 5, SMALL: 5}

Measured = tuple[float, float | None, tuple[float, float] | None]
"""x, y and the interval of y; None: not known."""


@dataclass(frozen=True)
class Line:
    """A curve to be drawn. `kind` is its class in the style sheet."""

    name: str
    kind: str
    points: Sequence[Measured]
    is_joined: bool = True
    """Whether its points are joined; few groups say nothing of the values between them."""


@dataclass(frozen=True)
class Mark:
    """A point on the page, with the ends of its interval."""

    x: float
    y: float
    low: float | None
    high: float | None
    words: str


@dataclass(frozen=True)
class Drawn:
    """A line on the page: its pieces as points, and its marks."""

    name: str
    kind: str
    pieces: tuple[str, ...]
    marks: tuple[Mark, ...]
    is_joined: bool = True


@dataclass(frozen=True)
class Panel:
    """A chart in one size."""

    size: str
    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    lines: tuple[Drawn, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    chance: float | None
    diagonal: str


@dataclass(frozen=True)
class Chart:
    """A chart with a sentence for who can't see it."""

    title: str
    words: str
    x_name: str
    panels: tuple[Panel, ...]

    @property
    def lines(self) -> tuple[Drawn, ...]:
        """The lines, for the legend."""
        return self.panels[0].lines


def lay_out_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_name: str = "iteration",
    is_rate: bool = False,
    chance: float | None = None,
    sizes: Sequence[tuple[int, int]] = (WIDE, NARROW),
    diagonal: bool = False,
) -> Chart | None:
    """Lay lines out; None where there is nothing to draw."""
    finite_lines = [replace(line, points=[*filter(_is_finite, line.points)]) for line in lines]
    finite_lines = [line for line in finite_lines if line.points]
    if not finite_lines:
        return None
    xs = [x for line in finite_lines for x, _, _ in line.points]
    ys = [y for line in finite_lines for _, y, _ in line.points if y is not None]
    x_range = (0.0, 1.0) if diagonal else (min(xs), max(xs))
    y_range = (0.0, 1.0) if is_rate else _pad(min(ys), max(ys))
    return Chart(
        title,
        _describe_shares(title, finite_lines)
        if diagonal
        else _describe(title, finite_lines, x_name, is_rate),
        x_name,
        tuple(
            _lay_out_panel(name, size, finite_lines, x_range, y_range, is_rate, chance, diagonal)
            for name, size in zip(("wide", "narrow"), sizes, strict=False)
        ),
    )


def _is_finite(point: Measured) -> bool:
    return point[1] is not None and math.isfinite(point[1])


def _pad(low: float, high: float) -> tuple[float, float]:
    margin = 0.08 * (high - low) or abs(high) * 0.1 or 1.0
    # A quantity that can't be negative has its axis at 0 if that is near.
    bottom = 0.0 if 0 <= low <= 0.5 * high else low - margin
    return bottom, high + margin


def _describe(title: str, lines: Sequence[Line], x_name: str, is_rate: bool) -> str:
    def shown(y: float | None) -> str:
        return "" if y is None else (f"{100 * y:.1f} %" if is_rate else true_minus(number(y, 4)))

    parts = [
        f"{line.name} from {shown(line.points[0][1])} at {x_name} {line.points[0][0]:g} "
        f"to {shown(line.points[-1][1])} at {line.points[-1][0]:g}"
        for line in lines
    ]
    return f"{title}: {'; '.join(parts)}"


def _describe_shares(title: str, lines: Sequence[Line]) -> str:
    parts = [
        f"{percent(y)} of solutions were right where {percent(x)} is said"
        for line in lines
        for x, y, _ in line.points
    ]
    return f"{title}: {'; '.join(parts)}"


def _lay_out_panel(
    name: str,
    size: tuple[int, int],
    lines: Sequence[Line],
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    is_rate: bool,
    chance: float | None,
    diagonal: bool,
) -> Panel:
    width, height = size
    left_edge, right, top, bottom = _LEFT, width - _RIGHT, _TOP, height - _BOTTOM
    x_span, y_span = x_range[1] - x_range[0], y_range[1] - y_range[0]

    def across(x: float) -> float:
        if not x_span:
            return (left_edge + right) / 2
        return left_edge + 10 + (right - left_edge - 20) * (x - x_range[0]) / x_span

    def down(y: float) -> float:
        share = (y - y_range[0]) / y_span
        return bottom - (bottom - top) * min(1.0, max(0.0, share))

    drawn_lines = tuple(_draw(line, across, down, is_rate, diagonal) for line in lines)
    x_steps = _choose_ticks(*x_range, _MOST_TICKS.get(size, 5), whole=not diagonal)
    x_ticks = [(across(x), f"{100 * x:.0f} %" if diagonal else f"{x:g}") for x in x_steps]
    y_steps = [0, 0.25, 0.5, 0.75, 1] if is_rate else _choose_ticks(*y_range, 5, whole=False)
    y_ticks = [(down(y), f"{100 * y:.0f} %" if is_rate else axis_tick(y)) for y in y_steps]
    slope = f"{across(0):.1f},{down(0):.1f} {across(1):.1f},{down(1):.1f}" if diagonal else ""
    return Panel(
        name,
        width,
        height,
        left_edge,
        right,
        top,
        bottom,
        drawn_lines,
        tuple(x_ticks),
        tuple(y_ticks),
        None if chance is None else down(chance),
        slope,
    )


def _draw(
    line: Line,
    across: Callable[[float], float],
    down: Callable[[float], float],
    is_rate: bool,
    is_share: bool,
) -> Drawn:
    marks = []
    for x, y, interval in line.points:
        assert y is not None
        value = f"{100 * y:.1f} %" if is_rate else true_minus(number(y, 4))
        place = percent(x) if is_share else f"{x:g}"
        low, high = (None, None) if interval is None else map(down, interval)
        marks.append(Mark(across(x), down(y), low, high, f"{line.name}, {place}: {value}"))
    path = " ".join(f"{mark.x:.1f},{mark.y:.1f}" for mark in marks)
    is_crowded = len(marks) > 60  # marks of so many can't be told apart
    return Drawn(
        line.name,
        line.kind,
        (path,) if len(marks) > 1 and line.is_joined else (),
        () if is_crowded else tuple(marks),
        line.is_joined,
    )


def _choose_ticks(low: float, high: float, limit: int, *, whole: bool) -> list[float]:
    """Choose round numbers between `low` and `high`, at most `limit`."""
    span = high - low
    if span <= 0:
        return [low]
    step = 10.0 ** math.floor(math.log10(span / limit))
    for factor in (1, 2, 5, 10, 20):
        if span / (step * factor) <= limit:
            step *= factor
            break
    if whole:
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [(first + k) * step for k in range(count)]
