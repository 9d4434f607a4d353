"""`nip up` as a process of its own, for tests."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
from prefect_stack import free_port, until


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A directory that the user postgres can reach, too, where root runs the tests."""
    folder = Path(tempfile.mkdtemp(prefix="nip-up-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class Up:
    """`nip up` with its state in `folder`, started in a directory without a checkout."""

    def __init__(self, folder: Path) -> None:
        self.state, self.log = folder / "state", folder / "up.log"
        (folder / "empty").mkdir(exist_ok=True)
        self.port, self.lm_port = free_port(), free_port()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nip_cli.cli", "up", "--state", str(self.state),
                 "--port", str(self.port), "--lm-server-port", str(self.lm_port),
                 "--engine", "deterministic", "--model", "deterministic"],
                cwd=folder / "empty",
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
        """GET from Prefect's API, or POST `body` if there is one."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api{path}", data, {"Content-Type": "application/json"}
        )
        if auth:
            token = base64.b64encode((self.state / "prefect_auth").read_bytes()).decode()
            request.add_header("Authorization", f"Basic {token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())


def left_of(processes: list[psutil.Process]) -> list[str]:
    """Those that still run after a minute."""
    _, alive = psutil.wait_procs(processes, timeout=60)
    return [str(process) for process in alive]
