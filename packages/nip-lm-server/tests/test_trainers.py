"""The contract with a training process: its events, its ends, and that it never outlives us."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from training_jobs import SETTINGS

from nip_base.machine.processes import count_oom_kills, end_process, is_alive, process_identity
from nip_base.wire import EffectiveSettings
from nip_lm_server.jobs.training_process import SubprocessTrainer
from nip_lm_server.training.job import TrainingError, TrainingJob, TrainingStopped

HEAD = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
job_dir = Path(sys.argv[sys.argv.index("--job-dir") + 1])
job = json.loads((job_dir / "job.json").read_text())
out = Path(job["output_dir"])
def event(**e):
    with (job_dir / "events.jsonl").open("a") as f:
        f.write(json.dumps(e) + "\\n")
def checkpoints():
    return sorted(p.parent.name for p in (job_dir / "checkpoints").glob("step-*/manifest.json"))
def checkpoint(step):
    path = job_dir / "checkpoints" / f"step-{step:08d}"
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("{}")
    event(type="message", level="info", message=f"checkpoint {step}")
def done():
    (out / "adapter_model.safetensors").write_bytes(b"weights")
    (out / "training_result.json").write_text(json.dumps(
        {"final_loss": None, "steps": 2, "tokens": 20, "wall_s": 0.1, "unchanged": True}))
"""

GOOD = """
event(type="message", level="info", message="begin")
for step in (1, 2):
    event(type="progress", step=step, total_steps=2, loss=1.0 / step,
          learning_rate=0.1, epoch=step, tokens=step)
    time.sleep(0.15)
(out / "adapter_model.safetensors").write_bytes(b"weights")
(out / "training_result.json").write_text(json.dumps(
    {"final_loss": 0.5, "steps": 2, "tokens": 20, "wall_s": 0.1, "trainable_parameters": 3}))
"""


class Run:
    """A trainer over a training module of a few lines."""

    def __init__(self, directory: Path, program: str, grace_s: float = 5.0):
        (directory / "small_training.py").write_text(HEAD + textwrap.dedent(program))
        path = os.pathsep.join([str(directory), *filter(None, sys.path)])
        self.trainer = SubprocessTrainer(
            {**os.environ, "PYTHONPATH": path}, module="small_training", stop_grace_s=grace_s
        )
        self.stop = asyncio.Event()
        self.job = TrainingJob(
            key="k",
            job_dir=directory / "job",
            output_dir=directory / "job" / "output",
            method="supervised",
            base_model_path="/base",
            training_file=directory / "train.jsonl",
            settings=EffectiveSettings.model_validate(SETTINGS),
            seed=5,
        )
        self.events: list[dict[str, Any]] = []
        self.child: tuple[int, str] | None = None

    async def train(self) -> Any:
        def started(pid: int, identity: str) -> None:
            self.child = (pid, identity)

        return await self.trainer.train(self.job, self.events.extend, started, self.stop)

    def messages(self) -> list[str]:
        return [event["message"] for event in self.events if event["type"] == "message"]

    async def stopped_when(self, path: Path) -> None:
        """Train until `path` is there, then stop; TrainingStopped is what comes of it."""
        training = asyncio.create_task(self.train())
        await asyncio.to_thread(wait_for, path)
        self.stop.set()
        with pytest.raises(TrainingStopped):
            await training

    def failure(self) -> TrainingError:
        with pytest.raises(TrainingError) as caught:
            asyncio.run(self.train())
        return caught.value


def wait_for(path: Path, timeout_s: float = 15) -> str:
    deadline = time.monotonic() + timeout_s
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)
    return path.read_text()


def test_a_training_reports_while_it_runs_and_gives_its_figures(tmp_path: Path) -> None:
    run = Run(tmp_path, GOOD)
    result = asyncio.run(run.train())
    assert (result.steps, result.tokens, result.final_loss) == (2, 20, 0.5)
    assert result.model_dump()["trainable_parameters"] == 3
    assert [e["type"] for e in run.events] == ["message", "progress", "progress"]
    assert [e["loss"] for e in run.events[1:]] == [1.0, 0.5]
    job = json.loads((tmp_path / "job" / "job.json").read_text())
    assert job == {
        "method": "supervised",
        "base_model_path": "/base",
        "parent_adapter_path": None,
        "training_file": str(tmp_path / "train.jsonl"),
        "validation_file": None,
        "hyperparameters": run.job.settings.model_dump(),
        "seed": 5,
        "output_dir": str(tmp_path / "job" / "output"),
        "device": None,  # wherever there is one
        "chat_template_kwargs": {},
    }


