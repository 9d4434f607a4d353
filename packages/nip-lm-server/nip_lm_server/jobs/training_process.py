"""How a job's training is run: in child processes, one after another, until one is done.

It is the `training_place.Trainer` of real training; `deterministic_trainer` has the other one.

The contract with a child, in its job directory: it reads ``job.json``, appends JSON lines to
``events.jsonl`` ({"type": "progress" | "message" | "error", ...}), keeps checkpoints in
``checkpoints/`` and goes on from the newest good one, leaves the figures of every step in
``metrics.jsonl``, writes the weights and ``training_result.json`` into the output directory, and
exits 0. On SIGTERM it stops after the
current optimizer step, writes a checkpoint and exits 143. Its output goes to ``log.txt``.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from nip_base.machine.processes import (
    count_oom_kills,
    process_identity,
    read_tail,
    signal_group,
    working_environment,
)
from nip_lm_server.jobs.warm_process import ForkedChild, WarmProcess
from nip_lm_server.training.job import (
    CHECKPOINTS,
    Report,
    TrainingError,
    TrainingJob,
    TrainingResult,
    TrainingStopped,
)

TRAINING_MODULE = "nip_lm_server.training.main"
TAIL_INTERVAL_S = 0.1
"""How often a child's events are read."""
STOP_GRACE_S = 120.0
"""Time a child that is to stop has for its current step and its checkpoint."""
EXIT_TIMEOUT_S = 10.0
"""How long a killed child may take to be gone."""
MAX_CRASHES = 2
"""A child that a signal ended is started again this many times without a new checkpoint."""


