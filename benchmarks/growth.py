"""What an iteration, and an episode, costs more the more of them lie before it.

    python benchmarks/growth.py [--iterations 200] [--against PYTHON] [--out growth.json]
    python benchmarks/growth.py --iterations 0 --episodes 100000   # one iteration, beside 5,000

A small run (20 training and 20 test episodes per iteration, two jobs) on the deterministic engine
of a server of its own. Every publishing is measured: the report, and the artifacts as they are made
for Prefect, which get no server here. Counted are processor seconds of this process, what it asks
of its store (in a bucket each is a request), and the bytes that it reads. At the end the run is
opened and shown once by a process that knows nothing of it. `--against` names the Python of another
checkout's environment, which does the same afterwards.

The bars: publishing the last iteration costs at most 1.5 times what the second one did (medians
of five from there on, and up to the end); iterations take no longer at the end than in the
beginning (medians of ten, at most 1.25 times); the report has at most 10 MB; with many episodes
in one iteration the process takes at most 1.5 GB, and plays at least 0.8 times as fast as 5,000.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measured_commit import describe_commit

FEW_EPISODES = 5_000
MOST_RATIO, MOST_SLOWER, MOST_BYTES = 1.5, 1.25, 10_000_000
MOST_MEMORY_BYTES, LEAST_SPEED = 1_500_000_000, 0.8
_ASKED = ("get", "get_with_etag", "exists", "list", "size")
_SEVERAL, _MANY = 5, 10


def settings(place: Path, iterations: int, episodes: int, *, tested: bool) -> dict[str, Any]:
    """A run in `place`."""
    return {
        "run_name": "growth",
        "run_store": str(place / "runs"),
        "dataset": "families",
        "agents": {
            "_default": {
                "model_provider": "SelfHosted",
                "model_name": "deterministic",
                "max_tokens_per_message": 32,
            }
        },
        "lm_server": {"engine": "deterministic"},
        "protocol_common": {"shared_reward": True},
        "nip_protocol": {"max_message_rounds": 3, "min_message_rounds": 3},
        "rl": {
            "num_iterations": iterations,
            "rollouts_per_iteration": episodes,
            "num_epochs": 1,
        },
        "dataset_options": {"max_test_size": 20},
        "text_rl": {"test_scheme": "all" if tested else "none"},
        "fine_tuning": {"poll_interval_s": 0.02},
    }


class Meter:
    """What this process has used so far."""

    def __init__(self) -> None:
        """Counts from now on what is asked of stores on a disk."""
        from nip_core.run_store.local_store import LocalStore

        self.asked: Counter[str] = Counter()
        for name in _ASKED:
            setattr(LocalStore, name, self._counted(name, getattr(LocalStore, name)))

    def _counted(self, name: str, method: Any) -> Any:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.asked[name] += 1
            return method(*arguments, **named)

        return counted

    def used(self) -> dict[str, float]:
        """Processor seconds, seconds, requests and bytes."""
        io = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return {
            "cpu_s": time.process_time(),
            "s": time.monotonic(),
            "requests": self.asked.total(),
            "bytes_read": int(io["rchar"]),
        }

    @contextmanager
    def measured(self, into: dict[str, float]) -> Iterator[None]:
        """Add what the block uses to `into`."""
        before = self.used()
        yield
        for name, value in self.used().items():
            into[name] = into.get(name, 0) + value - before[name]


class Artifacts:
    """Takes what `publish_artifacts` sends, in the place of Prefect's client."""

    def __init__(self) -> None:
        """Nothing is sent from here on."""
        import logging

        from nip_prefect.tasks import publish

        self.bytes = 0
        for name in dir(publish):
            if name.startswith("acreate_"):
                setattr(publish, name, self._take)
        publish.get_run_logger = lambda: logging.getLogger(__name__)

    async def _take(self, **artifact: Any) -> None:
        self.bytes += len(json.dumps(artifact))


