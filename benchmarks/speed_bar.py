"""What a busy machine can hold: processor seconds and memory of each kind of work, now and before.

    python benchmarks/speed_bar.py [--before HEAD~1] [--only play call] [--rounds N]
        [--out docs/results/speed_bar.json] [--check] [--allow-before]

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
machine falls on both. A figure is worse if in three of four rounds, of fewer in all, it is more
than 5 % above that of the tree before, or in all rounds more than 30 % above the published ones, if
those are of such a machine; then the piece is measured once more by new processes, and is worse if
the second measurement says so by itself, too. The command ends with 1 where a piece fails, and with
--check where a figure is worse; with --allow-before a piece of the tree before may fail.

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
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

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


def compile_tree(tree: Path) -> None:
    """Compile a tree's modules: else the tree that was never imported from pays it at its start."""
    packages = [tree / name for name in ("nip_core", "nip_cli", "nip_prefect", "flows", "tasks")]
    packages += sorted(tree.glob("packages/*/nip_*"))
    command = [sys.executable, "-m", "compileall", "-q", *map(str, filter(Path.exists, packages))]
    subprocess.run(command, check=True)


def start_piece(piece: str, tree: Path, log: IO[str]) -> "subprocess.Popen[str]":
    """Start a process for a piece with the code of a tree; what it says goes into a file.

    A pipe that nobody reads would be full at some point, and the process would wait for ever.
    """
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
        stderr=log,
        text=True,
    )


def read_round(process: "subprocess.Popen[str]", log: IO[str]) -> dict[str, float]:
    """Read the figures of a round, per unit. Raises ValueError: it failed, or counted nothing."""
    line = process.stdout.readline()  # type: ignore[union-attr]
    if not line:
        process.communicate()
        log.seek(0)
        raise ValueError(log.read()[-500:] or f"it ended with {process.returncode}")
    figures = json.loads(line)
    if "error" in figures:
        raise ValueError(str(figures["error"]))
    for figure, (amount, units) in figures.items():
        if amount <= 0 or units <= 0:
            raise ValueError(f"{figure}: {amount} for {units} units is no measurement")
    return {figure: amount / units for figure, (amount, units) in figures.items()}


def measure(piece: str, trees: Mapping[str, Path], count: int, errors: dict[str, str]) -> Rounds:
    """Do a piece with all trees at once, round by round. Adds what fails to `errors`.

    If the tree before fails, the other one goes on: it is compared with the published figures.
    """
    rounds = Rounds()
    with ExitStack() as stack:
        working = {}
        for name, tree in trees.items():
            log = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            working[name] = stack.enter_context(start_piece(piece, tree, log)), log
        for number in range(count):
            say(f"{piece}, round {number + 1} of {count}")
            for process, _ in working.values():
                with suppress(BrokenPipeError):  # it has ended: its answer says so
                    os.write(process.stdin.fileno(), b"\n")  # type: ignore[union-attr]
            for name, (process, log) in [*working.items()]:
                try:
                    figures = read_round(process, log)
                except ValueError as error:
                    errors[f"{piece}, {name}"] = str(error)
                    del working[name]
                    continue
                for figure, amount in figures.items():
                    rounds.setdefault(figure, {}).setdefault(name, []).append(amount)
            if NOW not in working:
                break
    return rounds


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
    """Read the published rounds of each figure, if they are of such a machine.

    Raises ValueError where no figure could be worse than the published one.
    """
    document = json.loads(PUBLISHED.read_text(encoding="utf-8")) if PUBLISHED.exists() else {}
    if document and document["machine"] != machine:
        say(f"nothing is compared with what was published of {document['machine']}")
        return {}
    published = {
        figure: [v / scale(figure) for v in row.get("rounds", {}).get(NOW, ())]
        for figure, row in document.get("figures", {}).items()
    }
    lacking = [figure for figure, rounds in published.items() if not rounds]
    if lacking or not published:
        raise ValueError(f"{PUBLISHED} has no rounds of {lacking or 'anything'}; --out writes it")
    return published


def scale(figure: str) -> float:
    """Turn seconds into milliseconds; megabytes stay."""
    return 1 if figure.endswith("MB") else 1000


