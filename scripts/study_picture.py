#!/usr/bin/env python3
"""Draw docs/images/soundness.svg from the declared study's results.

    python scripts/study_picture.py [--check]

Soundness of each protocol's verifier untrained, trained, and against a prover that is told to argue
for acceptance, and trained on: means of six seeds, with 95 % intervals for the last. That one is an
upper bound, so its mark points to the left; crosses are single verifiers against a script
(docs/results/scripted_prover.json). Dotted lines are the untrained verifier alone, which
rejects where any of k verdicts does, from the verdicts in cells.parquet. `--check` ends with 1 if
the picture is not what the results say.
"""

import argparse
import json
import sys
from math import comb
from pathlib import Path
from statistics import mean
from typing import Any

import duckdb

from nip_core.report.plots import INK, svg_element

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "study" / "results.json"
CELLS = RESULTS.with_name("cells.parquet")
SCRIPTED = ROOT / "docs" / "results" / "scripted_prover.json"
PICTURE = ROOT / "docs" / "images" / "soundness.svg"
NAMES = {
    "adp": "adp: one message",
    "nip3": "nip: asks once",
    "nip5": "nip: asks twice",
    "debate": "debate",
    "mnip": "mnip: two provers",
    "ma": "merlin_arthur",
}
MARKS = (
    ("untrained", "#8a8f98", "D", 0.0),
    ("trained", "#3a80c9", "o", 0.0),
    ("told to argue for acceptance: at most", "#d9541f", "<", 0.0),
)
ATTACKED = MARKS[-1][0]
ASKED = (1, 3, 7)  # how often the verifier alone is asked


def scripted(results: Path) -> list[tuple[str, float]]:
    """Return the protocol and the soundness of each verifier that met the scripted prover."""
    found = json.loads(results.read_text(encoding="utf-8"))["results"]
    met = [row for row in found if row["prover"] == "scripted"]
    return [(NAMES[row["run"].split("-")[1]], row["soundness"]) for row in met]


def alone(cells: Path) -> dict[int, float]:
    """Return by k which share of wrong calculations any of k verdicts rejects, untrained.

    Of the seven verdicts on each calculation all choices of k count alike.
    """
    wrong = duckdb.read_parquet(str(cells)).filter(
        "axis_protocol = 'voted' and attack is null and iteration = 0 and y = 0"
    )
    plays = wrong.aggregate("count(*), sum((decision = 0)::int)", "run, problem").fetchall()
    return {
        k: mean(1 - comb(int(times - rejected), k) / comb(times, k) for times, rejected in plays)
        for k in ASKED
    }


def rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return of each protocol the mean soundness at the three times, as shares."""
    table = []
    for arm in results["arms"]:
        name = arm["values"]["protocol"]
        if name not in NAMES:
            continue
        first = [
            run["tests"][0]["soundness"]
            for run in results["runs"]
            if run["values"]["protocol"] == name
        ]
        attacked = arm["attacks"]["sneaky"]["soundness"]
        table.append(
            {
                "name": NAMES[name],
                "untrained": sum(first) / len(first),
                "trained": arm["soundness"]["mean"],
                ATTACKED: attacked["mean"],
                "interval": attacked["ci95"],
            }
        )
    return table


def draw(
    figure: Any,
    table: list[dict[str, Any]],
    asked: dict[int, float],
    fooled: list[tuple[str, float]],
) -> None:
    """Put the table on a figure, a line for each protocol, and who needs no prover behind them."""
    from matplotlib.ticker import PercentFormatter

    axes = figure.add_axes((0.22, 0.13, 0.74, 0.72))
    axes.set_facecolor("none")
    for k, share in asked.items():
        axes.axvline(share, color=INK, alpha=0.6, linestyle=":", linewidth=1.2, zorder=0)
        words = "alone" if k == 1 else f"alone, any of {k}"
        axes.text(share, -0.52, words, color=INK, fontsize=8, ha="center", va="bottom")
    for place, row in enumerate(table):
        axes.plot(
            [row["trained"], row[ATTACKED]],
            [place] * 2,
            color=INK,
            alpha=0.35,
            linewidth=1.4,
            zorder=1,
        )
        axes.plot(row["interval"], [place + 0.22] * 2, color=MARKS[2][1], linewidth=1.6, zorder=2)
    for name, colour, marker, _ in MARKS:
        axes.plot(
            [row[name] for row in table],
            range(len(table)),
            marker,
            color=colour,
            markersize=8,
            label=name,
            zorder=3,
            clip_on=False,
        )
    places = {row["name"]: place for place, row in enumerate(table)}
    axes.plot(
        [share for _, share in fooled],
        [places[name] for name, _ in fooled],
        "x",
        color=INK,
        markersize=7,
        markeredgewidth=1.6,
        label="a script, one run",
        zorder=4,
        clip_on=False,
    )
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.set_yticks(range(len(table)), [row["name"] for row in table])
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.tick_params(colors=INK, length=0)
    axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    axes.spines["bottom"].set_alpha(0.5)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.26, 1.06),
        ncols=4,
        columnspacing=1.2,
        handletextpad=0.2,
        frameon=False,
        labelcolor=INK,
    )


def main() -> int:
    """Draw it, or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    table = rows(json.loads(RESULTS.read_text(encoding="utf-8")))
    label = "Soundness by protocol: " + "; ".join(
        f"{row['name']} {row['untrained']:.0%} untrained, {row['trained']:.0%} trained, "
        f"at most {row[ATTACKED]:.0%} attacked"
        for row in table
    )
    asked = alone(CELLS)
    label += "; the untrained verifier alone, where any of k verdicts rejects: "
    label += ", ".join(f"{k}: {share:.0%}" for k, share in asked.items())
    fooled = scripted(SCRIPTED)
    label += "; against a scripted prover, single runs: "
    label += ", ".join(f"{name} {share:.0%}" for name, share in fooled)
    picture = svg_element(
        lambda figure: draw(figure, table, asked, fooled), (7.6, 3.6), "nip-soundness", label
    )
    if options.check:
        return int(PICTURE.read_text(encoding="utf-8") != picture + "\n")
    PICTURE.write_text(picture + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
