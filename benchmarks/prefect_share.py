"""What Prefect costs: one iteration through the flows against the same loop without it.

    python benchmarks/prefect_share.py [--pairs 15] [--out docs/results/prefect_share.json]

A run of one iteration: 1,000 episodes of `nip` in 10 shards, a job for each of two groups, the
swap, on the deterministic engine, which takes 50 ms for each answer. Once it is the flow `train`
with a Prefect server beside it, as `nip train` does it, and once the loop that the flow drives,
`nip_core.loop`, by itself, in the same process, which has imported everything and has played a
small run before. They take turns; each has an lm_server of its own, started
before the clock. All must play and choose the same. The whole is timed: open the run, prove the
models, play, build datasets, train, swap, report. What counts is the median over pairs, as a
machine that others use too may be a third slower a minute later; its 95 % interval, by the
binomial distribution, is given beside it. The bars: at most 5 % more with Prefect, and at most
4 s plus 0.15 s per shard. Task runs are counted at Prefect's API, for fewer episodes and for more
shards: they may grow with shards alone.

Beside the JSON file it writes the Markdown page.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).parent.parent
EPISODES, SHARDS = 1000, 10
LATENCY_S = 0.05
FEWER = 200  # episodes of the runs whose task runs are counted
MOST_SHARE, MOST_S, MOST_S_PER_SHARD = 0.05, 4.0, 0.15
RUN = "share"  # all have the same name, as it enters every key; each has a store of its own
PREFECT, PLAIN = "prefect", "plain"
DEADLINE_S = 300.0
LAST = "publish-test-1"  # the task run that ends such a run


@dataclass(frozen=True)
class Played:
    """One run: how long it took, and what it made."""

    seconds: float
    processor_seconds: dict[str, float]  # by process: this one, the lm_server, Prefect's server
    stages: dict[str, float]
    digests: dict[str, str]


@contextmanager
def prefect_server(place: Path) -> Iterator[psutil.Process]:
    """A Prefect server that is a process of its own; nip in this process finds it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    # What `nip` sets before it imports Prefect, and where to find the server.
    os.environ |= {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_API_URL": url,
        "PREFECT_HOME": str(place / "prefect"),
    }
    log = place / "prefect.log"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)]
        server = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not _answers(f"{url}/health"):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the Prefect server does not answer:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield psutil.Process(server.pid)
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def run_of(place: Path, episodes: int, shards: int) -> Iterator[tuple[Path, psutil.Process]]:
    """The configuration of a run in a new directory, and the lm_server that it names."""
    from nip_base.spec import ServerSpec
    from nip_lm_server.engines.scripted.reply_rules import DEFAULT_FILE
    from nip_lm_server.launch import start_or_attach, stop

    place.mkdir()
    replies = yaml.safe_load(DEFAULT_FILE.read_text())
    replies["latency_s"] = {"min": LATENCY_S, "mean": LATENCY_S}
    (place / "replies.yaml").write_text(yaml.safe_dump(replies))
    spec = ServerSpec("deterministic", "sim", replies=str(place / "replies.yaml"))
    handle = start_or_attach(spec, place / "server")
    os.environ["NIP_API_KEY"] = handle.api_key
    settings = {
        "run_name": RUN,
        "run_store": str(place / "runs"),
        "dataset": "families",
        "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "sim"}},
        "lm_server": {"url": handle.url},
        "rl": {"num_iterations": 1, "rollouts_per_iteration": episodes, "num_epochs": 1},
        "rollouts": {"episodes_per_shard": episodes // shards},
        "text_rl": {"test_scheme": "none"},
        "fine_tuning": {"poll_interval_s": 0.1},
    }
    (place / "config.yaml").write_text(yaml.safe_dump(settings))
    try:
        yield place / "config.yaml", psutil.Process(handle.pid)
    finally:
        stop(handle)


async def through_prefect(config: Path) -> None:
    """The flow."""
    from nip_prefect.flows.train import train

    await train(str(config))


async def plainly(config: Path) -> None:
    """The loop by itself."""
    from nip_core.loop import train
    from nip_core.parameters import load_parameters

    await train(load_parameters(config))


def processor_seconds(processes: dict[str, psutil.Process]) -> dict[str, float]:
    """The processor time that each has used so far."""
    times = {name: process.cpu_times() for name, process in processes.items()}
    return {name: used.user + used.system for name, used in times.items()}


async def play(way: str, config: Path, servers: dict[str, psutil.Process]) -> Played:
    """Play a run in one of the two ways, with the clock."""
    from nip_core.run_store.manifest import read_manifest
    from nip_core.run_store.run import RunStore
    from nip_core.run_store.store import open_store

    work = through_prefect if way == PREFECT else plainly
    processes = {"nip": psutil.Process(), **servers}
    used, began = processor_seconds(processes), time.monotonic()
    await work(config)
    seconds = time.monotonic() - began
    used = {name: s - used[name] for name, s in processor_seconds(processes).items()}
    run = RunStore(open_store(config.parent / "runs", read_only=True), RUN)
    if run.finished_iterations() != 1:
        raise SystemExit(f"{way}: the iteration is not finished")
    rollouts = read_manifest(run.store, run.rollouts(0, "train"))
    groups = sorted(run.read_json(run.models(0))["groups"])
    return Played(
        seconds,
        used,
        run.read_json(f"{run.iteration(0)}/times.json"),
        {"rollouts": rollouts.extra["canonical_digest"]}
        | {group: read_manifest(run.store, run.dataset(0, group)).digest for group in groups},
    )


async def count_task_runs() -> int:
    """Task runs of the newest run, as soon as Prefect has all of them on record."""
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    async with get_client() as client:
        found = await client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC, limit=2)
        wanted = FlowRunFilter(id={"any_": [flow_run.id for flow_run in found]})
        deadline = time.monotonic() + DEADLINE_S
        while True:
            task_runs = await client.read_task_runs(flow_run_filter=wanted)
            names = {task_run.name for task_run in task_runs}
            if LAST in names and all(t.state.is_completed() for t in task_runs):
                return len(task_runs)
            if time.monotonic() > deadline:
                raise SystemExit(f"Prefect does not have all task runs: {sorted(names)}")
            await asyncio.sleep(0.5)


