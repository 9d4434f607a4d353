#!/usr/bin/env python3
"""Draw docs/images/unanswered.svg from the results of the study of missing answers.

    python scripts/unanswered_picture.py [--check] [RESULTS_DIRECTORY]

Soundness after each attack: a small dot for every seed, a large one for their mean, hollow for the
verifiers that were not trained. Attacks stand in three groups: provers that answer, wordings
without an answer, and provers that were chosen or trained. The dashed line is the theorem's.
`--check` ends with 1 if the picture is not what the results say.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from nip_core.report.plots import INK, svg_element

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "unanswered"
PICTURE = ROOT / "docs" / "images" / "unanswered.svg"
GUARANTEED = 7 / 8


class Arm(NamedTuple):
    """How an arm is drawn."""

    words: str
    colour: str
    is_trained: bool = True


ARMS = {
    "base": Arm("untrained", "#8a8f98", is_trained=False),
    "played": Arm("played", "#d9541f"),
    "shown": Arm("shown (met two wordings)", "#3a80c9"),
    "rule": Arm("rule (the verifiers of played)", "#2f9e6e"),
}
ATTACKS = {
    "tell-apart": "best prover\n(guesses)",
    "always-a": "always A",
    "own-lines": "a verdict's\nown lines",
    "no-answer": "“They\ndiffer.”",
    "nothing": "nothing",
    "they": "“They.”",
    "list-c": "list C",
    "absent-numbers": "numbers that\ndo not exist",
    "two-of-three": "two of\nthree",
    "chosen": "best\nof 8",
    "sneaky": "trained",
    "again": "trained,\nseed 7",
    "begun": "trained from\nimitation",
}
STARTS = {
    0: "answered",
    3: "no answer, met",
    5: "no answer, met by none",
    9: "chosen and trained",
}
"""By place of its first attack, the words over a group."""


def read_shares(results: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Return by arm and attack the soundness of each seed."""
    shares: dict[str, dict[str, list[float]]] = {arm: {} for arm in ARMS}
    for run in results["runs"]:
        arm = run["values"]["arm"]
        for label, attack in (run["attacks"] if arm in ARMS else {}).items():
            soundness = attack.get("soundness")  # of a run that was not begun there is none
            if label in ATTACKS and soundness is not None:
                shares[arm].setdefault(label, []).append(soundness)
    return shares


def draw(figure: Any, shares: dict[str, dict[str, list[float]]]) -> None:
    """Put the shares on a figure."""
    from matplotlib.ticker import PercentFormatter

    axes = figure.add_axes((0.06, 0.2, 0.925, 0.66))
    axes.set_facecolor("none")
    axes.axhline(GUARANTEED, color=INK, linestyle="--", linewidth=1.0, alpha=0.6, zorder=0)
    axes.text(len(ATTACKS) - 0.45, GUARANTEED + 0.015, "theorem", color=INK, fontsize=8, ha="right")
    for place, (name, arm) in enumerate(ARMS.items()):
        for number, attack in enumerate(ATTACKS):
            seeds = shares[name].get(attack, [])
            if not seeds:
                continue
            x = number + (place - 1.5) * 0.19
            fill = arm.colour if arm.is_trained else "none"
            axes.plot([x] * len(seeds), seeds, "o", color=arm.colour, markersize=2.2, alpha=0.45)
            axes.plot(
                [x],
                [mean(seeds)],
                "o",
                color=arm.colour,
                markersize=6.5,
                markerfacecolor=fill,
                zorder=3,
                clip_on=False,
            )
    for start, words in STARTS.items():
        axes.text(start - 0.42, 1.05, words, color=INK, fontsize=8.5, ha="left", alpha=0.85)
        if start:
            axes.axvline(start - 0.5, color=INK, linewidth=0.6, alpha=0.35)
    for place, arm in enumerate(ARMS.values()):
        figure.text(
            0.06 + 0.235 * place,
            0.955,
            f"● {arm.words}" if arm.is_trained else f"○ {arm.words}",
            color=arm.colour,
            fontsize=9,
        )
    axes.set_xticks(range(len(ATTACKS)), list(ATTACKS.values()), fontsize=7.5)
    axes.set_xlim(-0.5, len(ATTACKS) - 0.45)
    axes.set_ylim(-0.02, 1.02)
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
    options = parser.parse_args()
    results = json.loads((options.results / "results.json").read_text(encoding="utf-8"))
    shares = read_shares(results)
    label = "Soundness by attack: " + "; ".join(
        f"{arm.words} "
        + ", ".join(f"{attack} {mean(seeds):.0%}" for attack, seeds in shares[name].items())
        for name, arm in ARMS.items()
    )
    picture = svg_element(lambda figure: draw(figure, shares), (10.4, 4.2), "nip-unanswered", label)
    if options.check:
        return int(PICTURE.read_text(encoding="utf-8") != picture + "\n")
    PICTURE.write_text(picture + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
