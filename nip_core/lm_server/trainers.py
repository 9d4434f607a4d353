"""How a job's training is run: one interface, a subprocess behind it for real training.

TrainingTask, TrainingResult, TrainingFailed   what goes in and what comes out
Trainer                                        the interface; `engines/deterministic` has another
SubprocessTrainer                              one child per job, tailed, cancellable

The contract with the child, in its job directory: it reads ``job.json``, appends JSON lines to
``events.jsonl`` ({"type": "progress" | "message" | "error", ...}), writes the adapter and
``training_result.json`` into the output directory, and exits 0. Its output goes to ``log.txt``.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nip_core.lm_server.processes import process_identity, read_tail

TAIL_INTERVAL_S = 0.1
"""How often a child's events are read."""
CANCEL_GRACE_S = 5.0
"""Time a child has between SIGTERM and SIGKILL."""

Report = Callable[[list[dict[str, Any]]], None]
"""Receives the events of a child in order, a few at a time."""


@dataclass(frozen=True)
class TrainingTask:
    """Everything a trainer needs; paths are absolute."""

    job_id: str
    job_key: str  # the idempotency key, or the job id: the same when the job is run again
    job_dir: Path
    output_dir: Path
    method: str
    parent_path: Path | None  # adapter to continue from
    training_file: Path
    validation_file: Path | None
    settings: Mapping[str, Any]  # wire.EffectiveSettings as a dict
    seed: int


@dataclass(frozen=True)
class TrainingResult:
    """Figures of a finished training; `final_loss` is None where there is no model."""

    steps: int
    tokens: int
    wall_s: float
    final_loss: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)


class TrainingFailed(Exception):
    """The training ended without an adapter; becomes the job's `error`."""

    def __init__(self, code: str, message: str, param: str | None = None):
        super().__init__(code, message, param)
        self.code, self.message, self.param = code, message, param


class Trainer(Protocol):
    """Runs one training. Cancelling the await ends it and everything that it started."""

    async def train(
        self, task: TrainingTask, report: Report, started: Callable[[int, str], None]
    ) -> TrainingResult:
        """Train, or raise TrainingFailed. `started` is told the child's pid and identity."""


class SubprocessTrainer:
    """Trains in a child process that leads a process group of its own and dies with us."""

    def __init__(
        self,
        module: str,
        base_model_path: str,
        environment: Mapping[str, str],
        *,
        grace_s: float = CANCEL_GRACE_S,
    ):
        self._module = module
        self._base_model_path = base_model_path
        self._environment = dict(environment)
        self._grace_s = grace_s

    async def train(
        self, task: TrainingTask, report: Report, started: Callable[[int, str], None]
    ) -> TrainingResult:
        """See `Trainer.train`."""
        self._write_job(task)
        events_path = task.job_dir / "events.jsonl"
        events_path.unlink(missing_ok=True)
        # A checkpoint that the child can continue from lives outside the output directory.
        shutil.rmtree(task.output_dir, ignore_errors=True)
        task.output_dir.mkdir(parents=True)
        tail = _EventTail(events_path)
        with (task.job_dir / "log.txt").open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "nip_core.lm_server.child", str(os.getpid())),
                *(self._module, "--job-dir", str(task.job_dir)),
                stdin=asyncio.subprocess.PIPE,  # its end tells the child that we are gone
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        started(child.pid, process_identity(child.pid) or "")
        error: dict[str, Any] | None = None
        exited = asyncio.ensure_future(child.wait())
        try:
            while True:
                done, _ = await asyncio.wait({exited}, timeout=TAIL_INTERVAL_S)
                events = tail.read()
                error = next((e for e in reversed(events) if e.get("type") == "error"), error)
                if events:
                    report([event for event in events if event.get("type") != "error"])
                if done:
                    break
        finally:
            await self._end(child, exited)
        if child.returncode != 0:
            raise self._failure(task, child.returncode, error)
        return _read_result(task)

    def _write_job(self, task: TrainingTask) -> None:
        task.job_dir.mkdir(parents=True, exist_ok=True)
        job = {
            "method": task.method,
            "base_model_path": self._base_model_path,
            "parent_adapter_path": str(task.parent_path) if task.parent_path else None,
            "training_file": str(task.training_file),
            "validation_file": str(task.validation_file) if task.validation_file else None,
            "hyperparameters": dict(task.settings),
            "seed": task.seed,
            "output_dir": str(task.output_dir),
        }
        (task.job_dir / "job.json").write_text(json.dumps(job, indent=1))

    async def _end(self, child: asyncio.subprocess.Process, exited: "asyncio.Future[int]") -> None:
        """Leave nothing of the child's group running, whether it exited or not."""
        try:
            if not exited.done():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGTERM)
                await asyncio.wait({exited}, timeout=self._grace_s)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        await asyncio.wait({exited}, timeout=self._grace_s)
        if child.stdin is not None:
            child.stdin.close()

    def _failure(
        self, task: TrainingTask, returncode: int | None, error: dict[str, Any] | None
    ) -> TrainingFailed:
        tail = read_tail(task.job_dir / "log.txt")
        if error is not None:
            return TrainingFailed(
                str(error.get("code") or "training_failed"),
                str(error.get("message") or "the training process reported an error"),
                error.get("param"),
            )
        how = (
            f"was ended by {signal.Signals(-returncode).name}"
            if returncode is not None and returncode < 0
            else f"exited with status {returncode}"
        )
        return TrainingFailed(
            "training_process_died",
            f"The training process {how}. End of its log:\n{tail or '(empty)'}",
        )


class _EventTail:
    """Reads the whole lines that were appended to a file since the last read."""

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


def _read_result(task: TrainingTask) -> TrainingResult:
    path = task.output_dir / "training_result.json"
    try:
        result = json.loads(path.read_text())
        return TrainingResult(
            steps=int(result["steps"]),
            tokens=int(result["tokens"]),
            wall_s=float(result["wall_s"]),
            final_loss=None if result["final_loss"] is None else float(result["final_loss"]),
            detail=result,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingFailed(
            "training_result_missing",
            f"The training process exited 0 but {path.name} can't be read: {error!r}",
        ) from None
