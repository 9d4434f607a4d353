"""One job, from queued to ended: train, commit, publish with proof, succeed.

JobRunner.run                 bring a queued job to its end, in its turn
DeviceTurn                    a job's turn on its device, for the supervisor
JobRunner.remove_leftovers    remove the files that an ended job no longer needs

A job is `succeeded` only once its model is committed, answers under its new name and is proved.
A model that was committed before a kill is used; a training that a kill, a pause or the server's
end interrupted goes on from its last checkpoint.

A model that does not answer with its weights fails the job, but is kept in ``set_aside``.

A job that is cancelled at any moment, even between its publishing and `_succeed`, leaves no model:
its row has the status `cancelled` before its task is cancelled, so `_succeed` doesn't enter the
model, and `_tidy`, which always runs, withdraws and removes it.
"""

import asyncio
import contextlib
import csv
import io
import json
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nip_base.api_errors import ApiError
from nip_base.disk import is_full
from nip_base.manifest import ModelFacts, ModelManifest
from nip_base.proof import Proof
from nip_base.wire import ENDED_STATUSES
from nip_lm_server.engines.base import EngineError
from nip_lm_server.jobs.events import StepFigures, step_data, step_number
from nip_lm_server.jobs.settings import name_param, sum_ranks
from nip_lm_server.jobs.table import JobTable
from nip_lm_server.serving.training_place import TrainingPlace
from nip_lm_server.state.database import dump
from nip_lm_server.state.models import AdapterError, NotProvedError
from nip_lm_server.state.rows import JobRow, ModelRow
from nip_lm_server.training.job import (
    CHECKPOINTS,
    METRICS_FILE,
    TrainingError,
    TrainingJob,
    TrainingStopped,
)

PUBLISH_ATTEMPTS = 2
"""Times that a new model is loaded and proved before its job fails. The second is for a slip of the
engine in loading; damaged weights fail every time."""

_log = logging.getLogger("nip.lm_server.jobs")

# Every method has these, and they come first, so that a reader finds them at the same place.
_RESULT_COLUMNS = ("step", "train_loss", "learning_rate", "epoch", "tokens")
# For people who wait; once the training is over they mean nothing.
_NOT_RESULTS = ("total_steps", "time_left_s")


@dataclass
class DeviceTurn:
    """A job's turn on its device.

    `stop` asks for the training's end with a checkpoint. `has_begun` is set once engines that share
    the device have left it. `pass_on` gives the device to the next job, if there is one, and
    returns true once the engines are away for that job too.
    """

    pass_on: Callable[[], Awaitable[bool]]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)


