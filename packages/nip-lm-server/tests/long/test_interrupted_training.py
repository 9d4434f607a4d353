"""A real training that is killed and paused in between is the training that was asked for."""

import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

pytest.importorskip("trl")

from tiny_model import make_model

from nip_base import formats
from nip_base.spec import ServerSpec
from nip_lm_server import launch as owner

ROWS = [
    {"messages": [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "x"}]}
    for i in range(10)
]


class Trained:
    """An embedded server over a tiny model, and one job on it."""

    def __init__(self, directory: Path):
        make_model(directory / "model")
        spec = ServerSpec("embedded", str(directory / "model"), served_model_name="tiny")
        self.state_dir = directory / "state"
        self.handle = owner.start_or_attach(spec, self.state_dir, timeout_s=90)
        self.client = openai.OpenAI(
            base_url=self.handle.url + "/v1", api_key=self.handle.api_key, max_retries=0
        )
        self.jobs = self.client.fine_tuning.jobs
        file = self.client.files.create(
            file=("t.jsonl", formats.to_jsonl(ROWS)), purpose="fine-tune"
        )
        self.id = self.jobs.create(
            model="tiny", training_file=file.id, seed=1,
            hyperparameters={"n_epochs": 30, "batch_size": 2},
            extra_body={"nip": {"learning_rate": 0.01, "checkpoint_steps": 1}},
        ).id  # fmt: skip

    def step(self) -> int:
        progress = self.jobs.retrieve(self.id).nip["progress"]
        return progress["step"] if progress else 0

    def told(self) -> list[str]:
        events = list(self.jobs.list_events(self.id, limit=100))
        return [event.message for event in events[::-1]]

    def kill_the_training(self) -> None:
        with contextlib.closing(sqlite3.connect(self.state_dir / "jobs.sqlite3")) as database:
            (child,) = database.execute("SELECT child_pid FROM jobs").fetchone()
        os.kill(child, signal.SIGKILL)


def wait_until(is_so: Callable[[], Any], what: str, timeout_s: float = 150.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := is_so()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)
    return value


@pytest.fixture
def training(tmp_path: Path):
    trained = Trained(tmp_path)
    yield trained
    trained.client.close()
    owner.stop(trained.handle)


@pytest.mark.kill_matrix
def test_a_real_training_survives_a_kill_and_a_pause(training: Trained) -> None:
    wait_until(lambda: training.step() >= 3, "step 3")
    training.kill_the_training()
    killed_at = training.step()
    wait_until(lambda: training.step() > killed_at, "another step")
    assert training.jobs.retrieve(training.id).status == "running"
    training.jobs.pause(training.id)
    stopped = wait_until(
        lambda: [m for m in training.told() if m.startswith("stopped after step")],
        "the checkpoint",
    )
    training.jobs.resume(training.id)
    done = wait_until(
        lambda: (j := training.jobs.retrieve(training.id)).status in ("succeeded", "failed") and j,
        "the end",
    )
    assert done.status == "succeeded", done.error
    assert done.nip["result"]["steps"] == 150 and done.nip["attempts"] == 2
    messages = training.told()
    after_kill, after_pause = (m for m in messages if m.startswith("continues from step"))
    assert int(after_kill.split()[-1]) >= killed_at - 1
    assert after_pause.split()[-1] == stopped[0].split()[3].rstrip(";")
    assert any("ended by SIGKILL; it is started again" in m for m in messages)
    metrics = [m.split("/")[0].removeprefix("Step ") for m in messages if m.startswith("Step ")]
    shown = [int(step) for step in metrics]
    # What was done after the last checkpoint and before the kill is done, and told of, again.
    assert shown == sorted(shown) and shown[-1] == 150
    # The result file has every step of all attempts, the events have what there was time for.
    (result_id,) = done.result_files
    lines = training.client.files.content(result_id).text.splitlines()
    assert [int(line.split(",")[0]) for line in lines[1:]] == list(range(1, 151))
    assert {path.name for path in (training.state_dir / "jobs" / training.id).iterdir()} == {
        "events.jsonl", "job.json", "log.jsonl", "log.txt", "metrics.jsonl",
    }  # fmt: skip
