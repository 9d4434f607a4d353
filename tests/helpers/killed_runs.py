"""A small run whose flow and whose server can be killed at a chosen step, and what came of it.

Zygote    forks flows or servers, see `killed_zygote`
Place     one run on disk: starts it, kills it, lets it go on, and looks at what it left
Outcome   what must be the same as in the run that was never killed
"""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from killed_steps import Point
from small_game import write_config

from nip_core.hashing import derive_seed
from nip_core.rollouts.storage.journal import Journal
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import list_files, open_store
from nip_lm_server.state.directory import read_card

HELPERS = Path(__file__).parent
DEADLINE_S = 120.0
KEY = "key-of-the-killed-runs"
RUN = "small"
SEED = 11
EPISODES, SHARDS = 10, 2
IN_FLIGHT = 1
"""Turns that are asked for and have no durable record yet: as many as `concurrency`."""

Call = tuple[str, str]
"""Model and seed: which generation a request to the server is for."""


class Zygote:
    """Forks processes of one kind. Use as a context manager."""

    def __init__(self, kind: str, folder: Path, environment: dict[str, str]):
        self._process = subprocess.Popen(
            [sys.executable, str(HELPERS / "killed_zygote.py"), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={k: v for k, v in environment.items() if not k.startswith("COV")},
            cwd=folder,
        )
        self._logs: dict[int, Path] = {}
        self._said()

    def start(self, **task: Any) -> int:
        pid = int(self._ask({"start": task})["pid"])
        self._logs[pid] = Path(task["log"])
        return pid

    def warm(self, modules: Path) -> None:
        """Import what a process of an unbroken run had imported in the end."""
        self._ask({"import": json.loads(modules.read_text())})

    def poll(self, pid: int) -> int | None:
        status: int | None = self._ask({"poll": pid})["status"]
        return status

    def end(self, pid: int) -> int:
        """Ask a process to end; its status."""
        os.kill(pid, signal.SIGTERM)
        return self.wait(pid)

    def wait(self, pid: int) -> int:
        """The status of a process that is about to end."""
        deadline = time.monotonic() + DEADLINE_S
        while (status := self.poll(pid)) is None:
            assert time.monotonic() < deadline, f"process {pid} does not end: {self._stuck(pid)}"
            time.sleep(0.01)
        return status

    def _stuck(self, pid: int) -> str:
        """Where a process hangs: its threads in the kernel, its log with their stacks."""
        threads = []
        for task in Path(f"/proc/{pid}/task").glob("*"):
            state = (task / "stat").read_text().rpartition(") ")[2][0]
            threads.append(f"{task.name} {state} {(task / 'wchan').read_text()}")
        os.kill(pid, signal.SIGUSR2)
        time.sleep(1.0)
        return f"{threads}\n{self._logs[pid].read_text()[-10_000:]}"

    def left(self) -> list[list[str]]:
        left: list[list[str]] = self._ask({"left": True})["left"]
        return left

    def kill_all(self) -> None:
        """Kill all that descend from it; returns when they have ended."""
        self._ask({"kill": True})

    def __enter__(self) -> "Zygote":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._said()

    def _said(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the zygote ended with status {self._process.wait()}"
        said: dict[str, Any] = json.loads(line)
        return said


@dataclass(frozen=True)
class Outcome:
    """All that a kill must not change."""

    rollouts: dict[str, str]  # canonical digest by stage
    datasets: dict[str, str]  # digest by iteration and group
    models: dict[str, Any]  # name and digest of the weights by iteration and group
    jobs: list[tuple[str, ...]]  # at the server: key, suffix, status, adapter
    adapters: dict[str, str]  # at the server: content digest by name


@dataclass(frozen=True)
class Death:
    """A kill, and what was known at that moment."""

    what: str  # flow or server
    point: Point
    calls: int  # that had arrived at the server
    durable: set[str]  # keys of the generations with a durable record


@dataclass
class Place:
    """One run in `folder`, on a server of its own unless `own_server`, which the flow starts."""

    folder: Path
    flows: Zygote
    servers: Zygote
    prefect: str
    own_server: bool = False
    flow: int = 0
    server: int | None = None
    deaths: list[Death] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.state = self.folder / "server"
        self.port = free_port()
        lm_server = {"engine": "deterministic"}
        if not self.own_server:
            lm_server = {"url": f"http://127.0.0.1:{self.port}"}
        self.config = write_config(
            self.folder,
            lm_server=lm_server,
            seed=SEED,
            rl={"num_iterations": 1, "rollouts_per_iteration": EPISODES, "num_epochs": 1},
            rollouts={"episodes_per_shard": EPISODES // SHARDS, "concurrency": 1},
            dataset=str(_few_problems(self.folder / "problems")),
            dataset_options={},
            pure_text_ei={"reward_threshold": -100.0},
            fine_tuning={"poll_interval_s": 0.05, "settle_s": 0.3},
        )

    # Doing ------------------------------------------------------------------------------------

    def play(self, flow: Sequence[Point] = (), server: Sequence[Point] = ()) -> None:
        """Run to the end. The first process dies of the first point, the one after it of the next.

        `deaths` then tells which were reached.
        """
        points = {"flow": list(flow), "server": list(server)}
        deadline = time.monotonic() + DEADLINE_S
        if not self.own_server:
            self._start_server(points["server"])
        self._start_flow(points["flow"])
        while True:
            assert time.monotonic() < deadline, f"it hangs: {self.said()}"
            if self.server is not None:
                status = self.servers.poll(self.server)
                if status is not None:
                    self._note_death("server", status, points["server"])
                    self._start_server(points["server"])
            status = self.flows.poll(self.flow)
            if status == 0:
                break
            if status is not None:
                self._note_death("flow", status, points["flow"])
                deadline = time.monotonic() + DEADLINE_S
                self._start_flow(points["flow"])
            time.sleep(0.02)
        if self.server is not None:
            self._stop_server(points["server"])

    def abandon(self) -> None:
        """Kill all that a failed run has left, which the next run would be blamed for."""
        self.flows.kill_all()
        self.servers.kill_all()
        self.server = None

    def _stop_server(self, points: list[Point]) -> None:
        while True:
            status = self.servers.end(self.server)
            if status == 0:
                break
            # Its point lay in the way it stops: started again it must be well, and can stop.
            self._note_death("server", status, points)
            self._start_server(points)
        self.server = None

    def _note_death(self, what: str, status: int, points: list[Point]) -> None:
        assert status == -signal.SIGKILL, f"the {what} ended with {status}: {self.said()}"
        kills = sum(step == "killed" for step in self.steps(what))
        expected = sum(death.what == what for death in self.deaths) + 1
        assert kills == expected, f"something else killed the {what}: {self.said()}"
        self.deaths.append(Death(what, points.pop(0), len(self.calls()), self.durable()))

    def _start_flow(self, points: list[Point]) -> None:
        self.flow = self.flows.start(
            arguments=["train", str(self.config)],
            root=str(self.folder),
            steps=str(self.folder / "steps-flow"),
            log=str(self.folder / "flow.log"),
            modules=str(self.folder / "modules-flow"),
            point=points[0] if points else None,
            names={f"127.0.0.1:{self.port}": "server", self.prefect: "prefect"},
        )

    def _start_server(self, points: list[Point]) -> None:
        engine = ["--engine", "deterministic", "--model", "deterministic"]
        self.server = self.servers.start(
            arguments=[*engine, "--state", str(self.state), "--port", str(self.port)],
            root=str(self.folder),
            steps=str(self.folder / "steps-server"),
            log=str(self.folder / "server.log"),
            modules=str(self.folder / "modules-server"),
            calls=str(self.folder / "calls"),
            point=points[0] if points else None,
        )
        deadline = time.monotonic() + DEADLINE_S
        while (card := read_card(self.state)) is None or card.pid != self.server:
            status = self.servers.poll(self.server)
            if status is not None:  # killed before it was ready
                self._note_death("server", status, points)
                self._start_server(points)
                return
            assert time.monotonic() < deadline, f"the server is not ready: {self.said()}"
            time.sleep(0.005)

    # Looking ----------------------------------------------------------------------------------

    def steps(self, what: str) -> list[str]:
        path = self.folder / f"steps-{what}"
        return path.read_text().splitlines() if path.exists() else []

    def points(self, what: str) -> list[Point]:
        """Every step of the flow or the server as a point."""
        seen: Counter[str] = Counter()
        found = []
        for label in self.steps(what):
            if label == "killed":
                continue
            seen[label] += 1
            found.append((label, seen[label]))
        return found

    def said(self) -> str:
        logs = [self.folder / "flow.log", self.folder / "server.log"]
        return "\n".join(f"{p.name}: {p.read_text()[-3000:]}" for p in logs if p.exists())

    def calls(self) -> list[Call]:
        """What has arrived at the server; the proofs, which have no seed, left out."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        pairs = [tuple(line.split()) for line in lines]
        return [(model, seed) for model, seed in pairs if seed != "None"]

    def durable(self) -> set[str]:
        """Keys of the generations with a durable record: in a journal or a committed shard."""
        root = self.folder / "runs" / RUN
        rows = []
        for path in (root / "iterations").glob("*/rollouts/*/generations-*.parquet"):
            manifest = path.with_name(f"manifest-{path.stem.partition('-')[2]}.json")
            if manifest.exists():
                rows += pq.read_table(path, columns=["key"]).to_pylist()
        for path in (root / "journals").glob("*/*/*.journal"):
            copy = self.folder / "journal-copy"
            shutil.copyfile(path, copy)
            journal = Journal(copy)
            rows += [record["generation"] for record in journal.replay()]
            journal.close()
        return {row["key"] for row in rows}

    def left(self) -> list[list[str]]:
        """Processes that descend from this run's and still are."""
        return self.flows.left() + self.servers.left()

    def seeds(self) -> dict[str, str]:
        """Of every generation of the finished run: its seed by its key."""
        seeds = {}
        for folder in (self.folder / "runs" / RUN / "iterations").glob("*/rollouts/*"):
            episodes = {
                row["key"]: row
                for path in folder.glob("episodes-*.parquet")
                for row in pq.read_table(path).to_pylist()
            }
            for path in folder.glob("generations-*.parquet"):
                for row in pq.read_table(path).to_pylist():
                    episode = episodes[row["episode"]]
                    place = (folder.name, int(folder.parts[-3]), episode["problem"])
                    place += (episode["sample"], row["branch_path"])
                    turn = (row["round"], row["agent"], row["attempt"])
                    seeds[row["key"]] = str(derive_seed("generation", SEED, *place, *turn))
        return seeds

    def check_calls(self) -> None:
        """Of every generation of the finished run a call was noted, but by a server of its own."""
        noted = {seed for _, seed in self.calls()}
        assert self.own_server or noted == {*self.seeds().values()}, "the calls are not the run's"

    def repeated(self, death: Death) -> set[str]:
        """Seeds of the generations that were asked for before a kill and after it once more."""
        seeds = [seed for _, seed in self.calls()]
        return set(seeds[death.calls :]) & set(seeds[: death.calls])

    def outcome(self) -> Outcome:
        """What came of the run so far."""
        own = self.folder / "runs" / RUN / "lm_server"
        return outcome_of(self.folder, own if self.own_server else self.state)


def outcome_of(folder: Path, state: Path) -> Outcome:
    """What came of the run in `folder`, whose server keeps its state in `state`."""
    run = RunStore(open_store(folder / "runs", read_only=True), RUN)
    rollouts, datasets, models = {}, {}, {}
    for path in list_files(run.store, f"{run.root}/iterations"):
        place, _, name = path.rpartition("/")
        short = place.removeprefix(f"{run.root}/iterations/")
        if name == "models.json":
            groups = run.read_json(path)["groups"]
            models[short] = {g: [m["model"], m["digest"]] for g, m in groups.items()}
        if name != "manifest.json":
            continue
        manifest = read_manifest(run.store, place)
        if "/rollouts/" in path:
            rollouts[short] = manifest.extra["canonical_digest"]
        else:
            datasets[short] = manifest.extra["digest"]
    return Outcome(rollouts, datasets, models, *_at_server(state))


def _at_server(state: Path) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    database = f"file:{state / 'jobs.sqlite3'}?mode=ro"
    with sqlite3.connect(database, uri=True) as connection:
        jobs = connection.execute(
            "SELECT value, suffix, status, adapter_name FROM jobs "
            "JOIN job_metadata ON job_seq = seq WHERE key = 'nip_key' ORDER BY 1, 2"
        ).fetchall()
    connection.close()
    manifests = {p.parent.name: json.loads(p.read_text()) for p in state.glob("models/*/manifest*")}
    return jobs, {name: str(m.get("content_digest")) for name, m in manifests.items()}


def spread(points: Iterable[Any], count: int) -> list[Any]:
    """`count` of the points, evenly, the first and the last among them."""
    points = list(points)
    if count >= len(points):
        return points
    return [points[i * (len(points) - 1) // max(count - 1, 1)] for i in range(count)]


def _few_problems(folder: Path) -> Path:
    folder.mkdir()
    for split, count in (("train", EPISODES), ("validation", 2), ("test", 2)):
        rows = [
            {
                "question": f"Add {n} to {split}?",
                "solution": f"def f(x): return x + {n}",
                "y": n % 2,
            }
            for n in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def free_port() -> int:
    """A port of the loopback that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
