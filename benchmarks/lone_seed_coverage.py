"""How often an interval over seeds holds the truth where one seed lies far from the others.

    python benchmarks/lone_seed_coverage.py

Seeds are drawn from the values of a pattern, with replacement, each asked 300 questions; the truth
is the mean of the pattern. Prints a table. docs/statistics.md has its figures, and pages of sweeps
say that of the first row beside such a run.
"""

import numpy as np

from nip_core.evaluation.statistics.two_way import Spread, two_way

PATTERNS = {
    "0, 32, 47, 52, 52 % (one coin, trained against)": (0.003, 0.32, 0.47, 0.52, 0.52),
    "11, 23, 34, 45, 52 % (three coins)": (0.11, 0.23, 0.34, 0.45, 0.52),
    "four of 50 %, one of 0": (0.5, 0.5, 0.5, 0.5, 0.0),
    "nine of 50 %, one of 0": (*(0.5,) * 9, 0.0),
}
QUESTIONS, DRAWS = 300, 400
SPREADS: tuple[Spread, ...] = ("robust", "calibrated")


def measure(
    pattern: tuple[float, ...], seeds: int, spread: Spread, generator: np.random.Generator
) -> float:
    """Return the share of draws whose interval holds the mean of the pattern."""
    truth, held = float(np.mean(pattern)), 0
    for draw in range(DRAWS):
        rates = generator.choice(pattern, seeds)
        right = (generator.random((seeds, QUESTIONS)) < rates[:, None]).astype(float)
        mean = two_way(right, np.ones_like(right), draw, spread)
        if mean is not None and mean.ci95 is not None:
            held += mean.ci95[0] <= truth <= mean.ci95[1]
    return held / DRAWS


def main() -> None:
    """Print the table."""
    print("| seeds are drawn from | seeds | robust | calibrated |\n|---|---|---|---|")
    for name, pattern in PATTERNS.items():
        for seeds in (5, 8):
            generator = np.random.default_rng(1)
            held = [measure(pattern, seeds, spread, generator) for spread in SPREADS]
            print(
                f"| {name} | {seeds} |",
                " | ".join(f"{100 * one:.0f}" for one in held),
                "|",
                flush=True,
            )


if __name__ == "__main__":
    main()
