"""A session on a GPU: everything that has to be measured on one, in pieces of at most ten minutes.

    python benchmarks/gpu_session.py PIECE... --out FILE [--again] [--brief] [--scratch DIR]

    machine        facts, `nip doctor`, a kernel, virtual memory, what the card can do at most
    iteration-3b   200 episodes of nine rounds and two jobs, against 5 minutes
    smollm2        `nip train smollm2.yaml`, a published model (`nip models add smollm2` first)
    chats          64, 128 and 200 chats in flight, through nip and direct, base and adapter
    adapters       1, 16 and 64 adapters named in turn, and the first answer of each
    noise          200 proofs alone and under load; every difference in FILE's -noise.json
    kills          of trainer, engine and server: seconds until all is as before
    train-3b, -8b  tokens per second and peak memory of sft, dpo, trajectories; packed and padded;
                   activations kept and computed again
    engines        start (cold, warm), load, prove, sleep, wake: seconds and memory
    iteration-8b   as iteration-3b, against 8 minutes
    quickstart     `nip train quickstart.yaml` on this machine's engines
    head           memory of a policy gradient step at a large vocabulary (head_memory.py)
    all            every one of them, in this order: a card may be there for minutes

    tests-training, tests-embedded   the tests that need a GPU (`make test-gpu`)
    tests-serving, tests-engines     those that need vLLM as well

Each piece is a section of FILE, and each of its rows is written as soon as it is measured. A piece
that is finished is skipped, unless --again asks for it; one that was ended, by its time or by a
kill, goes on with the rows that are missing: the same command again. Exit status 1 if one is not
finished, or a test failed. FILE's .md has the rows for readers.

Nothing is downloaded: models have the shapes of Llama 3.2 3B and Llama 3.1 8B and random weights,
the tokenizer of 128,256 ids and all data are made here, in --scratch (about 25 GB, kept for the
next command). vLLM is what NIP_VLLM names. Where there is none its rows have the reason, and the
embedded engine is measured in its place. Without nip installed, but with what it needs, it runs
from the repository: PYTHONPATH is set for all that it starts.

--brief measures less of everything, and nothing of the 8B shape but `train-8b` and `iteration-8b`,
for a card that is there for minutes; each section has the command that made it.

--rehearse runs every piece on the CPU at the bundled tiny model's size, so that the script is known
to run from end to end. Its figures say nothing about a GPU.
"""

import argparse
import contextlib
import importlib
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
ROOT = HERE.parent
PATHS = [str(path) for path in (HERE, ROOT, *sorted((ROOT / "packages").glob("nip-*")))]
sys.path[:0] = PATHS

from gpu_pieces.page import page  # noqa: E402
from gpu_pieces.results import Piece, Results  # noqa: E402
from gpu_pieces.sizes import BRIEF, GPU, PIECE_S, REHEARSAL, Session  # noqa: E402
from gpu_pieces.tree import is_installed, write_metadata  # noqa: E402
from measured_commit import describe_commit  # noqa: E402

END_S = 40.0
"""A server has so long to end, with its engine."""
PIECES: dict[str, tuple[str, tuple[Any, ...]]] = {
    # name: module of gpu_pieces, arguments of its `measure`
    "machine": ("machine", ()),
    "iteration-3b": ("iteration", ("3b",)),
    "smollm2": ("quickstart", ("smollm2",)),
    "chats": ("chats", ()),
    "adapters": ("adapters", ()),
    "noise": ("noise", ()),
    "kills": ("kills", ()),
    "train-3b": ("jobs", ("3b",)),
    "train-8b": ("jobs", ("8b",)),
    "engines": ("engines", ()),
    "iteration-8b": ("iteration", ("8b",)),
    "quickstart": ("quickstart", ("quickstart",)),
    "head": ("head", ()),
    "tests-training": ("tests", ("training",)),
    "tests-embedded": ("tests", ("embedded",)),
    "tests-serving": ("tests", ("serving",)),
    "tests-engines": ("tests", ("engines",)),
}
ALL = [name for name, (module, _) in PIECES.items() if module != "tests"]


def measure(name: str, options: argparse.Namespace) -> None:
    """Measure a piece in this process."""
    results = Results(options.out, rehearsal=options.rehearse)
    sizes = REHEARSAL if options.rehearse else BRIEF if options.brief else GPU
    session = Session(sizes, options.scratch, options.rehearse, options.seconds)
    module, arguments = PIECES[name]
    if name == "noise":
        arguments = (options.out.with_name(f"{options.out.stem}-noise.json"),)
    piece = Piece(results, name)
    importlib.import_module(f"gpu_pieces.{module}").measure(session, piece, *arguments)


