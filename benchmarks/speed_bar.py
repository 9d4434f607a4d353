"""What a busy machine can hold: processor seconds and memory of each kind of work, now and before.

    python benchmarks/speed_bar.py [--before HEAD~1] [--only play call] [--rounds N]
        [--out docs/results/speed_bar.json] [--check]

    generate   processor time per generated and per prompt token, embedded engine, `tiny`
    call       per chat completion through `nip serve`, scripted engine, client included
    play       per episode of debate whose models answer at once
    train      per trained token of a LoRA job, and until its first step
    tinker     per step of Tinker's API, eight texts of 64 tokens
    run        per iteration of `nip train`, until its first one, `nip ls`, `nip --help`

Beside these stands memory: of a server, a trainer and `nip train` the most that one process had,
of calls and episodes the most that was allocated at once, by what Python traces in a round of its
own. Retained or doubled data is seen by it, objects that are made and dropped are seen in the
processor time alone.

The code of this working tree and that of the commit before have a process each for a piece, with
the packages of this environment; both do each round at the same time, so that other work on the
machine falls on both. A figure is worse if in three of four rounds it is more than 5 % above that
of the tree before, or in all rounds more than 30 % above the published ones, if those are of such a
machine; then the piece is measured once more by new processes, and all rounds have to say so. With
--check the command ends with 1 where a figure is worse.

Not counted: time that is waited, GPUs.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from measured_commit import describe_commit, describe_machine
from speed_pieces import PIECES

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "docs" / "results" / "speed_bar.json"
MARGIN, PUBLISHED_MARGIN = 1.05, 1.3
"""How much more is worse: beside the tree before, and beside another session on such a machine."""
ROUNDS = {"generate": 3, "call": 4, "play": 5, "train": 2, "tinker": 3, "run": 2}
"""By piece: a round of those with two is a whole job, or a whole run with its servers."""
NOW, BEFORE = "now", "before"
Rounds = dict[str, dict[str, list[float]]]
"""By figure and by NOW or BEFORE, processor seconds per unit of each round, or megabytes."""


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


def start_piece(piece: str, tree: Path) -> "subprocess.Popen[str]":
    """Start a process for a piece with the code of a tree."""
    packages = [str(path.parent) for path in sorted(tree.glob("packages/*/pyproject.toml"))]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tree), *packages]),
        "OMP_NUM_THREADS": "1",
    }
    program = str(ROOT / "benchmarks" / "speed_pieces.py")
    return subprocess.Popen(
        [sys.executable, program, piece],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def measure(
    piece: str, trees: Mapping[str, Path], count: int, rounds: Rounds, errors: dict[str, str]
) -> None:
    """Do a piece with all trees at once, round by round; adds to `rounds`, or to `errors`."""
    with ExitStack() as stack:
        working = {
            name: stack.enter_context(start_piece(piece, tree)) for name, tree in trees.items()
        }
        for number in range(count):
            say(f"{piece}, round {number + 1} of {count}")
            for process in working.values():
                process.stdin.write("\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
            for name, process in [*working.items()]:
                line = process.stdout.readline()  # type: ignore[union-attr]
                figures = json.loads(line) if line else {"error": process.communicate()[1][-500:]}
                if "error" in figures:
                    errors[f"{piece}, {name}"] = str(figures["error"])
                    return
                for figure, (amount, units) in figures.items():
                    rounds.setdefault(figure, {}).setdefault(name, []).append(amount / units)


def compare(by_tree: Mapping[str, Sequence[float]]) -> float | None:
    """The ratio to the tree before that three of four rounds reach; None without both."""
    pairs = zip(by_tree.get(NOW, ()), by_tree.get(BEFORE, ()), strict=False)
    ratios = sorted(now / before for now, before in pairs)
    return ratios[len(ratios) // 4] if ratios else None


def is_worse(by_tree: Mapping[str, Sequence[float]], published: Sequence[float] = ()) -> bool:
    """Tell whether a figure is above that of the tree before, or above every published round."""
    ratio, now = compare(by_tree), by_tree.get(NOW, ())
    if now and published and min(now) > PUBLISHED_MARGIN * max(published):
        return True
    return ratio is not None and ratio > MARGIN


def read_published(machine: str) -> dict[str, list[float]]:
    """Read the published rounds of each figure, if they are of such a machine."""
    if not PUBLISHED.exists():
        return {}
    document = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    rows = document["figures"] if document["machine"] == machine else {}
    return {
        figure: [v / scale(figure) for v in row.get("rounds", {}).get(NOW, ())]
        for figure, row in rows.items()
    }


def scale(figure: str) -> float:
    """Turn seconds into milliseconds; megabytes stay."""
    return 1 if figure.endswith("MB") else 1000


def describe(rounds: Rounds, published: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Make the row of each figure."""
    rows: dict[str, dict[str, Any]] = {}
    for figure, by_tree in rounds.items():
        medians = {name: statistics.median(values) for name, values in by_tree.items()}
        earlier, factor = published.get(figure, ()), scale(figure)
        row: dict[str, Any] = {
            "median": factor * medians[NOW] if NOW in medians else None,
            "rounds": {name: [factor * v for v in values] for name, values in by_tree.items()},
            "is_worse": is_worse(by_tree, earlier),
        }
        if len(medians) == 2:
            row["ratio_to_before"] = medians[NOW] / medians[BEFORE]
        if earlier and NOW in medians:
            row["ratio_to_published"] = medians[NOW] / statistics.median(earlier)
        if (ratio := compare(by_tree)) is not None:
            row["seen_from"] = MARGIN / ratio
        rows[figure] = row
    return rows