class JobRunner:
    """Runs jobs of one server, each in a directory of its own under `directory`."""

    def __init__(self, directory: Path, jobs: JobTable):
        self._directory = directory
        self._jobs, self._models, self._pool = jobs, jobs.models, jobs.pool

    async def run(self, row: JobRow, place: TrainingPlace, turn: DeviceTurn) -> None:
        """Bring a queued job to its end; `turn.stop` ends its training with a checkpoint.

        Cancelling the await ends it without one. Errors are written into the job, not raised.
        """
        id = row.id
        try:
            # False if a client has cancelled or paused it since the supervisor's look.
            if self._jobs.begin(id):
                await self._train_and_publish(self._jobs.get_row(id), place, turn)
        except (asyncio.CancelledError, TrainingStopped):
            # Only where the server stops is the job still `running`, and queued again: the row of a
            # cancelled or paused job has that status already. The task ends here, so no caller
            # needs the cancellation.
            self._jobs.requeue(id, "The server is stopping; the job will be run again")
        # The trainer's errors are for the user who made the job.
        except TrainingError as failure:
            param = name_param(row.method, failure.param)
            self._jobs.fail(id, failure.code, failure.message, param)
        # The trained weights do not answer, or can't be read: they are kept for people.
        except AdapterError as error:
            self._jobs.fail(id, "adapter_not_proved", f"{error}{self._keep(row.adapter_digest)}")
        # The remedy is not in the job: the disk needs room, or repair.
        except OSError as error:
            code = "disk_full" if is_full(error) else "storage_error"
            self._jobs.fail(id, code, f"The model can't be stored: {error}")
        # A fault of the server's. The job must end: it would begin again and again.
        except Exception as error:
            _log.exception("job %s", id)
            code = "disk_full" if is_full(error) else "internal_error"
            self._jobs.fail(id, code, f"The job broke: {error!r}")
        finally:
            # No process of this turn runs any more, and the next start must look for none.
            self._jobs.set_child(id, None, None)
            await self._tidy(id)

    def _keep(self, digest: str) -> str:
        """Move an unproved model to ``set_aside``, for people; returns a sentence about it."""
        # The weights took minutes or days of training, so they are not thrown away. Where the disk
        # refuses even this move, they go with the job, which tells its own error.
        aside = None
        with contextlib.suppress(OSError):
            aside = self._models.set_aside(digest)
        # There is none if the training has left nothing to commit.
        if aside is None:
            return ""
        return f". The trained model is kept in the server's state: {aside.parent.name}/{digest}"

    async def _tidy(self, id: str) -> None:
        row = self._jobs.get_row(id)
        if row.status in ("failed", "cancelled"):
            # The model may be published already, so it leaves the engine before its files go. An
            # engine that fails in this is no fault of the job: once it is back, it loads the models
            # in the table, and this one is not there.
            with contextlib.suppress(EngineError, AdapterError):
                await self._pool.withdraw(row.adapter_name)
        self.remove_leftovers(id)

    def remove_leftovers(self, id: str) -> None:
        """Remove the leftovers of an ended job; an unfinished job keeps everything.

        If the job has failed or was cancelled, this call removes its model, so no engine may serve
        that model any more.
        """
        row = self._jobs.get_row(id)
        # No user could find a model that no job has. A model worth keeping lies in ``set_aside``.
        if row.status in ("failed", "cancelled"):
            self._models.remove(row.adapter_digest)
        # An unfinished job goes on from these. The logs are small and stay.
        if row.status in ENDED_STATUSES:
            for name in ("output", "trained_adapter", CHECKPOINTS):
                shutil.rmtree(self._directory / id / name, ignore_errors=True)

    async def _train_and_publish(self, row: JobRow, place: TrainingPlace, turn: DeviceTurn) -> None:
        id, name, digest = row.id, row.adapter_name, row.adapter_digest
        # 1. Use the model that an earlier attempt has committed, or train and commit it now.
        if self._models.is_committed(digest):
            manifest = self._models.manifest(digest)
            self._jobs.events.add(id, "The model was already committed; it is used")
            turn.has_begun.set()  # nothing is trained, so the job that passed the device on goes on
        else:
            manifest = await self._train_and_commit(row, place, turn)
            await self._pool.wait_until_back(row.base_model)
        if self._jobs.get_row(id).status != "running":
            return  # the job was paused: the committed model is used when it is resumed
        # 2. Publish it under its name, and prove it.
        committed_at = time.monotonic()
        proof = await self._publish(id, name, digest)
        swap_s = time.monotonic() - committed_at
        self._jobs.events.log(id, "published", swap_s=swap_s, proof=asdict(proof))
        # 3. Enter it, unless a client has cancelled or paused the job meanwhile: no model may
        #    answer that belongs to no job.
        if not self._succeed(row, manifest, proof, swap_s):
            await self._pool.withdraw(name)

    async def _publish(self, id: str, name: str, digest: str) -> Proof:
        """Load and prove the model, PUBLISH_ATTEMPTS times at most. Raises AdapterError."""
        for attempt in range(1, PUBLISH_ATTEMPTS + 1):
            try:
                return await self._pool.publish(name, digest)
            # A model that can't be loaded is another error, and not tried again: the engine has
            # given the reason.
            except NotProvedError as error:
                if attempt == PUBLISH_ATTEMPTS:
                    raise
                self._jobs.events.add(
                    id,
                    f"It is loaded and proved again, as it was not proved: {error}",
                    level="warn",
                )
        raise AssertionError("PUBLISH_ATTEMPTS is at least 1")

    def _succeed(self, row: JobRow, manifest: ModelManifest, proof: Proof, swap_s: float) -> bool:
        """Enter the proved model and end the job. False if it was cancelled or paused meanwhile."""
        id, training = row.id, manifest.training
        metrics = _join_steps(
            self._jobs.events.read_metrics(id), self._directory / id / METRICS_FILE
        )
        # The file's id follows from the job's: after a kill between here and the transaction, the
        # next attempt finds this file and makes no second one.
        result_file = self._jobs.files.store_result(
            id, _write_metrics_csv(metrics), "step_metrics.csv"
        )
        result = {"unchanged": False, **training, "swap_s": swap_s, "proof": asdict(proof)}
        # One transaction enters the model and the status: neither is ever there without the other.
        with self._jobs.database.transaction():
            if not self._jobs.transition(
                id,
                ("running",),
                "succeeded",
                finished_at=time.time(),
                result=dump(result),
                result_file=result_file,
            ):
                return False
            self._models.record(manifest, row.parent, proof)
            # Say it, because the job looks like any success and its model answers as its parent.
            if result["unchanged"]:
                self._jobs.events.add(
                    id, "The training changed nothing: the weights are those it started from"
                )
            self._jobs.events.add(
                id,
                f"New fine-tuned model created: {row.adapter_name}",
                data={"swap_s": round(swap_s, 4), "proof": asdict(proof)},
            )
            self._jobs.events.add(id, "The job has successfully completed")
        self._jobs.events.log(id, "succeeded")
        return True

    async def _train_and_commit(
        self, row: JobRow, place: TrainingPlace, turn: DeviceTurn
    ) -> ModelManifest:
        """Train and commit the model; returns its manifest."""
        id, validation = row.id, row.validation_file
        parent = self._find_parent(row)
        # A parent that is a base model is the place's own; an adapter has a directory of its own.
        adapter = parent.digest if parent is not None and parent.kind == "adapter" else None
        job = TrainingJob(
            method=row.method,
            base_model_path=place.base_model_path,
            parent_adapter_path=None if adapter is None else self._models.path(adapter),
            training_file=await self._find_intact(row.training_file),
            validation_file=await self._find_intact(validation) if validation else None,
            settings=row.read_settings(),
            seed=row.seed,
            chat_template_kwargs=dict(place.chat_template_kwargs),
            output_dir=self._directory / id / "output",
            # The trainer's process sees no device but its own, so it needs no number.
            device="cuda" if place.device.startswith("cuda") else "cpu",
            job_dir=self._directory / id,
            key=row.idempotency_key or id,
        )
        job.job_dir.mkdir(exist_ok=True)
        # Engines that share the device stand aside in here.
        async with self._pool.training_on_device(place.base_model) as engines_left:
            turn.has_begun.set()
            result = await place.trainer.train(
                job,
                lambda events: self._jobs.events.add_training(id, events),
                lambda pid, identity: self._jobs.set_child(id, pid, identity),
                turn.stop,
            )
            figures = result.model_dump()
            self._jobs.events.log(id, "trained", **figures)
            facts: ModelFacts = {
                "kind": job.settings.result,
                "name": row.adapter_name,
                "base_model": row.base_model,
                "job": id,
                "job_key": job.key,
                "parent": row.parent,
                "parent_content_digest": parent.content_digest if parent else None,
                "method": row.method,
                "settings": job.settings.model_dump(),
                "lora_rank": sum_ranks(
                    job.settings, None if adapter is None else self._models.manifest(adapter)
                ),
                "seed": row.seed,
                "training": figures,
                "created_at": time.time(),
            }
            # Committed before the engine comes back, which takes long: a kill then costs nothing.
            manifest = await self._commit(job.output_dir, row.adapter_digest, facts)
            # An engine that is away stays away for the next job, and wakes once for both. A new
            # base model takes the engine's place, so no other job may be about to use it.
            if engines_left and job.settings.result == "adapter" and await turn.pass_on():
                message = (
                    "The model is published after the job that trains next, for which the engine"
                )
                self._jobs.events.add(id, f"{message} stays asleep")
            return manifest

    async def _commit(self, output: Path, digest: str, facts: ModelFacts) -> ModelManifest:
        commit = asyncio.ensure_future(
            asyncio.to_thread(self._models.commit, output, digest, facts)
        )
        try:
            return await asyncio.shield(commit)
        except asyncio.CancelledError:
            # The thread can't be interrupted, and its model must not appear after `_tidy`.
            await asyncio.wait({commit})
            raise

    async def _find_intact(self, file_id: str) -> Path:
        """Find a file and check its digest right before its use: the job may have waited for hours.

        Raises TrainingError: no request waits for an ApiError.
        """
        try:
            return await self._jobs.files.find_intact(file_id)
        except ApiError as error:
            raise TrainingError(error.code or "file_damaged", error.message) from None

    def _find_parent(self, row: JobRow) -> ModelRow | None:
        if row.parent is None:
            return None
        parent = self._models.get_row(row.parent)
        # No request can delete a model that a job needs, but a state may be restored without it.
        # A training from other weights would make another model.
        if parent is None:
            raise TrainingError("parent_missing", f"The model {row.parent} was deleted")
        return parent


def _join_steps(reports: Sequence[StepFigures], path: Path) -> list[StepFigures]:
    """The figures by step: from the trainer's own file, else from its last report of the step."""
    by_step = {step_number(row): row for row in reports}
    # Not every trainer writes the file. One that does has reported the progress of some steps only.
    if path.exists():
        rows = map(step_data, map(json.loads, path.read_text().splitlines()))
        by_step.update({step_number(row): row for row in rows})
    return [by_step[step] for step in sorted(by_step)]


def _write_metrics_csv(metrics: Sequence[StepFigures]) -> bytes:
    """Write the result file: the columns of every method, then the columns of this method."""
    of_method = sorted({name for row in metrics for name in row} - {*_RESULT_COLUMNS})
    columns = [*_RESULT_COLUMNS, *(name for name in of_method if name not in _NOT_RESULTS)]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(metrics)
    return out.getvalue().encode()
