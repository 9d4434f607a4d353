"""How often an interval over seeds holds the truth where now and then a seed lies far off.

    python benchmarks/lone_seed_coverage.py --out docs/results/lone_seed_coverage.json

Seeds are drawn from the values of a pattern, with replacement, each asked 300 questions; the truth
is the mean of the pattern. Counted are all draws, those in which the page of a sweep says that a
run lies far from the others (`find_lone`), and the rest. A draw without an interval (all equal)
counts as its mean. The bootstrap has 400 resamples in place of 4,000.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from measured_commit import describe_commit

from nip_core.evaluation.statistics import two_way as two_way_module
from nip_core.evaluation.statistics.two_way import Spread, two_way
from nip_study.pages.lone_runs import find_lone

PATTERNS = {
    "0, 32, 47, 52, 52 % (one coin, trained against)": (0.003, 0.32, 0.47, 0.52, 0.52),
    "11, 23, 34, 45, 52 % (three coins)": (0.11, 0.23, 0.34, 0.45, 0.52),
    "four of 50 %, one of 0": (0.5, 0.5, 0.5, 0.5, 0.0),
    "nine of 50 %, one of 0": (*(0.5,) * 9, 0.0),
}
QUESTIONS, RESAMPLES = 300, 400
SPREADS: tuple[Spread, ...] = ("robust", "calibrated")


def measure(
    pattern: tuple[float, ...], seeds: int, spread: Spread, draws: int
) -> dict[str, float | int | str | None]:
    """Return the share of draws whose interval holds the mean of the pattern, by lone runs."""
    generator, truth = np.random.default_rng(1), float(np.mean(pattern))
    held: dict[bool, list[bool]] = {True: [], False: []}
    for draw in range(draws):
        rates = generator.choice(pattern, seeds)
        right = (generator.random((seeds, QUESTIONS)) < rates[:, None]).astype(float)
        mean = two_way(right, np.ones_like(right), draw, spread)
        assert mean is not None  # there are questions
        low, high = mean.ci95 or (mean.value, mean.value)
        is_named = find_lone(right.mean(axis=1).tolist()) is not None
        held[is_named].append(low <= truth <= high)

    def share(of_draws: list[bool]) -> float | None:
        return float(np.mean(of_draws)) if of_draws else None

    return {
        "seeds": seeds,
        "intervals": spread,
        "held": share(held[True] + held[False]),
        "with_a_lone_run": len(held[True]) / draws,
        "held_with": share(held[True]),
        "held_without": share(held[False]),
    }


def main() -> None:
    """Print the shares, and write them where they are wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = {"command": " ".join(["python", *sys.argv]), "commit": describe_commit()}
    two_way_module.RESAMPLES = RESAMPLES
    rows = []
    for name, pattern in PATTERNS.items():
        for seeds in (5, 8):
            for spread in SPREADS:
                rows.append({"seeds from": name} | measure(pattern, seeds, spread, options.draws))
                print(json.dumps(rows[-1]), flush=True)
    whole = result | {"draws": options.draws, "questions": QUESTIONS, "rows": rows}
    if options.out is not None:
        options.out.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
