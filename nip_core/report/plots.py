"""Accuracy, completeness and soundness of the verifier by iteration.

learning_curve_svg   an SVG that follows the reader's light or dark scheme
RATES                how each rate is drawn, here and elsewhere
svg_element          any other drawing, as such an SVG; without matplotlib a line in its place
draw_frame           the frame around it, alike in all figures

The same numbers give the same bytes. matplotlib is imported inside the functions and used
through its objects, without pyplot and without a display. Colours keep apart for colour-blind
readers (after Okabe and Ito) and each line also has its own marker and dash.
"""

import importlib.util
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nip_core.evaluation.split_metrics import Measures, SplitMetrics

MetricsByIteration = Sequence[tuple[int, SplitMetrics]]
"""Pairs of an iteration and the metrics of the models that play it."""

SIZE_INCHES = (7.6, 3.7)
_AXES = (0.0696, 0.1258, 0.8585, 0.7766)  # left, bottom, width and height, as shares of the figure


@dataclass(frozen=True)
class RateLine:
    """How a rate is drawn."""

    name: str
    rate: Callable[[Measures], float | None]
    colour: str  # legible on white and on near-black
    marker: str
    dash: str | tuple[float, tuple[float, ...]]
    shift: float  # to the side, as a share of the width, so that equal values don't hide each other

    @property
    def is_main(self) -> bool:
        return self.name == "accuracy"


RATES = (
    RateLine("completeness", lambda m: m.completeness, "#d97a1f", "^", (0, (4, 2)), -0.009),
    RateLine("soundness", lambda m: m.soundness, "#1c9c80", "s", (0, (1.5, 1.5)), 0.009),
    RateLine("accuracy", lambda m: m.accuracy, "#3a80c9", "o", "solid", 0.0),
)


# A colour no other mark uses: in the SVG it becomes the reader's text colour.
INK = "#010203"
_SVG_STYLE = (
    "<style>#{id}{{color:#1f2328}}"
    "@media screen and (prefers-color-scheme:dark){{#{id}{{color:#d7dce2}}}}</style>"
)
_FONTS = ["DejaVu Sans", "Arial", "Helvetica", "sans-serif"]
_POINTS_PER_INCH = 72
_NOT_DRAWN = (
    "Not drawn: matplotlib is not installed. nip doctor has the command; then make this again."
)


def learning_curve_svg(points: MetricsByIteration) -> str:
    """Draw the learning curve as an SVG element, without an XML prolog, for a page or a file.

    `points` holds (iteration, metrics) with the keys of `evaluate`; a metric that is None leaves
    a gap. Text stays text, and takes the colour of the reader's scheme.
    """
    return svg_element(
        lambda figure: _draw(figure.add_axes(_AXES), points),
        SIZE_INCHES,
        "nip-learning-curve",
        _describe(points),
    )