async def train(place: Path, iterations: int) -> dict[str, Any]:
    """Train, and measure each publishing."""
    from nip_core.loop import directly, go_on, iterate
    from nip_core.parameters import load_parameters
    from nip_core.run_store.run import RunStore
    from nip_core.run_store.store import open_store
    from nip_core.session.opening import open_session
    from nip_core.showing.summary import summarise_run
    from nip_core.stages.publishing import publish
    from nip_prefect.tasks.publish import publish_artifacts

    meter, artifacts = Meter(), Artifacts()
    publishing: dict[int, dict[str, float]] = {}
    seconds: dict[int, float] = {}

    async def call(function: Any, *arguments: Any) -> Any:
        if function is iterate:
            began = time.monotonic()
            result = await directly(function, *arguments)
            seconds[arguments[1]] = time.monotonic() - began
            return result
        if function is not publish:
            return await directly(function, *arguments)
        session, iteration, after, _, samples, *_ = arguments
        of = publishing.setdefault(iteration, {})
        sent = artifacts.bytes
        with meter.measured(of):
            await directly(function, *arguments)
            await publish_artifacts(session, after, iteration, samples)
        of["bytes_sent"] = of.get("bytes_sent", 0) + artifacts.bytes - sent
        return None

    parameters = load_parameters(settings(place, iterations, 20, tested=True))
    began = time.monotonic()
    async with open_session(parameters) as session:
        await go_on(session, call)
    total_s = time.monotonic() - began
    run = RunStore(open_store(place / "runs", read_only=True), "growth")
    shown: dict[str, float] = {}
    with meter.measured(shown):
        summarise_run(run)
    of = [publishing[i] for i in range(iterations)]
    report = place / "runs/growth/report.html"
    return {
        "iterations": iterations,
        "seconds": round(total_s, 1),
        "seconds_by_iteration": [round(seconds[i], 3) for i in range(iterations)],
        "publishing": {name: [round(one[name], 4) for one in of] for name in of[0]},
        "report_bytes": report.stat().st_size,
        "shown": {name: round(value, 3) for name, value in shown.items()},
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


async def play_many(place: Path, episodes: int) -> dict[str, Any]:
    """One iteration of many episodes, with the loop alone."""
    from nip_core.loop import train as train_run
    from nip_core.parameters import load_parameters

    meter, used = Meter(), dict[str, float]()
    with meter.measured(used):
        await train_run(load_parameters(settings(place, 1, episodes, tested=False)))
    times = json.loads((place / "runs/growth/iterations/0000/times.json").read_text())
    return {
        "episodes": episodes,
        "episodes_per_second_playing": round(episodes / times["play"], 1),
        "episodes_per_second": round(episodes / used["s"], 1),
        "cpu_ms_per_episode": round(1000 * used["cpu_s"] / episodes, 3),
        "times": {name: value for name, value in times.items() if isinstance(value, float)},
        "report_bytes": (place / "runs/growth/report.html").stat().st_size,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def in_process(python: str, *arguments: str) -> dict[str, Any]:
    """Run this file as a process of its own by some Python; what it prints."""
    command = [python, str(Path(__file__).resolve()), "--worker", *arguments]
    with tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, "DO_NOT_TRACK": "1", "PREFECT_HOME": f"{place}/prefect"}
        done = subprocess.run(
            [*command, "--place", place], env=environment, stdout=subprocess.PIPE, cwd=place
        )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: ended with {done.returncode}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def growth_of(values: list[float], begin: int, count: int) -> float:
    """The median of the last `count` values over that of `count` from `begin` on."""
    before, after = values[begin : begin + count], values[-count:]
    return round(statistics.median(after) / max(statistics.median(before), 1e-9), 3)


def judged(run: dict[str, Any]) -> dict[str, Any]:
    """The ratios of a run of many iterations, and whether they are within the bars."""
    ratios = {name: growth_of(of, 1, _SEVERAL) for name, of in run["publishing"].items()}
    slower = growth_of(run["seconds_by_iteration"], 1, _MANY)
    return {
        "publishing_last_over_second": ratios,
        "iteration_last_over_second": slower,
        "met": {
            "publishing": ratios["cpu_s"] <= MOST_RATIO,
            "seconds": slower <= MOST_SLOWER,
            "report": run["report_bytes"] <= MOST_BYTES,
        },
    }


def measure(python: str, iterations: int, episodes: int) -> dict[str, Any]:
    """All that is asked for, by one Python."""
    result: dict[str, Any] = {}
    if iterations:
        run = in_process(python, "--iterations", str(iterations))
        result |= {"run": run, **judged(run)}
    if episodes:
        few, many = (in_process(python, "--episodes", str(n)) for n in (FEW_EPISODES, episodes))
        speed = many["episodes_per_second"] / few["episodes_per_second"]
        result |= {"few": few, "many": many, "speed_many_over_few": round(speed, 3)}
        result.setdefault("met", {}).update(
            memory=many["peak_memory_bytes"] <= MOST_MEMORY_BYTES,
            speed=speed >= LEAST_SPEED,
            report_of_many=many["report_bytes"] <= MOST_BYTES,
        )
    return result


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--episodes", type=int, default=0)
    parser.add_argument("--against", help="the Python of another checkout")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work = (
            play_many(options.place, options.episodes)
            if options.episodes
            else train(options.place, options.iterations)
        )
        print(json.dumps(asyncio.run(work)))
        return
    load = os.getloadavg()[0]
    result: dict[str, Any] = {
        "command": " ".join(["python benchmarks/growth.py", *sys.argv[1:]]),
        "this": measure(sys.executable, options.iterations, options.episodes),
    }
    if options.against:
        result["other"] = measure(options.against, options.iterations, options.episodes)
    result["commit"] = describe_commit()
    result["machine"] = {
        "system": platform.machine(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_before": round(load, 1),
    }
    # Of a long series the two ends that are compared.
    for run in (of["run"] for of in (result["this"], result.get("other", {})) if "run" in of):
        for series in (*run["publishing"].values(), run["seconds_by_iteration"]):
            series[_MANY + 1 : -_MANY] = ["..."]
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    sys.exit(0 if all(result["this"]["met"].values()) else 1)


if __name__ == "__main__":
    main()