class SubprocessTrainer:
    """Trains in a child process, the leader of a process group of its own. It dies with us.

    A child that a signal ended (the kernel was out of memory, a library crashed) is started
    again and goes on from its last checkpoint, MAX_CRASHES times without a new checkpoint. What
    a child reports as an error itself, or an exit status that is not a signal, is final.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        module: str = TRAINING_MODULE,
        stop_grace_s: float = STOP_GRACE_S,
    ):
        # Files in the working directory are not modules, however they are called.
        self._environment = {**working_environment(environment), "PYTHONSAFEPATH": "1"}
        self._module = module
        self._stop_grace_s = stop_grace_s
        can_fork = module == TRAINING_MODULE and sys.platform.startswith("linux")
        self._warm = WarmProcess(self._environment) if can_fork else None

    async def train(
        self,
        job: TrainingJob,
        report: Report,
        started: Callable[[int, str], None],
        stop: asyncio.Event,
    ) -> TrainingResult:
        """See `Trainer.train`."""
        job.write()
        crashes = 0
        while not stop.is_set():
            before, kills = _list_checkpoints(job.job_dir), count_oom_kills()
            returncode, error = await self._run_child(job, report, started, stop)
            # 1. An end that is final: it is done, or it says itself what is wrong.
            if returncode == 0:
                return _read_result(job)
            if error is not None:
                raise TrainingError(
                    str(error.get("code") or "training_failed"),
                    str(error.get("message") or "the training process reported an error"),
                    error.get("param"),
                )
            if stop.is_set():
                break
            # 2. A signal ended it: once more, unless it keeps happening.
            name = _signal_name(returncode)
            out_of_memory = name == "SIGKILL" and count_oom_kills() > kills
            why = ", because the memory was full" if out_of_memory else ""
            crashes = 1 if _list_checkpoints(job.job_dir) - before else crashes + 1
            if name is None or crashes > MAX_CRASHES:
                how = f"was ended by {name}" if name else f"exited with status {returncode}"
                if name and crashes > 1:
                    how += f", {crashes} times without a new checkpoint"
                log = read_tail(job.job_dir / "log.txt") or "(empty)"
                raise TrainingError(
                    "out_of_memory" if out_of_memory else "training_process_died",
                    f"The training process {how}{why}. End of its log:\n{log}",
                )
            told = (
                f"The training process was ended by {name}{why}; it is started again and continues "
                f"from its last checkpoint (attempt {crashes} of {MAX_CRASHES} without a new one)"
            )
            report([{"type": "message", "level": "warn", "message": told}])
        raise TrainingStopped

    async def _run_child(
        self,
        job: TrainingJob,
        report: Report,
        started: Callable[[int, str], None],
        stop: asyncio.Event,
    ) -> tuple[int, dict[str, Any] | None]:
        """Run one child to its end; returns its exit status and its reported error."""
        # 1. Nothing of an attempt before is taken for this one's.
        events_path = job.job_dir / "events.jsonl"
        events_path.unlink(missing_ok=True)
        shutil.rmtree(job.output_dir, ignore_errors=True)
        job.output_dir.mkdir(parents=True)
        tail = _EventTail(events_path)
        # 2. A group of its own, so that a signal reaches what the child starts, too.
        with (job.job_dir / "log.txt").open("ab") as log:
            child = await self._start_child(job, log, started)
        # 3. Pass on what it tells, until it has ended and its last words are read.
        error: dict[str, Any] | None = None
        exited = asyncio.ensure_future(child.wait())
        terminator = asyncio.ensure_future(self._terminate_on(stop, child))
        try:
            while True:
                done, _ = await asyncio.wait({exited}, timeout=TAIL_INTERVAL_S)
                events = tail.read()
                error = next((e for e in reversed(events) if e.get("type") == "error"), error)
                if events:
                    report([event for event in events if event.get("type") != "error"])
                if done:
                    return exited.result(), error
        finally:
            # 4. Nothing of the child's group is left running, whether it exited or not.
            terminator.cancel()
            signal_group(child.pid, signal.SIGKILL)
            try:
                await asyncio.wait({exited}, timeout=EXIT_TIMEOUT_S)
            finally:
                exited.cancel()
                child.close()

    async def _start_child(
        self, job: TrainingJob, log: BinaryIO, started: Callable[[int, str], None]
    ) -> "_StartedChild | ForkedChild":
        """Fork the training of a process that has what it imports, or start one."""

        def told(pid: int) -> None:
            started(pid, process_identity(pid) or "")

        # A driver of CUDA does not survive a fork, and elsewhere nothing kills a fork whose
        # server has died.
        if self._warm is not None and job.device == "cpu":
            return self._warm.fork(job.job_dir, log, told)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nip_lm_server.training.die_with_parent", str(os.getpid())),
            *(self._module, "--job-dir", str(job.job_dir)),
            stdin=asyncio.subprocess.PIPE,  # its end tells the child that we are gone
            stdout=log,
            stderr=log,
            env=self._environment,
            start_new_session=True,
        )
        told(process.pid)
        return _StartedChild(process)

    async def _terminate_on(
        self, stop: asyncio.Event, child: "_StartedChild | ForkedChild"
    ) -> None:
        """Once `stop` is set, send SIGTERM, and after the grace SIGKILL to what still runs."""
        await stop.wait()
        signal_group(child.pid, signal.SIGTERM)
        await asyncio.sleep(self._stop_grace_s)
        signal_group(child.pid, signal.SIGKILL)


class _StartedChild:
    """A training in a process that was started for it."""

    def __init__(self, process: asyncio.subprocess.Process):
        self._process, self.pid = process, process.pid

    async def wait(self) -> int:
        return await self._process.wait()

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


def _list_checkpoints(job_dir: Path) -> frozenset[str]:
    """List the whole checkpoints: their manifest is written last."""
    names = {path.parent.name for path in (job_dir / CHECKPOINTS).glob("*/manifest.json")}
    return frozenset(name for name in names if not name.startswith("."))


def _signal_name(returncode: int) -> str | None:
    """Name the signal behind an exit status; None for an ordinary exit."""
    number = -returncode if returncode < 0 else returncode - 128
    try:
        return signal.Signals(number).name if number > 0 else None
    except ValueError:
        return None


class _EventTail:
    """Reads the whole lines appended to a file since the last read."""

    def __init__(self, path: Path):
        self._path = path
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        events = []
        for line in whole.splitlines():
            # A child that was killed in the middle of a write leaves half a line behind.
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    events.append(event)
        return events


def _read_result(job: TrainingJob) -> TrainingResult:
    path = job.output_dir / "training_result.json"
    try:
        return TrainingResult.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TrainingError(
            "training_result_missing",
            f"The training process exited 0 but {path.name} can't be read: {error!r}",
        ) from None
