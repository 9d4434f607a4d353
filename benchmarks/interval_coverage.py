"""Do 95 % intervals cover 95 %, and does a test batch show the change that is printed before a run?

    python benchmarks/interval_coverage.py --out docs/results/interval_coverage.json

Draws data of which the truth is known: questions with several variants whose verdicts are alike, as
the bundled `problems` has them, and batches before and after a change of known size. Counted is how
often the intervals of `nip_core.evaluation.statistics` hold the truth, beside those that take rows
as independent; and how large a change has to be until 80 of 100 batches show it, beside what
`nip train --dry-run` prints. The run on record took 2,372 s; `--draws 1000` is quicker.

Exit status 1 if an interval of a rate or of a paired difference covers less than 93 or more than
97 %, or the change that is printed for 30 questions or more is off by more than a tenth. What is
not in that bar is in the table for information: few questions, questions drawn in other ways, seeds
and questions at once.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from nip_core.evaluation.confidence_intervals import bootstrap_mean, wilson
from nip_core.evaluation.statistics.clustered import clustered_mean, clustered_rate
from nip_core.evaluation.statistics.distributions import t_quantile
from nip_core.evaluation.statistics.power import (
    CHANGED,
    LIKENESS,
    detectable_change,
    detectable_difference,
)
from nip_study.parts.two_way import two_way

SHAPES = {
    "33 x 8": [8] * 33,
    "400 x 1": [1] * 400,
    "100 x 4": [4] * 100,
    "20 x 8, 10 x 4, 10 x 1": [8] * 20 + [4] * 10 + [1] * 10,
    "14 x 8": [8] * 14,
    "6 x 8": [8] * 6,
}
IN_BAR = ("33 x 8", "400 x 1")
RATES, LIKENESSES = (0.5, 0.8, 0.95), (0.05, 0.2, 0.5)
LOW, HIGH = 0.93, 0.97
MANY = 30  # questions, from which on the printed change has a bar


def rates_by_question(kind, rate, likeness, shape, random):
    """The rate of each question: all have this mean, and correlate rows by `likeness`."""
    if kind == "beta":
        spread = (1 - likeness) / likeness
        return random.beta(rate * spread, (1 - rate) * spread, shape)
    if kind == "all or none":  # a share of the questions is right, or wrong, throughout
        throughout = random.random(shape) < likeness
        return np.where(throughout, random.random(shape) < rate, rate)
    middle, scale = logit_normal(rate, likeness)
    return 1 / (1 + np.exp(-(middle + scale * random.standard_normal(shape))))


def logit_normal(rate, likeness):
    """Mean and spread of normal logits whose rates have this mean and correlation."""
    points, weights = np.polynomial.hermite_e.hermegauss(80)
    weights /= weights.sum()
    low_scale, high_scale = 0.01, 12.0
    middle = 0.0
    for _ in range(50):
        scale, low, high = (low_scale + high_scale) / 2, -30.0, 30.0
        for _ in range(50):
            middle = (low + high) / 2
            rates = 1 / (1 + np.exp(-(middle + scale * points)))
            low, high = (middle, high) if weights @ rates < rate else (low, middle)
        is_less = weights @ rates**2 - rate**2 < likeness * rate * (1 - rate)
        low_scale, high_scale = (scale, high_scale) if is_less else (low_scale, scale)
    return middle, scale


def rates(draws, few, random):
    """Coverage of intervals of a rate, by row and by question."""
    designs = [(name, "beta", r, i) for name in SHAPES for r in RATES for i in LIKENESSES]
    designs = [d for d in designs if max(SHAPES[d[0]]) > 1 or d[3] == LIKENESSES[0]]
    others = ("logit-normal", "all or none")
    designs += [("33 x 8", kind, r, i) for kind in others for r in RATES[1:] for i in LIKENESSES]
    return [
        rate_design(*d, draws if d[0] in IN_BAR and d[1] == "beta" else few, random)
        for d in designs
    ]


def rate_design(name, kind, rate, likeness, draws, random):
    sizes = np.array(SHAPES[name])
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(len(clusters)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    covered = by_row = below = 0
    width = 0.0
    for _ in range(draws):
        shape = (len(sizes),)
        hits = random.binomial(sizes, rates_by_question(kind, rate, likeness, shape, random))
        low, high = clustered_rate(position < hits[clusters], clusters)
        covered += low <= rate <= high
        below += rate < low
        width += high - low
        low, high = wilson(int(hits.sum()), len(clusters))
        by_row += low <= rate <= high
    return {
        "questions": name,
        "drawn": kind if sizes.max() > 1 else "independent",
        "rate": rate,
        "likeness": likeness if sizes.max() > 1 else 0,
        "covered": covered / draws,
        "truth_below": below / draws,
        "mean_width": round(width / draws, 4),
        "covered_by_row": by_row / draws,
        "in_bar": name in IN_BAR and kind == "beta",
    }


def changes(questions, size, change, changed, likeness, random, draws):
    """draws x questions x variants: -1, 0 or 1, whether a verdict became wrong or right.

    A row copies its question's draw with the root of the likeness as probability, and so rows
    correlate by the likeness.
    """
    levels = np.array([(changed - change) / 2, 1 - (changed + change) / 2])

    def drawn(*shape):
        return np.searchsorted(levels, random.random(shape), side="right") - 1

    copies = random.random((draws, questions, size)) < math.sqrt(likeness)
    return np.where(copies, drawn(draws, questions, 1), drawn(draws, questions, size))


def paired(draws, random):
    """Coverage of intervals of a paired difference, by row and by question."""
    results = []
    for name, likeness in (("33 x 8", 0.05), ("33 x 8", 0.2), ("33 x 8", 0.5), ("400 x 1", 0)):
        questions, size = len(SHAPES[name]), SHAPES[name][0]
        clusters = np.repeat(np.arange(questions), size)
        change, covered, by_row = 0.1, 0, 0
        rows = min(draws, 1_000)  # of the bootstrap by row, for information
        for k in range(draws):
            values = changes(questions, size, change, 0.3, likeness, random, 1).ravel()
            low, high = clustered_mean(values.astype(float), clusters).interval()
            covered += low <= change <= high
            if k < rows:
                low, high = bootstrap_mean(values.astype(float), k)
                by_row += low <= change <= high
        results.append(
            {
                "questions": name,
                "likeness": likeness,
                "change": change,
                "covered": covered / draws,
                "covered_by_row": by_row / rows,
                "in_bar": True,
            }
        )
    return results


def seeds(draws, random):
    """Coverage of the interval over seeds and questions, verdicts drawn with effects of both."""
    results = []
    for count, questions, by_seed, by_question in (
        (6, 33, 0.05, 0.2),
        (6, 33, 0.0, 0.2),
        (6, 400, 0.05, 0.2),
        (12, 100, 0.1, 0.2),
        (3, 100, 0.05, 0.2),
    ):
        covered = 0
        for k in range(draws):
            chance = 0.5 + by_seed * random.uniform(-1.732, 1.732, (count, 1))
            chance = chance + by_question * random.uniform(-1.732, 1.732, questions)
            cells = random.random((count, questions)) < chance
            low, high = two_way(cells.astype(float), np.ones(cells.shape), k).ci95
            covered += low <= 0.5 <= high
        results.append(
            {
                "seeds": count,
                "questions": questions,
                "spread_of_seeds": by_seed,
                "spread_of_questions": by_question,
                "covered": covered / draws,
            }
        )
    return results


def shows(sums):
    """The share of draws in which a test of the mean of questions shows a change."""
    questions = sums.shape[1]
    errors = sums.std(axis=1, ddof=1) / math.sqrt(questions)
    quantile = t_quantile(0.975, questions - 1)
    return float((np.abs(sums.mean(axis=1)) > quantile * errors).mean())


def differs(first, second):
    """The share of draws in which two batches differ by more than chance would have it."""
    questions = first.shape[1]
    variances = [batch.var(axis=1, ddof=1) / questions for batch in (first, second)]
    error, quantile = np.sqrt(sum(variances)), t_quantile(0.975, 2 * (questions - 1))
    return float((np.abs(first.mean(axis=1) - second.mean(axis=1)) > quantile * error).mean())


def power(draws, random):
    """The change that 80 of 100 batches show, by simulation, beside the printed one."""
    results = []
    for name in ("33 x 8", "400 x 1", "100 x 4", "14 x 8"):
        sizes = SHAPES[name]
        questions, size = len(sizes), sizes[0]

        def batch(rate, questions=questions, size=size):
            by_question = rates_by_question("beta", rate, LIKENESS, (draws, questions), random)
            return random.binomial(size, by_question if size > 1 else rate, (draws, questions))

        def pairs(change, questions=questions, size=size):
            changed = max(CHANGED, change)
            likeness = LIKENESS if size > 1 else 0.0
            values = changes(questions, size, change, changed, likeness, random, draws)
            return shows(values.sum(axis=2))

        def batches(change):
            return differs(batch(0.5), batch(0.5 + change))

        for design, printed, simulate in (
            ("paired", detectable_change(sizes), pairs),
            ("two batches, rate 0.5", detectable_difference(sizes, 0.5), batches),
        ):
            factors = (0.8, 0.9, 1.0, 1.1, 1.2)
            powers = [simulate(factor * printed) for factor in factors]
            factor = float(np.interp(0.8, powers, factors))
            results.append(
                {
                    "questions": name,
                    "in_bar": questions >= MANY,
                    "design": design,
                    "printed": round(printed, 4),
                    "simulated": round(factor * printed, 4),
                    "printed_over_simulated": round(1 / factor, 3),
                    "power_at_printed": powers[2],
                }
            )
    return results


def tables(result):
    """The result as a page."""
    rows = [
        "# What the intervals cover",
        "",
        f"`{result['command']}` at {result['commit']} on {result['machine']}, "
        f"{result['draws']:,} draws for each row with a star, {result['few_draws']:,} for each "
        "other one. In percent: how often a 95 % interval holds the truth. The bar is 93 to 97 for "
        "the rows with a star; all others are for information. A rate's interval by row is "
        "Wilson's of all rows, a paired difference's a bootstrap of rows.",
        "",
        "| questions x variants | drawn | rate | alike within a question | by question | "
        "truth below | mean width | by row |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {r['questions']}{' *' if r['in_bar'] else ''} | {r['drawn']} | {r['rate']} | "
        f"{r['likeness']} | {100 * r['covered']:.1f} | {100 * r['truth_below']:.1f} | "
        f"{100 * r['mean_width']:.1f} | {100 * r['covered_by_row']:.1f} |"
        for r in result["rates"]
    ]
    rows += ["", "Paired differences, 10 points of which 30 % of the verdicts change:", ""]
    rows += ["| questions x variants | alike | by question | by row |", "|---|---|---|---|"]
    rows += [
        f"| {r['questions']} * | {r['likeness']} | {100 * r['covered']:.1f} | "
        f"{100 * r['covered_by_row']:.1f} |"
        for r in result["paired"]
    ]
    rows += [
        "",
        "Over seeds and questions at once:",
        "",
        "| seeds | questions | spread of seeds | spread of questions | covered |",
        "|---|---|---|---|---|",
    ]
    rows += [
        f"| {r['seeds']} | {r['questions']} | {r['spread_of_seeds']} | "
        f"{r['spread_of_questions']} | {100 * r['covered']:.1f} |"
        for r in result["seeds"]
    ]
    rows += [
        "",
        "The change that 80 of 100 test batches show, in points: printed before a run, and by "
        "simulation. The bar is a tenth.",
        "",
        "| questions x variants | design | printed | simulated | printed over simulated |",
        "|---|---|---|---|---|",
    ]
    rows += [
        f"| {r['questions']}{' *' if r['in_bar'] else ''} | {r['design']} | "
        f"{100 * r['printed']:.1f} | {100 * r['simulated']:.1f} | "
        f"{r['printed_over_simulated']:.2f} |"
        for r in result["power"]
    ]
    verdict = "All bars are met." if result["met"] else "**Not all bars are met.**"
    return "\n".join([*rows, "", verdict, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    random, started = np.random.default_rng(options.seed), time.perf_counter()
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    few_draws = min(options.draws, 2_000)
    result = {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit,
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "draws": options.draws,
        "few_draws": few_draws,
        "power": power(options.draws, random),
        "paired": paired(options.draws, random),
        "seeds": seeds(few_draws // 2, random),
        "rates": rates(options.draws, few_draws, random),
    }
    covers = [r["covered"] for r in result["rates"] + result["paired"] if r["in_bar"]]
    near = [0.9 <= r["printed_over_simulated"] <= 1.1 for r in result["power"] if r["in_bar"]]
    result["met"] = all(LOW <= share <= HIGH for share in covers) and all(near)
    result["seconds"] = round(time.perf_counter() - started)
    page = tables(result)
    print(page)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(page)
    return 0 if result["met"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
