"""Is one and the same attack by training, played twice at the same time, the same attack?

    python benchmarks/attack_twice.py [--store runs] [--steps 20] [--every 5] [--out FILE]
        RUN [-- --set rl.lr=0.001 ...]

Copies the run into stores of their own and attacks its verifier in each with `nip attack --by
sneaky`, with the same seed and settings, twice at once: with the engine `embedded` in float32, as
by default on a CPU, and then in float64. What comes after `--` goes to both.

Compared are the canonical digests of all rollouts and datasets, and soundness in each test.
"""

import argparse
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from killed_commands import list_differing, list_digests, start
from measured_commit import ROOT, describe_commit, describe_machine

NAME = "twice"
DTYPES = ("float32", "float64")


def read_soundness(store: Path) -> dict[str, float]:
    """Return soundness in each test of the attack, by iteration."""
    tests = sorted((store / NAME / "iterations").glob("*/metrics-test.json"))
    return {test.parent.name: json.loads(test.read_text())["soundness"] for test in tests}


def play(run: str, source: Path, place: Path, dtype: str, way: list[str]) -> dict[str, Any]:
    """Play the attack twice at once, and compare. Raises SystemExit if one fails."""
    stores = [place / f"{dtype}-{number}" for number in (1, 2)]
    processes = []
    for store in stores:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(source / run, store / run)
        command = ["attack", run, "--run-store", str(store), "--name", NAME, "--by", "sneaky"]
        command += [*way, "--set", f"lm_server.options.dtype={dtype}"]
        processes.append(start(command, store.parent / f"{store.name}.log"))
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"exit codes {codes}, see the logs in {place}")
    one, other = (list_digests(store, [NAME]) for store in stores)
    differing = list_differing(one, other)
    return {
        "dtype": dtype,
        "digests": len(one.keys() | other.keys()),
        "differing": len(differing),
        "first_differing": differing[0] if differing else None,
        "soundness": [read_soundness(store) for store in stores],
    }


def main() -> int:
    """Play, compare, print, and write what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, default=ROOT / "runs")
    parser.add_argument("--place", type=Path, default=ROOT / "runs" / "attack_twice")
    parser.add_argument("--steps", default="20")
    parser.add_argument("--every", default="5")
    parser.add_argument("--out", type=Path)
    parser.add_argument("run")
    parser.add_argument("way", nargs="*")
    options = parser.parse_args()
    options.place.mkdir(parents=True, exist_ok=True)
    way = ["--steps", options.steps, "--every", options.every, *options.way]
    pairs = []
    for dtype in DTYPES:
        place = options.place.resolve()
        pairs.append(play(options.run, options.store.resolve(), place, dtype, way))
        print(json.dumps(pairs[-1]), flush=True)
    if options.out:
        record = {
            "command": shlex.join(["python", *sys.argv]),
            "commit": describe_commit(),
            "machine": describe_machine(),
            "pairs": pairs,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(bool(pairs[-1]["differing"]))


if __name__ == "__main__":
    raise SystemExit(main())
