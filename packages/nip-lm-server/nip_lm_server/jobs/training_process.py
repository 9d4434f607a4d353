"""A job's training in child processes, one after another, until one succeeds.

This is the `training_place.Trainer` of real training; `deterministic_trainer` has the other one.

The contract with a child, in its job directory: it reads ``job.json``, appends JSON lines to
``events.jsonl`` ({"type": "progress" | "message" | "error", ...}), keeps checkpoints in
``checkpoints/`` and goes on from the newest good one, writes the figures of every step into
``metrics.jsonl``, and the weights and ``training_result.json`` into the output directory, and exits
0. On SIGTERM it stops after the current optimizer step, writes a checkpoint and exits 143. Its
output goes to ``log.txt``.
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
"""Time between two reads of a child's events."""
STOP_GRACE_S = 120.0
"""Time that a stopped child has for its current step and its checkpoint."""
EXIT_TIMEOUT_S = 10.0
"""Time that a killed child has to be gone."""
MAX_CRASHES = 2
"""A child that a signal ended is started again this many times without a new checkpoint."""


class SubprocessTrainer:
    """Trains in a child process, the leader of a process group of its own. It dies with the server.

    A child that a signal ended (the kernel was out of memory, a library crashed) is started
    again and goes on from its last checkpoint, MAX_CRASHES times without a new checkpoint. An error
    that a child reports itself, and an exit status that is not a signal, are final.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        module: str = TRAINING_MODULE,
        stop_grace_s: float = STOP_GRACE_S,
    ):
        # No file in the working directory may be taken for a module.
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
            checkpoints, kills = _list_checkpoints(job.job_dir), count_oom_kills()
            returncode, error = await self._run_child(job, report, started, stop)
            # 1. The child has succeeded, or reports an error: both are final.
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
            # 2. A signal ended it: start another child, unless this happens again and again.
            name = _signal_name(returncode)
            out_of_memory = name == "SIGKILL" and count_oom_kills() > kills
            reason = ", because the memory was full" if out_of_memory else ""
            crashes = 1 if _list_checkpoints(job.job_dir) - checkpoints else crashes + 1
            if name is None or crashes > MAX_CRASHES:
                end = f"was ended by {name}" if name else f"exited with status {returncode}"
                if name and crashes > 1:
                    end += f", {crashes} times without a new checkpoint"
                log = read_tail(job.job_dir / "log.txt") or "(empty)"
                raise TrainingError(
                    "out_of_memory" if out_of_memory else "training_process_died",
                    f"The training process {end}{reason}. End of its log:\n{log}",
                )
            message = (
                f"The training process was ended by {name}{reason}; it is started again and "
                f"continues from its last checkpoint (attempt {crashes} of {MAX_CRASHES} without "
                "a new one)"
            )
            report([{"type": "message", "level": "warn", "message": message}])
        raise TrainingStopped

    async def _run_child(
        self,
        job: TrainingJob,
        report: Report,
        started: Callable[[int, str], None],
        stop: asyncio.Event,
    ) -> tuple[int, dict[str, Any] | None]:
        """Run one child to its end; returns its exit status and its reported error."""
        # 1. Remove the files of an earlier attempt.
        events_path = job.job_dir / "events.jsonl"
        events_path.unlink(missing_ok=True)
        shutil.rmtree(job.output_dir, ignore_errors=True)
        job.output_dir.mkdir(parents=True)
        tail = _EventTail(events_path)
        # 2. Start the child in a group of its own: a signal reaches the child's processes, too.
        with (job.job_dir / "log.txt").open("ab") as log:
            child = await self._start_child(job, log, started)
        # 3. Pass on its events, until it has ended and its last events are read.
        error: dict[str, Any] | None = None
        exited = asyncio.ensure_future(child.wait())
        terminator = asyncio.ensure_future(self._terminate_on(stop, child))
        try:
            while True:
                ended_tasks, _ = await asyncio.wait({exited}, timeout=TAIL_INTERVAL_S)
                events = tail.read()
                error = next((e for e in reversed(events) if e.get("type") == "error"), error)
                if events:
                    report([event for event in events if event.get("type") != "error"])
                if ended_tasks:
                    return exited.result(), error
        finally:
            # 4. End the child's group, whether the child has exited or not.
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
        """Fork the training from a process with its imports, or start a new process."""

        def report_pid(pid: int) -> None:
            started(pid, process_identity(pid) or "")

        # A CUDA driver does not survive a fork, and only Linux kills a fork when its server dies.
        if self._warm is not None and job.device == "cpu":
            return self._warm.fork(job.job_dir, log, report_pid)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nip_lm_server.training.die_with_parent", str(os.getpid())),
            *(self._module, "--job-dir", str(job.job_dir)),
            stdin=asyncio.subprocess.PIPE,  # its end tells the child that the server is gone
            stdout=log,
            stderr=log,
            env=self._environment,
            start_new_session=True,
        )
        report_pid(process.pid)
        return _StartedChild(process)

    async def _terminate_on(
        self, stop: asyncio.Event, child: "_StartedChild | ForkedChild"
    ) -> None:
        """Once `stop` is set, send SIGTERM to the child's group, and SIGKILL after the grace."""
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
            # A child that is killed in the middle of a write leaves half a line.
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
