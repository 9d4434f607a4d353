"""The figure of the rates under attacks over the attacks' tokens."""

import math
from collections.abc import Sequence
from typing import Any

from nip_core.report.plots import INK, draw_frame, svg_element
from nip_study.documents.results_document import ArmPoint, ArmResult, SweepResults
from nip_study.parts.arms_figure import escape_mathtext

_COLUMNS = 3
_WIDTH, _ROW, _LEGEND, _BELOW = 7.6, 2.1, 0.4, 0.45  # inches
_LEFT, _RIGHT = 0.07, 0.985  # shares of the width
_LEGEND_COLUMNS = 5
_COLOURS = ("#3a80c9", "#d97a1f", "#1c9c80", "#b3559a", "#8a7d1f")
_MARKERS = ("o", "^", "s", "D", "v", "P", "X")
_DASHES = ("solid", (0, (4, 2)), (0, (1.5, 1.5)))
"""Of attacks, in their order. No two of the first 35 have colour and marker in common."""
_NOTHING = 0.5
"""How far left of the fewest tokens a point without any stands, in powers of ten."""


def efforts_svg(results: SweepResults) -> str | None:
    """Draw soundness over tokens, on a logarithmic axis, by arm; None where no attack has both.

    A dashed line is soundness in the arm's own test. Bars are intervals over seeds and questions.
    """
    arms = [arm for arm in results.arms if any(map(_list_points, _list_curves(arm).values()))]
    if not arms:
        return None
    labels = [*dict.fromkeys(label for arm in arms for label in _list_curves(arm))]
    rows = math.ceil(len(arms) / _COLUMNS)
    legend = _LEGEND + 0.22 * ((len(labels) - 1) // _LEGEND_COLUMNS)
    height = legend + rows * _ROW
    return svg_element(
        lambda figure: _draw(figure, arms, labels, (height, legend)),
        (_WIDTH, height),
        "nip-efforts",
        f"soundness over tokens under {len(labels)} attacks on {len(arms)} arms of a sweep",
    )


def _list_curves(arm: ArmResult) -> dict[str, tuple[ArmPoint, ...]]:
    return {label: attack.by_effort for label, attack in arm.attacks.items() if attack.by_effort}


def _list_points(curve: Sequence[ArmPoint]) -> list[tuple[float, ArmPoint]]:
    """Return the points that have a soundness, by their tokens."""
    return sorted(
        ((point.tokens, point) for point in curve if point.soundness is not None),
        key=lambda pair: pair[0],
    )


def _draw(
    figure: Any, arms: Sequence[ArmResult], labels: Sequence[str], sizes: tuple[float, float]
) -> None:
    height, legend = sizes
    tokens_taken = [
        tokens
        for arm in arms
        for curve in _list_curves(arm).values()
        for tokens, _ in _list_points(curve)
        if tokens > 0
    ]
    low, high = min(tokens_taken, default=1.0), max(tokens_taken, default=10.0)
    nothing = low / 10**_NOTHING
    # None between the points without tokens and the next ones.
    powers = [10.0**n for n in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    powers = powers or [10.0 ** math.ceil(math.log10(high))]
    width = (_RIGHT - _LEFT) / _COLUMNS
    for place, arm in enumerate(arms):
        row, column = divmod(place, _COLUMNS)
        bottom = height - legend - (row + 1) * _ROW + _BELOW
        box = (
            *(_LEFT + column * width, bottom / height),
            *(width * 0.93, (_ROW - _BELOW - 0.25) / height),
        )
        axes = figure.add_axes(box)
        _draw_arm(axes, arm, labels, nothing)
        _dress(axes, arm.name, is_first=column == 0)
        axes.set_xticks(powers)
        axes.set_xticks([], minor=True)
        axes.set_xlim(nothing / 1.6, max(high, powers[-1]) * 1.8)
        axes.annotate(
            *("0", (nothing, 0.0), (0, -4.5)),
            textcoords="offset points",
            ha="center",
            va="top",
            color=INK,
            fontsize=8,
        )
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    figure.legend(
        [*entries.values()],
        [*entries],
        loc="upper left",
        bbox_to_anchor=(_LEFT - 0.02, 1.0),
        ncols=_LEGEND_COLUMNS,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
        columnspacing=1.2,
        handlelength=2.4,
    )


def _draw_arm(axes: Any, arm: ArmResult, labels: Sequence[str], nothing: float) -> None:
    axes.set_facecolor("none")
    if arm.soundness is not None:
        axes.axhline(arm.soundness.mean, color=INK, alpha=0.5, linewidth=1, linestyle=(0, (4, 3)))
    for label, curve in _list_curves(arm).items():
        place = labels.index(label)
        colour, marker = _COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)]
        dash = _DASHES[place % len(_DASHES)]
        points = [
            (tokens, rate) for tokens, result in _list_points(curve) if (rate := result.soundness)
        ]
        bounds = [rate.ci95 or (rate.mean, rate.mean) for _, rate in points]
        axes.errorbar(
            [tokens or nothing for tokens, _ in points],
            [rate.mean for _, rate in points],
            yerr=[
                [max(0.0, r.mean - bound[0]) for (_, r), bound in zip(points, bounds, strict=True)],
                [max(0.0, bound[1] - r.mean) for (_, r), bound in zip(points, bounds, strict=True)],
            ],
            color=colour,
            marker=marker,
            linestyle=dash,
            linewidth=1.4,
            elinewidth=1.0,
            markersize=5,
            label=escape_mathtext(label),
            clip_on=False,
            zorder=3,
        )


def _dress(axes: Any, name: str, *, is_first: bool) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    axes.set_title(escape_mathtext(name), fontsize=9, color=INK, loc="left", pad=3)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.tick_params(which="both", colors=INK, length=0, labelsize=8, labelleft=is_first)
    draw_frame(axes, "y")
