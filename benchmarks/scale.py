"""How much memory the stages after play need for an iteration of a million episodes.

    python benchmarks/scale.py [--episodes 10000,100000,1000000] [--place DIR] [--out FILE]

A run of `nip` with nine rounds is opened with the scripted engine, and the training split of its
first iteration is made up: 500 problems by problems, each played ten times, with messages of 300
bytes, no two of them alike, in shards of 500 that `commit_shard` commits. Then follow, by the
functions that the loop calls, every one in a process of its own:

join      the shards become one split, with its digest
verifier  the verifier's dataset by expert iteration, chosen and written
prover    the prover's
metrics   the split's metrics, with all of their intervals
view      `nip view`: the run's page, lists with filters and searches, one episode

What is covered: of each the most memory that one process had (those that it starts count for
themselves), seconds of a processor, and seconds. The bar: no process has more than 2,000 MB. What
is not: play itself, whose memory follows the episodes of a shard and the calls in flight.

A million episodes take some 5 GB of disk, and half an hour of two cores to make.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from dataset import play, stopwatch
from measured_commit import describe_commit, describe_machine
from view import Viewer

from nip_core.game.render import Game
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.rollouts.plan import TRAIN, plan_episodes
from nip_core.rollouts.storage.row_tables import Tables, build_tables
from nip_core.rollouts.storage.schema import TIMINGS
from nip_core.rollouts.storage.tables import commit_shard, join_shards
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.scenarios.datasets import load_problems
from nip_core.session.opening import open_session
from nip_core.session.session import Session
from nip_core.stages.choosing import build_dataset
from nip_core.stages.measuring import measure

MOST_MB = 2000
RUN, SHARD, PLAYS, BYTES = "scale", 500, 10, 300
STEPS = ("join", "verifier", "prover", "metrics", "view")
POOL_BYTES = 4_000_000  # of words, from which texts are cut
PAGES = {  # below the run's address
    "the run": "",
    "all episodes": "episodes?split=train",
    "wrong verdicts, most tokens first": "episodes?split=train&verdict=wrong&sort=tokens",
    "a problem": "episodes?split=train&problem=copy-7",
    "a page far behind": "episodes?split=train&sort=reward&page=150",
    "a text that stands nowhere": "episodes?split=train&text=xylophone",
    "a text of nearly every call": "episodes?split=train&text=while",
    "matrix, failures first": "matrix?split=train",
}


# The rollouts ------------------------------------------------------------------------------------


def load_settings(place: Path, episodes: int) -> HyperParameters:
    """The settings of the run."""
    agent = {"model_provider": "SelfHosted", "model_name": "deterministic"}
    return load_parameters(
        {
            "run_name": RUN,
            "run_store": str(place / "runs"),
            "dataset": "families",
            "agents": {"_default": {**agent, "max_tokens_per_message": 64}},
            "lm_server": {"engine": "deterministic"},
            "nip_protocol": {"max_message_rounds": 9, "min_message_rounds": 9},
            "rl": {"num_iterations": 1, "rollouts_per_iteration": episodes, "num_epochs": 1},
            "dataset_options": {"max_test_size": 20},
        }
    )


async def open_run(parameters: HyperParameters, work: Callable[[Session], Any]) -> Any:
    """Do `work` in the session of the run."""
    async with open_session(parameters) as session:
        return work(session)


def make_rollouts(place: Path, episodes: int) -> list[str]:
    """Commit the shards of so many episodes; return their names."""
    parameters = load_settings(place, episodes)
    asyncio.run(open_run(parameters, lambda session: None))
    numbers = range(-(-episodes // SHARD))
    with ProcessPoolExecutor(2, initializer=_get_ready, initargs=(parameters,)) as processes:
        return list(processes.map(_make_shard, numbers))


_ready: dict[str, Any] = {}


def _get_ready(parameters: HyperParameters) -> None:
    game = Game(parameters)
    problems = load_problems(game.scenario, "families", "train")
    specs = plan_episodes(parameters, problems[:SHARD], TRAIN, 0)[:SHARD]
    words = sorted({word for problem in problems for word in problem.question.split()})
    words += [*game.scenario.claims]  # so that a prover's last message may have one
    pool = " ".join(Random(0).choices(words, k=POOL_BYTES // 5))
    played = []
    for number in range(PLAYS):  # so that plays of a problem differ
        random = Random(number)
        rows = [play(game, spec, words, random) for spec in specs]
        generations = [row for _, of_episode in rows for row in of_episode]
        played.append(build_tables([episode for episode, _ in rows], generations))
    run = RunStore(open_store(parameters.run_store), RUN)
    _ready.update(run=run, pool=pool, played=played)


def _make_shard(number: int) -> str:
    run, pool = _ready["run"], _ready["pool"]
    copy, play_number = divmod(number, PLAYS)
    draws = np.random.default_rng(number)
    tables = _replay(_ready["played"][play_number], copy, play_number, pool, draws)
    commit_shard(run.store, run.rollouts(0, TRAIN), f"{number:04d}", tables)
    return f"{number:04d}"


def _replay(
    played: Tables, copy: int, sample: int, pool: str, draws: np.random.Generator
) -> Tables:
    """The tables of a shard with keys, problems and texts of its own."""
    # 1. Each problem is one of this copy, with words of its own.
    episodes, generations = played.episodes, played.generations
    keys, calls = (_draw_keys(draws, table.num_rows) for table in (episodes, generations))
    changed = {
        name: [f"{value}/copy-{copy}" for value in episodes[name].to_pylist()]
        for name in ("problem", "question_id", "question")
    }
    samples = [sample] * len(keys)
    owner = dict(zip(episodes["key"].to_pylist(), keys, strict=True))
    renamed = dict(zip(generations["key"].to_pylist(), calls, strict=True))
    # 2. Each message keeps its first word, by which its form is known; a verdict stays whole.
    places = iter(draws.integers(0, len(pool) - BYTES, len(calls)).tolist())
    texts = [
        text if text.startswith("Decision") else f"{text[: text.index(' ')]} {pool[k : k + BYTES]}."
        for text, k in zip(generations["text"].to_pylist(), places, strict=False)
    ]
    began = datetime(2026, 1, 1, tzinfo=UTC)
    timings = {
        "key": calls,
        "started_at": [began + timedelta(seconds=k) for k in range(len(calls))],
        "latency_s": draws.random(len(calls)).tolist(),
        "transport_retries": [0] * len(calls),
        "cached_tokens": [None] * len(calls),
    }
    return replace(
        played,
        episodes=_with(episodes, key=keys, sample=samples, **changed),
        generations=_with(
            generations,
            key=calls,
            episode=[owner[key] for key in generations["episode"].to_pylist()],
            parent_key=[renamed.get(key) for key in generations["parent_key"].to_pylist()],
            text=texts,
        ),
        timings=pa.table(timings, schema=TIMINGS),
    )


def _draw_keys(draws: np.random.Generator, count: int) -> list[str]:
    text = urlsafe_b64encode(draws.bytes(12 * count)).decode()
    return [text[k : k + 16] for k in range(0, len(text), 16)]


def _with(table: pa.Table, **columns: Sequence[Any]) -> pa.Table:
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        table = table.set_column(at, field, pa.array(values, field.type))
    return table


# What is measured, each in a process of its own --------------------------------------------------


def read_peak_mb(pid: int | str = "self") -> float:
    """The most that a process has had in memory, in 10⁶ bytes; 0 where it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 0.0 if peak is None else int(peak[1]) * 1024 / 1e6


