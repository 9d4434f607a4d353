"""Takes jobs from created to ended: validate, train one at a time, commit, load, prove.

A job is `succeeded` only once its adapter is committed, loaded under its new name and proved.
Every step may be cut short by a kill: at the next start what is left of the training process is
ended, a committed adapter is used, and anything less is done again, under the same job id.
"""

import asyncio
import contextlib
import csv
import errno
import io
import logging
import shutil
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nip_core.lm_server import formats
from nip_core.lm_server.database import Database, dump, load
from nip_core.lm_server.engines.base import EngineError
from nip_core.lm_server.files import FileStore
from nip_core.lm_server.jobs import JobTable
from nip_core.lm_server.models import AdapterError, ModelStore
from nip_core.lm_server.processes import end_process
from nip_core.lm_server.trainers import Trainer, TrainingFailed, TrainingResult, TrainingTask

_log = logging.getLogger("nip.lm_server.jobs")

_RESULT_COLUMNS = ("step", "train_loss", "learning_rate", "epoch", "tokens")


class JobSupervisor:
    """Runs the jobs of one device, one after the other."""

    def __init__(
        self,
        directory: Path,
        database: Database,
        jobs: JobTable,
        files: FileStore,
        models: ModelStore,
        trainer: Trainer,
        base_model: str,
    ):
        self._directory = directory
        self._database = database
        self._jobs = jobs
        self._files = files
        self._models = models
        self._trainer = trainer
        self._base_model = base_model
        self._wake_validator = asyncio.Event()
        self._wake_runner = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._running: tuple[str, asyncio.Task[None]] | None = None
        directory.mkdir(exist_ok=True)

    def start(self) -> None:
        """Take up what an earlier server left, and begin."""
        for row in self._jobs.rows_in(("validating_files", "queued", "running")):
            self._recover(row)
        self._loops = [
            asyncio.create_task(self._validate_jobs(), name="validate jobs"),
            asyncio.create_task(self._run_jobs(), name="run jobs"),
        ]

    async def stop(self) -> None:
        """End the training that runs; its job is queued again for the next start."""
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._loops = []

    def submit(self) -> None:
        """Tell that a job was created."""
        self._wake_validator.set()

    def cancel(self, id: str) -> None:
        """End the training of a job whose status is already `cancelled`."""
        if self._running is not None and self._running[0] == id:
            self._running[1].cancel()

    @property
    def running_job(self) -> str | None:
        """Id of the job that is being trained."""
        return self._running[0] if self._running else None

    def healthy(self) -> bool:
        """Whether jobs are being taken."""
        return bool(self._loops) and not any(task.done() for task in self._loops)

    def _recover(self, row: sqlite3.Row) -> None:
        id = row["id"]
        if row["child_pid"] is not None:
            if not end_process(row["child_pid"], row["child_identity"], grace_s=1.0, group=True):
                self._jobs.fail(
                    id,
                    "training_process_stuck",
                    f"The training process {row['child_pid']} of an earlier server can't be ended",
                )
                return
            self._jobs.set_child(id, None, None)
        if row["base_model"] != self._base_model:
            self._jobs.fail(
                id,
                "base_model_changed",
                f"The job was for the base model {row['base_model']!r}, the server now has "
                f"{self._base_model!r}",
                "model",
            )
        elif row["status"] == "running":
            with self._database.transaction():
                self._jobs.transition(id, ("running",), "queued", progress=None)
                self._jobs.add_event(id, "The server was restarted; the job is run again")

    # Validation

    async def _validate_jobs(self) -> None:
        while True:
            self._wake_validator.clear()
            row = self._jobs.next_in("validating_files")
            if row is None:
                self._wake_runner.set()
                await self._wake_validator.wait()
                continue
            try:
                await self._validate(row)
            except Exception as error:
                _log.exception("validating %s", row["id"])
                self._jobs.fail(row["id"], "internal_error", f"Validation broke: {error!r}")

    async def _validate(self, row: sqlite3.Row) -> None:
        for param, least in (("training_file", formats.MIN_EXAMPLES), ("validation_file", 1)):
            file_id = row[param]
            if file_id is None:
                continue
            path = self._files.content(file_id)
            problems = await asyncio.to_thread(_problems, path, least)
            if problems:
                self._jobs.fail(
                    row["id"],
                    problems[0].code,
                    f"The {param.replace('_', ' ')} {file_id} is not valid: "
                    f"{formats.describe_problems(problems)}",
                    param,
                )
                return
        with self._database.transaction():
            if self._jobs.transition(row["id"], ("validating_files",), "queued"):
                self._jobs.add_event(row["id"], "Files validated, moving job to queued state")
        self._wake_runner.set()

    # Running

    async def _run_jobs(self) -> None:
        while True:
            self._wake_runner.clear()
            row = self._jobs.next_in("queued")
            if row is None:
                await self._wake_runner.wait()
                continue
            task = asyncio.create_task(self._run(row), name=f"job {row['id']}")
            self._running = (row["id"], task)
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait({task})
                raise
            finally:
                self._running = None

    async def _run(self, row: sqlite3.Row) -> None:
        id = row["id"]
        try:
            await self._train_and_serve(row)
        except asyncio.CancelledError:
            # Either the job was cancelled, which its status says, or the server stops.
            with self._database.transaction():
                if self._jobs.transition(id, ("running",), "queued", progress=None):
                    self._jobs.add_event(id, "The server is stopping; the job will be run again")
        except TrainingFailed as failure:
            self._jobs.fail(id, failure.code, failure.message, failure.param)
        except AdapterError as error:
            self._jobs.fail(id, "adapter_not_proved", str(error))
        except OSError as error:
            code = "disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "storage_error"
            self._jobs.fail(id, code, f"The adapter can't be stored: {error}")
        except Exception as error:
            _log.exception("job %s", id)
            self._jobs.fail(id, "internal_error", f"The job broke: {error!r}")
        finally:
            self._jobs.set_child(id, None, None)
            # A job that is queued again keeps a committed adapter: it need not be trained twice.
            if self._jobs.row(id)["status"] in ("failed", "cancelled"):
                with contextlib.suppress(EngineError):
                    await self._models.discard(row["adapter_name"], row["adapter_digest"])

    async def _train_and_serve(self, row: sqlite3.Row) -> None:
        id, name, digest = row["id"], row["adapter_name"], row["adapter_digest"]
        started_at = time.time()
        with self._database.transaction():
            if not self._jobs.transition(
                id, ("queued",), "running", started_at=started_at, attempts=row["attempts"] + 1
            ):
                return
            self._jobs.add_event(id, "Fine-tuning job started")
        if self._models.is_committed(digest):
            manifest = self._models.manifest(digest)
            self._jobs.add_event(id, "The adapter was already committed; it is used")
        else:
            manifest = await self._train(row)
        committed_at = time.monotonic()
        proof = await self._models.load_and_prove(name, digest)
        swap_s = time.monotonic() - committed_at
        training: dict[str, Any] = manifest["training"]
        content = _metrics_csv(self._jobs.metrics(id))
        result_file = self._files.store_result(content, "step_metrics.csv")
        with self._database.transaction():
            if not self._jobs.transition(
                id,
                ("running",),
                "succeeded",
                finished_at=time.time(),
                result=dump({**training, "swap_s": swap_s, "proof": asdict(proof)}),
                result_file=result_file,
            ):
                return
            self._models.record(manifest, row["parent"], proof)
            self._jobs.add_event(
                id,
                f"New fine-tuned model created: {name}",
                data={"swap_s": round(swap_s, 4), "proof": asdict(proof)},
            )
            self._jobs.add_event(id, "The job has successfully completed")
        # A succeeded job's logs are small and stay; what else it left is not needed again.
        shutil.rmtree(self._directory / id / "output", ignore_errors=True)

    async def _train(self, row: sqlite3.Row) -> dict[str, Any]:
        """Train and commit; returns the manifest."""
        id = row["id"]
        job_dir = self._directory / id
        parent = self._models.row(row["parent"]) if row["parent"] else None
        if row["parent"] and parent is None:
            raise TrainingFailed("parent_missing", f"The model {row['parent']} was deleted")
        settings = load(row["settings"])
        task = TrainingTask(
            job_id=id,
            job_key=row["idempotency_key"] or id,
            job_dir=job_dir,
            output_dir=job_dir / "output",
            method=row["method"],
            parent_path=self._models.path(parent["digest"]) if parent else None,
            training_file=self._files.content(row["training_file"]),
            validation_file=self._files.content(row["validation_file"])
            if row["validation_file"]
            else None,
            settings=settings,
            seed=row["seed"],
        )
        job_dir.mkdir(exist_ok=True)
        result = await self._trainer.train(
            task,
            lambda events: self._jobs.add_training_events(id, events),
            lambda pid, identity: self._jobs.set_child(id, pid, identity),
        )
        facts = {
            "name": row["adapter_name"],
            "base_model": row["base_model"],
            "job": id,
            "job_key": task.job_key,
            "parent": row["parent"],
            "parent_content_digest": parent["content_digest"] if parent else None,
            "method": row["method"],
            "settings": settings,
            "seed": row["seed"],
            "training": _training_figures(result),
            "created_at": time.time(),
        }
        commit = asyncio.ensure_future(
            asyncio.to_thread(self._models.commit, task.output_dir, row["adapter_digest"], facts)
        )
        try:
            return await asyncio.shield(commit)
        except asyncio.CancelledError:
            # The thread can't be interrupted; what it publishes must not appear after we tidied.
            await asyncio.wait({commit})
            raise


def _problems(path: Path, least: int) -> list[formats.Problem]:
    try:
        return formats.validate_supervised(formats.read_jsonl(path), least)
    except formats.JsonlError as error:
        return [formats.Problem(error.line, "invalid_jsonl", error.message)]


def _training_figures(result: TrainingResult) -> dict[str, Any]:
    return {
        **result.detail,
        "steps": result.steps,
        "tokens": result.tokens,
        "wall_s": result.wall_s,
        "final_loss": result.final_loss,
    }


def _metrics_csv(metrics: Sequence[dict[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, _RESULT_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(metrics)
    return out.getvalue().encode()
