"""Tinker's API by nip and by SkyRL, on the same weights and machine, asked by the same client.

Also nip's beside a loop of torch and PEFT alone.

    scripts/build_tinker.sh && scripts/build_peers.sh skyrl
    .venv/bin/python benchmarks/tinker_peers.py [--rounds 3] [--small] [--only rates faults bare]
        [--before COMMIT] [--out docs/results/tinker_peers.json]

    rates    training steps per second, samples per second, from trained weights to their first
             sample; what both compute is compared before
    faults   a server killed in the middle of training, each gradient and step sent twice, each step
             sent again with other content, losses that are not there
    bare     processor seconds per training step of nip's server, of its client, and of a loop of
             torch and PEFT with one thread; also of the server at a commit before

SkyRL's server on JAX is what skyrl-tx has become, and another one that trains without a GPU. Both
servers train and sample on the bundled tiny model, float32, LoRA of rank 32. They take turns in
rounds, another one first in each; the processes of the one that is not asked are stopped. Each cell
is asked once before it counts, so that JAX has compiled; how long that took stands beside.

TINKER_ENV and PEERS name the environments where they are not those of the repository. The page
beside the JSON file is made from it; `--page` makes it anew.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from beside.models import find_model
from beside.players import GAMES
from beside.runs import Failed
from beside.tinker_page import page
from beside.tinker_servers import DoubledPosts, Served, Skyrl, serve_nip, serve_skyrl
from measured_commit import ROOT, describe_commit
from speed_bar import lay_out

RANK = 32
CE, IS = "cross_entropy", "importance_sampling"
TRAIN = (
    # sequences, tokens of the longest, loss, steps of a round
    (8, 64, CE, 8),
    (32, 64, CE, 4),
    (128, 64, CE, 2),
    (8, 256, CE, 4),
    (32, 256, CE, 2),
    (128, 256, CE, 1),
    (8, 64, IS, 8),
    (32, 256, IS, 2),
)
SAMPLE = (
    # clients at once, tokens of the prompt, n, max_tokens, requests of a client in a round
    (1, 40, 1, 32, 3),
    (1, 40, 1, 128, 2),
    (1, 300, 1, 32, 3),
    (1, 300, 1, 128, 2),
    (1, 40, 16, 32, 2),
    (1, 40, 16, 128, 1),
    (1, 300, 16, 32, 2),
    (1, 300, 16, 128, 1),
    (16, 40, 1, 32, 2),
    (16, 40, 1, 128, 1),
    (16, 300, 1, 32, 2),
    (16, 300, 1, 128, 1),
    (16, 40, 16, 32, 1),
)
AT_ONCE = 16
"""Sequences that SkyRL is told to sample at once where more than one is asked for."""
KILLED_STEPS, KILLED_AFTER_S, PATIENCE_S = 24, 2.0, 150.0

Cell = dict[str, Any]


def say(text: str) -> None:
    """Tell how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def training_cell(cell: tuple[int, int, str, int]) -> Cell:
    """Describe a batch that is trained on."""
    count, length, loss, steps = cell
    order = {"do": "train", "count": count, "length": length, "loss": loss}
    return {"what": f"{count} × {length}, {loss}", "order": order, "steps": steps}


def sampling_cell(cell: tuple[int, int, int, int, int]) -> Cell:
    """Describe samples that are drawn."""
    clients, prompt, n, max_tokens, requests = cell
    order = {"do": "sample", "clients": clients, "prompt": prompt, "n": n, "max_tokens": max_tokens}
    what = f"{clients} client{'s' * (clients > 1)}, prompt {prompt}, n {n}, max_tokens {max_tokens}"
    return {"what": what, "order": order, "requests": requests}


