"""A tracker has each point exactly once, however often whoever sends them was killed."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import read_back

from nip_bridges.tracking.point_log import PointLog
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

HERE = Path(__file__).parent
KILLS = 20
SHOWN = re.compile(r".*/(metrics-\w+|models|times|jobs/\w+)\.json")
"""Files with which there is something new to show."""

TRACKERS: dict[str, tuple[dict[str, str], Callable[[Path], read_back.Points]]] = {
    "tensorboard": ({"directory": "{}/board"}, lambda at: read_back.of_tensorboard(at / "board")),
    "trackio": ({"directory": "{}/trackio"}, lambda at: read_back.of_trackio(at / "trackio")),
    "mlflow": ({"uri": "sqlite:///{}/m.db"}, lambda at: read_back.of_mlflow(at / "m.db")),
    "mlflow files": ({"uri": "file://{}/m"}, lambda at: read_back.of_mlflow_files(at / "m")),
    "wandb": ({"mode": "offline", "directory": "{}"}, read_back.of_wandb),
}


class Killed:
    """A process that feeds a tracker in forks of itself."""

    def __init__(self, tracker: dict[str, str], store: Path, run: str):
        self._task = {"store": str(store), "run": run, "tracker": tracker}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "killed_feeder.py"), json.dumps(tracker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def feed(self, kill_at: int | None = None) -> dict[str, int]:
        self._process.stdin.write(json.dumps({**self._task, "kill_at": kill_at}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self):
        line = self._process.stdout.readline()
        assert line, "it has ended"
        return json.loads(line)


def revealed(source: RunStore, target: Path) -> Iterator[None]:
    """Copy a run file by file in the order in which it was written, a step for each that shows."""
    root = source.store.local_path(source.root)
    files = [path for path in root.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns):
        name = path.relative_to(root)
        if name.parts[0] in ("lease.json", "fences", "lm_server", "tracking", "shown"):
            continue
        copy = target / source.name / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
        if SHOWN.fullmatch(f"/{name}"):
            yield


@pytest.mark.parametrize("kind", TRACKERS)
def test_after_twenty_kills_every_point_is_there_once(finished, kind, tmp_path):
    options, read = TRACKERS[kind]
    place, store = tmp_path / "there", tmp_path / "runs"
    place.mkdir()
    options = {name: text.format(place) for name, text in options.items()}
    feeder = Killed({"kind": kind.partition(" ")[0], **options}, store, finished.name)
    # 1. Whatever is committed next is sent by three who are killed, at points that go from the
    #    beginning of the sending to its end, and every third time by somebody who is not.
    kills, calls, step = 0, 4000, 0
    for _ in revealed(finished, store):
        for _ in range(3):
            share = ((7 * step) % KILLS + 0.5) / KILLS
            kills += feeder.feed(kill_at=int(share * calls))["status"] == -signal.SIGKILL
            step += 1
        if step % 9 == 0:
            ended = feeder.feed()
            assert ended["status"] == 0
            calls = ended["calls"]
    assert feeder.feed()["status"] == 0
    feeder.end()
    assert kills >= KILLS
    # 2. What it has is what the run has, once.
    assert_whole(read(place), RunStore(open_store(store), finished.name))


def assert_whole(points: read_back.Points, run: RunStore, iterations: int = 2) -> None:
    log = PointLog(run)
    batches = [log.read(number) for number in range(log.extend())]
    rows = [row for batch in batches for row in batch.rows]
    due = {(name, row.step): value for row in rows for name, value in row.values.items()}
    assert len(due) == sum(len(row.values) for row in rows)
    assert {place: len(values) for place, values in points.items()} == dict.fromkeys(due, 1)
    assert {k: values[0] for k, values in points.items()} == pytest.approx(due, rel=1e-6)
    names = {name for name, _ in due}
    assert {"test/accuracy", "train/agents/prover/mean_reward", "seconds/play"} <= names
    assert {f"training/{group}/learning_rate" for group in ("prover", "verifier")} <= names
    tested = [step for name, step in due if name == "test/accuracy"]
    assert sorted(tested) == [*range(iterations + 1)]
