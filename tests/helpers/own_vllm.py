"""`vllm serve` as its own manual says, started by nobody's server, for tests and `nip prove`.

serve_with_vllm   a vLLM whose base has two names, with an exported adapter; more may be loaded
"""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEY = "key-of-vllm"
ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_API_KEY": KEY,
}  # fmt: skip
START_S = 600


@dataclass(frozen=True)
class OwnVllm:
    """Where it answers, and the directory of the adapter that it serves as `nip`."""

    url: str
    adapter: Path


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    begin = time.monotonic()
    while process.poll() is None and time.monotonic() - begin < START_S:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=10):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
    raise AssertionError(log.read_text()[-3000:])


@contextmanager
def serve_with_vllm(executable: str, exported: Path) -> Iterator[OwnVllm]:
    """`exported` has the adapter `plain` with its base in `plain/base`; logs are written beside."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    adapter, log = exported / "plain", exported / "vllm.log"
    command = [executable, "serve", str(adapter / "base"), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--served-model-name", "tiny", "forgotten"]
    command += ["--enforce-eager", "--dtype", "float32", "--max-model-len", "1024"]
    command += ["--max-num-seqs", "16", "--enable-lora", "--max-lora-rank", "8"]
    command += ["--lora-modules", f"nip={adapter}"]
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=exported, env=os.environ | ENVIRONMENT,
            start_new_session=True,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, process, log)
        yield OwnVllm(url, adapter)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
