#!/usr/bin/env python3
"""Draw docs/images/soundness-theorem.svg from the results of the study of bags.

    python scripts/soundness_picture.py [--check] [RESULTS_DIRECTORY [CONTROLS_DIRECTORY]]

Soundness of the verifier in each game, untrained, trained, and under one attack after the other:
means over seeds, with 95 % intervals. Hollow: the untrained verifier under the same attack, of the
controls, which also have the script that answers nothing. Dashed lines are what the theorem gives
against any prover. `--check` ends with 1 if the picture is not what the results say.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from nip_core.report.plots import INK, svg_element

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "soundness"
CONTROLS = ROOT / "docs" / "results" / "scripts"
PICTURE = ROOT / "docs" / "images" / "soundness-theorem.svg"


class Game(NamedTuple):
    """How an arm is drawn."""

    words: str
    colour: str
    marker: str
    theorem: float | None
    best: str
    """The script that no prover beats by the theorem."""
    silent: str = "no-answer"
    """The script that answers nothing."""


GAMES = {
    "private3": Game("three private coins", "#3a80c9", "o", 7 / 8, "tell-apart"),
    "private1": Game("one private coin", "#2f9e6e", "s", 1 / 2, "tell-apart"),
    "public3": Game("three public coins", "#d9541f", "^", 0.0, "coins"),
    # Without a challenge every script makes the claim alone.
    "claim": Game("the claim alone", "#8a8f98", "D", None, "tell-apart", "tell-apart"),
}


class Point(NamedTuple):
    """What is left, and its interval."""

    share: float
    low: float
    high: float


def points(results: dict[str, Any], controls: dict[str, Any], name: str) -> list[Point]:
    """Return the six figures of an arm, from left to right."""
    (arm,) = (arm for arm in results["arms"] if arm["values"]["game"] == name)
    (scripted,) = (arm for arm in controls["arms"] if arm["values"]["game"] == name)
    runs = [run for run in results["runs"] if run["values"]["game"] == name]
    untrained = mean(run["tests"][0]["soundness"] for run in runs)
    best = "coins" if GAMES[name].best == "coins" else "best"
    attacks = [arm["attacks"][way]["soundness"] for way in (best, "chosen", "sneaky")]
    silent = scripted["attacks"][GAMES[name].silent]["soundness"]
    figures = [arm["soundness"], *attacks, silent]
    shown = [Point(figure["mean"], *figure["ci95"]) for figure in figures]
    return [Point(untrained, untrained, untrained), *shown]


def untrained_points(controls: dict[str, Any], name: str) -> dict[int, Point]:
    """Return by place what the untrained verifier keeps under these attacks, as far as played."""
    game = GAMES[name]
    rows = {
        row["attack"]: row
        for row in controls["controls"]["verifiers"]
        if row["arm"] == name and row["verifier"] == "untrained"
    }
    places = {2: game.best, 3: "chosen", 4: "sneaky", 5: game.silent}
    return {
        place: Point(rows[f"base-{way}"]["soundness"], *rows[f"base-{way}"]["soundness_ci95"])
        for place, way in places.items()
        if f"base-{way}" in rows
    }


def tokens(results: dict[str, Any], way: str) -> str:
    """Return what an attack took in the mean over all arms, in words."""
    ends = [
        arm["attacks"][way]["by_effort"][-1]["tokens"]
        for arm in results["arms"]
        if arm["values"]["game"] in GAMES
    ]
    return f"{mean(ends) / 1e6:.1f} million tokens"


def draw(
    figure: Any,
    table: dict[str, list[Point]],
    untrained: dict[str, dict[int, Point]],
    ticks: list[str],
) -> None:
    """Put the table on a figure, a line for each game."""
    from matplotlib.ticker import PercentFormatter

    axes = figure.add_axes((0.07, 0.19, 0.745, 0.76))
    axes.set_facecolor("none")
    for place, (name, row) in enumerate(table.items()):
        game = GAMES[name]
        at = [x + (place - 1.5) * 0.05 for x in range(len(row))]
        if game.theorem is not None:
            axes.axhline(
                game.theorem, color=game.colour, linestyle="--", linewidth=1.1, alpha=0.7, zorder=0
            )
        shares = [point.share for point in row]
        axes.plot(at, shares, color=game.colour, linewidth=1.4, alpha=0.55, zorder=1)
        for x, point in zip(at, row, strict=True):
            axes.plot([x, x], [point.low, point.high], color=game.colour, linewidth=1.6, zorder=2)
        axes.plot(at, shares, game.marker, color=game.colour, markersize=7, zorder=3, clip_on=False)
        for tick, point in untrained[name].items():
            x = at[tick] + 0.24
            axes.plot([x, x], [point.low, point.high], color=game.colour, linewidth=1.0, zorder=2)
            axes.plot(
                [x],
                [point.share],
                game.marker,
                color=game.colour,
                markersize=6,
                markerfacecolor="none",
                zorder=4,
                clip_on=False,
            )
        words = game.words
        if game.theorem is not None:
            words += f"\n(by the theorem {100 * game.theorem:.3g} %)"
        height = shares[-1] if game.theorem is None else game.theorem
        axes.text(len(row) - 0.42, height, words, color=game.colour, fontsize=8.5, va="center")
    axes.set_xticks(range(len(ticks)), ticks, fontsize=8)
    axes.set_xlim(-0.3, len(ticks) - 0.45)
    axes.set_ylim(-0.02, 1)
    words = "hollow: the untrained verifier under the same attack"
    axes.text(2.0, 0.985, words, color=INK, fontsize=8, va="top")
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.tick_params(colors=INK, length=0)
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    axes.spines["bottom"].set_alpha(0.5)


def main() -> int:
    """Draw it, or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("controls", nargs="?", type=Path, default=CONTROLS)
    options = parser.parse_args()
    results, controls = (
        json.loads((directory / "results.json").read_text(encoding="utf-8"))
        for directory in (options.results, options.controls)
    )
    table = {name: points(results, controls, name) for name in GAMES}
    untrained = {name: untrained_points(controls, name) for name in GAMES}
    ticks = [
        "untrained",
        "trained",
        "answers as well\nas anyone can\n(a script)",
        f"the most convincing\nof 8 messages\n({tokens(results, 'chosen')})",
        f"a prover trained\nagainst it\n({tokens(results, 'sneaky')})",
        "no answer\nat all\n(a script)",
    ]
    label = "Soundness by game: " + "; ".join(
        f"{GAMES[name].words} {row[0].share:.0%} untrained, {row[1].share:.0%} trained, "
        f"{row[2].share:.0%} against a script that answers as well as anyone can, "
        f"{row[3].share:.0%} against the most convincing of 8 messages, {row[4].share:.0%} against "
        f"a prover trained against it, {row[5].share:.0%} against a script that answers nothing"
        + (f" ({untrained[name][5].share:.0%} untrained)" if 5 in untrained[name] else "")
        for name, row in table.items()
    )
    picture = svg_element(
        lambda figure: draw(figure, table, untrained, ticks), (9.2, 4.0), "nip-theorem", label
    )
    if options.check:
        return int(PICTURE.read_text(encoding="utf-8") != picture + "\n")
    PICTURE.write_text(picture + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
