#!/usr/bin/env python3
"""Compute each figure of docs/results/unanswered_smollm2.md a second time, by numpy.

    python benchmarks/unanswered_smollm2_check.py docs/results/unanswered_smollm2

Reads the table of verdicts in that folder by pyarrow, and nothing of nip. Prints each figure of the
page beside its own, and exits with 1 where one is another, or no longer there. Intervals are those
of decisions 0056 (a difference, by nip's draws and by 100,000 others) and 0048 (a rate).
"""

import argparse
import hashlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

Floats = NDArray[np.float64]  # as a rule a table of seeds x problems
HELD_OUT = ("they", "list-c", "absent-numbers", "two-of-three", "own-lines")
TESTS = ("own test", "always-a", "no-answer", "nothing", *HELD_OUT)  # as the rows of the page
ARMS, NO_VERDICT = ("taught", "shown"), 2
COLUMNS, NUMBER = ("run", "axis_arm", "axis_seed", "y", "decision"), r"([-+]?\d[\d,]*(?:\.\d+)?)"
OF_PRIMARY = b'["soundness",{"arm":"shown"},{"arm":"taught"}]'  # seeds the draws of its interval


def beta_cdf(x: float, a: float, b: float) -> float:
    """Compute the distribution function of a beta distribution by a series of positive terms."""
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(1 - x, b, a)
    whole = 1 + np.cumprod((a + b + np.arange(1e3)) / (a + 1 + np.arange(1e3)) * x).sum()
    scale = math.lgamma(a + b) - math.lgamma(a + 1) - math.lgamma(b)
    return x and float(math.exp(scale + a * math.log(x) + b * math.log1p(-x)) * whole)


def solve(rising: Callable[[float], float], level: float, high: float) -> float:
    """Find where a function that rises between 0 and `high` has this level."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < level else (low, middle)
    return low


def quantile(level: float, df: float) -> float:
    """Compute a quantile above one half of Student's t."""
    return solve(lambda t: 1 - beta_cdf(df / (df + t * t), df / 2, 0.5) / 2, level, 1e3)


def parts(cells: Floats) -> tuple[float, float, float]:
    """Compute the variance of the mean of seeds x problems: of seeds, of problems, of cells."""
    (n, k), by_seed, by_problem = cells.shape, cells.mean(1), cells.mean(0)
    rest = ((cells - by_seed[:, None] - by_problem + cells.mean()) ** 2).sum() / (n - 1) / (k - 1)
    return by_seed.var(ddof=1) / n, by_problem.var(ddof=1) / k, float(rest) / (n * k)


def interval(cells: Floats, seed: int, count: int) -> Floats:
    """Compute the 95 % interval of a difference (0056), by so many draws."""
    (n, k), mean, (a, b, e) = cells.shape, cells.mean(), parts(cells)
    whole, freedom = max(a + b - e, 0.6 * max(a, b, e)), e**2 / ((n - 1) * (k - 1))
    for part, f in ((a, n - 1), (b, k - 1)):
        excess = max(part - 0.3 * e, 0.0)
        whole += 2.4 * excess / f**2
        freedom += (1 + 4 / f**2) * ((1 + 2.4 / f**2) * excess) ** 2 / f
    generator = np.random.Generator(np.random.PCG64(seed))
    rows, columns = (generator.multinomial(m, np.full(m, 1 / m), count) for m in (n, k))
    draws = (rows @ cells * columns).sum(1) / (n * k)
    wider = quantile(0.975, max(whole**2 / freedom, n - 1)) / NormalDist().inv_cdf(0.975)
    away = math.sqrt(whole) / draws.std() * wider * (np.quantile(draws, (0.025, 0.975)) - mean)
    return np.clip(np.asarray(mean + away, np.float64), -1, 1)


def bound(cells: Floats, level: float) -> float:
    """Compute Clopper and Pearson's upper bound of a rate by the trials it is worth (0048)."""
    (n, k), rate, (a, b, _) = cells.shape, float(cells.mean()), parts(cells)
    variance = max(a + b - float(((cells - rate) ** 2).sum()) / (n * k) ** 2, a, b)
    df = max(variance**2 / (a**2 / (n - 1) + b**2 / (k - 1)), n - 1)
    wider = quantile(level, df) / NormalDist().inv_cdf(level)
    trials = min(rate * (1 - rate) / variance / wider**2, float(n * k))
    exact = solve(lambda x: beta_cdf(x, rate * trials + 1, (1 - rate) * trials), level, 1.0)
    return max(exact, 1 - math.pow(1 - level, 1 / k))


