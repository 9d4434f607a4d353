"""Real servers with the deterministic engine, and the stock client on them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from nip_base import formats
from nip_base.spec import ServerSpec
from nip_lm_server import launch as owner
from nip_lm_server.launch import ServerHandle
from nip_lm_server.testing import ServerThread

DEADLINE_S = 20.0
NO_PID = 2**31 - 1
"""Of a server that is no process: whoever would kill it is told that there is none."""


class Server:
    """A server, its state directory and a client on it: in a thread here, or apart as a process."""

    def __init__(
        self,
        state_dir: Path,
        replies: str | None = None,
        model: str = "sim",
        *,
        is_apart: bool = False,
    ):
        self.state_dir, self.is_apart = state_dir, is_apart
        self._thread: ServerThread | None = None
        path = None
        if replies is not None:
            state_dir.mkdir(parents=True, exist_ok=True)
            path = state_dir / "replies.yaml"
            path.write_text(replies)
        self.spec = ServerSpec("deterministic", model, replies=str(path) if path else None)
        self.handle: ServerHandle
        self.client: openai.OpenAI
        self.start()

    def start(self) -> None:
        if self.is_apart:
            self.handle = owner.start_or_attach(self.spec, self.state_dir, timeout_s=DEADLINE_S)
        else:
            self._thread = ServerThread(self.spec, self.state_dir, "key")
            self.handle = ServerHandle(self._thread.url, "key", NO_PID, True, self.state_dir)
        self.client = openai.OpenAI(
            base_url=self.handle.url + "/v1", api_key=self.handle.api_key, max_retries=0
        )

    def stop(self) -> None:
        self.client.close()
        if self._thread is None:
            owner.stop(self.handle)
        elif self._thread.thread.is_alive():
            self._thread.stop()

    def upload(self, rows: Any = None, name: str = "train.jsonl") -> str:
        content = rows if isinstance(rows, bytes) else formats.to_jsonl(rows or examples())
        return self.client.files.create(file=(name, content), purpose="fine-tune").id

    def create(self, file_id: str, **arguments: Any) -> Any:
        arguments.setdefault("model", "sim")
        return self.client.fine_tuning.jobs.create(training_file=file_id, **arguments)

    def wait(self, job_id: str, *statuses: str) -> Any:
        wanted = statuses or ("succeeded", "failed", "cancelled")
        deadline = time.monotonic() + DEADLINE_S
        while (job := self.client.fine_tuning.jobs.retrieve(job_id)).status not in wanted:
            assert time.monotonic() < deadline, f"{job.status} is not in {wanted}"
            time.sleep(0.02)
        return job

    def train(self, file_id: str | None = None, **arguments: Any) -> Any:
        job = self.wait(self.create(file_id or self.upload(), **arguments).id)
        assert job.status == "succeeded", job.error
        return job


def examples(count: int = 10, answer: str = "Answer: yes.") -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "system", "content": "You are the prover."},
                {"role": "user", "content": f"Question: {i}?"},
                {"role": "assistant", "content": answer},
            ]
        }
        for i in range(count)
    ]


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Servers of one test, by default with the packaged replies; stopped at its end."""
    servers: list[Server] = []

    def make(
        replies: str | None = None,
        name: str = "state",
        model: str = "sim",
        *,
        is_apart: bool = False,
    ) -> Server:
        servers.append(Server(tmp_path / name, replies, model, is_apart=is_apart))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that don't stop it: others have left files, jobs and models there."""
    shared = Server(tmp_path_factory.mktemp("server") / "state", is_apart=True)
    yield shared
    shared.stop()


@pytest.fixture(scope="module")
def fresh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests of a module, where nobody was before."""
    fresh = Server(tmp_path_factory.mktemp("fresh") / "state")
    yield fresh
    fresh.stop()
