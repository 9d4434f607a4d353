"""Do the intervals of a sweep's page cover 95 %: rates, differences, unequal seeds, and the t-test?

    python benchmarks/two_way_coverage.py --pieces PIECES --out docs/results/two_way_coverage.json

Draws the verdicts of arms of which the truth is known, as `arm_coverage` does, and counts in 10,000
draws of each design how often what a page prints holds it: the 95 % interval of a rate (`mean`), or
of a paired difference of two arms (`difference`), both over seeds and questions; the interval of
both one-sided tests of an equivalence, which is one of 90 %; and how often the two-sided test of a
difference of 0 has a p below 0.05. Unequal arms have seeds that answered half of the questions, or
played them more often. Means by question (`reward`) have Student's t and are counted alone. The
constants of these intervals were chosen by simulating those of these designs that have 33 or 100
questions, and others; the last 28, with other questions and spreads, were no part of it.

Each design is a file in PIECES, so that the benchmark goes on where it was stopped; each draws from
a seed of its own. `--only TEXT` plays the designs with this text in their names. The bootstrap's
resamples, 400 instead of 4,000, are drawn once for each of 64 seeds and used for all draws of a
design, and Student's t is SciPy's, which is the same (`tests/evaluation` compares them) and faster.

Exit status 1 if an interval of 95 % covers less than 93 or more than 97 %, or a p below 0.05 comes
in less than 3 or more than 7 of 100 draws. What is outside is named on the page.
"""

import argparse
import json
import os
import platform
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
from arm_coverage import draw
from measured_commit import describe_commit
from scipy.special import stdtr, stdtrit

from nip_core.evaluation.statistics import clustered as clustered_module
from nip_core.evaluation.statistics import two_way as two_way_module
from nip_core.evaluation.statistics.clustered import clustered_mean
from nip_core.evaluation.statistics.two_way import two_sided_p, two_way

BOOTSTRAPS, RESAMPLES = 64, 400
LOW, HIGH = 0.93, 0.97
SHAPES = {"33 x 8": (33, 8), "100 x 1": (100, 1), "50 x 5": (50, 5), "150 x 2": (150, 2)}
FEW = {"7 x 12": (7, 12)}
SPREADS = ((0.0, 0.2), (0.05, 0.2), (0.1, 0.2))
"""Of seeds, and of questions."""
SEEDS = (3, 4, 6, 8)
OTHER_SPREADS, OTHER_SEEDS = ((0.02, 0.15), (0.13, 0.1)), (3, 5, 10)
UNEQUAL = ("half of the seeds answered half of the questions", "half of the seeds played once")


def list_designs():
    """List all designs: kind, seeds, questions, spreads, and what is unequal."""
    designs = [
        {"kind": kind, "seeds": 6, "questions": "33 x 8", "spreads": (0.05, 0.2), "unequal": how}
        for how in UNEQUAL
        for kind in ("difference", "mean")
    ]
    designs += [
        {"kind": "reward", "seeds": 1, "questions": shape, "spreads": (0.0, spread), "unequal": ""}
        for shape in ("33 x 8", "14 x 8", "100 x 4")
        for spread in (0.1, 0.3)
    ]
    bar, further = [*SHAPES][:2], [*SHAPES][2:]
    designs += [
        {"kind": kind, "seeds": seeds, "questions": shape, "spreads": spreads, "unequal": ""}
        for kind in ("difference", "mean")
        for spreads in SPREADS
        for shape in bar
        for seeds in (SEEDS if kind == "difference" else (3, 6, 8))
    ]
    designs += [
        {"kind": kind, "seeds": seeds, "questions": shape, "spreads": (0.05, 0.2), "unequal": ""}
        for kind in ("difference", "mean")
        for shape in FEW
        for seeds in (5, 12)
    ]
    return designs + [
        {"kind": kind, "seeds": seeds, "questions": shape, "spreads": spreads, "unequal": ""}
        for kind in ("difference", "mean")
        for spreads in OTHER_SPREADS
        for shape in further
        for seeds in OTHER_SEEDS
    ]


def name_design(design):
    """The name of a design's file."""
    spreads = "-".join(str(spread) for spread in design["spreads"])
    words = [
        "calibrated",
        design["kind"],
        str(design["seeds"]),
        design["questions"].replace(" ", ""),
        spreads,
    ]
    return "-".join(
        [*words, *(["unequal", str(UNEQUAL.index(how))] if (how := design["unequal"]) else [])]
    )


def draw_rates(random, seeds, shape, spreads):
    """Right verdicts, seeds x questions, at a mean rate of 0.5."""
    questions, variants = shape
    chance = 0.5 + spreads[0] * random.uniform(-1.732, 1.732, (seeds, 1))
    chance = chance + spreads[1] * random.uniform(-1.732, 1.732, questions)
    return random.binomial(variants, np.clip(chance, 0, 1)).astype(float)


def draw_cells(random, design):
    """Sums and counts of a design's cells."""
    (questions, variants), seeds = {**SHAPES, **FEW}[design["questions"]], design["seeds"]
    of_kind = draw_rates if design["kind"] == "mean" else draw_differences
    plays, is_less = np.full((seeds, questions), variants), np.arange(seeds) % 2 == 1
    if design["unequal"] == UNEQUAL[0]:
        plays[is_less, ::2] = 0
    elif design["unequal"] == UNEQUAL[1]:
        plays[is_less] = 1
    return of_kind(random, seeds, (questions, plays), design["spreads"]), plays.astype(float)