def test_the_last_error_event_is_the_jobs_error(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        """
        event(type="error", code="first", message="one", param=None)
        event(type="error", code="nan_loss", message="the loss is NaN", param="nip.learning_rate")
        sys.exit(1)
        """,
    )
    failure = run.failure()
    assert (failure.code, failure.message, failure.param) == (
        "nan_loss", "the loss is NaN", "nip.learning_rate"
    )  # fmt: skip
    assert run.events == []


def test_a_crash_is_told_with_the_end_of_the_log(tmp_path: Path) -> None:
    failure = Run(tmp_path, "print('nearly there'); raise RuntimeError('out of cheese')").failure()
    assert failure.code == "training_process_died"
    assert "status 1" in failure.message and "out of cheese" in failure.message


CRASHES = """
tries = len((job_dir / "tries").read_text()) if (job_dir / "tries").exists() else 0
(job_dir / "tries").write_text("." * (tries + 1))
event(type="message", level="info", message=f"try {tries} has {checkpoints()}")
"""


def test_a_process_that_keeps_being_killed_fails_after_three_tries(tmp_path: Path) -> None:
    run = Run(tmp_path, CRASHES + "print('so far'); sys.stdout.flush()\n"
              "os.kill(os.getpid(), signal.SIGKILL)")  # fmt: skip
    failure = run.failure()
    assert failure.code == "training_process_died"
    assert "SIGKILL, 3 times without a new checkpoint" in failure.message
    assert failure.message.count("so far") == 3
    assert [m for m in run.messages() if m.startswith("try")] == [
        f"try {n} has []" for n in range(3)
    ]
    assert [m for m in run.messages() if "started again" in m] == [
        "The training process was ended by SIGKILL; it is started again and continues from its "
        f"last checkpoint (attempt {n} of 2 without a new one)"
        for n in (1, 2)
    ]


def test_a_process_that_crashes_goes_on_while_it_gets_further(tmp_path: Path) -> None:
    # Six crashes, by three signals, each after one more checkpoint; then it is done.
    run = Run(
        tmp_path,
        CRASHES
        + textwrap.dedent("""
        if tries == 6:
            done()
            sys.exit(0)
        checkpoint(tries)
        if tries % 3 == 2:
            os._exit(137)  # as a shell tells of a child that was killed
        os.kill(os.getpid(), [signal.SIGKILL, signal.SIGSEGV][tries % 3])
        """),
    )
    result = asyncio.run(run.train())
    assert result.unchanged is True
    assert (tmp_path / "job" / "tries").read_text() == "......."
    assert f"try 6 has {[f'step-{n:08d}' for n in range(6)]}" in run.messages()
    told = [m.split(";")[0] for m in run.messages() if "started again" in m]
    assert (
        told
        == [
            f"The training process was ended by {name}"
            for name in ("SIGKILL", "SIGSEGV", "SIGKILL")
        ]
        * 2
    )
    assert all("attempt 1 of 2" in m for m in run.messages() if "started again" in m)


def test_what_a_process_reports_before_it_is_killed_is_final(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        """
        event(type="error", code="out_of_memory", message="no memory left", param=None)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert run.failure().code == "out_of_memory"


def test_kills_for_want_of_memory_are_counted_for_the_nearest_group(tmp_path: Path) -> None:
    proc, cgroups, first = (tmp_path / name for name in ("proc", "cgroup", "memory"))
    assert count_oom_kills(proc) == 0
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("4:memory:/x\n0::/a/b\n")
    (proc / "self/mountinfo").write_text(
        f"30 1 0:2 / {cgroups} rw - cgroup2 cgroup2 rw\n"
        f"31 1 0:3 / {first} rw - cgroup cgroup rw,memory\n"
    )
    (proc / "vmstat").write_text("nr_free_pages 5\noom_kill 7\n")
    assert count_oom_kills(proc) == 7
    (first / "x").mkdir(parents=True)
    (first / "x/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert count_oom_kills(proc) == 3
    cgroups.mkdir()
    (cgroups / "memory.events").write_text("oom 9\noom_kill 5\n")
    assert count_oom_kills(proc) == 5
    (cgroups / "a/b").mkdir(parents=True)
    (cgroups / "a/b/memory.events").write_text("oom 1\noom_kill 1\n")
    assert count_oom_kills(proc) == 1


OBEYS = """
def end(*_):
    checkpoint(len(checkpoints()) + 1)
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
"""


def test_a_stopped_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        OBEYS
        + textwrap.dedent("""
        if checkpoints():
            event(type="message", level="info", message=f"continues from {checkpoints()}")
            done()
            sys.exit(0)
        (job_dir / "ready").write_text("yes")
        time.sleep(60)
        """),
    )
    asyncio.run(run.stopped_when(tmp_path / "job" / "ready"))
    assert run.messages() == ["checkpoint 1"]
    assert not is_alive(*run.child)
    run.stop = asyncio.Event()
    asyncio.run(run.train())
    assert run.messages() == ["checkpoint 1", "continues from ['step-00000001']"]


def test_a_training_that_does_not_stop_in_time_is_killed_and_goes_on(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (job_dir / "ready").write_text("yes")
        time.sleep(60)
        """,
        grace_s=0.2,
    )
    asyncio.run(run.stopped_when(tmp_path / "job" / "ready"))
    assert not is_alive(*run.child)


