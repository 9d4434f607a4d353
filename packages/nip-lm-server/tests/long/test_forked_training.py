"""A training that is forked from a warm process is the one that a fresh process makes."""

import asyncio
import json
import os
import signal
from pathlib import Path

import psutil
import pytest

pytest.importorskip("trl")

from tiny_model import make_model
from training_jobs import SETTINGS, messages, weights, write_examples, write_pairs

from nip_base.wire import EffectiveSettings
from nip_lm_server.jobs.training_process import SubprocessTrainer
from nip_lm_server.training.job import TrainingJob, TrainingStopped


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("base"))


class Trainings:
    """Trainings of one trainer, and the processes that it told of."""

    def __init__(self, base: Path, directory: Path):
        self.base, self.directory = base, directory
        self.trainer = SubprocessTrainer(os.environ)
        self.stop = asyncio.Event()
        self.pids: list[int] = []

    def job(self, name: str, method: str = "supervised", **settings) -> TrainingJob:
        folder = self.directory / name
        folder.mkdir()
        write = write_pairs if method == "dpo" else write_examples
        return TrainingJob(
            method=method,
            base_model_path=str(self.base),
            training_file=write(folder / "train.jsonl"),
            settings=EffectiveSettings.model_validate({**SETTINGS, "max_length": 512, **settings}),
            seed=3,
            output_dir=folder / "out",
            device="cpu",
            job_dir=folder,
            key=name,
        )

    async def train(self, job: TrainingJob) -> bytes:
        self.pids = []
        await self.trainer.train(
            job, lambda events: None, lambda pid, identity: self.pids.append(pid), self.stop
        )
        return weights(job.job_dir)

    def begin(self, job: TrainingJob) -> asyncio.Task[bytes]:
        """Begin to train, with nothing left that an attempt before has told."""
        (job.job_dir / "events.jsonl").unlink(missing_ok=True)
        return asyncio.create_task(self.train(job))

    def end(self) -> None:
        self.trainer._warm.end()


async def reached(job: TrainingJob, step: int) -> None:
    path = job.job_dir / "events.jsonl"
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        events = [json.loads(line) for line in lines]
        if any(event.get("step", 0) >= step for event in events):
            return
        await asyncio.sleep(0.01)


async def test_a_second_training_has_the_bits_of_a_fresh_process_and_leaves_nothing(base, tmp_path):
    one, other = Trainings(base, tmp_path / "one"), Trainings(base, tmp_path / "other")
    for trainings in (one, other):
        trainings.directory.mkdir()
    # 1. In one process after another training, of another method even; and as the first of its own.
    await one.train(one.job("before", "dpo"))
    warm, first = one.pids
    held = psutil.Process(warm).memory_info().rss
    second = await one.train(one.job("same", lora_rank=8))
    assert one.pids[0] == warm and one.pids[1] not in (warm, first)
    assert second == await other.train(other.job("same", lora_rank=8))
    # 2. The trainings are gone, and their memory with them; the process stays for the next.
    assert not psutil.pid_exists(first) and not psutil.pid_exists(one.pids[1])
    assert psutil.Process(warm).memory_info().rss < held + 2**26
    assert [child.pid for child in psutil.Process(warm).children()] == []
    # 3. Ended, nothing is left of it.
    other.end()
    assert not psutil.pid_exists(other.pids[0])

    # 4. Killed in between, it goes on in a fresh process, to the same bits.
    whole = one.job("whole", n_epochs=8, checkpoint_steps=1)
    expected = await one.train(whole)
    killed = one.job("killed", n_epochs=8, checkpoint_steps=1)
    training = one.begin(killed)
    await reached(killed, 5)
    os.kill(one.pids[-1], signal.SIGKILL)
    assert await training == expected
    assert one.pids[2] != warm and not psutil.pid_exists(warm)
    assert any("continues from step" in message for message in messages(killed.job_dir))

    # 5. Paused, it leaves a checkpoint and the process; cancelled, it leaves neither.
    paused = one.job("paused", n_epochs=8, checkpoint_steps=1)
    training = one.begin(paused)
    await reached(paused, 5)
    one.stop.set()
    with pytest.raises(TrainingStopped):
        await training
    warm = one.pids[0]
    assert psutil.pid_exists(warm) and not psutil.pid_exists(one.pids[1])
    one.stop.clear()
    training = one.begin(paused)
    await reached(paused, 7)
    training.cancel()
    with pytest.raises(asyncio.CancelledError):
        await training
    assert not any(psutil.pid_exists(pid) for pid in one.pids)
    assert await one.train(paused) == expected
    one.end()
