"""Do intervals of a sweep's second table hold the truth with few seeds, and its seeds suffice?

    python benchmarks/arm_coverage.py --out docs/results/arm_coverage.json

Draws the verdicts of two arms on the same questions, with 2 to 6 seeds each. How much better the
one arm is varies from seed to seed and from question to question, by known spreads. Counted is how
often the 95 % interval of the paired difference holds the truth, and how often a difference of 0
has a p below 0.05. Then, for a difference of 5 points, how many seeds `seeds_needed` asks for with
the true spread, how often so many seeds show it (80 of 100 is meant), and how often the number from
the drawn seeds lies as near to that one as the sweep's page says.

Exit status 1 if an interval from 3 seeds on covers less than 93 %, or so many seeds as are asked
for show the difference in less than 75 or more than 90 %. Two seeds are in the table for
information.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

import numpy as np
from measured_commit import describe_commit

from nip_study.compute.needed import seeds_needed
from nip_study.parts import two_way as two_way_module
from nip_study.parts.two_way import TwoWay, two_sided_p, two_way

SEEDS = (2, 3, 4, 5, 6)
SHAPES = {"33 x 8": (33, 8), "100 x 4": (100, 4)}
SPREADS = ((0.0, 0.1), (0.05, 0.1), (0.1, 0.1), (0.05, 0.3))
FEW, LEAST = 3, 0.93
DIFFERENCE, POWER = 0.05, (0.75, 0.9)
ROUGHLY = {2: (0.4, 60), 3: (0.4, 9), 4: (0.5, 5), 5: (0.5, 4), 6: (0.5, 3)}
"""As in packages/nip-study/nip_study/pages/page.py."""


def draw(random, seeds, shape, spreads, difference):
    """The differences of two arms, seeds x questions: sums over the variants of a question."""
    questions, variants = shape
    level = random.uniform(0.3, 0.7, questions)
    more = difference + spreads[0] * random.standard_normal((seeds, 1))
    # A range that a chance of 0.3 to 0.7 leaves room for, so that nothing is cut off.
    more = more + spreads[1] * random.uniform(-1.0, 1.0, questions)
    more = np.clip(more, -0.6, 0.6)
    high, low = level + more / 2, level - more / 2
    return (
        random.binomial(variants, np.clip(high, 0, 1))
        - random.binomial(variants, np.clip(low, 0, 1))
    ).astype(float)


def compare(cells, variants, seed):
    return two_way(cells, np.full(cells.shape, float(variants)), seed)


def cover(draws, random):
    """Count intervals that hold the truth, which is 0, and p-values below 0.05."""
    rows = []
    for name, shape in SHAPES.items():
        for spreads in SPREADS:
            for seeds in SEEDS:
                holds = small = 0
                for k in range(draws):
                    mean = compare(draw(random, seeds, shape, spreads, 0.0), shape[1], k)
                    holds += mean.ci95 is not None and mean.ci95[0] <= 0 <= mean.ci95[1]
                    small += two_sided_p(mean) < 0.05
                rows.append(
                    {
                        "seeds": seeds,
                        "questions": name,
                        "spread_of_seeds": spreads[0],
                        "spread_of_questions": spreads[1],
                        "covered": holds / draws,
                        "p_below_5_percent": small / draws,
                    }
                )
    return rows


def plan(draws, random):
    """Count how often as many seeds as are asked for show a difference, and how rough they are."""
    rows = []
    for name, shape in SHAPES.items():
        for spreads in SPREADS:
            needed = seeds_needed(DIFFERENCE, true_spread(random, shape, spreads))
            row = {
                "questions": name,
                "spread_of_seeds": spreads[0],
                "spread_of_questions": spreads[1],
                "seeds_needed": needed,
            }
            rows.append(row)
            if needed is None or needed > 200:
                continue
            shown = [
                two_sided_p(compare(draw(random, needed, shape, spreads, DIFFERENCE), shape[1], k))
                < 0.05
                for k in range(draws)
            ]
            row["shown"] = sum(shown) / draws
            row["near"] = {s: near(draws, random, shape, spreads, s, needed) for s in (3, 6)}
    return rows


def true_spread(random, shape, spreads, seeds=50, draws=200):
    """Average the spread of many draws, each with questions of its own."""
    seen = [
        compare(draw(random, seeds, shape, spreads, DIFFERENCE), shape[1], k) for k in range(draws)
    ]
    error = np.mean([mean.error**2 for mean in seen]) ** 0.5
    of_seeds = np.mean([mean.seed_variance for mean in seen])
    return TwoWay(DIFFERENCE, float(error), 0.0, None, seeds, shape[0], float(of_seeds))


def near(draws, random, shape, spreads, seeds, needed):
    """Count how often the true number is as near to the one from few seeds as the page says."""
    low, high = ROUGHLY[seeds]
    count = 0
    for k in range(draws):
        mean = compare(draw(random, seeds, shape, spreads, DIFFERENCE), shape[1], k)
        guessed = seeds_needed(DIFFERENCE, mean)
        # With "more questions" no number is given that could mislead anybody.
        count += guessed is None or low * guessed - 1 <= needed <= high * guessed + 1
    return count / draws


def page(result):
    """The result as a page."""
    rows = [
        "# What the intervals between arms cover",
        "",
        f"`{result['command']}` at {result['commit']} on {result['machine']}, "
        f"{result['draws']:,} draws for each row. In percent: how often the 95 % interval of a "
        "paired difference of two arms holds the truth, and how often p is below 0.05 where there "
        f"is no difference. The bar is at least {100 * LEAST:.0f} from {FEW} seeds on.",
        "",
        "| seeds | questions x variants | spread of seeds | of questions | covered | p < 0.05 |",
        "|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {r['seeds']} | {r['questions']} | {r['spread_of_seeds']} | "
        f"{r['spread_of_questions']} | {100 * r['covered']:.1f} | "
        f"{100 * r['p_below_5_percent']:.1f} |"
        for r in result["coverage"]
    ]
    low, high = (f"{100 * share:.0f}" for share in POWER)
    rows += [
        "",
        f"For a difference of {100 * DIFFERENCE:.0f} points: the number of seeds needed by the "
        f"true spread, and how often so many show it (the bar is {low} to {high}). Near: how often "
        "the number estimated from 3 or 6 drawn seeds is as near to it as a sweep's page says.",
        "",
        "| questions x variants | spread of seeds | spread of questions | seeds needed | shown | "
        "near, 3 seeds | near, 6 seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in result["plan"]:
        cells = [r["questions"], r["spread_of_seeds"], r["spread_of_questions"]]
        cells.append("more questions" if r["seeds_needed"] is None else r["seeds_needed"])
        if "shown" in r:
            cells += [f"{100 * r['shown']:.1f}", *(f"{100 * n:.1f}" for n in r["near"].values())]
        else:
            cells += ["–"] * 3
        rows.append(f"| {' | '.join(map(str, cells))} |")
    verdict = "All bars are met." if result["met"] else "**Not all bars are met.**"
    return "\n".join([*rows, "", verdict, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    two_way_module.RESAMPLES = 400
    random, started = np.random.default_rng(options.seed), time.perf_counter()
    result = {
        "command": " ".join(["python", *sys.argv]),
        "commit": describe_commit(),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "draws": options.draws,
        "coverage": cover(options.draws, random),
        "plan": plan(options.draws, random),
    }
    covers = [r["covered"] for r in result["coverage"] if r["seeds"] >= FEW]
    shown = [r["shown"] for r in result["plan"] if "shown" in r]
    low, high = POWER
    result["met"] = min(covers) >= LEAST and all(low <= share <= high for share in shown)
    result["seconds"] = round(time.perf_counter() - started)
    text = page(result)
    print(text)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(text)
    return 0 if result["met"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
