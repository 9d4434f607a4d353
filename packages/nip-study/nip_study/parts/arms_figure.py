"""The figure of the arms of a sweep: accuracy, completeness and soundness below each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nip_core.report.plots import INK, RATES, SIZE_INCHES, draw_frame, svg_element


@dataclass(frozen=True)
class Mark:
    """A rate over several runs, as it is drawn."""

    mean: float
    lowest: float
    highest: float


Arms = Sequence[tuple[str, Mapping[str, Mark | None]]]
"""By the name of an arm, its rates by their names."""


def arms_svg(arms: Arms, noun: str = "arms of a sweep") -> str:
    """Draw the arms of a sweep below each other, each rate a mark with the range of its runs.

    `noun` names them in plural, for readers who can't see the figure.
    """
    width, row, margin = SIZE_INCHES[0], 0.42, 0.9
    height = margin + row * len(arms)
    longest = max((len(name) for name, _ in arms), default=0)
    label_width = min(0.5, 0.03 + 0.0095 * longest)  # of the width, for the names
    box = (label_width, 0.55 / height, 0.96 - label_width, 1 - margin / height)
    return svg_element(
        lambda figure: _draw_arms(figure.add_axes(box), arms),
        (width, height),
        "nip-arms",
        f"{len(arms)} {noun}",
    )


def escape_mathtext(text: str) -> str:
    """Escape signs that matplotlib would read as a formula."""
    return text.replace("$", r"\$")


def _draw_arms(axes: Any, arms: Arms) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_facecolor("none")
    axes.axvline(0.5, color=INK, alpha=0.45, linewidth=0.9, linestyle=(0, (2, 3)), zorder=1)
    for line in RATES:
        marks = [
            (row, mark) for row, (_, arm) in enumerate(arms) if (mark := arm[line.name]) is not None
        ]
        rows = [row + 20 * line.shift for row, _ in marks]
        means = [mark.mean for _, mark in marks]
        # Of equal figures the mean may be rounded to beside them, and a bar of less than 0 is none.
        lower_bars = [max(0.0, mark.mean - mark.lowest) for _, mark in marks]
        upper_bars = [max(0.0, mark.highest - mark.mean) for _, mark in marks]
        axes.errorbar(
            means,
            rows,
            xerr=[lower_bars, upper_bars],
            fmt=line.marker,
            color=line.colour,
            markersize=6.5 if line.is_main else 5,
            elinewidth=1.6 if line.is_main else 1.1,
            label=line.name,
            zorder=4 if line.is_main else 3,
            clip_on=False,
        )
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.set_yticks(range(len(arms)), [escape_mathtext(name) for name, _ in arms])
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.tick_params(colors=INK, length=0)
    draw_frame(axes, "x")
    handles, labels = axes.get_legend_handles_labels()
    order = [2, 0, 1]
    axes.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=3,
        frameon=False,
        labelcolor=INK,
    )
