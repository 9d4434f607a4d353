#!/usr/bin/env python3
"""Compute the declared comparisons of deployments/plans/unanswered.yaml a second time, by numpy.

    python benchmarks/unanswered_check.py docs/results/unanswered/cells.parquet

Reads the table of verdicts with pyarrow and nothing of nip. A rate is the mean over seeds of the
share of right verdicts; after several attacks each run counts with the one that left the least on
wrong problems, on the problems that all of them played. Intervals and p-values are those of
Student's t over seeds alone, problems given: they are not nip's, which draw problems, too.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

HELD_OUT = ("they", "list-c", "absent-numbers", "two-of-three", "own-lines")
TRAINED = ("sneaky", "again", "begun")
SCRIPTS = ("tell-apart", "always-a", "no-answer", "nothing", *HELD_OUT)
Verdicts = dict[str, float]
"""By problem, 1 for a right verdict, 0 for a wrong one; a mean where it was played more often."""


class Cells:
    """The verdicts of a sweep, by run, attack and test."""

    def __init__(self, path: Path) -> None:
        """Read the table."""
        table = pq.read_table(path).to_pydict()
        self.tests: dict[tuple[str, str, str | None], dict[tuple[int, int], list[int]]] = {}
        self._question = table["question"]
        self._y, self._decision = table["y"], table["decision"]
        columns = ("axis_seed", "axis_arm", "attack", "iteration", "n")
        for row, (seed, arm, attack, iteration, n) in enumerate(
            zip(*(table[name] for name in columns), strict=True)
        ):
            tests = self.tests.setdefault((seed, arm, attack), {})
            tests.setdefault((iteration, n or 0), []).append(row)

    @property
    def seeds(self) -> list[str]:
        """List the seeds."""
        return sorted({seed for seed, _, _ in self.tests})

    def verdicts(self, rows: Sequence[int], y: int) -> Verdicts:
        """Average the verdicts of a test on problems with the label `y`, by problem."""
        found: dict[str, list[int]] = {}
        for row in rows:
            if self._y[row] == y:
                found.setdefault(self._question[row], []).append(self._decision[row] == y)
        return {question: float(np.mean(right)) for question, right in found.items()}

    def last(self, seed: str, arm: str, attack: str | None, y: int) -> Verdicts:
        """Return the verdicts of the last test."""
        tests = self.tests[seed, arm, attack]
        return self.verdicts(tests[max(tests)], y)

    def worst(self, seed: str, arm: str, attacks: Sequence[str]) -> tuple[str, Verdicts]:
        """Return the test that left the least soundness, with its name."""
        named = [
            (f"{attack} {place}", self.verdicts(rows, 0))
            for attack in attacks
            for place, rows in self.tests[seed, arm, attack].items()
        ]
        shared = set.intersection(*(set(verdicts) for _, verdicts in named))
        return min(named, key=lambda pair: np.mean([pair[1][q] for q in sorted(shared)]))


def compare(first: Sequence[Verdicts], second: Sequence[Verdicts]) -> NDArray[np.float64]:
    """Subtract two arms, seed by seed, on the problems that both have."""
    return np.array(
        [
            np.mean([a[q] - b[q] for q in sorted(a.keys() & b.keys())])
            for a, b in zip(first, second, strict=True)
        ]
    )


def student(values: NDArray[np.float64], at: float = 0.0) -> tuple[float, float, float]:
    """Return the mean, the half width of its 95 % interval, and P(T >= t) for T > `at`."""
    n, mean = len(values), float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(n)
    if error == 0:
        return mean, 0.0, 0.0 if mean > at else 1.0
    return mean, _quantile(0.975, n - 1) * error, 1 - _cdf((mean - at) / error, n - 1)


def _cdf(t: float, df: int) -> float:
    # Student's density over its own angle, t = sqrt(df) tan(angle), is a power of the cosine.
    grid = np.linspace(0.0, math.atan(abs(t) / math.sqrt(df)), 20_001)
    half = np.trapezoid(np.cos(grid) ** (df - 1), grid)
    whole = np.trapezoid(
        np.cos(all_angles := np.linspace(0.0, math.pi / 2, 20_001)) ** (df - 1), all_angles
    )
    share = 0.5 * half / whole
    return float(0.5 + share if t > 0 else 0.5 - share)


def _quantile(p: float, df: int) -> float:
    low, high = 0.0, 1_000.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _cdf(middle, df) < p else (low, middle)
    return low


def main() -> None:
    """Print each comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cells", type=Path)
    cells = Cells(parser.parse_args().cells)
    group, seeds = (*HELD_OUT, *TRAINED), cells.seeds

    def worst_of(arm: str, attacks: Sequence[str]) -> list[Verdicts]:
        return [cells.worst(seed, arm, attacks)[1] for seed in seeds]

    worst = {arm: worst_of(arm, group) for arm in ("played", "shown", "rule")}
    every = worst_of("rule", (*SCRIPTS, *TRAINED))
    answering = worst_of("played", ("tell-apart", "always-a"))
    held_out = [worst_of(arm, HELD_OUT) for arm in ("shown", "played")]
    silent = [
        [cells.last(seed, arm, "no-answer", 0) for seed in seeds] for arm in ("played", "base")
    ]
    for arm in worst:
        own = [np.mean([*cells.last(seed, arm, None, 1).values()]) for seed in seeds]
        print(f"completeness of {arm} with the honest prover: {100 * np.mean(own):.2f} %")
    lines = {
        "primary: shown less played, the worst": compare(worst["shown"], worst["played"]),
        "shown less played, the worst that neither met": compare(*held_out),
        "played less untrained, no-answer": compare(*silent),
        "rule, the worst, less 0.8": _rates(every) - 0.8,
        "played, the worst that answers, less 0.875": _rates(answering) - 0.875,
        "shown less rule, the worst": compare(worst["shown"], worst["rule"]),
    }
    for words, values in lines.items():
        mean, half, p = student(values)
        interval = f"[{100 * (mean - half):+.2f}, {100 * (mean + half):+.2f}]"
        tail = f"one-sided p {p:.2g} (higher), {1 - p:.2g} (lower)"
        print(f"{words}: {100 * mean:+.4f} points, {len(values)} seeds, {interval}, {tail}")


def _rates(runs: Sequence[Verdicts]) -> NDArray[np.float64]:
    return np.array([np.mean([*verdicts.values()]) for verdicts in runs])


if __name__ == "__main__":
    main()