def show(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the rows. "seen from": times as much as now would be worse in these rounds."""
    heads = f"{'now':>10}{'/ before':>10}{'/ published':>13}{'seen from':>11}"
    print(f"{'milliseconds of a processor':<28}{heads}")
    for figure, row in rows.items():
        names = ("ratio_to_before", "ratio_to_published", "seen_from")
        ratios = [f"{row[name]:.3f}" if row.get(name) else "-" for name in names]
        now = f"{row['median']:,.3f}" if row["median"] else "-"
        mark = "   WORSE" if row["is_worse"] else ""
        print(f"{figure:<28}{now:>10}{ratios[0]:>10}{ratios[1]:>13}{ratios[2]:>11}{mark}")


def main() -> None:
    """Measure, compare, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--before", default="HEAD~1", help="a commit, or none")
    parser.add_argument("--only", nargs="+", choices=[*PIECES], default=[*PIECES])
    parser.add_argument("--rounds", type=int, help="of each piece; default: by piece")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true", help="end with 1 where one is worse")
    options = parser.parse_args()
    load, began_s = [os.getloadavg()[0]], time.monotonic()
    machine = describe_machine()
    published = read_published(machine)
    rounds, errors = Rounds(), dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        trees = {NOW: ROOT}
        if options.before != "none":
            trees[BEFORE] = lay_out(options.before, Path(folder) / BEFORE)
        for piece in options.only:
            fresh, count = Rounds(), options.rounds or ROUNDS[piece]
            measure(piece, trees, count, fresh, errors)
            if any(is_worse(by_tree, published.get(name, ())) for name, by_tree in fresh.items()):
                measure(piece, trees, count, fresh, errors)
            rounds |= fresh
    rows = describe(rounds, published)
    show(rows)
    for name, error in errors.items():
        print(f"{name}: {error}")
    if options.out is not None:
        before = options.before
        if before != "none":
            command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", before]
            before = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        document = {
            "command": shlex.join(["python", "benchmarks/speed_bar.py", *sys.argv[1:]]),
            "commit": describe_commit(),
            "before": before.strip(),
            "machine": machine,
            "load": [*load, os.getloadavg()[0]],
            "took_s": round(time.monotonic() - began_s, 1),
            "figures": rows,
            "errors": errors,
        }
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    worse = [figure for figure, row in rows.items() if row["is_worse"]]
    if options.check and (worse or any(name.endswith(NOW) for name in errors)):
        raise SystemExit(f"worse than at {options.before}, or failed: {worse} {[*errors]}")


if __name__ == "__main__":
    main()
