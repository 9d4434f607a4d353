"""A sweep on a cluster of each kind: the same data as without one, killed, and with a failed run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from prefect_stack import free_port

from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "DO_NOT_TRACK": "1", "NIP_API_KEY": "a-key"}
RUNS = {"small-own": 1, "small-own-chosen": 0}


def written(folder):
    folder.mkdir()
    path = folder / "sweep.yaml"
    settings = {
        "name": "small",
        "config": "deterministic",
        "run_store": str(folder / "runs"),
        "set": {
            "rl": {"num_iterations": 1, "rollouts_per_iteration": 200},
            "dataset_options.max_test_size": 8,
        },
        "axes": {"server": {"own": {}, "away": {"lm_server.url": "http://127.0.0.1:9/v1"}}},
        "attacks": {"chosen": {"by": "best-of-n", "n": [1, 2], "problems": 2}},
    }
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    return path


def nip(*arguments, **options):
    command = [sys.executable, "-m", "nip_cli.cli", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, **options,
    )  # fmt: skip


def digests(folder):
    store = open_store(folder / "runs")
    tests = {}
    for name, last in RUNS.items():
        run, split = RunStore(store, name), "attack" if "chosen" in name else "test"
        manifest = read_manifest(store, run.rollouts(last, split))
        tests[name] = manifest.extra["canonical_digest"]
    return tests


def stopped(folder, started, sent):
    """A sweep that got a signal when its first run was playing, and what it said of it."""
    begun_s = time.time()
    process = nip(*started, start_new_session=True)
    journals = folder / "runs" / "small-own"
    while not any(f.stat().st_mtime > begun_s for f in journals.glob("journals/**/*.journal")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=120)
    return process, errors


def is_gone():
    """Whether no machine of a cluster works on a run any longer, within a minute."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        lines = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
        if not any("train" in line and "nip-" in line[-1] for line in lines):
            return True
        time.sleep(0.2)
    return False


@pytest.fixture(scope="module")
def played_here(tmp_path_factory):
    path = written(tmp_path_factory.mktemp("here") / "a")
    process = nip("sweep", path, "--jobs", 2)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 3, out + errors
    return digests(path.parent)


@pytest.mark.parametrize("kind", ["dask", "ray"])
def test_a_cluster_plays_a_sweep_as_one_machine_does(kind, played_here, tmp_path):
    pytest.importorskip(f"prefect_{kind}")
    path = written(tmp_path / "b")
    started = ("sweep", path, "--task-runner", kind, "--jobs", 2)

    # 1. Killed, or interrupted, in the middle of a run: nobody goes on with it.
    for sent in (signal.SIGKILL, signal.SIGINT):
        process, errors = stopped(path.parent, started, sent)
        assert is_gone()
    assert process.returncode == 130 and "Traceback" not in errors, errors
    assert "nip: stopping, what is finished is kept" in errors

    # 2. To the end: a failed run is shown, the others are those of one machine, attacks too.
    process = nip(*started)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 3, out + errors
    assert "Traceback" not in out + errors
    assert "small-away: failed with exit code 3: " in out and "127.0.0.1:9" in out
    assert "small-away-chosen: not begun, as the run failed" in out
    assert digests(path.parent) == played_here
    results = json.loads((path.parent / "runs/sweeps/small/results.json").read_text())
    status = {run["run"]: run["status"] for run in results["runs"]}
    assert status["small-own"] == "finished"
    logs = path.parent / "runs/sweeps/small/logs"
    assert {log.stem for log in logs.glob("*.log")} == {"small-away", *RUNS}


@pytest.fixture
def dask_cluster(tmp_path):
    """The address of a cluster that outlives every sweep, with one worker that has a folder of its
    own."""
    pytest.importorskip("prefect_dask")
    address = f"tcp://127.0.0.1:{free_port()}"
    commands = [
        ("dask_scheduler", "--port", address.rpartition(":")[2], "--dashboard-address", ":0"),
        ("dask_worker", address, "--nthreads", "1", "--no-nanny", "--dashboard-address", ":0"),
    ]
    (tmp_path / "worker").mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *options],
            cwd=tmp_path / "worker",
            env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for module, *options in commands
    ]
    yield address
    for process in reversed(processes):
        process.terminate()
        process.wait(60)


def test_a_cluster_that_stays_lets_go_of_the_runs_of_a_sweep_that_does_not(dask_cluster, tmp_path):
    path = written(tmp_path / "c")
    started = ("sweep", path, "--task-runner", "dask", "--task-runner-address", dask_cluster)
    for sent, at_most_s in ((signal.SIGINT, 30), (signal.SIGKILL, 60)):
        process, _ = stopped(path.parent, started, sent)
        ended_s = time.monotonic()
        assert is_gone() and time.monotonic() - ended_s < at_most_s
        assert process.returncode == (130 if sent == signal.SIGINT else -sent)
    process = nip(*started)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 3, out + errors
    assert "small-own: finished" in out and "small-own-chosen: finished" in out
