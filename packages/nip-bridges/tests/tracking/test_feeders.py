"""A tracker in trouble neither stops nor slows a run."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from nip_bridges.tracking.feeders import Feeders
from nip_core.parameters import load_parameters
from nip_core.parameters.blocks.tracking import TrackerParameters
from nip_core.proxies import hide_unusable
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.store import open_store

RUN = {"run_name": "a", "dataset": "problems"}


def test_trouble_is_told_once_and_the_run_goes_on(tmp_path):
    run = RunStore(open_store(tmp_path), "a")
    run.create_or_open(Identity(load_parameters(RUN).to_dict(), "1", 1))
    run.store.put(run.metrics(0, "train"), b'{"accuracy": 0.5}')
    tracker = TrackerParameters(kind="tensorboard", directory=str(tmp_path / "board"))
    told: list[str] = []
    feeders = Feeders(run, [tracker], told.append)
    feeders.look()
    deadline = time.monotonic() + 120
    while not told and time.monotonic() < deadline:
        time.sleep(0.02)
    for _ in range(3):  # it is not started again at once
        feeders.look()
    began = time.monotonic()
    asyncio.run(feeders.close())
    assert time.monotonic() - began < 5  # nobody waits for it, on however busy a machine
    [trouble] = told
    assert "tensorboard: ModuleNotFoundError: No module named 'tensorboardX'" in trouble
    assert "; the run goes on, and nip track a sends later what it lacks" in trouble
    assert not (tmp_path / "board").exists()


def test_a_feeder_that_can_not_be_started_is_trouble_like_other(tmp_path):
    run = RunStore(open_store(tmp_path), "a")
    run.create_or_open(Identity(load_parameters(RUN).to_dict(), "1", 1))
    (tmp_path / "a/tracking").write_text("a file where its log would lie")
    told: list[str] = []
    feeders = Feeders(run, [TrackerParameters(kind="tensorboard")], told.append)
    for _ in range(3):
        feeders.look()
    [trouble] = told
    assert "tensorboard: its process can't be started: " in trouble and "tracking" in trouble
    [feeding] = Feeders(run, [TrackerParameters(kind="tensorboard")], told.append).finish(1.0)
    assert feeding.received is None
    assert "tracking" in feeding.trouble


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="of Linux alone")
def test_a_feeder_asks_a_tracker_of_this_machine_directly_and_others_as_was_set(
    tmp_path, monkeypatch
):
    for name in ("all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "socks5://127.0.0.1:1")
    hide_unusable(os.environ)  # as the command does for itself
    run = RunStore(open_store(tmp_path), "a")
    run.create_or_open(Identity(load_parameters(RUN).to_dict(), "1", 1))
    feeders = Feeders(run, [TrackerParameters(kind="tensorboard")], lambda told: None)
    feeders.look()
    process = feeders._processes[0]
    given = Path(f"/proc/{process._process.pid}/environ").read_bytes().split(b"\0")
    process.kill()
    assert b"all_proxy=socks5://127.0.0.1:1" in given
    assert b"no_proxy=localhost,127.0.0.1,127.0.0.0/8,::1" in given
    assert "no_proxy" not in os.environ