def ask_once(served: Served, cell: Cell, warm: bool) -> tuple[float, float]:
    """Ask for what a cell says; steps, samples or swaps per second, and the server's processor
    seconds for each. Raises Failed."""
    order = dict(cell["order"])
    if order["do"] == "train":
        order["steps"] = 1 if warm else cell["steps"]
    elif order["do"] == "sample":
        order["requests"] = 1 if warm else cell["requests"]
    before = served.processor_s()
    done = served(**order)
    count = order.get("steps") or done.get("samples") or 1
    return count / done["seconds"], (served.processor_s() - before) / count


def measure_cells(pair: list[Served], cells: list[Cell], rounds: int) -> list[Cell]:
    """Ask both for each cell, in turn. A cell that one cannot do has its reason."""
    rows = []
    for cell in cells:
        row: Cell = {"what": cell["what"], "rates": {}, "processor_s": {}, "first_s": {}}
        row["absent"] = {}
        for number in range(rounds + 1):
            for served in pair if number % 2 else pair[::-1]:
                if served.name in row["absent"]:
                    continue
                served.wake()
                began = time.monotonic()
                try:
                    rate, processor_s = ask_once(served, cell, warm=number == 0)
                except Failed as error:
                    row["absent"][served.name] = str(error)
                    continue
                finally:
                    served.sleep()
                if number == 0:
                    row["first_s"][served.name] = round(time.monotonic() - began, 2)
                else:
                    row["rates"].setdefault(served.name, []).append(round(rate, 4))
                    taken = row["processor_s"].setdefault(served.name, [])
                    taken.append(round(processor_s, 4))
        say(f"{row['what']}: {row['rates']} {row['processor_s']} {row['absent'] or ''}")
        rows.append(row)
    return rows


def compare(pair: list[Served]) -> dict[str, Any]:
    """Compare what both compute before any step: of a batch, of a greedy sample, of a prompt."""
    seen: dict[str, Any] = {"made_s": {}}
    scores, samples, prompts = [], [], []
    for served in pair:
        served.wake()
        seen["made_s"][served.name] = round(served("make", rank=RANK)["seconds"], 2)
        scores.append(served("score", count=8, length=64)["logprobs"])
        samples.append(served("swap", max_tokens=32))
        try:
            # The first token has none: nip says so, as Tinker does, SkyRL leaves it out.
            values = served("score_prompt")["logprobs"]
            prompts.append([value for value in values if value is not None])
        except Failed as error:
            prompts.append([])
            seen[f"prompt_of_{served.name}"] = str(error)
        served.sleep()
    seen["mean_nll"] = [round(-sum(one) / len(one), 6) for one in scores]
    seen["batch_logprobs_differ_by"] = _distance(*scores)
    seen["greedy_tokens_equal"] = samples[0]["tokens"] == samples[1]["tokens"]
    seen["greedy_logprobs_differ_by"] = _distance(*(one["logprobs"] for one in samples))
    if all(prompts):
        seen["prompt_logprobs_differ_by"] = _distance(*prompts)
    return seen


def _distance(a: list[float], b: list[float]) -> float:
    return float(f"{max(abs(x - y) for x, y in zip(a, b, strict=True)):.1e}")


def measure_rates(options: argparse.Namespace, model: Path, place: Path) -> dict[str, Any]:
    """Measure training and sampling; SkyRL twice, for one sequence at a time and for many."""
    train, sample = [*map(training_cell, TRAIN)], [*map(sampling_cell, SAMPLE)]
    if options.small:
        train, sample = [train[0], train[6]], [sample[0], sample[4], sample[8]]
    swap: Cell = {"what": "swap", "order": {"do": "swap", "max_tokens": 8}}
    alone = [cell for cell in sample if cell["order"]["clients"] * cell["order"]["n"] == 1]
    many = [cell for cell in sample if cell not in alone]
    parts: dict[str, Any] = {}
    with serve_nip(place / "nip", model) as nip:
        nip.sleep()
        with serve_skyrl(place / "skyrl", model, RANK, 0) as skyrl:
            pair = [nip, skyrl]
            parts["compared"] = compare(pair)
            say(f"compared: {parts['compared']}")
            parts["training"] = measure_cells(pair, train, options.rounds)
            parts["swap"] = measure_cells(pair, [swap], options.rounds)
            parts["sampling"] = measure_cells(pair, alone, options.rounds)
            parts["sdk"] = {served.name: served.sdk for served in pair}
        with serve_skyrl(place / "skyrl-many", model, RANK, AT_ONCE) as skyrl:
            skyrl("make", rank=RANK)
            skyrl("swap", max_tokens=8)
            parts["sampling"] += measure_cells([nip, skyrl], many, options.rounds)
    return parts


