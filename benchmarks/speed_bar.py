"""Speed that a busy machine can hold: processor seconds of each kind of work, now and before.

    python benchmarks/speed_bar.py [--before HEAD~1] [--only play call] [--rounds 3]
        [--out docs/results/speed_bar.json] [--check]

    generate   processor seconds per generated and per prompt token, embedded engine, `tiny`
    call       per chat completion through `nip serve`, scripted engine, client included
    play       per episode of debate whose models answer at once
    train      per trained token of a LoRA job, and of its start
    tinker     per step of Tinker's API, eight texts of 64 tokens
    run        per iteration of `nip train` with its task runs, of its start, `nip ls`, `nip --help`

The code of this working tree and that of the commit before take turns, in processes of their own,
with the packages of this environment. Processor seconds are counted, as other work on the machine
hardly changes them; where it does, it changes both. A figure is slower if the least of its rounds
now is more than 5 % above the most of its rounds before; then it is measured as often again, and
has to be so in all. Beside it stands the ratio to the published file, if that is of such a machine.
With --check the command ends with 1 where a figure is slower than before.

Not counted: time that is waited, memory, GPUs.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from measured_commit import describe_commit, describe_machine
from speed_pieces import PIECES

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "docs" / "results" / "speed_bar.json"
MARGIN = 1.05
LONGEST_S = 1200.0
"""Of a piece: some seconds alone, minutes on a crowded machine."""
NOW, BEFORE = "now", "before"
Rounds = dict[str, dict[str, list[float]]]
"""By figure and by NOW or BEFORE, processor seconds per unit of each round."""


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def lay_out(revision: str, place: Path) -> Path:
    """Put the tree of a commit into a folder."""
    place.mkdir()
    archive = subprocess.Popen(
        ["git", "-C", str(ROOT), "archive", revision], stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "x", "-C", str(place)], stdin=archive.stdout, check=True)
    if archive.wait():
        raise SystemExit(f"speed_bar: there is no commit {revision}")
    return place


def do_piece(piece: str, tree: Path) -> Mapping[str, Any]:
    """Do a piece with the code of a tree; returns its figures, or its error."""
    packages = [str(path.parent) for path in sorted(tree.glob("packages/*/pyproject.toml"))]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tree), *packages]),
        "OMP_NUM_THREADS": "1",
    }
    program = str(ROOT / "benchmarks" / "speed_pieces.py")
    command = [sys.executable, program, piece]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LONGEST_S
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done within {LONGEST_S:g} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": (done.stderr or done.stdout)[-500:]}
    figures: Mapping[str, Any] = json.loads(lines[-1])[piece]
    return figures


def measure(
    piece: str, trees: Mapping[str, Path], count: int, rounds: Rounds, errors: dict[str, str]
) -> None:
    """Do a piece by turns with each tree; adds to `rounds`, or to `errors`."""
    for number in range(count):
        for name in random.sample(sorted(trees), len(trees)):
            say(f"{piece}, round {number + 1} of {count}: {name}")
            figures = do_piece(piece, trees[name])
            if "error" in figures:
                errors[f"{piece}, {name}"] = str(figures["error"])
                continue
            for figure, (seconds, units) in figures.items():
                rounds.setdefault(figure, {}).setdefault(name, []).append(seconds / units)


def is_slower(by_tree: Mapping[str, Sequence[float]]) -> bool:
    """Tell whether every round now is above every round before, by more than the margin."""
    now, before = by_tree.get(NOW, ()), by_tree.get(BEFORE, ())
    return bool(now and before) and min(now) > MARGIN * max(before)


def describe(rounds: Rounds, machine: str) -> dict[str, dict[str, Any]]:
    """Make the row of each figure."""
    published: dict[str, Any] = {}
    if PUBLISHED.exists():
        document = json.loads(PUBLISHED.read_text(encoding="utf-8"))
        published = document["figures"] if document["machine"] == machine else {}
    rows: dict[str, dict[str, Any]] = {}
    for figure, by_tree in rounds.items():
        medians = {name: statistics.median(values) for name, values in by_tree.items()}
        row: dict[str, Any] = {
            "processor_ms": 1000 * medians[NOW] if NOW in medians else None,
            "rounds_ms": {n: [1000 * v for v in values] for n, values in by_tree.items()},
            "is_slower": is_slower(by_tree),
        }
        if len(medians) == 2:
            row["ratio_to_before"] = medians[NOW] / medians[BEFORE]
        earlier = published.get(figure, {}).get("processor_ms")
        if earlier and row["processor_ms"]:
            row["ratio_to_published"] = row["processor_ms"] / earlier
        rows[figure] = row
    return rows


def show(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the rows."""
    print(f"{'processor milliseconds per':<28}{'now':>10}{'/ before':>10}{'/ published':>13}")
    for figure, row in rows.items():
        cells = [row.get(name) for name in ("ratio_to_before", "ratio_to_published")]
        ratios = [f"{cell:.3f}" if cell else "-" for cell in cells]
        now = f"{row['processor_ms']:,.3f}" if row["processor_ms"] else "-"
        mark = "   SLOWER" if row["is_slower"] else ""
        print(f"{figure:<28}{now:>10}{ratios[0]:>10}{ratios[1]:>13}{mark}")


def main() -> None:
    """Measure, compare, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--before", default="HEAD~1", help="a commit, or none")
    parser.add_argument("--only", nargs="+", choices=[*PIECES], default=[*PIECES])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true", help="end with 1 where one is slower")
    options = parser.parse_args()
    load = [os.getloadavg()[0]]
    rounds, errors = Rounds(), dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        trees = {NOW: ROOT}
        if options.before != "none":
            trees[BEFORE] = lay_out(options.before, Path(folder) / BEFORE)
        for piece in options.only:
            fresh = Rounds()
            measure(piece, trees, options.rounds, fresh, errors)
            if any(map(is_slower, fresh.values())):
                measure(piece, trees, options.rounds, fresh, errors)
            rounds |= fresh
    machine = describe_machine()
    rows = describe(rounds, machine)
    show(rows)
    for name, error in errors.items():
        print(f"{name}: {error}")
    if options.out is not None:
        before = options.before
        if before != "none":
            command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", before]
            before = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        document = {
            "command": f"python benchmarks/speed_bar.py --rounds {options.rounds}",
            "commit": describe_commit(),
            "before": before.strip(),
            "machine": machine,
            "load": [*load, os.getloadavg()[0]],
            "figures": rows,
            "errors": errors,
        }
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    slower = [figure for figure, row in rows.items() if row["is_slower"]]
    if options.check and (slower or any(name.endswith(NOW) for name in errors)):
        raise SystemExit(f"slower than at {options.before}, or failed: {slower} {[*errors]}")


if __name__ == "__main__":
    main()
