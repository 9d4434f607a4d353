"""Does every way of learning raise the reward that it optimises? Over seeds, by whole runs.

    python benchmarks/methods.py --out docs/results/methods.json

For each trainer and seed, `nip train` on its configuration for the bundled tiny model: the same
game and the same 400 test problems, which share no question with training. The set-up stands in
the configurations and below, and is fixed before anything is run: one reward is optimised, either
because it is shared or because one group alone is trained; the number of iterations is fixed; what
counts is the final model, not the best one. Measured is the verifier's mean reward on the test
problems after the last training less that before the first, paired by problem, with a 95 %
bootstrap interval by problem. The bar: above 0 for every seed.

Finished runs are not repeated, so an interrupted measurement goes on where it stopped. Writes a
JSON file and, beside it, a Markdown page. Exit status 1 if the bar is not met.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CONFIGS = {
    "expert iteration": "deployments/configs/quickstart.yaml",
    "MALT": "deployments/configs/malt-tiny.yaml",
    "policy gradient": "deployments/configs/grpo-tiny.yaml",
}
ITERATIONS = 1
SEEDS = (1, 2, 3)
REWARD_OF = "verifier"
TEST_PROBLEMS = 400


def run_name(method: str, seed: int) -> str:
    """The run of a method and a seed."""
    return f"{method.lower().replace(' ', '-')}-{seed}"


def train(
    method: str, seed: int, store: Path, threads: int | None, iterations: int = ITERATIONS
) -> str | None:
    """Run or finish the run; why it stopped, or None if it went through."""
    environment = {**os.environ, "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, "-m", "nip_prefect.flows.cli", "train", CONFIGS[method], "--json"]
    for setting in (
        f"run_name={run_name(method, seed)}",
        f"run_store={store}",
        f"seed={seed}",
        f"rl.num_iterations={iterations}",
        f"dataset_options.max_test_size={TEST_PROBLEMS}",
    ):
        command += ["--set", setting]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.stderr.strip().splitlines()[-1] if done.returncode else None


def measure(
    method: str, seed: int, store: Path, threads: int | None, iterations: int = ITERATIONS
) -> dict[str, Any]:
    """One run, and what came of it."""
    from nip_core.evaluation.metrics import paired_difference
    from nip_core.rollouts.tables import read_rollouts
    from nip_core.run_store.run import RunStore
    from nip_core.run_store.store import open_store

    stopped = train(method, seed, store, threads, iterations)
    if stopped is not None:  # a method that spoils the model so far has not met the bar
        return {"method": method, "seed": seed, "stopped": stopped, "met": False}
    run = RunStore(open_store(str(store)), run_name(method, seed))
    tested = range(iterations + 1)
    metrics = [run.read_json(run.metrics(i, "test")) for i in tested]
    before, after = (
        read_rollouts(run.store, run.rollouts(i, "test")).episodes for i in (tested[0], tested[-1])
    )
    times = [run.read_json(f"{run.iteration(i)}/times.json") for i in range(iterations)]
    paired = paired_difference(before, after, seed, reward_of=REWARD_OF).as_json()
    return {
        "method": method,
        "seed": seed,
        "config": CONFIGS[method],
        "iterations": iterations,
        "problems": paired["problems"],
        "rewards": [m["agents"][REWARD_OF]["mean_reward"] for m in metrics],
        "accuracy": [m["accuracy"] for m in metrics],
        "difference": paired["difference"],
        "ci95": paired["ci95"],
        "met": paired["ci95"][0] > 0 and paired["problems"] >= TEST_PROBLEMS,
        "seconds": round(sum(sum(stage.values()) for stage in times), 1),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| trainer | seed | mean reward, untrained and after each training | accuracy | gain in "
        "reward | above 0 | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "stopped" in row:
            lines.append(
                f"| {row['method']} | {row['seed']} | stopped: {row['stopped']} | | | no | |"
            )
            continue
        rewards = ", ".join(f"{reward:+.2f}" for reward in row["rewards"])
        first, last = (100 * row["accuracy"][i] for i in (0, -1))
        low, high = row["ci95"]
        lines.append(
            f"| {row['method']} | {row['seed']} | {rewards} | {first:.1f} → {last:.1f} % | "
            f"{row['difference']:+.3f} [{low:+.3f}, {high:+.3f}] | "
            f"{'yes' if row['met'] else 'no'} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def write(out: Path, rows: list[dict[str, Any]]) -> str:
    """The JSON file and the page beside it; the page."""
    git = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    results = {
        "commit": done.stdout.strip(),
        "command": "python benchmarks/methods.py --out docs/results/methods.json",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}",
        "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    page = (
        "# Does every way of learning raise the reward that it optimises?\n\n"
        f"`{results['command']}` at {results['commit']} on {results['machine']}. The verifier's "
        f"mean reward (−1 to 1) on {TEST_PROBLEMS} test problems, each played once; the gain of "
        "the final over the untrained models is paired by problem, with a 95 % bootstrap interval "
        "by problem. `s`: seconds of playing and training. What was declared before stands in "
        "`benchmarks/methods.py` and in the configurations.\n\n" + table(rows) + "\n"
    )
    out.with_suffix(".md").write_text(page)
    return page


def main() -> int:
    """Measure everything; 1 if the bar is not met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=ROOT / "runs" / "methods")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--only", nargs="+", choices=list(CONFIGS), default=list(CONFIGS))
    options = parser.parse_args()
    threads = max((os.cpu_count() or 1) // options.jobs, 1) if options.jobs > 1 else None
    store = options.store.resolve()
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [
            pool.submit(measure, method, seed, store, threads)
            for method in options.only
            for seed in SEEDS
        ]
        rows = [future.result() for future in futures]
    print(write(options.out, rows))
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