def draw_differences(random, seeds, shape, spreads):
    """Right verdicts of one arm less those of the other, which is as good."""
    return draw(random, seeds, shape, spreads, 0.0)


def count(design, draws, random):
    """Count what of a design holds the truth."""
    if design["kind"] == "reward":
        return count_rewards(design, draws, random)
    truth = 0.5 if design["kind"] == "mean" else 0.0
    covered = within = small = 0
    for k in range(draws):
        mean = two_way(*draw_cells(random, design), k % BOOTSTRAPS)
        covered += mean.ci95 is not None and mean.ci95[0] <= truth <= mean.ci95[1]
        if design["kind"] == "difference":
            # Both one-sided tests at 5 % have 0 in their interval where this p is at least 10 %.
            small += (p := two_sided_p(mean)) < 0.05
            within += p >= 0.1
    counted = {"covered": covered / draws}
    if design["kind"] == "difference":
        counted |= {"covered_90": within / draws, "p_below_5_percent": small / draws}
    return counted


def count_rewards(design, draws, random):
    """Count intervals of a mean of rewards, a third of them halved, alike within a question."""
    questions, variants = {**SHAPES, "14 x 8": (14, 8), "100 x 4": (100, 4)}[design["questions"]]
    clusters, spread = np.repeat(np.arange(questions), variants), design["spreads"][1]
    covered = 0
    for _ in range(draws):
        chance = 0.7 + spread * random.uniform(-1, 1, questions)
        right = random.random(len(clusters)) < chance[clusters]
        values = np.where(right, np.where(random.random(len(clusters)) < 1 / 3, 0.5, 1.0), -1.0)
        low, high = clustered_mean(values, clusters).interval()
        covered += low <= 0.7 * (1 - 1 / 6) - 0.3 <= high
    return {"covered": covered / draws}


def is_within(row):
    """Say if all that is counted of a design is as it is to be."""
    small = row.get("p_below_5_percent")
    return LOW <= row["covered"] <= HIGH and (small is None or 1 - HIGH <= small <= 1 - LOW)


def page(result):
    """The result as a page."""
    rows = [
        "# What the intervals of a sweep's page cover",
        "",
        f"`{result['command']}` at {result['commit']} on {result['machine']}, "
        f"{result['draws']:,} draws for each row, in pieces beside other work. In percent: how "
        "often an interval of 95 % holds the truth (93 to 97 is the bar), how often that of both "
        "one-sided tests does, which is one of 90 %, and how often p is below 0.05 where there is "
        "no difference (3 to 7). Spreads are standard deviations of a rate. A row outside of the "
        "bar has a star.",
        "",
        "| of | seeds | questions x variants | spread of seeds | of questions | covered | 90 % | "
        "p < 0.05 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["designs"]:
        shares = [row["covered"], row.get("covered_90"), row.get("p_below_5_percent")]
        cells = [
            row["kind"] + (f", {row['unequal']}" if row["unequal"] else ""),
            row["seeds"],
            row["questions"],
            *row["spreads"],
            *("–" if share is None else f"{100 * share:.1f}" for share in shares),
        ]
        cells[0] += "" if is_within(row) else " *"
        rows.append(f"| {' | '.join(map(str, cells))} |")
    outside = [row for row in result["designs"] if not is_within(row)]
    below = sum(row["covered"] < LOW for row in outside)
    rows += ["", f"{len(result['designs']) - len(outside)} of {len(result['designs'])} rows are "]
    rows[-1] += "within the bar."
    if outside:
        rows[-1] += f" Of the others {below} cover less than 93 %; the rest is too cautious."
    return "\n".join([*rows, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--pieces", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    resample = two_way_module._resample
    two_way_module._resample = cache(lambda *of: [*resample(*of)])
    two_way_module.RESAMPLES = RESAMPLES
    two_way_module.t_cdf = lambda value, df: float(stdtr(df, value))
    for module in (two_way_module, clustered_module):
        module.t_quantile = lambda share, df: float(stdtrit(df, share))
    options.pieces.mkdir(parents=True, exist_ok=True)
    designs, rows = list_designs(), []
    for place, design in enumerate(designs):
        path = options.pieces / f"{name_design(design)}-{options.draws}-{options.seed}.json"
        if not path.is_file() and options.only in path.name:
            started = time.perf_counter()
            random = np.random.default_rng([options.seed, place])
            row = {**design, **count(design, options.draws, random)}
            row |= {"seconds": round(time.perf_counter() - started), "commit": describe_commit()}
            path.with_suffix(".part").write_text(json.dumps(row))
            path.with_suffix(".part").rename(path)
            print(json.dumps(row), flush=True)
        if path.is_file():
            rows.append(json.loads(path.read_text()))
    commits = sorted({row.pop("commit") for row in rows})
    result = {
        "command": " ".join(["python", *sys.argv]),
        "commit": ", ".join(commits),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "draws": options.draws,
        "seconds": sum(row.pop("seconds") for row in rows),
        "designs": rows,
        "met": len(rows) == len(designs) and all(map(is_within, rows)),
    }
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(page(result))
    print(page(result))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