class Watch(threading.Thread):
    """The most memory that one of the processes had that this one started."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mb = 0.0

    def run(self) -> None:
        """Look five times a second."""
        own = psutil.Process()
        while True:
            children = own.children(recursive=True)
            self.mb = max([self.mb, *(read_peak_mb(child.pid) for child in children)])
            time.sleep(0.2)


def run_step(step: str, place: Path, episodes: int) -> dict[str, Any]:
    """Do a step in this process, and measure it."""
    parameters = load_settings(place, episodes)
    run = RunStore(open_store(parameters.run_store), RUN)
    watch = Watch()
    watch.start()
    before_mb, used = read_peak_mb(), stopwatch()
    if step == "join":
        names = [f"{number:04d}" for number in range(-(-episodes // SHARD))]
        joined = join_shards(run.store, run.rollouts(0, TRAIN), names)
        figures = {"rows": dict(joined.rows), "digest": joined.extra["canonical_digest"]}
    elif step == "metrics":
        metrics = asyncio.run(open_run(parameters, lambda session: measure(session, 0, TRAIN)))
        figures = {"accuracy": metrics.accuracy, "accuracy_ci95": metrics.accuracy_ci95}
    else:
        facts = asyncio.run(open_run(parameters, lambda session: build_dataset(session, 0, step)))
        figures = {"examples": facts.examples, "digest": facts.digest, "tokens": facts.tokens}
    return {
        **{name: round(value, 1) for name, value in used().items()},
        "peak_mb": round(read_peak_mb()),
        "peak_mb_of_a_helper": round(watch.mb),
        "mb_before": round(before_mb),
        **figures,
    }


def run_view(place: Path) -> dict[str, Any]:
    """Look at the run in `nip view`."""
    with Viewer(place) as viewer:
        pages: dict[str, Any] = {}
        episode = ""
        for name, page in PAGES.items():
            before_s, began = viewer.processor_s(), time.monotonic()
            address = f"{viewer.address}runs/{RUN}/{page}".rstrip("/")
            with urllib.request.urlopen(address) as response:
                body = response.read().decode()
            pages[name] = {
                "seconds": round(time.monotonic() - began, 2),
                "cpu_seconds": round(viewer.processor_s() - before_s, 2),
                "peak_mb": round(viewer.memory_mb()),
            }
            episode = episode or next(iter(re.findall(rf"/runs/{RUN}/episodes/[\w-]+", body)), "")
        began = time.monotonic()
        viewer.ask(episode.lstrip("/"))
        pages["one episode"] = {"seconds": round(time.monotonic() - began, 2)}
        return {
            "seconds": round(time.monotonic() - viewer.began_s, 1),
            "cpu_seconds": round(viewer.processor_s(), 1),
            "peak_mb": round(viewer.memory_mb()),
            "pages": pages,
        }


def in_own_process(step: str, place: Path, episodes: int) -> dict[str, Any]:
    """One measurement, or that of an earlier call which was stopped."""
    file = place / f"{step}.json"
    if not file.exists():
        command = [sys.executable, __file__, "--step", step, "--place", str(place)]
        subprocess.run([*command, "--episodes", str(episodes)], check=True)
    measured: dict[str, Any] = json.loads(file.read_text())
    print(f"{episodes:,} {step}: {measured['peak_mb']} MB", file=sys.stderr, flush=True)
    return measured


def measure_size(place: Path, episodes: int) -> dict[str, Any]:
    """Make a run of so many episodes, unless it is there, and do all steps."""
    if not (place / "made").exists():
        shutil.rmtree(place, ignore_errors=True)
        make_rollouts(place, episodes)
        (place / "made").touch()
    bytes_ = sum(file.stat().st_size for file in (place / "runs").rglob("*.parquet"))
    return {
        "episodes": episodes,
        "calls": 9 * episodes,
        "disk_mb": round(bytes_ / 1e6),
        "steps": {step: in_own_process(step, place, episodes) for step in STEPS},
    }


def main() -> None:
    """Make, measure, print and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--episodes", default="10000,100000,1000000")
    parser.add_argument(
        "--place", type=Path, help="keep the runs here, and go on with those that are"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.episodes.split(",")]
    if arguments.step:
        step, place = arguments.step, arguments.place
        measured = run_view(place) if step == "view" else run_step(step, place, sizes[0])
        measured |= {"commit": describe_commit()}
        (place / f"{step}.json").write_text(json.dumps(measured))
        return
    result: dict[str, Any] = {
        "commit": describe_commit(),
        "machine": describe_machine(),
        "load_before": round(os.getloadavg()[1], 1),
        "sizes": [],
    }
    for size in sizes:
        place = (arguments.place or Path(tempfile.mkdtemp())).resolve() / str(size)
        try:
            result["sizes"].append(measure_size(place, size))
        finally:
            if arguments.place is None:
                shutil.rmtree(place.parent)
    steps = [step for size in result["sizes"] for step in size["steps"].values()]
    peaks = [max(step["peak_mb"], step.get("peak_mb_of_a_helper", 0)) for step in steps]
    result["bar"] = {"most_mb": MOST_MB, "met": max(peaks) <= MOST_MB}
    print(json.dumps(result, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if result["bar"]["met"] else 1)


if __name__ == "__main__":
    main()
