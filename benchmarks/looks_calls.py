#!/usr/bin/env python3
"""The looks that the verifiers of deployments/sweeps/looks.yaml used, before and after training.

    python benchmarks/looks_calls.py RUN_STORE --out docs/results/looks/calls.json

Reads the test metrics of each run's first and last test. By arm: calls of the tool per episode, the
mean over the seeds with a 95 % interval of Student's t over seeds; the same of the verifier's mean
reward, which has paid for its calls; and of the gains by training, seed by seed.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from nip_core.evaluation.statistics.distributions import t_quantile

WHEN = ("untrained", "trained")


def main() -> None:
    """Write the file, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run_store", type=Path)
    parser.add_argument("--sweep", default="looks")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    arms = read_arms(options.run_store, options.sweep)
    text = json.dumps({"sweep": options.sweep, "arms": arms}, indent=1)
    if options.out:
        options.out.write_text(f"{text}\n")
    print(
        "| arm | seeds | calls, untrained | trained | more | reward, untrained | trained | more |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, arm in arms.items():
        columns = (*WHEN, "gain")
        cells = [show(arm[when][figure]) for figure in ("calls", "reward") for when in columns]
        print(f"| {name} | {len(arm['seeds'])} | {' | '.join(cells)} |")


def read_arms(store: Path, sweep: str) -> dict[str, Any]:
    """Read the figures of all finished runs, by arm."""
    runs: dict[str, dict[str, dict[str, list[float]]]] = {}
    seeds: dict[str, list[str]] = {}
    for folder in sorted(store.glob(f"{sweep}-[0-9]*")):
        seed, *values = folder.name.removeprefix(f"{sweep}-").split("-")
        tests = sorted(folder.glob("iterations/*/metrics-test.json"))
        if len(values) != 2 or len(tests) < 2:
            continue  # an attack, or a run that has not been trained
        arm = runs.setdefault("-".join(values), {when: {} for when in WHEN})
        seeds.setdefault("-".join(values), []).append(seed)
        for when, path in zip(WHEN, (tests[0], tests[-1]), strict=True):
            for figure, value in read_test(json.loads(path.read_text())).items():
                arm[when].setdefault(figure, []).append(value)
    if len({*map(tuple, seeds.values())}) > 1:
        raise SystemExit(f"arms of different seeds: {seeds}")
    return {
        name: {
            "seeds": seeds[name],
            **{
                when: {k: summarise(v) for k, v in figures.items()} for when, figures in arm.items()
            },
            "gain": {
                figure: summarise([float(v) for v in np.subtract(values, arm["untrained"][figure])])
                for figure, values in arm["trained"].items()
            },
        }
        for name, arm in runs.items()
    }


def read_test(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the calls and the verifier's reward per episode."""
    verifier = metrics["agents"]["verifier"]
    return {
        "calls": verifier.get("tool_calls", 0) / metrics["episodes"],
        "reward": verifier["mean_reward"],
        "accuracy": metrics["accuracy"],
    }


def summarise(values: list[float]) -> dict[str, Any]:
    """Return the mean of one value a seed, its interval, and the values."""
    mean, low, high = float(np.mean(values)), None, None
    if len(values) > 1:
        half = (
            t_quantile(0.975, len(values) - 1) * float(np.std(values, ddof=1)) / len(values) ** 0.5
        )
        low, high = round(mean - half, 4), round(mean + half, 4)
    return {"mean": round(mean, 4), "ci95": [low, high], "by_seed": [round(v, 4) for v in values]}


def show(figure: dict[str, Any]) -> str:
    """Write a figure with its interval."""
    low, high = figure["ci95"]
    return f"{figure['mean']:.2f}" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    main()