def test_a_training_that_ends_while_it_is_stopped_is_done(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        """
        def end(*_):
            done()
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        (job_dir / "ready").write_text("yes")
        time.sleep(60)
        """,
    )

    async def stop() -> Any:
        training = asyncio.create_task(run.train())
        await asyncio.to_thread(wait_for, tmp_path / "job" / "ready")
        run.stop.set()
        return await training

    assert asyncio.run(stop()).steps == 2


def test_a_training_that_is_stopped_before_it_begins_starts_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, "pass")
    run.stop.set()
    with pytest.raises(TrainingStopped):
        asyncio.run(run.train())
    assert run.child is None


def test_success_without_a_result_is_a_failure(tmp_path: Path) -> None:
    assert Run(tmp_path, "pass").failure().code == "training_result_missing"


def test_a_torn_event_is_left_out(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        GOOD + '\nwith (job_dir / "events.jsonl").open("a") as f: f.write(\'{"type": "mess\')\n',
    )
    asyncio.run(run.train())
    assert len(run.events) == 3


def test_cancelling_ends_a_deaf_process_and_what_it_started(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sleeper = subprocess.Popen([sys.executable, "-c",
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"])
        (job_dir / "grandchild").write_text(str(sleeper.pid))
        time.sleep(60)
        """,
        grace_s=0.3,
    )

    async def cancel() -> None:
        training = asyncio.create_task(run.train())
        await asyncio.to_thread(wait_for, tmp_path / "job" / "grandchild")
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training

    asyncio.run(cancel())
    grandchild = int((tmp_path / "job" / "grandchild").read_text())
    assert not is_alive(*run.child)
    deadline = time.monotonic() + 5
    while process_identity(grandchild) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


SUPERVISOR = """
import asyncio, sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from test_trainers import Run
run = Run(Path(sys.argv[1]), '''
(job_dir / "pid").write_text(str(os.getpid()))
time.sleep(60)
''')
asyncio.run(run.train())
"""


def test_a_training_dies_with_a_server_that_was_killed(tmp_path: Path) -> None:
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[2] / "tests" / "helpers")]
    server = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(tmp_path), *paths])
    pid = int(wait_for(tmp_path / "job" / "pid"))
    identity = process_identity(pid)
    assert identity is not None
    server.kill()
    server.wait(10)
    deadline = time.monotonic() + 5
    while is_alive(pid, identity):
        assert time.monotonic() < deadline, "the training outlived its server"
        time.sleep(0.02)


def test_a_process_is_ended_only_if_it_is_the_one_that_was_meant() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert end_process(sleeper.pid, "another:1", grace_s=0.1)
        assert sleeper.poll() is None
        identity = process_identity(sleeper.pid)
        assert end_process(sleeper.pid, identity, grace_s=5)
        assert sleeper.wait(5) == -signal.SIGTERM
    finally:
        sleeper.kill()


def test_a_trainings_threads_wait_awake_for_a_moment_unless_somebody_has_set_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = GOOD + '\nevent(type="message", level="info", message=repr(THREADS))\n'
    program = (
        'THREADS = [os.environ.get(n) for n in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")]\n' + program
    )
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    for policy, seen in ((None, [None, "1000"]), ("active", ["active", None])):
        if policy is not None:
            monkeypatch.setenv("OMP_WAIT_POLICY", policy)
        run = Run(tmp_path, program)
        asyncio.run(run.train())
        assert run.messages()[-1] == repr(seen)
