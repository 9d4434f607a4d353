"""A run that is shown in all trackers and killed twenty times is there with each point once.

Every life of the run is a `nip train` of its own. It dies by SIGKILL: its process group at once, and
every other time also whatever it has started, so that whoever sends to a tracker dies in the middle
of it. Twenty lives end when something was committed, all over the run; most of them are held there
until a tracker, each in its turn, has another point. W&B is written to at the end of a run alone, so
more lives end while the run waits for its trackers there.
"""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import read_back
import yaml
from shared_prefect import session_folder, shared_prefect
from small_game import write_config
from test_kills import SHOWN, assert_whole

from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_lm_server.engines.scripted.reply_rules import DEFAULT_FILE

KILLS = 20
ITERATIONS = 6
FILES = 6 * ITERATIONS
"""Files with something to show: of two splits, two jobs, a swap and times in each iteration."""
STARTS_S = 180.0
HELD_S = 90.0
LATE_KILLS = 6
"""Lives that may end while trackers are sent what is left."""
PLACES = ("board", "trackio", "m.db", "wandb")
HELD_FOR = ("board", "trackio", "m.db", None)
"""By kill in turn, whose next point it waits for. That a file was touched is not enough: who opens a
database does that, and would be killed before each first point."""


@dataclass
class Killed:
    """The run, and what was known when it died."""

    folder: Path
    prefect: str
    kills: int = 0
    received: list[dict[str, int]] = field(default_factory=list)
    """By kill, how many batches each of its trackers had."""
    late: int = 0
    """How many of the kills came after the last metrics."""

    def live(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "nip_cli.cli", "train", "config.yaml"],
                cwd=self.folder,
                env={**os.environ, "PREFECT_API_URL": self.prefect, "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill the process group; every other time with all that descends from it, at once."""
        descendants = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        if self.kills % 2:
            for descendant in descendants:
                with contextlib.suppress(psutil.NoSuchProcess):
                    descendant.kill()
        process.wait()
        # What saw its parent die ends by itself, before the next life begins.
        _, alive = psutil.wait_procs(descendants, timeout=60)
        assert not alive, alive
        self.kills += 1
        cursors = self.folder.glob("runs/small/tracking/*/cursor.json")
        self.received.append(
            {
                path.parent.name.partition("-")[0]: json.loads(path.read_text())["received"]
                for path in cursors
            }
        )

    def is_sending(self, process: "subprocess.Popen[bytes]") -> bool:
        """Whether it has started whoever sends."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for descendant in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "nip_bridges.tracking" in descendant.cmdline():
                        return True
        return False

    def shown(self) -> int:
        """How many files there are with something to show."""
        root = self.folder / "runs" / "small" / "iterations"
        return sum(bool(SHOWN.fullmatch(str(path))) for path in root.rglob("*.json"))

    def is_played(self) -> bool:
        last = self.folder / "runs" / "small" / "iterations" / f"{ITERATIONS:04}"
        return (last / "metrics-test.json").exists()

    def written(self) -> dict[Path, int]:
        """The files of trackers, with the time of their last change in nanoseconds."""
        there = self.folder / "there"
        files = [p for place in PLACES for p in (there / place, *(there / place).rglob("*"))]
        times = {}
        for path in files:
            with contextlib.suppress(FileNotFoundError):  # it was moved to its place
                times[path] = path.stat().st_mtime_ns
        return times

    def sent(self, place: str) -> int:
        """How many rows, or files, with points a tracker has."""
        there = self.folder / "there"
        if place == "board":
            return len(list(there.glob("board/*/*tfevents*")))
        database = there / "trackio" / "nip.db" if place == "trackio" else there / place
        try:
            with contextlib.closing(
                sqlite3.connect(f"file:{database}?mode=rw", uri=True)
            ) as opened:
                [(count,)] = opened.execute("SELECT count(*) FROM metrics")
        except sqlite3.OperationalError as error:
            assert "unable to open" in str(error) or "no such table" in str(error), error
            return 0
        return count

    def said(self) -> str:
        return (self.folder / "log").read_text()[-3000:]


def until(holds, process: "subprocess.Popen[bytes]", killed: Killed) -> None:
    """Wait until it holds, or the process has ended well."""
    deadline = time.monotonic() + STARTS_S
    while not holds() and process.poll() is None:
        assert time.monotonic() < deadline, killed.said()
        time.sleep(0.01)
    assert process.returncode in (None, 0), killed.said()


@pytest.fixture
def killed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    there = tmp_path / "there"
    there.mkdir()
    replies = yaml.safe_load(DEFAULT_FILE.read_text())
    # So that a run takes its time without the processor.
    (tmp_path / "replies.yaml").write_text(
        yaml.safe_dump({**replies, "latency_s": {"min": 0.1}, "training": {"seconds": 0.5}})
    )
    write_config(
        tmp_path,
        lm_server={"engine": "deterministic", "replies": str(tmp_path / "replies.yaml")},
        rl={"num_iterations": ITERATIONS, "rollouts_per_iteration": 40, "num_epochs": 1},
        rollouts={"episodes_per_shard": 20, "concurrency": 16},
        tracking=[
            {"kind": "tensorboard", "directory": str(there / "board")},
            {"kind": "trackio", "directory": str(there / "trackio")},
            {"kind": "mlflow", "uri": f"sqlite:///{there}/m.db"},
            {"kind": "wandb", "mode": "offline", "directory": str(there)},
        ],
    )
    with shared_prefect(session_folder(tmp_path_factory)) as api:
        yield Killed(tmp_path, api)


@pytest.mark.timeout(3600)
def test_after_twenty_kills_of_the_whole_run_every_point_is_there_once(killed):
    # 1. Lives that end one after the other, further on each time. All but every fourth are held up
    #    until a tracker has more than it had, so that who sends was in the middle of it.
    for number in range(KILLS):
        process = killed.live()
        place = HELD_FOR[number % len(HELD_FOR)]
        sent = killed.sent(place) if place else 0
        due = max(killed.shown() + 1, 1 + number * (FILES - 2) // KILLS)
        until(lambda due=due: killed.shown() >= due, process, killed)
        if place:
            until(lambda process=process: killed.is_sending(process), process, killed)
        os.killpg(process.pid, signal.SIGSTOP)
        deadline = time.monotonic() + HELD_S
        while place and killed.sent(place) == sent and time.monotonic() < deadline:
            time.sleep(0.05)
        killed.kill(process)
    # 2. Lives that end while trackers are sent what they lack, until one has nothing left to do.
    for _ in range(LATE_KILLS):
        process = killed.live()
        until(killed.is_played, process, killed)
        written = killed.written()
        until(lambda written=written: killed.written() != written, process, killed)
        if process.poll() is not None:
            break
        killed.kill(process)
        killed.late += 1
    # 3. One that may end, and whoever sends what is left.
    assert killed.live().wait(300) == 0, killed.said()
    track = [sys.executable, "-m", "nip_cli.cli", "track", "small"]
    for _ in range(2):
        subprocess.run(
            [*track, "--run-store", str(killed.folder / "runs")], cwd=killed.folder, check=True
        )
    print(f"{killed.kills} kills, {killed.late} of them late; received: {killed.received}")
    assert killed.kills >= KILLS
    # They were sent to in between, a part at a time.
    for tracker in ("tensorboard", "trackio", "mlflow"):
        had = [of.get(tracker, 0) for of in killed.received]
        assert had == sorted(had) and len(set(had)) >= 4, (tracker, had)
    # 4. Each has what the run has, once.
    run = RunStore(open_store(killed.folder / "runs"), "small")
    there = killed.folder / "there"
    for points in (
        read_back.of_tensorboard(there / "board"),
        read_back.of_trackio(there / "trackio"),
        read_back.of_mlflow(there / "m.db"),
        read_back.of_wandb(there),
    ):
        assert_whole(points, run, iterations=ITERATIONS)
