"""`nip up`: all parts come up, want their keys, run a deployment, and leave nothing behind."""

import json
import signal
import subprocess
import sys
import urllib.error

import psutil
import pytest
from prefect_stack import ROOT, until
from small_game import write_config
from up_stack import Up, left_of, open_folder

from nip_core.errors import SettingsError
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_up.postgres import find_binaries

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
ONE = {"num_iterations": 1, "rollouts_per_iteration": 40, "num_epochs": 1}


@pytest.fixture
def reachable():
    with open_folder() as folder:
        yield folder


@pytest.mark.short
def test_all_parts_come_up_run_a_deployment_and_go(reachable, tmp_path):
    up = Up(reachable).wait_until_up()
    try:
        parts = json.loads((up.state / "processes.json").read_text())
        assert {"postgresql", "prefect-server", "lm-server", "worker-nip-cpu"} <= set(parts)
        for path in ("prefect_auth", "lm_server_key"):
            assert (up.state / path).stat().st_mode & 0o077 == 0
        for folder in ("prefect", "logs", "lm_server", "postgresql"):
            assert (up.state / folder).stat().st_mode & 0o077 == 0
        assert (up.state / "prefect-ui").is_dir()
        with pytest.raises(urllib.error.HTTPError) as refused:
            up.api("/deployments/filter", {}, auth=False)
        assert refused.value.code == 401
        names = {d["name"] for d in up.api("/deployments/filter", {})}
        assert {"quickstart", "gpu", "continue", "reconcile", "nightly-evaluation"} <= names
        limits = {p["name"]: p["concurrency_limit"] for p in up.api("/work_pools/filter", {})}
        assert limits["nip-gpu"] == 1

        # The lm_server's key reaches the worker through the environment alone.
        server = {"url": f"http://127.0.0.1:{up.lm_port}"}
        config = write_config(tmp_path, rl=ONE, lm_server=server, run_name="by-up")
        deployment = up.api("/deployments/name/train/quickstart")
        started = up.api(
            f"/deployments/{deployment['id']}/create_flow_run",
            {"parameters": {"config_file": str(config)}, "state": {"type": "SCHEDULED"}},
        )

        def ended():
            state = up.api(f"/flow_runs/{started['id']}")["state"]
            assert state["type"] not in ("FAILED", "CRASHED"), state
            return state["type"] == "COMPLETED"

        until(ended, "the run is completed", 300)
        run = RunStore(open_store(tmp_path / "runs"), "by-up")
        assert run.finished_iterations() == 1

        def lines():
            wanted = {"logs": {"flow_run_id": {"any_": [started["id"]]}}, "limit": 200}
            return [log["message"] for log in up.api("/logs/filter", wanted)]

        until(
            lambda: any(line.startswith("run by-up: finished") for line in lines()),
            "the log of the flow run is there",
        )
        told = [line for line in lines() if line.startswith("iteration 0: ")]
        assert any("accuracy" in line for line in told) and any("job" in line for line in told)

        # What it prints works in a terminal of somebody else's, anywhere.
        printed = up.log.read_text().partition("In another terminal:\n")[2].partition("Ctrl-C")[0]
        pasted = subprocess.run(
            ["bash", "-c", printed.replace("deployment run train/quickstart", "deployment ls")],
            cwd="/",
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert "train/quickstart" in pasted.stdout, pasted.stderr

        second = subprocess.run(
            [sys.executable, "-m", "nip_cli.cli", "up", "--state", str(up.state)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode == 3 and "another `nip up` runs there" in second.stderr
        key = (up.state / "lm_server_key").read_text()
        for log in (up.state / "logs").iterdir():
            assert key.encode() not in log.read_bytes(), log
        processes = up.descendants()
        assert len(processes) >= 4
    finally:
        up.process.send_signal(signal.SIGINT)
        up.process.wait(timeout=180)
    assert up.process.returncode == 130, up.log.read_text()
    assert left_of(processes) == []


def test_parts_that_are_killed_are_started_again_and_work(reachable):
    up = Up(reachable).wait_until_up()
    try:
        first = json.loads((up.state / "processes.json").read_text())
        for name in first:  # PostgreSQL and the Prefect server, too
            psutil.Process(first[name]).kill()

        def all_are_new():
            assert up.process.poll() is None, up.log.read_text()
            now = json.loads((up.state / "processes.json").read_text())
            return all(now[name] != first[name] and psutil.pid_exists(now[name]) for name in now)

        until(all_are_new, "all parts are started again", 300)
        assert "worker-nip-cpu ended with -9; started again in 1 s" in up.log.read_text()

        path = "/deployments/name/reconcile/reconcile"
        identifier = until(lambda: answered(up, path), "the server answers again", 300)["id"]
        started = up.api(
            f"/deployments/{identifier}/create_flow_run",
            {"state": {"type": "SCHEDULED"}, "parameters": {"watch_s": 1}},
        )

        def completed():
            assert up.process.poll() is None, up.log.read_text()
            there = answered(up, f"/flow_runs/{started['id']}")
            return there and there["state"]["type"] == "COMPLETED"

        until(completed, "a flow run is completed", 300)
        processes = up.descendants()
    finally:
        up.process.send_signal(signal.SIGINT)
        up.process.wait(timeout=180)
    assert left_of(processes) == []


def answered(up, path):
    try:
        return up.api(path)
    except OSError:
        return None


def test_one_that_was_killed_takes_its_parts_along_and_starts_again(reachable):
    up = Up(reachable).wait_until_up()
    processes = up.descendants()
    up.process.kill()
    up.process.wait(timeout=30)
    assert left_of(processes) == []
    again = Up(reachable)
    try:
        again.log = up.log
        until(lambda: up.log.read_text().count("Ctrl-C ends everything") == 2, "up again", 400)
        assert {d["name"] for d in again.api("/deployments/filter", {})} >= {"quickstart"}
    finally:
        again.process.terminate()
        again.process.wait(timeout=180)
    assert again.process.returncode == 143, up.log.read_text()


def test_what_is_missing_is_named_with_its_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("nip_up.postgres._PLACES", ())
    with pytest.raises(SettingsError, match="apt-get install postgresql"):
        find_binaries()