def run(name: str, options: argparse.Namespace) -> bool:
    """Measure a piece in a process of its own, which is ended when its time is over.

    Returns whether the piece is finished.
    """
    load, began = os.getloadavg()[0], time.monotonic()
    command = [sys.executable, __file__, name, "--inner", "--out", str(options.out)]
    command += ["--scratch", str(options.scratch), "--seconds", str(options.seconds)]
    command += ["--rehearse"] * options.rehearse + ["--brief"] * options.brief
    process = subprocess.Popen(command, env=environment(options), start_new_session=True)
    try:
        process.wait(options.seconds)
    except subprocess.TimeoutExpired:
        print(f"{name}: {options.seconds:g} s are over; the same command goes on", file=sys.stderr)
    finally:
        end(process)
    results = Results(options.out, rehearsal=options.rehearse)
    section = results.section(name)
    section["runs"] = [
        *section.get("runs", []),
        {
            "commit": describe_commit(),
            "command": shlex.join(["python", "benchmarks/gpu_session.py", *sys.argv[1:]]),
            "took_s": round(time.monotonic() - began, 1),
            "exit": process.returncode,
            "cores": os.cpu_count(),
            "load_before": round(load, 2),
            "python": platform.python_version(),
        },
    ]
    results.write()
    options.out.with_suffix(".md").write_text(page(results.value))
    return results.is_finished(name)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a piece, and wait until all that it started has ended, or the next has no memory."""
    below = []
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(process.pid).children(recursive=True)
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            break
    # Servers are not in its group; they end with the process that owns them.
    _, left = psutil.wait_procs(below, END_S)
    for child in left:
        with contextlib.suppress(psutil.Error):
            child.kill()


def environment(options: argparse.Namespace) -> dict[str, str]:
    """Return a piece's environment: nothing from the hub, nip from here, one GPU or none."""
    paths = [*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])]
    if not is_installed():
        paths.append(str(write_metadata(options.scratch / "metadata")))
    settings = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    settings.setdefault("CUDA_VISIBLE_DEVICES", "0")
    if options.rehearse:
        settings["CUDA_VISIBLE_DEVICES"] = ""
    return settings


def has_gpu() -> bool:
    """Return whether torch computes on a GPU here."""
    import torch

    return bool(torch.cuda.is_available())


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line. Raises SystemExit for what can't be done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pieces", nargs="+", choices=[*PIECES, "all"], metavar="PIECE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--again", action="store_true", help="measure finished pieces again")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--brief", action="store_true", help="few of everything, none of it 8B")
    parser.add_argument("--scratch", type=Path, help="where models lie, and are kept")
    parser.add_argument("--seconds", type=float, default=PIECE_S, help="the most for a piece")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.seconds <= 0:
        parser.error(f"--seconds is {options.seconds:g}, expected more than 0")
    if options.scratch is None:
        kind = "rehearsal" if options.rehearse else "session"
        options.scratch = Path(tempfile.gettempdir()) / f"nip-gpu-{kind}"
    options.out, options.scratch = options.out.absolute(), options.scratch.absolute()
    if "all" in options.pieces:
        options.pieces = ALL
    return options


def main() -> None:
    """Measure the pieces that are asked for."""
    options = parse()
    if options.inner:
        measure(options.pieces[0], options)
        return
    Results(options.out, rehearsal=options.rehearse)  # what can't be used is refused at once
    if not options.rehearse and not has_gpu():
        raise SystemExit("torch finds no GPU here: this measures one; --rehearse tries it without")
    options.scratch.mkdir(parents=True, exist_ok=True)
    unfinished, failed = [], []
    for name in dict.fromkeys(options.pieces):
        results = Results(options.out, rehearsal=options.rehearse)
        if options.again:
            results.drop(name)
        if results.is_finished(name):
            print(f"{name}: is finished; --again measures it again", file=sys.stderr)
        elif not run(name, options):
            unfinished.append(name)
        results = Results(options.out, rehearsal=options.rehearse)
        failed += [name] if results.section(name).get("failed") else []
    problems = {"not finished": unfinished, "failed": failed}
    if any(problems.values()):
        said = (f"{what}: {', '.join(names)}" for what, names in problems.items() if names)
        raise SystemExit("; ".join(said))


if __name__ == "__main__":
    main()