async def measure(place: Path, prefect: psutil.Process, pairs: int) -> dict[str, Any]:
    """Both ways in turn, then the counts."""

    async def one(way: str, name: str, episodes: int = EPISODES, shards: int = SHARDS) -> Played:
        with run_of(place / name, episodes, shards) as (config, lm_server):
            servers = {"lm_server": lm_server, "Prefect's server": prefect}
            played = await play(way, config, servers)
        print(f"{name:14} {played.seconds:7.2f} s  {played.stages}", file=sys.stderr, flush=True)
        return played

    task_runs = {}
    for way in (PLAIN, PREFECT):  # imports, and what else is done once in a process
        await one(way, f"warm-{way}", FEWER)
    task_runs[f"{FEWER} episodes, {SHARDS} shards"] = await count_task_runs()
    played: dict[str, list[Played]] = {PREFECT: [], PLAIN: []}
    for pair in range(pairs):
        for way in (PLAIN, PREFECT) if pair % 2 == 0 else (PREFECT, PLAIN):
            played[way].append(await one(way, f"{way}-{pair}"))
            if way == PREFECT:  # also that the server has done with it before the next begins
                task_runs[f"{EPISODES} episodes, {SHARDS} shards"] = await count_task_runs()
    await one(PREFECT, "more-shards", FEWER, 2 * SHARDS)
    task_runs[f"{FEWER} episodes, {2 * SHARDS} shards"] = await count_task_runs()
    digests = [run.digests for runs in played.values() for run in runs]
    if digests.count(digests[0]) != len(digests):
        raise SystemExit(f"they did not play and choose the same: {digests}")
    return {**judged(played, task_runs), "digests": digests[0]}


def judged(played: dict[str, list[Played]], task_runs: dict[str, int]) -> dict[str, Any]:
    """The figures with their bars."""
    median = {w: statistics.median(run.seconds for run in runs) for w, runs in played.items()}
    processor = {
        way: {
            name: round(statistics.median(run.processor_seconds[name] for run in runs), 2)
            for name in runs[0].processor_seconds
        }
        for way, runs in played.items()
    }
    pairs = [(run.seconds, plain.seconds) for run, plain in zip(*played.values(), strict=True)]
    extras, shares = (sorted(of(*pair) for pair in pairs) for of in (float.__sub__, _share))
    extra_s, share = statistics.median(extras), statistics.median(shares)
    most_s = MOST_S + MOST_S_PER_SHARD * SHARDS
    few, many, cut = (
        task_runs[f"{episodes} episodes, {shards} shards"]
        for episodes, shards in ((FEWER, SHARDS), (EPISODES, SHARDS), (FEWER, 2 * SHARDS))
    )
    met = {
        "share": share <= MOST_SHARE,
        "extra": extra_s <= most_s,
        "task_runs": few == many and cut - few == SHARDS,
    }
    return {
        "episodes": EPISODES,
        "shards": SHARDS,
        "latency_s": LATENCY_S,
        "seconds": {w: round(s, 2) for w, s in median.items()},
        "all_seconds": {w: [round(run.seconds, 2) for run in r] for w, r in played.items()},
        "processor_seconds": processor,
        "stages": {w: [run.stages for run in runs] for w, runs in played.items()},
        "extra_seconds": round(extra_s, 2),
        "extra_seconds_ci95": [round(bound, 2) for bound in median_interval(extras)],
        "share": round(share, 4),
        "share_ci95": [round(bound, 4) for bound in median_interval(shares)],
        "task_runs": task_runs,
        "bar": {"share": MOST_SHARE, "extra_seconds": most_s, "met": met},
    }


