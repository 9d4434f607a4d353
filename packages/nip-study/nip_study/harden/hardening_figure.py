"""The figure of a hardening: soundness and completeness by round.

RateOfRound  a rate in a round, with its interval
rounds_svg   the figure, in which text takes the colour of the reader's scheme
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nip_core.evaluation.split_metrics import Interval95
from nip_core.report.plots import INK, draw_frame, svg_element

_SIZE_INCHES = (7.6, 3.9)
_AXES = (0.07, 0.13, 0.90, 0.70)  # left, bottom, width and height, as shares of the figure


@dataclass(frozen=True)
class RateOfRound:
    """A rate in a round."""

    round: int
    rate: float
    ci95: Interval95 | None


@dataclass(frozen=True)
class _Line:
    """How a rate is drawn, as in the other figures."""

    colour: str
    marker: str
    dash: str | tuple[float, tuple[float, ...]]
    shift: float  # to the side, in rounds, so that equal values don't hide each other


BEFORE = "soundness with honest provers"
AFTER = "soundness after the attack"
COMPLETE = "completeness after the attack"
_LINES = {
    AFTER: _Line("#3a80c9", "o", "solid", 0.0),
    BEFORE: _Line("#1c9c80", "s", (0, (1.5, 1.5)), -0.03),
    COMPLETE: _Line("#d97a1f", "^", (0, (4, 2)), 0.03),
}


def rounds_svg(lines: Mapping[str, Sequence[RateOfRound]], rounds: int) -> str:
    """Draw the rates by round as an SVG element; `rounds` are counted from 0 to this one."""
    rates_after = lines.get(AFTER, ())
    text = (
        ", ".join(f"{rate.rate:.1%} in round {rate.round}" for rate in rates_after)
        or "not attacked yet"
    )
    return svg_element(
        lambda figure: _draw(figure.add_axes(_AXES), lines, rounds),
        _SIZE_INCHES,
        "nip-rounds",
        f"{AFTER}: {text}",
    )


def _draw(axes: Any, lines: Mapping[str, Sequence[RateOfRound]], rounds: int) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_facecolor("none")
    for name, line in _LINES.items():
        rates = lines.get(name, ())
        if not rates:
            continue
        bounds = [rate.ci95 or (rate.rate, rate.rate) for rate in rates]
        axes.errorbar(
            [rate.round + line.shift for rate in rates],
            [rate.rate for rate in rates],
            yerr=[
                [max(0.0, rate.rate - low) for rate, (low, _) in zip(rates, bounds, strict=True)],
                [max(0.0, high - rate.rate) for rate, (_, high) in zip(rates, bounds, strict=True)],
            ],
            color=line.colour,
            marker=line.marker,
            linestyle=line.dash,
            linewidth=2.2 if name == AFTER else 1.4,
            elinewidth=1.1,
            capsize=2.5,
            markersize=6,
            label=name,
            clip_on=False,
            zorder=4 if name == AFTER else 3,
        )
    axes.set_ylim(0, 1)
    axes.set_xlim(-0.25, rounds + 0.25)
    axes.set_xticks(range(rounds + 1), [f"round {number}" for number in range(rounds + 1)])
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.tick_params(colors=INK, length=0)
    draw_frame(axes, "y")
    if any(lines.values()):
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(-0.01, 1.0),
            ncols=3,
            frameon=False,
            labelcolor=INK,
            fontsize=9,
            columnspacing=1.2,
            handlelength=2.4,
        )
