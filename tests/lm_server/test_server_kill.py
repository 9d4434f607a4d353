"""A server that is killed before any of its durable steps loses nothing and does nothing twice."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import openai
import psutil
import pytest

from nip_core.lm_server import formats
from nip_core.lm_server.state import read_card
from nip_core.models import resolve_model

WRAPPER = Path(__file__).parents[1] / "helpers" / "killed_server.py"
POINTS = int(os.environ.get("NIP_SERVER_KILLS", "18"))
REAL_POINTS = int(os.environ.get("NIP_SERVER_KILLS_TRAINING", "1"))
DEADLINE_S = 90.0
KEY = "key-of-the-killed-server"
_READY = "os.rename STATE/server.json.part"

T = TypeVar("T")

EXAMPLES = [
    {
        "messages": [
            {"role": "user", "content": f"Question: {i}?"},
            {"role": "assistant", "content": "Answer: yes."},
        ]
    }
    for i in range(12)
]


@dataclass
class Outcome:
    """What a client and a look at the disk see in the end."""

    job_id: str
    model: str
    content_digest: str
    answers: tuple[str, str]
    died: bool
    steps: list[str]


class Scenario:
    """Upload, create, wait, ask: a client that goes on when its server is started again."""

    def __init__(self, directory: Path, engine: Sequence[str], settings: dict[str, Any]):
        self.state, self.steps = directory / "state", directory / "steps"
        self.arguments = [*engine, "--state", str(self.state), "--port", "0"]
        self.settings = settings
        self.content = formats.to_jsonl(EXAMPLES)
        self.process: subprocess.Popen[bytes] | None = None
        self.died = False

    def run(self, kill_at: int = 0) -> Outcome:
        self._start(kill_at)
        try:
            return self._drive()
        finally:
            self._stop()

    def _start(self, kill_at: int) -> None:
        command = [sys.executable, str(WRAPPER), str(self.steps), str(kill_at), *self.arguments]
        # Not measured for coverage: that makes each of the many starts several times slower.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
        environment |= {"NIP_API_KEYS": KEY, "OMP_NUM_THREADS": "1"}
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state.parent / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + DEADLINE_S
        while (card := read_card(self.state)) is None or card.pid != self.process.pid:
            if self.process.poll() is not None:
                return  # killed before it was ready; the next call starts it again
            assert time.monotonic() < deadline, "the server is not ready"
            time.sleep(0.01)
        self.client = openai.OpenAI(base_url=card.url + "/v1", api_key=KEY, max_retries=0)

    def _stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(DEADLINE_S) in (0, -signal.SIGKILL)
        left = [
            process.cmdline()
            for process in psutil.process_iter(["cmdline"])
            if str(self.state) in " ".join(process.info["cmdline"] or ())
        ]
        assert left == [], "processes were left over"

    def _call(self, call: Callable[[openai.OpenAI], T]) -> T:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert self.process is not None and time.monotonic() < deadline
            if self.process.poll() is not None:
                assert self.process.returncode == -signal.SIGKILL, "it ended by itself"
                assert not self.died, "it died twice"
                self.died = True
                self._start(0)
            try:
                return call(self.client)
            except (openai.APIConnectionError, openai.InternalServerError):
                time.sleep(0.02)

    def _drive(self) -> Outcome:
        name = hashlib.sha256(self.content).hexdigest() + ".jsonl"

        def upload(client: openai.OpenAI) -> str:
            there = [file.id for file in client.files.list() if file.filename == name]
            if there:
                return there[0]
            return client.files.create(file=(name, self.content), purpose="fine-tune").id

        file_id = self._call(upload)
        job = self._call(
            lambda client: client.fine_tuning.jobs.create(
                model="base",
                training_file=file_id,
                seed=5,
                metadata={"key": "the-one"},
                extra_headers={"Idempotency-Key": "the-one"},
                extra_body={"nip": self.settings},
                method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
            )
        )
        deadline = time.monotonic() + DEADLINE_S
        while job.status not in ("succeeded", "failed", "cancelled"):
            assert time.monotonic() < deadline, job.status
            time.sleep(0.02)
            job = self._call(lambda client: client.fine_tuning.jobs.retrieve(job.id))
        assert job.status == "succeeded", job.error
        model = str(job.fine_tuned_model)
        assert [j.id for j in self._call(lambda c: c.fine_tuning.jobs.list().data)] == [job.id]
        fine_tuned = [m for m in self._call(lambda c: c.models.list().data) if m.id != "base"]
        assert [m.id for m in fine_tuned] == [model]
        ours = [file for file in self._call(lambda c: c.files.list().data) if file.filename == name]
        assert [file.id for file in ours] == [file_id]
        proof = fine_tuned[0].model_extra["nip"]["proof"]  # type: ignore[index]
        assert proof["matches"]
        self._check_disk(file_id)
        return Outcome(
            job_id=job.id,
            model=model,
            content_digest=fine_tuned[0].model_extra["nip"]["content_digest"],  # type: ignore[index]
            answers=(self._ask("base"), self._ask(model)),
            died=self.died,
            steps=self.steps.read_text().splitlines(),
        )

    def _ask(self, model: str) -> str:
        answer = self._call(
            lambda client: client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "Question: 3?"}],
                seed=1,
                max_tokens=16,
            )
        )
        assert answer.model == model
        return str(answer.choices[0].message.content)

    def _check_disk(self, file_id: str) -> None:
        models = list((self.state / "models").iterdir())
        assert len(models) == 1
        manifest = json.loads((models[0] / "manifest.json").read_text())
        on_disk = {str(p.relative_to(models[0])) for p in models[0].rglob("*") if p.is_file()}
        assert on_disk == {*manifest["files"], "manifest.json"}
        for name, facts in manifest["files"].items():
            content = (models[0] / name).read_bytes()
            assert hashlib.sha256(content).hexdigest() == facts["sha256"]
        files = {path.name for path in (self.state / "files").iterdir()}
        assert file_id in files and not any(name.endswith(".part") for name in files)


def spread(steps: list[str], count: int, after: str = _READY) -> list[int]:
    """`count` numbers of steps, counted from 1, evenly over those after the server was ready."""
    first = next(i for i, step in enumerate(steps) if step.startswith(after)) + 2
    return sorted({first + (len(steps) - first) * i // count for i in range(count)})


DETERMINISTIC = ["--engine", "deterministic", "--model", "base"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return Scenario(tmp_path_factory.mktemp("unbroken"), DETERMINISTIC, {}).run()


@pytest.mark.timeout(600)
def test_a_server_killed_at_any_step_ends_as_if_it_never_was(
    unbroken: Outcome, tmp_path: Path
) -> None:
    points = spread(unbroken.steps, POINTS)
    assert len(points) == POINTS, "there are fewer steps than points"
    died = 0
    for point in points:
        outcome = Scenario(tmp_path / str(point), DETERMINISTIC, {}).run(point)
        place = f"killed before step {point}: {unbroken.steps[point - 1]}"
        assert outcome.model == unbroken.model, place
        assert outcome.content_digest == unbroken.content_digest, place
        assert outcome.answers == unbroken.answers, place
        died += outcome.died
    # What the server does once it was asked to stop is beyond the client's scenario.
    assert died >= 0.8 * POINTS


def test_the_steps_cover_upload_creation_training_commit_and_swap(unbroken: Outcome) -> None:
    text = "\n".join(unbroken.steps)
    for part in (
        "open STATE/files/",
        "sql INSERT INTO files",
        "sql INSERT INTO jobs",
        "sql INSERT INTO events",
        "os.rename STATE/jobs/",
        "os.rename STATE/models/.",
        "sql INSERT INTO models",
    ):
        assert part in text, part


@pytest.mark.timeout(600)
def test_a_server_killed_while_it_really_trains_ends_as_if_it_never_was(tmp_path: Path) -> None:
    engine = ["--engine", "embedded", "--model", resolve_model("tiny")]
    engine += ["--served-model-name", "base"]
    settings = {"lora_rank": 2, "learning_rate": 1e-3}
    unbroken = Scenario(tmp_path / "unbroken", engine, settings).run()
    for point in spread(unbroken.steps, REAL_POINTS, after="start a process"):
        outcome = Scenario(tmp_path / str(point), engine, settings).run(point)
        place = f"killed before step {point}: {unbroken.steps[point - 1]}"
        assert outcome.died and outcome.model == unbroken.model, place
        assert outcome.content_digest == unbroken.content_digest, place
        assert outcome.answers == unbroken.answers, place