def measure_faults(options: argparse.Namespace, model: Path, place: Path) -> dict[str, Any]:
    """See what each does when it is killed, is sent things twice, or lacks a loss."""
    serves: list[Callable[[Path], Any]] = [
        lambda folder: serve_nip(folder, model),
        lambda folder: serve_skyrl(folder, model, RANK, 0, adapters=8),
    ]
    rows: dict[str, Any] = {}
    for number, serve in enumerate(serves):
        with serve(place / f"faults-{number}") as served:
            rows[served.name] = {
                "doubled": see_doubled(served),
                "altered": see_altered(served),
                "lacking": see_lacking(served),
                "killed": see_kill(served),
            }
            say(f"{served.name}: {rows[served.name]}")
    return rows


BATCH: dict[str, Any] = {"count": 8, "length": 64, "loss": CE}


def see_doubled(served: Served) -> dict[str, Any]:
    """Train four steps with gradients and steps sent once, and four with each sent twice."""
    losses: list[list[float]] = []
    with DoubledPosts(served.url) as proxy:
        for url in (served.url, proxy.url):
            served.connect(url)
            try:
                served("make", rank=RANK)
                losses.append(served("train", steps=4, **BATCH)["losses"])
            except Failed as error:
                return {"refused": str(error)}
    return {"losses": losses, "second_answers": sorted(set(proxy.doubled))}


def see_altered(served: Served) -> dict[str, Any]:
    """Train four steps, each of which comes again with another learning rate."""
    with DoubledPosts(served.url, altered=True) as proxy:
        served.connect(proxy.url)
        try:
            served("make", rank=RANK)
            losses = served("train", steps=4, **BATCH)["losses"]
        except Failed as error:
            return {"failed": str(error), "second_answers": sorted(set(proxy.doubled))}
    answers, texts = sorted(set(proxy.doubled)), proxy.refusals
    return {"losses": losses, "second_answers": answers, "first_refusal": (texts or [""])[0]}


def see_lacking(served: Served) -> dict[str, str]:
    """Ask for each loss of the SDK."""
    served.connect()
    served("make", rank=RANK)
    seen = {}
    for loss in (IS, "ppo", "cispo", "dro", "gspo", "stable_reinforce"):
        try:
            served("train", count=4, length=32, loss=loss, steps=1, most_s=PATIENCE_S)
            seen[loss] = "trains"
        except Failed as error:
            seen[loss] = str(error)[:300]
            if str(error).startswith("nothing came"):
                break
    return seen


def see_kill(served: Served) -> dict[str, Any]:
    """Train without a kill, then with one, after which the same command is started again."""
    served.connect()
    served("make", rank=RANK)
    whole = served("train", steps=KILLED_STEPS, **BATCH)
    served.connect()
    served("make", rank=RANK)
    served("train", steps=1, count=8, length=64, loss=CE)  # has compiled
    served.order("train", steps=KILLED_STEPS, **BATCH)
    time.sleep(min(KILLED_AFTER_S, whole["seconds"] / 2))
    served.kill()
    began = time.monotonic()
    served.start()
    seen: dict[str, Any] = {"up_after_s": round(time.monotonic() - began, 1)}
    try:
        done = served.read(PATIENCE_S)
    except Failed as error:
        return seen | {"client": str(error), "after_s": round(time.monotonic() - began, 1)}
    seen |= {"client": "ends", "after_s": round(time.monotonic() - began, 1)}
    # The killed run has taken one step before.
    unkilled, killed = whole["losses"][1:], done["losses"][:-1]
    return seen | {"losses_differ_by": _distance(unkilled, killed)}


