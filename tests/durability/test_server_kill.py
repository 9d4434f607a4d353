"""A server that is killed before any of its durable steps loses nothing and does nothing twice.

So does one whose training process is killed. With NIP_KILL_POINTS=all at every step; otherwise at a
few, evenly over all.
"""

import hashlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import openai
import pytest
from killed_results import SAME, Results
from killed_runs import KEY, Zygote, free_port, spread
from killed_steps import Point

from nip_base import formats
from nip_core.models import resolve_model
from nip_lm_server.state.directory import read_card

ALL = os.environ.get("NIP_KILL_POINTS", "20") == "all"
POINTS = None if ALL else 8
SERVER_WHILE_TRAINING, TRAINING = 20, 16
"""Kills with a real training under way, which takes seconds: of the server, and of the training."""
DEADLINE_S = 240.0

CHILD = Path(__file__).parents[1] / "helpers" / "killed_child"

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

    def __init__(
        self,
        zygote: Zygote,
        directory: Path,
        engine: Sequence[str],
        settings: dict[str, Any],
        environment: dict[str, str] | None = None,
    ):
        self.zygote, self.directory, self.environment = zygote, directory, environment or {}
        self.state, self.log = directory / "state", directory / "steps"
        self.arguments = [*engine, "--state", str(self.state), "--port", str(free_port())]
        self.settings = settings
        self.content = formats.to_jsonl(EXAMPLES)
        self.pid = 0
        self.died = False

    def run(self, point: Point | None = None) -> Outcome:
        self.state.mkdir(parents=True)
        self._start(point)
        outcome = self._drive()
        self._stop()
        return outcome

    def _start(self, point: Point | None) -> None:
        self.pid = self.zygote.start(
            arguments=self.arguments,
            root=str(self.directory),
            steps=str(self.log),
            log=str(self.directory / "log"),
            calls=str(self.directory / "calls"),
            modules=str(self.directory / "modules"),
            environment=self.environment,
            point=point,
        )
        deadline = time.monotonic() + DEADLINE_S
        while (card := read_card(self.state)) is None or card.pid != self.pid:
            if self.zygote.poll(self.pid) is not None:
                return  # killed before it was ready; the next call starts it again
            assert time.monotonic() < deadline, f"the server is not ready: {self.said()}"
            time.sleep(0.005)
        self.client = openai.OpenAI(base_url=card.url + "/v1", api_key=KEY, max_retries=0)

    def _stop(self) -> None:
        status = self.zygote.end(self.pid)
        if status == -signal.SIGKILL and not self.died:
            self.died = True  # its point lay in the way it stops
            self._start(None)
            status = self.zygote.end(self.pid)
        assert status == 0, self.said()
        deadline = time.monotonic() + DEADLINE_S
        while self.zygote.left() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.zygote.left() == [], "processes were left over"

    def said(self) -> str:
        return (self.directory / "log").read_text()[-3000:]

    def _call(self, call: Callable[[openai.OpenAI], T]) -> T:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert time.monotonic() < deadline, self.said()
            status = self.zygote.poll(self.pid)
            if status is not None:
                assert status == -signal.SIGKILL, f"it ended by itself: {self.said()}"
                assert not self.died, "it died twice"
                self.died = True
                self._start(None)
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
            steps=self.log.read_text().splitlines(),
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


def points_of(steps: Sequence[str]) -> list[Point]:
    """Every step as a point."""
    seen: Counter[str] = Counter()
    points = []
    for label in steps:
        seen[label] += 1
        points.append((label, seen[label]))
    return points


DETERMINISTIC = ["--engine", "deterministic", "--model", "base"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, servers: Zygote) -> Outcome:
    first = Scenario(servers, tmp_path_factory.mktemp("unbroken") / "first", DETERMINISTIC, {})
    outcome = first.run()
    servers.warm(first.directory / "modules")
    return outcome


@dataclass
class Kills:
    """Scenarios that are killed once each, and compared with one that never was."""

    unbroken: Outcome
    results: Results
    process: str

    def kill(self, scenario: Scenario, point: Point) -> None:
        started = time.monotonic()
        outcome = scenario.run(None if self.process == "training" else point)
        place = f"{scenario.directory}, killed before {point}"
        assert outcome.model == self.unbroken.model, place
        assert outcome.content_digest == self.unbroken.content_digest, place
        assert outcome.answers == self.unbroken.answers, place
        died = scenario.died or "killed" in scenario.log.with_name("steps-of-training").read_text()
        assert died, f"never reached: {place}"
        row = {
            "process": self.process,
            "label": point[0],
            "occurrence": point[1],
            "happened": SAME,
            "calls repeated": 0,
            "seconds": round(time.monotonic() - started, 2),
        }
        self.results.add("kill_matrix", row)
        self.results.save()


@pytest.mark.timeout(1200)
def test_a_server_killed_at_any_step_ends_as_if_it_never_was(
    unbroken: Outcome, tmp_path: Path, servers: Zygote, results: Results
) -> None:
    points = points_of(unbroken.steps)
    kills = Kills(unbroken, results, "server")
    for number, point in enumerate(spread(points, POINTS or len(points))):
        scenario = Scenario(servers, tmp_path / str(number), DETERMINISTIC, {})
        kills.kill(scenario, point)


def test_the_steps_cover_upload_creation_training_commit_and_swap(unbroken: Outcome) -> None:
    text = "\n".join(unbroken.steps)
    for part in (
        "open RUN/state/files/",
        "sql INSERT INTO files",
        "sql INSERT INTO jobs",
        "sql INSERT INTO events",
        "rename RUN/state/models/",
        "sql INSERT INTO models",
    ):
        assert part in text, part


@pytest.mark.timeout(7200)
@pytest.mark.kill_matrix
def test_a_server_or_its_training_killed_while_it_really_trains_ends_as_if_it_never_was(
    tmp_path: Path, servers: Zygote, results: Results
) -> None:
    engine = ["--engine", "embedded", "--model", resolve_model("tiny")]
    engine += ["--served-model-name", "base"]
    settings = {"lora_rank": 2, "learning_rate": 1e-3, "checkpoint_steps": 1}

    def scenario(name: str, point: Point | None = None) -> Scenario:
        directory = tmp_path / name
        told = {
            "PYTHONPATH": os.pathsep.join([str(CHILD), os.environ.get("PYTHONPATH", "")]),
            "NIP_TEST_KILL": json.dumps([str(directory), point]),
        }
        return Scenario(servers, directory, engine, settings, told)

    whole = scenario("unbroken")
    unbroken = whole.run()
    steps = (whole.directory / "steps-of-training").read_text().splitlines()
    assert any("checkpoints" in step for step in steps)
    kills = Kills(unbroken, results, "training")
    for number, point in enumerate(spread(points_of(steps), TRAINING)):
        kills.kill(scenario(f"training-{number}", point), point)
    first = next(i for i, step in enumerate(unbroken.steps) if step.startswith("start a process"))
    kills = Kills(unbroken, results, "server that trains")
    points = spread(points_of(unbroken.steps)[first + 1 :], SERVER_WHILE_TRAINING)
    for number, point in enumerate(points):
        kills.kill(scenario(f"server-{number}"), point)
