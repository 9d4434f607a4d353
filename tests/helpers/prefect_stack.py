"""A Prefect server and a worker as processes of their own, started and killed by tests."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(condition: Callable[[], object], what: str, deadline_s: float = 120.0) -> object:
    """What `condition` returns, as soon as it is true. Fails after `deadline_s` seconds."""
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {deadline_s:g} s: {what}")


class Stack:
    """Processes of one Prefect installation in `folder`. Leave it with `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": f"{self.url}/api",
            "PREFECT_SERVER_API_PORT": str(self.port),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PREFECT_LOGGING_LEVEL": "INFO",
            "DO_NOT_TRACK": "1",
            "NIP_HOME": str(ROOT),
        }

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / "prefect"), *arguments],
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A worker that inherits an ignored SIGINT (of a shell's `&`) ignores SIGTERM, too.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self.processes.append(process)
        return process

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(BIN / "prefect"), *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start_server(self) -> None:
        server = self.start("server", "server", "start", "--host", "127.0.0.1")
        until(lambda: self._answers(server), "the Prefect server answers", 240)

    def _answers(self, server: subprocess.Popen[bytes]) -> bool:
        assert server.poll() is None, (self.folder / "server.log").read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/api/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def deploy(self) -> None:
        """As docs/prefect.md says."""
        for pool in ("nip-cpu", "nip-gpu"):
            self.run("work-pool", "create", pool, "--type", "process")
        self.run("--no-prompt", "deploy", "--all")
        # Tests run it themselves.
        reconcile = self.api("/deployments/name/reconcile/reconcile")
        self.api(f"/deployments/{reconcile['id']}/pause_deployment", {})

    def api(self, path: str, body: Any = None) -> Any:
        """GET from Prefect's API, or POST `body` if there is one."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}/api{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def reconcile_once(self) -> None:
        """Run the flow `reconcile` in a process of its own, without starting anything again."""
        subprocess.run(
            [sys.executable, "-c", "import asyncio; from nip_prefect.flows.reconcile import reconcile; "
             "asyncio.run(reconcile(watch_s=3, max_attempts=0))"],
            cwd=ROOT,
            env=self.environment,
            check=True,
            timeout=180,
        )  # fmt: skip

    def start_worker(self) -> subprocess.Popen[bytes]:
        return self.start("worker", "worker", "start", "--pool", "nip-cpu")

    def close(self) -> None:
        for process in self.processes:
            kill_tree(process.pid, signal.SIGTERM)
        _, alive = psutil.wait_procs(
            [psutil.Process(p.pid) for p in self.processes if psutil.pid_exists(p.pid)], timeout=20
        )
        for process in alive:
            kill_tree(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.wait(timeout=20)


def kill_tree(pid: int, number: signal.Signals) -> None:
    """Signal a process, then its children, so that none can report of another's end."""
    try:
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            if process.is_running():
                process.send_signal(number)
    except psutil.NoSuchProcess:
        return