def describe(
    measured: Sequence[Rounds], published: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, Any]]:
    """Make the row of each figure: it is worse if each measurement says so by itself."""
    rows: dict[str, dict[str, Any]] = {}
    for figure in dict.fromkeys(name for rounds in measured for name in rounds):
        each = [rounds[figure] for rounds in measured if figure in rounds]
        values = {
            name: [value for by_tree in each for value in by_tree.get(name, ())]
            for name in (NOW, BEFORE)
        }
        medians = {name: statistics.median(pooled) for name, pooled in values.items() if pooled}
        earlier, factor = published.get(figure, ()), scale(figure)
        row: dict[str, Any] = {
            "median": factor * medians[NOW] if NOW in medians else None,
            "rounds": {name: [factor * v for v in values[name]] for name in medians},
            "measurements": len(each),
            "is_worse": all(is_worse(by_tree, earlier) for by_tree in each),
        }
        if len(medians) == 2:
            row["ratio_to_before"] = medians[NOW] / medians[BEFORE]
        if earlier and NOW in medians:
            row["ratio_to_published"] = medians[NOW] / statistics.median(earlier)
        if ratios := [ratio for by_tree in each if (ratio := compare(by_tree)) is not None]:
            row["seen_from"] = MARGIN / min(ratios)
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


def measure_piece(
    piece: str,
    trees: Mapping[str, Path],
    count: int,
    published: Mapping[str, Sequence[float]],
    errors: dict[str, str],
) -> dict[str, dict[str, Any]]:
    """Measure a piece, once more where a figure is worse; its rows."""
    measured = [measure(piece, trees, count, errors)]
    if any(row["is_worse"] for row in describe(measured, published).values()):
        measured.append(measure(piece, trees, count, errors))
    return describe(measured, published)


def find_faults(
    rows: Mapping[str, Mapping[str, Any]], errors: Mapping[str, str], options: argparse.Namespace
) -> list[str]:
    """Find why the command ends with 1."""
    failed = [name for name in errors if not (options.allow_before and name.endswith(BEFORE))]
    worse = [name for name, row in rows.items() if row["is_worse"]] if options.check else []
    return [f"{name}: failed" for name in failed] + [f"{name}: worse" for name in worse]


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--before", default="HEAD~1", help="a commit, or none")
    parser.add_argument("--only", nargs="+", choices=[*PIECES], default=[*PIECES])
    parser.add_argument("--rounds", type=int, help="of each piece; default: by piece")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true", help="end with 1 where one is worse")
    parser.add_argument(
        "--allow-before", action="store_true", help="the tree before may lack an interface"
    )
    return parser.parse_args()


def main() -> None:
    """Measure, compare, write after each piece."""
    options = read_options()
    load, began_s, machine = os.getloadavg()[0], time.monotonic(), describe_machine()
    commit, errors = describe_commit(), dict[str, str]()
    rows: dict[str, dict[str, Any]] = {}
    try:
        published = read_published(machine)
    except ValueError as unread:
        published = {}
        say(str(unread))
        if options.check:
            errors["published"] = str(unread)
    with tempfile.TemporaryDirectory() as folder:
        trees, before = {NOW: ROOT}, "none"
        if options.before != "none":
            command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", options.before]
            asked = subprocess.run(command, capture_output=True, text=True, check=True)
            before = asked.stdout.strip()
            trees[BEFORE] = lay_out(before, Path(folder) / BEFORE)
        for tree in trees.values():
            compile_tree(tree)
        for piece in options.only:
            count = options.rounds or ROUNDS[piece]
            rows |= measure_piece(piece, trees, count, published, errors)
            document = {
                "command": shlex.join(["python", "benchmarks/speed_bar.py", *sys.argv[1:]]),
                "commit": commit,
                "before": before,
                "machine": machine,
                "load": [load, os.getloadavg()[0]],
                "took_s": round(time.monotonic() - began_s, 1),
                "figures": rows,
                "errors": errors,
            }
            if options.out is not None:
                options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    show(rows)
    for name, error in errors.items():
        print(f"{name}: {error}")
    if faults := find_faults(rows, errors, options):
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
