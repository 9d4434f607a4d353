"""Running servers, as the tests see them."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai

ROOT = Path(__file__).parents[4]
PYTHON = os.environ.get("NIP_PYTHON") or str(ROOT / ".venv" / "bin" / "python")


class Server:
    """Address and key of a server, and the jobs that a test made on it."""

    def __init__(self, url: str, api_key: str):
        self.url, self.api_key = url, api_key
        self._before: set[str] = set()

    def forget(self) -> None:
        """A test begins: jobs that are there are not its own."""
        self._before |= {job.id for job in self.jobs()}

    def jobs(self) -> list[Any]:
        """The test's jobs, newest first."""
        with openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=self.api_key, max_retries=0
        ) as client:
            found = list(client.fine_tuning.jobs.list(limit=100))
        return [job for job in found if job.id not in self._before]


@contextmanager
def running(*arguments: str) -> Iterator[Server]:
    """A server in nip's own environment; see serve_here.py."""
    command = [PYTHON, str(Path(__file__).with_name("serve_here.py")), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        assert line, f"{' '.join(command)} started no server (status {process.poll()})"
        yield Server(*line.split())
    finally:
        process.communicate()  # closes its input, and it ends
    assert process.returncode == 0
