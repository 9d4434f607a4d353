"""`nip up`: all parts come up, want their keys, run a deployment, and leave nothing behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from prefect_stack import ROOT, free_port, until
from small_game import write_config

from flows.postgres import find_binaries
from nip_core.errors import SettingsError
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
ONE = {"num_iterations": 1, "rollouts_per_iteration": 40, "num_epochs": 1}


@pytest.fixture
def reachable():
    """A directory that the user postgres can reach, too, where root runs the tests."""
    folder = Path(tempfile.mkdtemp(prefix="nip-up-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


class Up:
    def __init__(self, folder: Path) -> None:
        self.state, self.log = folder / "state", folder / "up.log"
        self.port, self.lm_port = free_port(), free_port()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows.cli", "up", "--state", str(self.state),
                 "--port", str(self.port), "--lm-server-port", str(self.lm_port),
                 "--engine", "deterministic", "--model", "deterministic"],
                cwd=ROOT,
                env={**environment, "PREFECT_WORKER_QUERY_SECONDS": "2"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    def wait_until_up(self) -> "Up":
        until(self._said, "nip up says that it is up", 400)
        return self

    def _said(self) -> bool:
        said = self.log.read_text()
        assert self.process.poll() is None, said
        return "Ctrl-C ends everything" in said

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def api(self, path: str, body=None, auth: bool = True):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api{path}", data, {"Content-Type": "application/json"}
        )
        if auth:
            import base64

            token = base64.b64encode((self.state / "prefect_auth").read_bytes()).decode()
            request.add_header("Authorization", f"Basic {token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())


def left_of(processes: list[psutil.Process]) -> list[str]:
    _, alive = psutil.wait_procs(processes, timeout=60)
    return [str(process) for process in alive]


def test_all_parts_come_up_run_a_deployment_and_go(reachable, tmp_path):
    up = Up(reachable).wait_until_up()
    try:
        parts = json.loads((up.state / "processes.json").read_text())
        assert {"postgresql", "prefect-server", "lm-server", "worker-nip-cpu"} <= set(parts)
        for path in ("prefect_auth", "lm_server_key"):
            assert (up.state / path).stat().st_mode & 0o077 == 0
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
            {"parameters": {"config": str(config)}, "state": {"type": "SCHEDULED"}},
        )

        def ended():
            state = up.api(f"/flow_runs/{started['id']}")["state"]
            assert state["type"] not in ("FAILED", "CRASHED"), state
            return state["type"] == "COMPLETED"

        until(ended, "the run is completed", 300)
        run = RunStore(open_store(tmp_path / "runs"), "by-up")
        assert run.finished_iterations() == 1

        second = subprocess.run(
            [sys.executable, "-m", "flows.cli", "up", "--state", str(up.state)],
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
    monkeypatch.setattr("flows.postgres._PLACES", ())
    with pytest.raises(SettingsError, match="apt-get install postgresql"):
        find_binaries()
