"""Does a published recipe on `nip serve` notice kills, doubled requests and lost answers?

    .tinker-env/bin/python benchmarks/tinker_faults.py --out docs/results/tinker_faults.json
        [--steps 24] [--kills 40] [--ways kills,doubled,lost]

Runs in the environment of Tinker's SDK and cookbook (scripts/build_tinker.sh); the server runs in
nip's own (.venv, or NIP_PYTHON). Runs the cookbook's
`sl_loop`, as it is published, several times on a new server each: undisturbed; killed with SIGKILL
so many times, the server (in whose process the engine computes) or the trainer's process, before a
drawn request is passed on, while it is, or while it is executed; with every POST sent twice at
once; with the first answer to every request lost. Between both is a proxy, which also gives the
model a seed.

Compares with the undisturbed run: the loss of every step as the recipe logged it, the digests of
all weights and optimizer states that it saved, how many steps these have seen, what a sampler of
the last weights says and with which log-probabilities, asked when nothing is disturbed any more.
Ends with status 1 if anything differs.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tinker
from measured_commit import ROOT, describe_commit
from tinker_between import Between, Moment, Way

sys.path.append(str(ROOT / "tests" / "tinker"))

from recipes import Place, write_data
from tinker_server import KEY, TinkerServer

KINDS: tuple[tuple[str, Moment], ...] = (
    ("server", "before"),
    ("trainer", "during"),
    ("server", "during"),
    ("trainer", "later"),
    ("server", "later"),
)
"""What is killed in turn, and when. A trainer is there only from a request on."""
DELAYS_S: dict[Moment, float] = {"before": 0.0, "during": 0.05, "later": 1.0}
PROMPT = list(range(20, 60))


@dataclass
class Killer:
    """Kills at drawn requests; `done` counts what was hit, and when."""

    server: TinkerServer
    kills: int
    requests: int  # how many an undisturbed run has
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._draw, self._lock = random.Random(0), threading.Lock()
        # Not at the last ones, whose recipe could have ended when it is killed.
        chosen = sorted(self._draw.sample(range(1, self.requests - 2), self.kills))
        self._due = {
            (number, KINDS[place % len(KINDS)][1]): KINDS[place % len(KINDS)][0]
            for place, number in enumerate(chosen)
        }

    def __call__(self, number: int, moment: Moment) -> None:
        """Kill what is due at this moment of this request, if anything is."""
        target = self._due.pop((number, moment), None)
        if target is None:
            return
        time.sleep(self._draw.uniform(0.0, DELAYS_S[moment]))
        with self._lock:  # the recipe sends several at once
            hit = self.server.kill() if target == "server" else self.server.kill_trainer()
            self.done[f"{target}, {moment}" if hit else "not hit"] += 1


def run_recipe(place: Place, steps: int) -> list[float]:
    """Run sl_loop as it is published; returns the loss of each step."""
    rows = place.run("sl_loop", batch_size=16, learning_rate=1e-3, max_steps=steps, save_every=2)
    return [row["train_mean_nll"] for row in rows if "train_mean_nll" in row]


def read_record(state: Path) -> dict[str, Any]:
    """Return what the server has on record of the recipe's model, and its weights' digests."""
    with sqlite3.connect(state / "tinker.sqlite3") as database:
        requests = database.execute(
            "SELECT kind, status, COUNT(*) FROM requests JOIN models ON owner = models.id "
            "GROUP BY kind, status ORDER BY kind, status"
        ).fetchall()
        saved = database.execute("SELECT kind, name, folder FROM checkpoints ORDER BY created_at")
        weights, steps = {}, {}
        for kind, name, folder in saved.fetchall():
            place = state / "tinker" / folder
            for file in sorted(place.glob("*.safetensors")):
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                weights[f"{kind}/{name}/{file.name}"] = digest
            steps[f"{kind}/{name}"] = json.loads((place / "training_state.json").read_text())[
                "steps"
            ]
    counts = {f"{kind}, {status}": count for kind, status, count in requests}
    return {"requests": counts, "steps_in_weights": steps, "weights": weights}


def ask_sampler(server: TinkerServer) -> dict[str, Any]:
    """Ask a sampler of the last weights: its likeliest tokens, and log-probabilities."""
    with sqlite3.connect(server.state / "tinker.sqlite3") as database:
        (path,) = database.execute(
            "SELECT path FROM checkpoints WHERE kind = 'sampler_weights' AND name = 'final'"
        ).fetchone()
    service = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    client = service.create_sampling_client(path).result()
    prompt = tinker.ModelInput.from_ints(PROMPT)
    params = tinker.SamplingParams(max_tokens=16, temperature=0.0)
    sample = client.sample(prompt, num_samples=1, sampling_params=params).result().sequences[0]
    scores = client.compute_logprobs(prompt).result()
    service.close("success").result()
    return {"tokens": [*sample.tokens], "logprobs": sample.logprobs, "prompt": scores}


def play(directory: Path, way: Way, steps: int, kills: int, requests: int) -> dict[str, Any]:
    """Run the recipe once on a new server; returns what came of it."""
    server = TinkerServer(ROOT, directory)
    killer = Killer(server, kills, requests) if kills else None
    started = time.monotonic()
    try:
        with Between(server.url, way, killer) as between:
            place = Place(directory / "work", between.url, server.state)
            write_data(place.directory, ROOT, "tiny")
            losses = run_recipe(place, steps)
        seconds = time.monotonic() - started
        answers = ask_sampler(server)
        record = read_record(server.state)
    finally:
        server.stop()
    return {
        "losses": losses,
        "answers": answers,
        **record,
        "numbered_requests": len(between.numbers),
        "between": dict(sorted(between.counts.items())),
        "kills": dict(sorted(killer.done.items())) if killer else {},
        "seconds": round(seconds, 1),
    }


def list_differences(whole: dict[str, Any], again: dict[str, Any]) -> list[str]:
    """Return in what two plays differ."""
    names = ("losses", "weights", "steps_in_weights", "requests", "answers", "numbered_requests")
    return [name for name in names if whole[name] != again[name]]


def main() -> int:
    """Play undisturbed and in each way, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--ways", default="kills,doubled,lost")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    load = os.getloadavg()[0]
    directory = Path(tempfile.mkdtemp(prefix="tinker-faults-"))
    whole = play(directory / "undisturbed", "plain", options.steps, 0, 0)
    print(f"undisturbed: {whole['seconds']} s, {whole['requests']}", flush=True)
    ways: dict[str, Any] = {}
    steps = (len(whole["losses"]), whole["steps_in_weights"].get("weights/final"))
    failed = steps != (options.steps, options.steps)
    for name in options.ways.split(","):
        way: Way = "plain" if name == "kills" else name
        kills = options.kills if name == "kills" else 0
        again = play(directory / name, way, options.steps, kills, whole["numbered_requests"])
        differs = list_differences(whole, again)
        hits = sum(again["kills"].values()) - again["kills"].get("not hit", 0)
        failed = failed or bool(differs) or hits != kills
        failed = failed or "answered differently" in again["between"]
        print(
            f"{name}: {again['seconds']} s, {again['kills']}, {again['between']}, "
            f"{'differs in ' + ', '.join(differs) if differs else 'the same'}",
            flush=True,
        )
        names = ("kills", "between", "seconds", "requests", "steps_in_weights", "losses")
        ways[name] = {**{key: again[key] for key in names}, "differs_in": differs}
    if options.out is not None:
        told = {
            "commit": describe_commit(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "load": [round(load, 1), round(os.getloadavg()[0], 1)],
            "sdk": version("tinker"),
            "cookbook": version("tinker-cookbook"),
            "recipe": "sl_loop",
            "steps": options.steps,
            "undisturbed": whole,
            "ways": ways,
        }
        options.out.write_text(json.dumps(told, indent=1) + "\n")
    if failed:
        print(f"see {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
