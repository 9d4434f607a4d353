"""`nip serve` for recipes: started in nip's environment from that of Tinker's SDK, and killed."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

KEY = "tml-local"
MODEL = "Qwen/Qwen3.5-9B-Base"
"""The default of most recipes, whose renderer writes plain words: any tokenizer will do."""
START_S = 300.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find_model(root: Path, model: str) -> Path:
    """Find a bundled model in the checkout `root`: the server's own, or one of the loop."""
    own = root / "packages" / "nip-lm-server" / "nip_lm_server" / "bundled" / model
    return own if own.exists() else root / "nip_core" / "models" / model


class TinkerServer:
    """`nip serve` on a state of its own, at a port that it has again after each kill."""

    def __init__(self, root: Path, directory: Path, model: str = "tiny"):
        """Start it in a directory without one, with a bundled model or the path of another.

        `root` is nip's checkout; NIP_PYTHON is the interpreter of its environment, or that in .venv
        there. Raises SystemExit if it ends.
        """
        self._root = root
        python = os.path.abspath(os.environ.get("NIP_PYTHON") or root / ".venv" / "bin" / "python")
        directory.mkdir(parents=True, exist_ok=True)
        self.port, self.state, self.log = free_port(), directory / "state", directory / "server.log"
        self._command = [
            *(python, "-m", "nip_lm_server", "--engine", "embedded", "--model"),
            *(str(find_model(root, model)), "--served-model-name", MODEL),
            *("--state", str(self.state), "--port", str(self.port)),
        ]
        self._starts = 0
        self._start()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def _start(self) -> None:
        self._starts += 1
        environment = {**os.environ, "NIP_API_KEYS": KEY, "PYTHONPATH": str(self._root)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=environment, cwd=self.log.parent
            )
        deadline = time.monotonic() + START_S
        while self.log.read_bytes().count(b" ready: ") < self._starts:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise SystemExit(f"the server does not start, see {self.log}")
            time.sleep(0.1)

    def kill(self) -> bool:
        """Kill the server, and start it again as a supervisor would. False: it had ended before."""
        alive = self._process.poll() is None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._start()
        return alive

    def kill_trainer(self, patience_s: float = 60.0) -> bool:
        """Kill the trainer's process, once there is one. False: there was none."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            for child in psutil.Process(self._process.pid).children(recursive=True):
                try:
                    if "resident" in " ".join(child.cmdline()):
                        child.send_signal(signal.SIGKILL)
                        return True
                except psutil.NoSuchProcess:
                    continue
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        """End it as a service manager does."""
        self._process.terminate()
        self._process.wait(60)
