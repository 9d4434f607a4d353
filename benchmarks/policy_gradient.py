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

from measured_commit import describe_commit

ROOT = Path(__file__).parent.parent
CONFIG = "deployments/configs/grpo-tiny.yaml"
TEST_PROBLEMS = 400
SEEDS = (11, 12, 13, 14, 15, 16)
ITERATIONS = 2
LEAST = 0.90
MOST_LOST = 0.05
REWARD_OF = "verifier"


def meets(accuracy: list[float]) -> bool:
    """Return whether a run met the bar; `accuracy` is untrained and after each training."""
    return accuracy[-1] > LEAST and accuracy[-1] >= accuracy[-2] - MOST_LOST


def run(seed: int, store: Path, threads: int) -> dict[str, Any]:
    """One run, and what came of it."""
    row = measure(seed, store, threads)
    row["commit"] = describe_commit()
    row["met"] = "stopped" not in row and meets(row["accuracy"])
    return row


def train(seed: int, store: Path, threads: int) -> str | None:
    """Run or finish the run; why it stopped, or None if it went through."""
    environment = {**os.environ, "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "nip_cli.cli", "train", CONFIG, "--json"]
    for setting in (
        f"run_name={run_name(seed)}",
        f"run_store={store}",
        f"seed={seed}",
        f"rl.num_iterations={ITERATIONS}",
        f"dataset_options.max_test_size={TEST_PROBLEMS}",
    ):
        command += ["--set", setting]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**environment, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip().splitlines()[-1] if done.returncode else None


def run_name(seed: int) -> str:
    """The run of a seed."""
    return f"policy-gradient-{seed}"


def measure(seed: int, store: Path, threads: int) -> dict[str, Any]:
    """One run, and what its tests say."""
    from nip_core.evaluation.metrics import paired_difference
    from nip_core.rollouts.storage.tables import read_rollouts
    from nip_core.run_store.run import RunStore
    from nip_core.run_store.store import open_store

    about = {"method": "policy gradient", "seed": seed}
    stopped = train(seed, store, threads)
    if stopped is not None:
        return {**about, "stopped": stopped}
    run = RunStore(open_store(str(store)), run_name(seed))
    tested = range(ITERATIONS + 1)
    metrics = [run.read_json(run.metrics(i, "test")) for i in tested]
    before, after = (
        read_rollouts(run.store, run.rollouts(i, "test")).episodes for i in (tested[0], tested[-1])
    )
    times = [run.read_json(f"{run.iteration(i)}/times.json") for i in range(ITERATIONS)]
    paired = paired_difference(before, after, seed, reward_of=REWARD_OF).as_json()
    return {
        **about,
        "config": CONFIG,
        "iterations": ITERATIONS,
        "problems": paired["problems"],
        "rewards": [m["agents"][REWARD_OF]["mean_reward"] for m in metrics],
        "accuracy": [m["accuracy"] for m in metrics],
        "difference": paired["difference"],
        "ci95": paired["ci95"],
        "seconds": round(sum(sum(seconds.values()) for seconds in times), 1),
    }


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
        "config": CONFIG,
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
