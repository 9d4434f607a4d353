"""From trained weights to their first answer, of two checkouts by turns on an engine.

    git worktree add ../earlier 0578879e
    python benchmarks/swap_by_turns.py ../earlier [--model smollm2] [--rounds 5]
        [--engine vllm] [--out docs/results/side_by_side.json]

Part c of `side_by_side.py` for nip alone, with trainings of one epoch. Beside the seconds it counts
the server's processor seconds from the adapter's commit to the first answer, which other programs
hardly change; one round more, in front, does not count. With `--out` the figures stand beside those
of part c, until that is measured anew.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from beside.models import Model, find_model
from beside.page import page
from beside.players import ROOT, commit
from beside.serving import asked, directory_of, server, train, vllm_command

WATCH_S = 0.01
"""How often it is looked for the commit, after which processor seconds count."""


class Short(Model):
    """A model that is hardly trained: what is measured comes after."""

    epochs = 1


def processor_s(root: int) -> float:
    """Count the processor seconds of a process, of its children and of those that have ended."""
    spent: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        spent[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        children.setdefault(int(fields[1]), []).append(int(folder.name))
    total, waiting = 0.0, [root]
    while waiting:
        process = waiting.pop()
        total += spent.get(process, 0.0)
        waiting += children.get(process, [])
    return total


def swap(handle: Any, model: Model, seed: int) -> dict[str, Any]:
    """Train, ask, and return the seconds and the server's processor seconds from the commit on."""
    models = Path(handle.state_dir) / "models"
    earlier = {*models.glob("*/manifest.json")}
    at_commit: list[float] = []

    def watch() -> None:
        while {*models.glob("*/manifest.json")} == earlier:
            time.sleep(WATCH_S)
        at_commit.append(processor_s(handle.pid))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    name = train(handle, model, "accept", seed)
    succeeded_s = time.time()
    answer = asked(handle.url, handle.api_key, name)
    answered_s = time.time()
    watcher.join()
    if answer["noticed"]:
        raise RuntimeError(f"{name} does not answer: {answer}")
    committed_s = (directory_of(handle.state_dir, name) / "manifest.json").stat().st_mtime
    return {
        "seconds": answered_s - committed_s,
        "answer_s": answered_s - succeeded_s,
        "processor_s": processor_s(handle.pid) - at_commit[0],
    }


def serve(name: str, engine: str) -> None:
    """Serve the model on the engine, and swap once for each line of standard input."""
    found = find_model(name)
    model = Short(found.name, found.path, found.is_large)
    with (
        tempfile.TemporaryDirectory() as folder,
        server(engine, Path(folder) / "state", vllm_command(), model.path) as handle,
    ):
        for line in sys.stdin:
            print(json.dumps(swap(handle, model, int(line))), flush=True)


@contextmanager
def serving(tree: Path, model: str, engine: str) -> Iterator[subprocess.Popen[str]]:
    """A process of `serve` with a checkout's code."""
    places = [tree, *sorted((tree / "packages").iterdir())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    process = subprocess.Popen(
        [sys.executable, __file__, str(tree), "--model", model, "--engine", engine, "--serve"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def commit_of(tree: Path) -> str:
    """The commit of a checkout."""
    command = ["git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def measure(
    trees: list[Path], model: str, engine: str, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """The swaps of each checkout, by its commit."""
    rows: dict[str, list[dict[str, float]]] = {commit_of(tree): [] for tree in trees}
    first_server, second_server = (serving(tree, model, engine) for tree in trees)
    with first_server as first, second_server as second:
        turns = [*zip(rows, (first, second), strict=True)]
        for number in range(rounds + 1):
            for name, process in turns if number % 2 else reversed(turns):
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(f"{number}\n")
                process.stdin.flush()
                row = json.loads(process.stdout.readline())
                print(number, name, row, file=sys.stderr, flush=True)
                rows[name] += [row] if number else []
    return rows


def main() -> None:
    """Measure by turns, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("earlier", type=Path, help="a checkout of another commit")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--engine", choices=("embedded", "vllm"), default="embedded")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="the figures of side_by_side.py")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.model, options.engine)
        return
    load = os.getloadavg()[0]
    rows = measure(
        [options.earlier.absolute(), ROOT], options.model, options.engine, options.rounds
    )
    figures = {
        "command": shlex.join(["python", "benchmarks/swap_by_turns.py", *sys.argv[1:]]),
        "commit": commit(),
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "swaps": {
            name: {
                key: [round(row[key], 3) for row in swaps]
                for key in ("seconds", "processor_s", "answer_s")
            }
            for name, swaps in rows.items()
        },
    }
    print(json.dumps(figures, indent=1))
    for name, swaps in rows.items():
        print(name, {key: round(median(row[key] for row in swaps), 3) for key in swaps[0]})
    if options.out:
        result = json.loads(options.out.read_text())
        part = result["models"][options.model]["c"]
        part["by_turns" if options.engine == "embedded" else "by_turns_vllm"] = figures
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(page(result))


if __name__ == "__main__":
    main()
