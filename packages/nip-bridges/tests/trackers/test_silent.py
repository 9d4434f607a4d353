"""A tracker that does not answer, or refuses, holds up nobody; it is sent later what it lacks."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import read_back
from test_kills import assert_whole

from nip_bridges.tracking.feeders import SILENT_AT_FIRST_S, SILENT_S, UNKNOWN_S, Feeders
from nip_core.parameters.blocks.tracking import TrackerParameters
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

KINDS = ("mlflow", "trackio", "wandb")
START_S = 300.0


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and requests, and never says anything."""
    listening = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                taken.append(listening.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.close()
    for connection in taken:
        connection.close()


@pytest.fixture
def run(finished: RunStore, tmp_path: Path) -> RunStore:
    """The finished run as nobody was shown it."""
    source = finished.store.local_path(finished.root)
    shutil.copytree(
        source, tmp_path / "runs" / finished.name, ignore=shutil.ignore_patterns("tracking")
    )
    return RunStore(open_store(tmp_path / "runs"), finished.name)


def tracker_at(
    kind: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> TrackerParameters:
    monkeypatch.setenv("TRACKIO_WRITE_TOKEN", "token")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", address)
    if kind == "wandb":
        return TrackerParameters(kind="wandb", mode="online", directory=str(tmp_path / "w"))
    return TrackerParameters(kind=kind, uri=address)


def until(condition, deadline_s: float = START_S) -> None:
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def closed_in_s(feeders: Feeders) -> float:
    began_s = time.monotonic()
    asyncio.run(feeders.close())
    return time.monotonic() - began_s


@pytest.mark.parametrize("asked_s", [0, SILENT_AT_FIRST_S])
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_waits_for_a_tracker_that_does_not_answer(
    run, kind, silent, tmp_path, monkeypatch, asked_s
):
    told: list[str] = []
    feeders = Feeders(run, [tracker_at(kind, silent, tmp_path, monkeypatch)], told.append)
    began_s = time.monotonic()
    [process] = feeders._processes
    process.look(in_background=False)  # else a busy machine may take minutes to start it
    assert time.monotonic() - began_s < 1
    until(lambda: process.state == "asking" or told)
    for _ in range(100):  # more is committed
        feeders.look()
    time.sleep(0.2)
    assert not process.has_answered
    # It has never answered: a second, or 1 % of the run's time, unless it had time enough to.
    process.since_s -= asked_s
    least_s = 0 if asked_s else UNKNOWN_S
    assert closed_in_s(feeders) < least_s + 0.01 * (time.monotonic() - began_s) + 1
    assert "not everything was sent (no answer); nip track" in told[-1] or "goes on" in told[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_refuses_is_told_of_and_the_run_goes_on(run, kind, tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    told: list[str] = []
    tracker = tracker_at(kind, f"http://127.0.0.1:{port}", tmp_path, monkeypatch)
    feeders = Feeders(run, [tracker], told.append)
    [process] = feeders._processes
    process.look(in_background=False)
    until(lambda: told)
    assert told[0].startswith(f"{kind}: ")
    assert "the run goes on, and nip track" in told[0]
    assert closed_in_s(feeders) < 1


class TrackioServer:
    """trackio's own server, which can be suspended."""

    def __init__(self, folder: Path):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        code = "import sys, trackio; trackio.show(open_browser=False, block_thread=True, host='127.0.0.1', server_port=int(sys.argv[1]))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(port)],
            env={**os.environ, "TRACKIO_DIR": str(folder), "TRACKIO_WRITE_TOKEN": "token"},
            stdout=subprocess.DEVNULL,
        )
        until(self._answers)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.address}/version", timeout=5).is_success
        except httpx.HTTPError:
            return False


def test_what_a_silent_server_lacks_it_is_sent_once_when_it_answers(run, tmp_path, monkeypatch):
    server = TrackioServer(tmp_path / "there")
    try:
        tracker = tracker_at("trackio", server.address, tmp_path, monkeypatch)
        # 1. It is silent from its first batch on, but has the requests in its queue.
        server.process.send_signal(signal.SIGSTOP)
        told: list[str] = []
        feeders = Feeders(run, [tracker], told.append)
        [process] = feeders._processes
        process.look(in_background=False)
        until(lambda: process.state == "asking" and process.in_state_s > SILENT_S)
        assert closed_in_s(feeders) < UNKNOWN_S + 0.01 * START_S + 1
        # 2. It answers again, and is sent everything, also twice.
        server.process.send_signal(signal.SIGCONT)
        for _ in range(2):
            [feeding] = Feeders(run, [tracker], told.append).finish(60.0)
            assert feeding.trouble is None
            assert feeding.received == feeding.batches
            [cursor] = (tmp_path / "runs").glob("*/tracking/trackio-*/cursor.json")
            cursor.unlink()
    finally:
        server.process.kill()
        server.process.wait()
    assert_whole(read_back.of_trackio(tmp_path / "there"), run)


def test_the_run_in_all_trackers_has_one_id_and_its_settings(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = f"sqlite:///{tmp_path}/m.db"
    trackers = [
        TrackerParameters(kind="mlflow", uri=there),
        TrackerParameters(kind="trackio", directory=str(tmp_path / "t")),
        TrackerParameters(kind="wandb", mode="offline"),
        TrackerParameters(kind="tensorboard"),
    ]
    for _ in range(2):
        feedings = Feeders(run, trackers).finish(START_S)
        assert [feeding.trouble for feeding in feedings] == [None] * 4
    from mlflow import MlflowClient
    from trackio import SQLiteStorage

    client = MlflowClient(there)
    [shown] = client.search_runs([client.get_experiment_by_name("nip").experiment_id])
    id = shown.data.tags["nip.run_id"]
    assert shown.info.run_name == run.name
    assert shown.data.params["interaction_protocol"] == "nip"
    assert read_back.wandb_ids(tmp_path) == {id}
    assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == [f"{run.name}-{id[:6]}"]
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "t")
    assert SQLiteStorage.get_run_config("nip", run_id=id)["nip.run_id"] == id
    for points in (
        read_back.of_mlflow(tmp_path / "m.db"),
        read_back.of_trackio(tmp_path / "t"),
        read_back.of_wandb(tmp_path),
        read_back.of_tensorboard(tmp_path / "tensorboard"),
    ):
        assert_whole(points, run)