def svg_element(
    draw: Callable[[Any], None], size: tuple[float, float], ident: str, label: str
) -> str:
    """Return an SVG element of the drawing that `draw` puts on a figure of so many inches.

    Lines in `INK` take the colour of the reader's scheme. `ident` is the element's id, `label`
    describes it for readers who can't see it. Without matplotlib, an extra of nip, the element
    has a line that says so.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return _say_not_drawn(size[0] * _POINTS_PER_INCH, ident, label)
    svg = _render(draw, size, ident)
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor")
    # Without this the picture's rules would reach the page around it.
    svg = svg.replace("*{stroke-linejoin", f"#{ident} *{{stroke-linejoin")
    opening, rest = svg.split(">", 1)
    style = _SVG_STYLE.format(id=ident)
    return f'{opening} role="img" aria-label="{label}">{style}{rest}'


def _say_not_drawn(width: float, ident: str, label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{ident}" width="{width:g}pt" height="40pt" '
        f'viewBox="0 0 {width:g} 40" role="img" aria-label="{label}; {_NOT_DRAWN}">'
        f"{_SVG_STYLE.format(id=ident)}"
        f'<text x="4" y="24" font-family="sans-serif" font-size="11" fill="currentColor">'
        f"{_NOT_DRAWN}</text></svg>"
    )


def draw_frame(axes: Any, values: str) -> None:
    """Draw lines across the axis of values, "x" or "y", and of the frame the bottom alone."""
    axes.grid(axis=values, color=INK, alpha=0.12, linewidth=0.8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    axes.spines["bottom"].set_alpha(0.5)


def _describe(points: MetricsByIteration) -> str:
    accuracies = [(k, m.accuracy) for k, m in points if m.accuracy is not None]
    if not accuracies:
        return "Learning curve without measurements"
    (first, first_accuracy), (last, last_accuracy) = accuracies[0], accuracies[-1]
    believed = [value for _, metrics in points if (value := metrics.believed_accuracy) is not None]
    obeying = f"; believing the prover would give {believed[-1]:.1%}" if believed else ""
    return (
        f"Learning curve: accuracy {first_accuracy:.1%} in iteration {first}, "
        f"{last_accuracy:.1%} in iteration {last}{obeying}"
    )


def _render(draw: Callable[[Any], None], size: tuple[float, float], ident: str) -> str:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Which back-end a notebook shows its own figures with is none of our business.
    defaults = {k: v for k, v in mpl.rcParamsDefault.items() if not k.startswith("backend")}
    fonts = {"font.family": "sans-serif", "font.sans-serif": _FONTS, "font.size": 10}
    plain = {"svg.hashsalt": "nip", "svg.fonttype": "none", "svg.id": ident}
    with mpl.rc_context({**defaults, **fonts, **plain}):
        figure = Figure(figsize=size)
        FigureCanvasAgg(figure)
        # The labels around the axes are as large for all numbers; a layout that is sought draws
        # everything twice.
        draw(figure)
        buffer = io.StringIO()
        metadata = {"Date": None, "Creator": None}
        figure.savefig(buffer, format="svg", facecolor="none", metadata=metadata)
    return buffer.getvalue()


def _draw(axes: Any, points: MetricsByIteration) -> None:
    axes.set_facecolor("none")
    axes.axhline(0.5, color=INK, alpha=0.45, linewidth=0.9, linestyle=(0, (2, 3)), zorder=1)
    axes.annotate(
        "chance",
        (1, 0.5),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=INK,
        alpha=0.7,
    )
    iterations = [iteration for iteration, _ in points]
    span = max(1, max(iterations) - min(iterations)) if iterations else 1
    _draw_believed(axes, points)
    for line in RATES:
        _draw_metric(axes, points, line, line.shift * span)
    _dress(axes, iterations)


def _draw_believed(axes: Any, points: MetricsByIteration) -> None:
    """Draw the accuracy of an obedient verifier, to hold the real one against."""
    accuracies = [(k, believed) for k, m in points if (believed := m.believed_accuracy) is not None]
    if accuracies:
        axes.plot(
            *zip(*accuracies, strict=True),
            color=INK,
            alpha=0.6,
            linewidth=1.2,
            linestyle=(0, (6, 2, 1, 2)),
            marker="_",
            markersize=12,
            zorder=2,
            label="believing the prover",
            clip_on=False,
        )


def _draw_metric(axes: Any, points: MetricsByIteration, line: RateLine, shift: float) -> None:
    xs = [k + shift for k, _ in points]
    values = [line.rate(metrics) for _, metrics in points]
    ys = [float("nan") if value is None else value for value in values]
    axes.plot(
        xs,
        ys,
        color=line.colour,
        linewidth=2.2 if line.is_main else 1.4,
        linestyle=line.dash,
        marker=line.marker,
        markersize=6.5 if line.is_main else 5,
        zorder=4 if line.is_main else 3,
        label=f"{line.name} (95 % interval)" if line.is_main else line.name,
        clip_on=False,
    )
    if not line.is_main:
        return
    bars = [
        (k, metrics.accuracy, metrics.accuracy_ci95)
        for k, metrics in points
        if metrics.accuracy is not None and metrics.accuracy_ci95 is not None
    ]
    if bars:
        axes.errorbar(
            [k for k, _, _ in bars],
            [value for _, value, _ in bars],
            yerr=[
                [max(0.0, value - ci[0]) for _, value, ci in bars],
                [max(0.0, ci[1] - value) for _, value, ci in bars],
            ],
            fmt="none",
            ecolor=line.colour,
            elinewidth=1.6,
            capsize=4,
            capthick=1.6,
            zorder=4,
        )


def _dress(axes: Any, iterations: list[int]) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    first, last = (min(iterations), max(iterations)) if iterations else (0, 1)
    margin = max(0.15, 0.03 * (last - first))
    axes.set_xlim(first - margin, last + margin)
    if last - first <= 12:
        axes.set_xticks(range(first, last + 1))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("iteration", color=INK)
    axes.tick_params(colors=INK, length=3)
    draw_frame(axes, "y")
    handles, labels = axes.get_legend_handles_labels()
    order = [*range(len(labels))]
    order = order[-1:] + order[-3:-1] + order[:-3]  # the accuracy, drawn last, is named first
    axes.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=4,
        frameon=False,
        labelcolor=INK,
        handlelength=2.2,
        columnspacing=1.0,
        handletextpad=0.6,
    )