BARE_STEPS = 40


def measure_bare(options: argparse.Namespace, model: Path, place: Path) -> dict[str, Any]:
    """Count the processor seconds of steps by each server and by the bare loop, in turn."""
    trees = {"now": ROOT}
    if options.before:
        trees[options.before] = lay_out(options.before, place / "before")
    threads = {"one thread": {"OMP_NUM_THREADS": "1"}, "threads not set": {"OMP_NUM_THREADS": ""}}
    order = {"count": BATCH["count"], "length": BATCH["length"], "steps": BARE_STEPS}
    servers: dict[str, Served] = {}
    rows: dict[str, Any] = {}
    with ExitStack() as stack:
        for tree_name, tree in trees.items():
            for threads_name, settings in threads.items():
                name = f"{tree_name}, {threads_name}"
                folder = place / name.replace(" ", "-")
                served = stack.enter_context(serve_nip(folder, model, tree, settings))
                served("make", rank=RANK)
                served("train", **BATCH, steps=2)
                served.sleep()
                servers[name] = served
                rows[name] = {"server_ms": [], "client_ms": [], "bare_ms": []}
        loop = stack.enter_context(_start_bare(model))
        for number in range(options.rounds):
            bare = _ask_bare(loop, {**order, "rank": RANK})
            for name, served in [*servers.items()][:: 1 if number % 2 else -1]:
                served.wake()
                before_s = served.processor_s()
                done = served("train", **BATCH, steps=BARE_STEPS)
                seconds = (served.processor_s() - before_s, done["processor_s"], bare)
                served.sleep()
                for key, value in zip(rows[name], seconds, strict=True):
                    rows[name][key].append(round(1000 * value / BARE_STEPS, 2))
                say(f"{name}: {rows[name]}")
        assert loop.stdin is not None
        loop.stdin.close()
    return {"rows": rows, "sdk": next(iter(servers.values())).sdk}


def _start_bare(model: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, GAMES / "bare_peft.py", model],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _ask_bare(loop: "subprocess.Popen[str]", order: dict[str, Any]) -> float:
    assert loop.stdin is not None and loop.stdout is not None
    loop.stdin.write(json.dumps(order) + "\n")
    loop.stdin.flush()
    return float(json.loads(loop.stdout.readline())["processor_s"])


PARTS = {"rates": measure_rates, "faults": measure_faults, "bare": measure_bare}


def _list_versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "peft")}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", help="a commit whose server is measured, too, by bare")
    parser.add_argument("--small", action="store_true", help="few cells, to see that all works")
    parser.add_argument("--page", action="store_true", help="make the page of --out anew")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    if options.out and options.out.exists():
        result = json.loads(options.out.read_text())
    for name in () if options.page else options.only:
        load, began = os.getloadavg()[0], time.monotonic()
        with ExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            measured = PARTS[name](options, find_model("tiny").path, place)
        result[name] = {
            "command": shlex.join(["python", "benchmarks/tinker_peers.py", *sys.argv[1:]]),
            "commit": describe_commit(),
            "date": time.strftime("%Y-%m-%d"),
            "took_s": round(time.monotonic() - began, 1),
            "machine": {
                "system": f"{platform.system()} {platform.machine()}",
                "python": platform.python_version(),
                "cores": os.cpu_count(),
                "load_before": round(load, 2),
                "load_after": round(os.getloadavg()[0], 2),
            },
            "versions": _list_versions() if name == "bare" else Skyrl().versions(),
            **measured,
        }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(page(result))


if __name__ == "__main__":
    main()