def main() -> None:
    """Print each figure of the page beside its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path, help="the folder with cells.parquet")
    folder, wrong_figures = parser.parse_args().results, list[str]()
    page = folder.with_suffix(".md").read_text(encoding="utf-8")
    table = pq.read_table(folder / "cells.parquet").sort_by("question").to_pydict()
    run, arm, seed, y, decision = (np.array(table[name]) for name in COLUMNS)
    test = np.array([attack or "own test" for attack in table["attack"]])

    def right(a: str, t: str, label: int = 0) -> Floats:
        mine = (arm == a) & (test == t) & (y == label)
        return np.array([(decision == y)[mine & (seed == s)] for s in np.unique(seed)], float)

    def worst(a: str) -> Floats:
        tests = np.array([right(a, t) for t in HELD_OUT])
        return np.array([tests[t, row] for row, t in enumerate(tests.mean(2).argmin(0))])

    def compare(pattern: str, *own: float) -> None:
        found = re.search(pattern.replace("#", NUMBER), " ".join(page.split()))
        texts = [number.replace(",", "") for number in found.groups()] if found else [""] * len(own)
        here = [f"{x:.{len(p.partition('.')[2])}f}" for x, p in zip(own, texts, strict=True)]
        is_same = bool(found) and [*map(float, texts)] == [*map(float, here)]
        wrong_figures.extend([] if is_same else [pattern.replace("\\", "")])
        print("same " if is_same else "OTHER", (found or [pattern])[0], "| here", ", ".join(here))

    lines = [line for line in page.splitlines() if line.count(", ") >= 8]
    for line, t in zip(lines, TESTS, strict=True):
        own = np.concatenate([right(a, t, label).mean(1) for a in ARMS for label in (0, 1)])
        by_coins = 87.5 if t in ("own test", "always-a", "own-lines") else 100.0
        pattern = re.escape(re.sub(r"\d+(?:\.\d+)?", "#", line)).replace("\\#", "#")
        compare(pattern, by_coins, *100 * own)
    plays, runs, base = len({*zip(run, test, strict=True)}), len(np.unique(run)), arm == "base"
    document = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    shown, taught, silent = worst("shown"), worst("taught"), right("taught", "no-answer")
    means = [100 * cells.mean() for cells in (shown, taught, shown - taught)]
    draws = int.from_bytes(hashlib.sha256(OF_PRIMARY).digest()[:4], "big") & 0x7FFFFFFF
    compare("verifier accepts # %", 100 * min(right(a, "own test", 1).mean(1).min() for a in ARMS))
    compare("a verdict in # of # games", (decision != NO_VERDICT)[base].sum(), base.sum())
    compare("All # runs and # attacks", runs, plays - runs)
    compare("seeds, # problems of each label.* intervals from # verdicts", shown.shape[1], len(run))
    compare("lists # departures", len(document["declared"]["departures"]))
    compare("all # digests", plays)
    compare("`shown` rejects # % of the false claims and `taught` #: # points", *means)
    compare("paired difference from # to #", *100 * interval(shown - taught, draws, 4_000))
    compare("`taught` rejects # % of the claims without", 100 * silent.mean())
    lines = right("taught", "own-lines")
    for pattern, one in (
        (r"fewer than half is not shown \(# to # %", silent),
        (r"not shown either \(# to # %", shown),
    ):
        compare(pattern, 100 * (1 - bound(1 - one, 0.975)), 100 * bound(one, 0.975))
    ends = 100 * interval(lines, 1, 100_000)
    compare(r"`taught`\*\*: # % \[#, #\]", 100 * lines.mean(), *ends)
    compare("cost #, # and # points", *100 * (right("taught", "own test") - lines).mean(1))
    they = right("shown", "they") - right("taught", "they")
    compare(r"had met: # points", 100 * they.mean())
    compare("`taught` rejects #, # and # %", *100 * silent.mean(1))
    means = [100 * right(a, t).mean() for t in HELD_OUT[2:4] for a in ARMS[::-1]]
    compare("`shown` rejects # % on average and `taught` #, .*? # and #", *means)
    spreads = [float(np.ptp(right(a, t).mean(1))) for a in ARMS for t in TESTS]
    compare("differ by # points", 100 * max(spreads))
    print("the worst, by 100,000 draws:", 100 * interval(shown - taught, 1, 100_000))
    none = ~base & (decision == NO_VERDICT)
    found = Counter(zip(run[none], test[none], y[none], strict=True))
    by_label = [
        found["missing-201-taught", t, label] for t in ("they", "nothing") for label in (0, 1)
    ]
    compare(r"no verdict on # false and # true claims after .*? # and # after", *by_label)
    for (r, t, label), count in found.items():
        print(f"neither accepted nor rejected: {count} claims with the label {label} in {r}, {t}")
    sys.exit(f"not as on the page: {wrong_figures}" if wrong_figures else 0)


if __name__ == "__main__":
    main()