def _share(more: float, less: float) -> float:
    return more / less - 1


def median_interval(ordered: list[float]) -> tuple[float, float]:
    """95 % interval of the median of what sorted values are drawn from; all of them, if under 6."""
    count, below = len(ordered), 0.0
    for place in range(count // 2):
        below += math.comb(count, place) / 2**count
        if 2 * below > 0.05:
            return ordered[max(place - 1, 0)], ordered[min(count - place, count - 1)]
    return ordered[0], ordered[-1]


def page(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    seconds, processor, bar = result["seconds"], result["processor_seconds"], result["bar"]
    outcome = {name: "met" if met else "**missed**" for name, met in bar["met"].items()}
    for name, most in (("share", bar["share"]), ("extra", bar["extra_seconds"])):
        interval = result["share_ci95" if name == "share" else "extra_seconds_ci95"]
        if bar["met"][name] and interval[1] > most:
            outcome[name] = "met by the median; the interval has more"
    machine = result["machine"]
    rows = "".join(
        f"| {way} | {seconds[way]:.2f} "
        f"| {', '.join(f'{s:.1f}' for s in result['all_seconds'][way])} "
        f"| {', '.join(f'{name} {s:.1f}' for name, s in processor[way].items())} |\n"
        for way in (PLAIN, PREFECT)
    )
    low, high = (100 * bound for bound in result["share_ci95"])
    shares = f"{100 * result['share']:.1f} % [{low:.1f}, {high:.1f}]"
    least, most = result["extra_seconds_ci95"]
    extras = f"{result['extra_seconds']:.2f} [{least:.2f}, {most:.2f}]"
    counts = "".join(f"| {what} | {count} |\n" for what, count in result["task_runs"].items())
    facts = (
        f"`{result['command']}` at {result['commit']}, {machine['cores']} cores, Python "
        f"{machine['python']}, load {machine['load_before']} before. One iteration of "
        f"{result['episodes']:,} episodes in {result['shards']} shards, on the deterministic "
        f"engine with {1000 * result['latency_s']:g} ms for each answer: once the flow `train` "
        "with a Prefect server beside it, as `nip train` does it, and once the loop by itself, "
        "in turn, in one process. All played and chose the same. What is held to "
        "the bars is the median over the pairs, here with its 95 % interval."
    )
    return f"""# Prefect's share

{textwrap.fill(facts, 120, break_on_hyphens=False)}

| | median, s | each, s | processor time of each process, median, s |
|---|---|---|---|
{rows}
| | measured | bar | |
|---|---|---|---|
| more time | {shares} | {100 * bar["share"]:g} % | {outcome["share"]} |
| more seconds | {extras} | {bar["extra_seconds"]:g} | {outcome["extra"]} |
| task runs grow with shards, not with episodes | see below | | {outcome["task_runs"]} |

| run | task runs |
|---|---|
{counts}"""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pairs", type=int, default=15, help="how often each way is played")
    options = parser.parse_args()
    load = psutil.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, prefect_server(Path(folder)) as server:
        result = asyncio.run(measure(Path(folder), server, options.pairs))
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    result |= {
        "command": " ".join(["python benchmarks/prefect_share.py", *sys.argv[1:]]),
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "machine": {
            "system": platform.machine(),
            "python": platform.python_version(),
            "cores": psutil.cpu_count(),
            "load_before": round(load, 1),
        },
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(page(result))
    sys.exit(0 if all(result["bar"]["met"].values()) else 1)


if __name__ == "__main__":
    main()
