"""nip and its peers, all parts at one commit, on the same stub, games, weights and machine.

    scripts/build_peers.sh && scripts/build_vllm_cpu.sh && nip models add smollm2
    python benchmarks/side_by_side.py [--only a b ...] [--model tiny smollm2] [--rounds 2]
        [--small] [--again] [--out docs/results/side_by_side.json]

    a   generated tokens per second at 1, 8, 64 requests in flight, 0, 1, 3 adapters mixed
    b   tokens per second of LoRA training, a job of ours and plain TRL
    c   from trained weights on the disk to the first answer with them
    d   schedule: games of nine turns on a stub that answers after 500 ms; ideal by real time
    e   the price of a kill: calls made again, time to the next new answer; one round
    f   wrong weights under the right name: who notices before answering
    g   a killed run of 10,000 rollouts goes on (resume.py)
    h   training data of 100,000 rollouts, and memory as a run grows (dataset.py, scale.py)
    i   the viewer on 100,000 episodes (view.py)
    j   from a command to its first call, or to its words

Parts a, b, c and f are measured on each model that is named: a bundled one, a known one that `nip
models add` has laid down, or a directory. By default those are the bundled tiny model, and smollm2
where it is there, without f, whose outcomes are no times.

Peers run in environments of their own, as their documentation says, over HTTP. They take turns in
rounds, in another order in each, so that what else the machine does falls on all; what is compared
are ratios, with intervals by the bootstrap over rounds. A peer that cannot run is a row with its
reason. All takes about an hour on two quiet cores. Each part is written to the JSON file with its
versions, its commit and the machine's load before and after, and one that is there, of this very
commit and these sizes, is not measured again unless --again says so: a run that was stopped goes
on. Changed files have no commit that says what was measured, so then all parts are measured. The
Markdown page beside it is made from all of them, and says so where they are of several commits.
What was measured on another model than the tiny one stands under `models`.
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

from beside import alone, kills, load, schedule, starts, swap, training, weights
from beside.models import Model, find_model
from beside.page import list_parts, page
from beside.players import PLAYERS, InspectCheckpointed, Player, commit

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
        size = replace(size, cells=((0, 8), (2, 8)))
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


def one_of_each() -> list[Player]:
    """Players, of each project the first one."""
    by_folder = {getattr(player, "folder", player.name): player for player in reversed(PLAYERS)}
    return [player for player in PLAYERS if player in by_folder.values()]


def part_d(options: argparse.Namespace, _: Model) -> dict[str, Any]:
    """Measure the schedule; of each project one, as what it keeps changes little about it."""
    size = schedule.Size()
    if options.small:
        size = replace(size, games=64, few=32, in_flight=(16, 64), latency_s=0.2)
    return schedule.measure(one_of_each(), options.rounds, size, say)


def part_e(options: argparse.Namespace, _: Model) -> dict[str, Any]:
    """Measure kills, once, late in a run; without checkpoints of inspect, which take minutes."""
    size = kills.Size(shares=(0.95,))
    if options.small:
        size = replace(size, games=24, in_flight=8)
    players = [player for player in PLAYERS if not isinstance(player, InspectCheckpointed)]
    return {"rounds": 1, **kills.measure(players, 1, size, say)}


def part_f(options: argparse.Namespace, model: Model) -> dict[str, Any]:
    """Serve wrong weights; once, as nothing of it is a time."""
    return weights.measure(model, say)


def part_g(options: argparse.Namespace, _: Model) -> dict[str, Any]:
    """Measure how a run goes on; once, as h and i are."""
    return {"rounds": 1, **alone.resume(500 if options.small else 10_000, say)}


def part_h(options: argparse.Namespace, _: Model) -> dict[str, Any]:
    """Measure training data and growth."""
    sizes = (1000, 2000) if options.small else (10_000, 100_000)
    return {"rounds": 1, **alone.growth(sizes, 1000 if options.small else 100_000, say)}


def part_i(options: argparse.Namespace, _: Model) -> dict[str, Any]:
    """Measure the viewer."""
    return {"rounds": 1, **alone.viewer(5000 if options.small else 100_000, say)}


def part_j(options: argparse.Namespace, _: Model) -> dict[str, Any]:
    """Measure starts."""
    return starts.measure(one_of_each(), options.rounds, say)


PARTS: dict[str, Part] = {
    "a": part_a,
    "b": part_b,
    "c": part_c,
    "d": part_d,
    "e": part_e,
    "f": part_f,
    "g": part_g,
    "h": part_h,
    "i": part_i,
    "j": part_j,
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


def parts_of(options: argparse.Namespace, models: list[Model]) -> list[tuple[str, Model]]:
    """List what is measured, in which order."""
    tiny = find_model(DEFAULT)
    chosen = []
    for name in options.only:
        for model in models if name in ON_MODELS else [tiny]:
            if name != "f" or options.model or model.name == DEFAULT:
                chosen.append((name, model))
    return chosen


def drop_others(result: dict[str, Any], chosen: list[tuple[str, Model]]) -> None:
    """Forget parts that a whole run does not measure, which an older one did."""
    names = {(name, model.name) for name, model in chosen}
    for model, parts in [(DEFAULT, result), *result.get("models", {}).items()]:
        for name in PARTS:
            if (name, model) not in names:
                parts.pop(name, None)
    result["models"] = {model: parts for model, parts in result.get("models", {}).items() if parts}


def is_done(part: dict[str, Any] | None, options: argparse.Namespace) -> bool:
    """Say whether a part is there that would be measured in the same way at the same commit."""
    at = commit()
    return (
        part is not None
        and not options.again
        and not at.endswith("-dirty")
        and (part["commit"], part["small"], part.get("asked_rounds"))
        == (at, options.small, options.rounds)
    )


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
        "asked_rounds": options.rounds,
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
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="small sizes, to see that all works")
    parser.add_argument("--again", action="store_true", help="measure what is there, too")
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
    failed: list[str] = []
    chosen = parts_of(options, models)
    if options.only == [*PARTS] and not options.model:
        drop_others(result, chosen)
    for name, model in chosen:
        parts = result
        if model.name != DEFAULT:
            parts = result.setdefault("models", {}).setdefault(model.name, {})
        if is_done(parts.get(name), options):
            say(f"{name} {model.name}: it is there, of this commit; --again measures it again")
            continue
        began = time.strftime("%H:%M:%S")
        try:
            measured = measure(name, options, model)
        except Exception as error:  # the other parts are worth their time all the same
            failed.append(f"{name} {model.name}: {type(error).__name__}: {error}")
            say(failed[-1])
            continue
        turns = {key: it for key, it in parts.get(name, {}).items() if key.startswith("by_turns")}
        parts[name] = measured = measured | turns  # swap_by_turns.py has measured those
        say(f"{name} {model.name}: from {began}, {measured['took_s']} s")
        print(json.dumps({name: measured}, indent=1), flush=True)
        if options.out:  # after each part: one that fails costs no other
            result["commits"] = sorted({part["commit"] for part in list_parts(result)})
            result = dict(sorted(result.items()))
            options.out.write_text(json.dumps(result, indent=1) + "\n")
            options.out.with_suffix(".md").write_text(page(result))
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
