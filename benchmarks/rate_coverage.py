"""Do the bounds of a rate against a number hold, near 0, too, and how often does the test err?

    python benchmarks/rate_coverage.py --out docs/results/rate_coverage.json

Draws the verdicts of an arm of which the true rate is known: ln(p / (1 - p)) of a seed and a
question is a number, plus the seed's and the question's own, both normal. Counted is how often the
one-sided 95 % bounds of `bound_rate` hold the truth: the upper one says how often a hypothesis
"lower than a number" is shown although the rate is that number (100 less the share), the lower one
the same of "higher". Beside them stands Student's t with the same errors, which a difference of two
arms goes by.

Exit status 1 if a bound holds in less than 93 of 100 draws.
"""

import argparse
import json
import os
import platform
import sys
from pathlib import Path

import numpy as np
from measured_commit import describe_commit
from scipy.optimize import brentq
from scipy.special import betaincinv, expit, stdtrit

from nip_core.evaluation.statistics import two_way
from nip_study.compute import given_rate
from nip_study.compute.given_rate import bound_rate

RATES = (0.01, 0.03, 0.05, 0.125, 0.5)
SHAPES = ((4, 100, 1), (8, 100, 1), (8, 400, 1), (8, 33, 4))
"""Seeds, questions, and variants of a question."""
SPREADS = ((0.0, 0.0), (0.0, 1.0), (0.3, 1.0), (0.3, 2.0))
"""Of seeds and of questions, on the scale of ln(p / (1 - p))."""
LEAST = 0.93
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)


def find_center(rate, spread):
    """The number with which the mean of all seeds and questions is the rate."""

    def mean(center):
        return expit(center + spread * _NODES) @ _WEIGHTS / _WEIGHTS.sum()

    return brentq(lambda center: mean(center) - rate, -30, 30)


def count(rate, shape, spreads, draws, random):
    """Count how often each bound holds the rate."""
    seeds, questions, variants = shape
    center = find_center(rate, float(np.hypot(*spreads)))
    held = dict.fromkeys(("high", "low", "t_high", "t_low"), 0)
    plays = np.full((seeds, questions), float(variants))
    for _ in range(draws):
        p = expit(
            center
            + spreads[0] * random.standard_normal((seeds, 1))
            + spreads[1] * random.standard_normal(questions)
        )
        sums = random.binomial(variants, p).astype(float)
        mean = two_way.two_way(sums, plays, 0, "robust")  # as the product does for these bounds
        bounds = bound_rate(mean, sums.size * variants, 0.95)
        far = float(stdtrit(mean.df, 0.95)) * mean.error
        held["high"] += bounds.high >= rate
        held["low"] += bounds.low <= rate
        held["t_high"] += mean.value + far >= rate
        held["t_low"] += mean.value - far <= rate
    return {name: number / draws for name, number in held.items()}


def page(result):
    """The result as a page."""
    rows = [
        "# What the bounds of a rate against a number hold",
        "",
        f"`{result['command']}` at {result['commit']} on {result['machine']}, beside other work; "
        f"{result['draws']:,} draws for each row. In percent: how often a one-sided bound of 95 % "
        "holds the true rate; 93 is the bar. In brackets Student's t with the same errors. Spreads "
        "are those of the log-odds.",
        "",
        "| rate | seeds | questions x variants | spread of seeds | of questions | upper bound (t) "
        "| lower bound (t) |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["designs"]:
        seeds, questions, variants = row["shape"]
        cells = [f"{100 * row['rate']:g}", seeds, f"{questions} x {variants}", *row["spreads"]]
        cells += [
            f"{100 * row[side]:.1f} ({100 * row[f't_{side}']:.1f})" for side in ("high", "low")
        ]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    lowest = {
        side: min(row[side] for row in result["designs"])
        for side in ("high", "low", "t_high", "t_low")
    }
    rows += [
        "",
        f"The upper bound holds in at least {100 * lowest['high']:.1f} of 100 draws, the lower one "
        f"in {100 * lowest['low']:.1f}; Student's in {100 * lowest['t_high']:.1f} and "
        f"{100 * lowest['t_low']:.1f}. Near 0 the upper one is wide: no exception in so many "
        "questions is all that it ever claims.",
    ]
    return "\n".join([*rows, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    # Neither the bootstrap nor its interval has a part in the bounds; SciPy's functions are the
    # same as ours (tests/evaluation compares them), and faster.
    two_way._draws = lambda *_: np.zeros(1)
    given_rate.t_quantile = lambda share, df: float(stdtrit(df, share))
    given_rate.beta_quantile = lambda share, a, b: float(betaincinv(a, b, share))
    designs = [(rate, shape, of) for rate in RATES for shape in SHAPES for of in SPREADS]
    rows = []
    for place, (rate, shape, spreads) in enumerate(designs):
        random = np.random.default_rng([options.seed, place])
        held = count(rate, shape, spreads, options.draws, random)
        rows.append({"rate": rate, "shape": shape, "spreads": spreads, **held})
        print(json.dumps(rows[-1]), flush=True)
    result = {
        "command": " ".join(["python", *sys.argv]),
        "commit": describe_commit(),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "draws": options.draws,
        "designs": rows,
        "met": all(min(row["high"], row["low"]) >= LEAST for row in rows),
    }
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(page(result))
    print(page(result))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
