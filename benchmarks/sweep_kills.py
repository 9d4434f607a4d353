"""Does a sweep that is killed again and again make the data of one that is not?

    python benchmarks/sweep_kills.py --out docs/results/sweep_kills.json

Runs a sweep whole, and once more in another store, where it is killed with SIGKILL so many times:
at random moments, in turn the sweep alone and with all processes of its runs. Compares every
canonical digest of every manifest, and says how long the whole one took. Ends with status 1 if any
differs.
"""

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from measured_commit import describe_commit

from nip_core.sweep.swept_runs import Sweep, read_sweep

ROOT = Path(__file__).parent.parent
SWEEP = ROOT / "deployments" / "sweeps" / "deterministic.yaml"


def start(file: Path, store: Path, jobs: int) -> subprocess.Popen[bytes]:
    """`nip sweep` on the file."""
    command = [sys.executable, "-m", "nip_prefect.flows.cli", "sweep", str(file)]
    command += ["--jobs", str(jobs), "--set", f"run_store={store}"]
    environment = {**os.environ, "DO_NOT_TRACK": "1"}
    with (store.parent / f"{store.name}.log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)


def digests(sweep: Sweep, store: Path) -> dict[str, str]:
    """Canonical digests of rollouts and datasets, by their manifest's place."""
    iterations = (store / run.name / "iterations" for run in sweep.runs)
    manifests = (path for place in iterations for path in place.rglob("manifest.json"))
    extras = {path: json.loads(path.read_text())["extra"] for path in sorted(manifests)}
    return {
        str(path.relative_to(store)): str(extra.get("canonical_digest") or extra["digest"])
        for path, extra in extras.items()
    }


def kill(process: subprocess.Popen[bytes], with_runs: bool) -> None:
    """SIGKILL, of the runs' processes first where they are killed as well."""
    runs = psutil.Process(process.pid).children(recursive=True) if with_runs else []
    for child in [process, *runs]:
        try:
            child.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    process.wait()


def killed(file: Path, store: Path, jobs: int, kills: int, within_s: float) -> int:
    """Run the sweep to its end through `kills` kills; how many processes of it were killed."""
    draw, done = random.Random(0), 0
    while True:
        process = start(file, store, jobs)
        try:
            # As much again as it takes to start, so that each start gets something done.
            process.wait(None if done == kills else draw.uniform(0.5, 1.5) * within_s)
        except subprocess.TimeoutExpired:
            kill(process, with_runs=done % 2 == 1)
            done += 1
            continue
        if process.returncode:
            raise SystemExit(f"exit code {process.returncode}, see {store}.log")
        return done


def measure(file: Path, place: Path, jobs: int, kills: int) -> dict[str, Any]:
    """Both sweeps, and what differs."""
    sweep = read_sweep(file)
    started = time.monotonic()
    process = start(file, place / "whole", jobs)
    if process.wait():
        raise SystemExit(f"exit code {process.returncode}, see {place}/whole.log")
    whole_s = time.monotonic() - started
    done = killed(file, place / "killed", jobs, kills, whole_s / (kills + 1))
    whole, again = (digests(sweep, place / name) for name in ("whole", "killed"))
    places = whole.keys() | again.keys()
    differing = sorted(path for path in places if whole.get(path) != again.get(path))
    return {
        "sweep": str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file.name),
        "runs": len(sweep.runs),
        "jobs": jobs,
        "whole_s": round(whole_s, 1),
        "kills": done,
        "digests": len(whole),
        "differing": differing,
        "commit": describe_commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}",
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A sweep, killed and not.")
    parser.add_argument("--sweep", type=Path, default=SWEEP)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        results = measure(options.sweep.resolve(), Path(place), options.jobs, options.kills)
    text = json.dumps(results, indent=2) + "\n"
    if options.out:
        options.out.write_text(text)
    print(text)
    if results["differing"] or not results["digests"] or results["kills"] < options.kills:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
