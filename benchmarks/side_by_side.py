"""nip and its peers, each part in one run, on the same stub, games, weights and machine.

    scripts/build_peers.sh
    python benchmarks/side_by_side.py [--only a b ...] [--model tiny smollm2] [--rounds 3]
        [--small] [--out docs/results/side_by_side.json]

    a   generated tokens per second at 1, 8, 64 requests in flight, 0, 1, 3 adapters mixed
    b   tokens per second of LoRA training, a job of ours and plain TRL
    c   from trained weights on the disk to the first answer with them
    d   schedule: games of nine turns on a stub that answers after 500 ms; ideal by real time
    e   the price of a kill: calls made again, time to the next new answer
    f   wrong weights under the right name: who notices before answering

Parts a, b, c and f are measured on each model that is named: a bundled one, a known one that `nip
models add` has laid down, or a directory. By default those are the bundled tiny model, and smollm2
where it is there.

Peers run in environments of their own, as their documentation says, over HTTP. They take turns in
rounds, in another order in each, so that what else the machine does falls on all; what is compared
are ratios, with intervals by the bootstrap over rounds. A peer that cannot run is a row with its
reason. Each part is written to the JSON file with its versions, its commit and the machine's load
before and after; parts that are not chosen stay as they are there. The Markdown page beside it is
made from all of them. What was measured on another model than the tiny one stands under `models`.
"""

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from beside import kills, load, schedule, swap, training, weights
from beside.models import Model, find_model
from beside.page import page
from beside.players import PLAYERS, commit

SHARES = {"user": (0, 2), "low_priority": (1,), "idle": (3, 4)}
"""Of the machine's CPU time, by columns of /proc/stat: user and system, nice, idle and waiting."""

DEFAULT, PUBLISHED = "tiny", "smollm2"
"""The models of a run that names none; the second where it was added."""

Part = Callable[[argparse.Namespace, Model], dict[str, Any]]


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def cpu_time() -> list[int]:
    """Count what the machine's cores have done since it started, in ticks; empty but on Linux."""
    path = Path("/proc/stat")
    return [int(n) for n in path.read_text().split("\n")[0].split()[1:]] if path.exists() else []


def shares(before: list[int], after: list[int]) -> dict[str, float]:
    """Say what the cores did in between; programs of low priority are others', beside the run."""
    ticks = [b - a for a, b in zip(before, after, strict=True)]
    return {
        name: round(sum(ticks[column] for column in columns) / sum(ticks), 3)
        for name, columns in SHARES.items()
        if sum(ticks)
    }


def part_a(options: argparse.Namespace, model: Model) -> dict[str, Any]:
    """Measure serving."""
    size = load.Size.of(model)
    if options.small:
        size = replace(size, in_flight=(8,), adapters=(0, 2), tokens=8, words=10, run_s=1)
    return load.measure(model, options.rounds, size, say)


def part_b(options: argparse.Namespace, model: Model) -> dict[str, Any]:
    """Measure training."""
    size = training.Size.of(model)
    if options.small:
        size = replace(size, examples=max(16, size.examples // 8))
    return training.measure(model, options.rounds, size, say)


def part_c(options: argparse.Namespace, model: Model) -> dict[str, Any]:
    """Measure swaps."""
    return swap.measure(model, options.rounds, say)


def part_d(options: argparse.Namespace, _: Model) -> dict[str, Any]:
    """Measure the schedule; of each project one, as what it keeps changes little about it."""
    size = schedule.Size()
    if options.small:
        size = replace(size, games=64, in_flight=(16, 64), latency_s=0.2)
    by_folder = {getattr(player, "folder", player.name): player for player in reversed(PLAYERS)}
    players = [player for player in PLAYERS if player in by_folder.values()]
    return schedule.measure(players, options.rounds, size, say)


def part_e(options: argparse.Namespace, _: Model) -> dict[str, Any]:
    """Measure kills."""
    size = kills.Size()
    if options.small:
        size = replace(size, games=24, in_flight=8)
    return kills.measure(PLAYERS, options.rounds, size, say)


def part_f(options: argparse.Namespace, model: Model) -> dict[str, Any]:
    """Serve wrong weights; once, as nothing of it is a time."""
    return weights.measure(model, say)


PARTS: dict[str, Part] = {
    "a": part_a,
    "b": part_b,
    "c": part_c,
    "d": part_d,
    "e": part_e,
    "f": part_f,
}
ON_MODELS = "abcf"
"""The parts in which a model is served or trained; the others play on a stub."""


def models_of(options: argparse.Namespace) -> list[Model]:
    """The models that were named, or those of a run that names none. Raises ValueError."""
    if options.model:
        return [find_model(name) for name in options.model]
    models = [find_model(DEFAULT)]
    try:
        models.append(find_model(PUBLISHED))
    except ValueError as error:
        say(f"without a second model: {error}")
    return models


def measure(name: str, options: argparse.Namespace, model: Model) -> dict[str, Any]:
    """One part on one model, with what is needed to judge it."""
    load, began, ticks = os.getloadavg()[0], time.monotonic(), cpu_time()
    measured = PARTS[name](options, model)
    return {
        "command": shlex.join(["python", "benchmarks/side_by_side.py", *sys.argv[1:]]),
        "commit": commit(),
        **({"model": model.name} if name in ON_MODELS else {}),
        "took_s": round(time.monotonic() - began, 1),
        "rounds": options.rounds,
        "small": options.small,
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load_before": round(load, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "cpu": shares(ticks, cpu_time()),
        },
        **measured,
    }


def main() -> None:
    """Measure the chosen parts, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--model", nargs="+", help="names or directories (default: see above)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="small sizes, to see that all works")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    result: dict[str, Any] = {}
    if options.out and options.out.exists():
        result = json.loads(options.out.read_text())
    try:
        models = models_of(options)
    except ValueError as error:
        parser.error(str(error))
    for name in options.only:
        for model in models if name in ON_MODELS else [find_model(DEFAULT)]:
            measured = measure(name, options, model)
            print(json.dumps({name: measured}, indent=1), flush=True)
            if model.name == DEFAULT:
                result[name] = measured
            else:
                result.setdefault("models", {}).setdefault(model.name, {})[name] = measured
            if options.out:  # after each part: one that fails costs no other
                result = dict(sorted(result.items()))
                options.out.write_text(json.dumps(result, indent=1) + "\n")
                options.out.with_suffix(".md").write_text(page(result))


if __name__ == "__main__":
    main()
