"""What P(accept) costs: processor seconds of games with it and without, both at once.

    python benchmarks/p_accept_cost.py [--games 500] [--rounds 15] [--out FILE]

`nip play` on arithmetic-tiny plays so many test games by two commands at the same time, one with
`rollouts.record_p_accept` at its default and one with false, so that other work on the machine
falls on both; which starts first changes. Counted are the processor seconds of each command and all
that it starts, the model server too, with one thread of torch: a second one waits in a loop, which
counts and is no work. The start, which is the same in both, is measured by runs of few games and
taken off. A ratio is of one round, its interval of Student's t over the rounds.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measured_commit import describe_commit, describe_machine

from nip_core.evaluation.statistics.distributions import t_quantile

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "deployments" / "configs" / "arithmetic-tiny.yaml"
FEW = 4
WAYS = {"with": "null", "without": "false"}


def play(games: int, first: str) -> dict[str, float]:
    """Play games both ways at once; return the processor seconds of each command's processes."""
    ways = sorted(WAYS, key=lambda way: way != first)
    with tempfile.TemporaryDirectory() as folder:
        working = {way: start(games, WAYS[way], f"{folder}/{way}") for way in ways}
        seconds = {}
        for way, process in working.items():
            _, status, used = os.wait4(process.pid, 0)  # with all that the command waited for
            if status:
                raise SystemExit(f"nip play ended with status {status}")
            seconds[way] = used.ru_utime + used.ru_stime
        return seconds


def start(games: int, record: str, folder: str) -> "subprocess.Popen[bytes]":
    """Start the command."""
    settings = {
        "rollouts.record_p_accept": record,
        "dataset_options.max_test_size": games,
        "scenario_settings.test_size": games,
        "run_store": f"{folder}/runs",
    }
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "nip_cli", "play", str(CONFIG), "--split", "test"]
    return subprocess.Popen(
        [*command, "--out", f"{folder}/games", *given],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def main() -> None:
    """Measure, and print or write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--games", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    starts = [play(FEW, "with") for _ in range(3)]
    start_s = statistics.median(value for seconds in starts for value in seconds.values())
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way, spent_s in play(options.games, [*WAYS][number % 2]).items():
            seconds[way].append(spent_s - start_s)
        print(number + 1, {way: round(done[-1], 2) for way, done in seconds.items()}, flush=True)
    ratios = [with_s / without_s for with_s, without_s in zip(*seconds.values(), strict=True)]
    mean, spread = statistics.mean(ratios), statistics.stdev(ratios)
    margin = t_quantile(0.975, len(ratios) - 1) * spread / len(ratios) ** 0.5
    document = {
        "command": shlex.join(["python", "benchmarks/p_accept_cost.py", *sys.argv[1:]]),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "load": [load, os.getloadavg()[0]],
        "games": options.games,
        "start_s": start_s,
        "seconds": seconds,
        "ratio": {
            "median": statistics.median(ratios),
            "mean": mean,
            "ci95": [mean - margin, mean + margin],
        },
    }
    text = json.dumps(document, indent=1) + "\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
