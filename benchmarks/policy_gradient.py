"""Does policy gradient learn with every seed, and does a second iteration keep what it learned?

    python benchmarks/policy_gradient.py --out docs/results/policy_gradient.json

For each seed, `nip train deployments/configs/grpo-tiny.yaml` with two iterations, tested on the
same 400 test problems before each and after the last. The settings were chosen with the training
and validation problems of other seeds (docs/decisions/0007) and were fixed before any of these
seeds was run. The bar, for every seed: more than 90 % right after two iterations, and at most 5
points less than after the first.

Finished runs are not repeated, so an interrupted measurement goes on where it stopped; with
`--only` some seeds are run, and the rows of the others stay as they are in the file. Writes a
JSON file and, beside it, a Markdown page. Exit status 1 if the bar is not met.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from methods import CONFIGS, ROOT, TEST_PROBLEMS, measure

METHOD = "policy gradient"
SEEDS = (11, 12, 13, 14, 15, 16)
ITERATIONS = 2
LEAST = 0.90
MOST_LOST = 0.05


def meets(accuracy: list[float]) -> bool:
    """Return whether a run met the bar; `accuracy` is untrained and after each training."""
    return accuracy[-1] > LEAST and accuracy[-1] >= accuracy[-2] - MOST_LOST


def run(seed: int, store: Path, threads: int) -> dict[str, Any]:
    """One run, and what came of it."""
    row = measure(METHOD, seed, store, threads, ITERATIONS)
    row["commit"] = commit()
    row["met"] = "stopped" not in row and meets(row["accuracy"])
    return row


def commit() -> str:
    """The commit that is measured."""
    git = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    head = " | ".join(f"after {number}" for number in range(1, ITERATIONS + 1))
    lines = [
        f"| seed | untrained | {head} | gain in reward | met | commit | s |",
        "|---" * (6 + ITERATIONS) + "|",
    ]
    for row in rows:
        if "stopped" in row:
            blank = " |" * (3 + ITERATIONS)
            lines.append(f"| {row['seed']} | stopped: {row['stopped']} |{blank} no | |")
            continue
        shares = " | ".join(f"{100 * share:.1f}" for share in row["accuracy"])
        low, high = row["ci95"]
        lines.append(
            f"| {row['seed']} | {shares} | {row['difference']:+.3f} [{low:+.3f}, {high:+.3f}] | "
            f"{'yes' if row['met'] else 'no'} | {row['commit']} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def write(out: Path, rows: list[dict[str, Any]]) -> str:
    """The JSON file and the page beside it; the page."""
    results = {
        "command": "python benchmarks/policy_gradient.py --out docs/results/policy_gradient.json",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}",
        "config": CONFIGS[METHOD],
        "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    page = (
        "# Does policy gradient learn with every seed, and keep it?\n\n"
        f"`{results['command']}` on {results['machine']}, {results['config']}. Accuracy of the "
        f"verifier in percent on {TEST_PROBLEMS} test problems, each played once; the gain in its "
        "mean reward (−1 to 1) from first to last is paired by problem, with a 95 % bootstrap "
        f"interval by problem. Met: above {100 * LEAST:.0f} % after {ITERATIONS} iterations, and "
        f"at most {100 * MOST_LOST:.0f} points less than after the one before. `s`: seconds of "
        "playing and training.\n\n" + table(rows) + "\n"
    )
    out.with_suffix(".md").write_text(page)
    return page


def read(out: Path) -> dict[int, dict[str, Any]]:
    """The rows that are in the file already, by seed."""
    if not out.is_file():
        return {}
    return {row["seed"]: row for row in json.loads(out.read_text())["rows"]}


def main() -> int:
    """Measure everything; 1 if the bar is not met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=ROOT / "runs" / "policy-gradient")
    parser.add_argument("--only", type=int, nargs="+", choices=SEEDS, default=list(SEEDS))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    for seed in options.only:
        row = run(seed, options.store.resolve(), options.threads)
        rows = read(options.out) | {seed: row}  # another process may have written meanwhile
        print(write(options.out, [rows[seed] for seed in sorted(rows)]), flush=True)
    rows = read(options.out)
    return 0 if set(rows) == set(SEEDS) and all(row["met"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
