"""What P(accept) costs: processor seconds of games with it and without, by turns.

    python benchmarks/p_accept_cost.py [--games 2000] [--rounds 6] [--out FILE]

`nip play` on arithmetic-tiny plays so many test games, each time by new processes, with
`rollouts.record_p_accept` at its default and false; which comes first changes from round to round.
Counted are the processor seconds of the command and all that it starts, the model server too, with
one thread of torch: a second one waits in a loop, which counts and is no work. The start, which is
the same in both, is measured by a run of few games and taken off. A ratio is of one round, its
interval of Student's t over the rounds.
"""

import argparse
import json
import os
import resource
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


def play(games: int, record: str) -> float:
    """Play games by the command; return the processor seconds of all its processes."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "rollouts.record_p_accept": record,
            "dataset_options.max_test_size": games,
            "scenario_settings.test_size": games,
            "run_store": f"{folder}/runs",
        }
        given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "nip_cli", "play", str(CONFIG), "--split", "test"]
        began_s = count_cpu_s()
        subprocess.run(
            [*command, "--out", f"{folder}/games", *given],
            check=True,
            capture_output=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return count_cpu_s() - began_s


def count_cpu_s() -> float:
    """Count the processor seconds of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure, and print or write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--games", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    start_s = statistics.median(play(FEW, "null") for _ in range(3))
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in [*WAYS][:: 1 if number % 2 else -1]:
            seconds[way].append(play(options.games, WAYS[way]) - start_s)
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
