"""`nip train` killed with SIGKILL at any moment and started again ends as if it never was."""

import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from small_game import write_config

from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

KILLS = int(os.environ.get("NIP_KILLS", "2"))
DEADLINE_S = 120


def start(config: Path, environment) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "train", str(config)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(config: Path, environment) -> float:
    started = time.monotonic()
    process = start(config, environment)
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    return time.monotonic() - started


def digests(folder: Path) -> dict:
    run = RunStore(open_store(folder / "runs"), "small")
    stages = [(0, "test"), (0, "train"), (1, "test"), (1, "train"), (2, "test")]
    return {
        stage: read_manifest(run.store, run.rollouts(*stage)).extra["canonical_digest"]
        for stage in stages
    }


def jobs(folder: Path) -> list:
    database = folder / "runs" / "small" / "lm_server" / "jobs.sqlite3"
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return sorted(
            connection.execute("SELECT suffix, status, adapter_name FROM jobs").fetchall()
        )


def servers_of(folder: Path) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if "nip_core.lm_server" in line and str(folder) in line:
            found.append(process.pid)
    return found


@pytest.mark.timeout(3600)
def test_a_killed_run_repeats_nothing_and_ends_the_same(command_environment, tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    straight.mkdir(), killed.mkdir()
    whole_s = finish(write_config(straight), command_environment)
    moments = random.Random(20)
    config = write_config(killed)
    for _ in range(KILLS):
        process = start(config, command_environment)
        time.sleep(moments.uniform(0.15, 0.95) * whole_s)
        process.kill()
        process.communicate(timeout=30)
    finish(config, command_environment)
    assert digests(killed) == digests(straight)
    assert jobs(killed) == jobs(straight)
    assert [(suffix, status) for suffix, status, _ in jobs(killed)] == [
        (f"small-{iteration:04d}-{group}", "succeeded")
        for iteration in (0, 1)
        for group in ("prover", "verifier")
    ]
    deadline = time.monotonic() + 30
    while servers_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert servers_of(tmp_path) == []
