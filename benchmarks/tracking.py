"""How much longer does a run take whose tracker's server does not answer?

    python benchmarks/tracking.py --out docs/results/tracking.json

Needs the extra mlflow. Trains the same small run on the deterministic engine so many times with and
without a tracker, in turns that change their order, whose server takes connections and never
answers. Each is a `nip train` of its own. The engine waits before each answer and each job, as a
model would take its time, so that a run's length depends little on what else the machine does.
Where that does much, --at-once runs both of a pair at the same time, so that it hits both. Ends
with status 1 if the median of the pairs is longer by more than 2 %.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from measured_commit import describe_commit

from nip_lm_server.engines.scripted.reply_rules import DEFAULT_FILE

MOST = 1.02
SETTINGS = {
    "dataset": "families",
    "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "deterministic"}},
    "rl": {"num_iterations": 4, "rollouts_per_iteration": 60},
    "dataset_options": {"max_test_size": 30},
    "fine_tuning": {"poll_interval_s": 0.1},
    "rollouts": {"concurrency": 64},
}
WAITS: dict[str, Any] = {"latency_s": {"min": 1.5}, "training": {"seconds": 10.0}}


def silent_server() -> str:
    """The address of a server that takes connections and says nothing, for as long as this runs."""
    listening = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def accept() -> None:
        while True:
            taken.append(listening.accept()[0])

    threading.Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def train_s(place: Path, name: str, tracking: list[Any], changes: list[str]) -> float:
    """Seconds of a `nip train` from its start to its end."""
    config, replies = place / f"{name}.yaml", place / "replies.yaml"
    replies.write_text(yaml.safe_dump({**yaml.safe_load(DEFAULT_FILE.read_text()), **WAITS}))
    named = {
        "run_name": name,
        "run_store": str(place),
        "tracking": tracking,
        "lm_server": {"engine": "deterministic", "replies": str(replies)},
    }
    config.write_text(yaml.safe_dump({**SETTINGS, **named}))
    command = [sys.executable, "-m", "nip_cli.cli", "train", str(config)]
    command += [argument for change in changes for argument in ("--set", change)]
    started = time.monotonic()
    with (place / f"{name}.log").open("wb") as log:
        done = subprocess.run(
            command, cwd=place, env={**os.environ, "DO_NOT_TRACK": "1"}, stdout=log, stderr=log
        )
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}, see {place}/{name}.log")
    return time.monotonic() - started


def measure(place: Path, pairs: int, changes: list[str], at_once: bool) -> dict[str, Any]:
    """The times of all, and the ratio of each pair."""
    kinds = {"without": [], "silent": [{"kind": "mlflow", "uri": silent_server()}]}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for pair in range(pairs):
        with ThreadPoolExecutor(2 if at_once else 1) as pool:
            runs = {
                kind: pool.submit(train_s, place, f"{kind}-{pair}", kinds[kind], changes)
                for kind in sorted(kinds, reverse=pair % 2 == 1)
            }
        for kind, run in runs.items():
            times[kind].append(run.result())
            print(kind, round(times[kind][-1], 1), file=sys.stderr, flush=True)
    ratios = [b / a for a, b in zip(times["without"], times["silent"], strict=True)]
    return {
        "changes": changes,
        "waits": WAITS,
        "at_once": at_once,
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "times_s": {kind: [round(s, 2) for s in of] for kind, of in times.items()},
        "ratios": [round(ratio, 4) for ratio in ratios],
        "median_ratio": round(statistics.median(ratios), 4),
        "commit": describe_commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}",
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Runs with a silent tracker, and without one.")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="A.B=C")
    parser.add_argument("--at-once", action="store_true", help="both of a pair at the same time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        results = measure(Path(place), options.pairs, options.changes, options.at_once)
    text = json.dumps(results, indent=2) + "\n"
    if options.out:
        options.out.write_text(text)
    print(text)
    if results["median_ratio"] > MOST:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
