"""One job, from queued to ended: train, commit, publish with proof, succeed.

JobRunner.run                 what becomes of a queued job whose turn it is
DeviceTurn                    a job's turn on its device, as the supervisor has it
JobRunner.remove_leftovers    what an ended job needs no more

A job is `succeeded` only once its model is committed, answers under its new name and is proved.
A model that was committed before a kill is used; a training that a kill, a pause or the server's
end interrupted goes on from its last checkpoint.

A model that does not answer with its weights fails the job, but is kept in ``set_aside``.

A job that is cancelled anywhere, even between its publishing and `_succeed`, leaves nothing: its
status is `cancelled` before the task is, so `_succeed` doesn't enter the model, and `_tidy`, which
is always run, withdraws and removes it.
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
"""So often a new model is loaded and proved before its job fails. Once more, for a slip of the
engine in loading; weights that are not those that were saved stay wrong however often they are
asked."""

_log = logging.getLogger("nip.lm_server.jobs")

# Of every method and always first, so that whoever reads the file finds them at the same place.
_RESULT_COLUMNS = ("step", "train_loss", "learning_rate", "epoch", "tokens")
# For people who wait; of a training that is over they say nothing.
_NOT_RESULTS = ("total_steps", "time_left_s")


@dataclass
class DeviceTurn:
    """A job's turn on its device.

    `stop` asks for the training's end with a checkpoint. `begun` is set once engines that share the
    device have left it. `pass_on` gives the device to the next job, if there is one, and returns
    true once the engines are away for that one too.
    """

    pass_on: Callable[[], Awaitable[bool]]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)


class JobRunner:
    """Runs jobs of one server, each in a directory of its own under `directory`."""

    def __init__(self, directory: Path, jobs: JobTable):
        self._directory = directory
        self._jobs, self._models, self._pool = jobs, jobs.models, jobs.pool

    async def run(self, row: JobRow, place: TrainingPlace, turn: DeviceTurn) -> None:
        """Bring a queued job to its end; `turn.stop` ends its training with a checkpoint.

        Cancelling the await ends it without one. What went wrong is in the job, not raised.
        """
        id = row.id
        try:
            # Or it was cancelled or paused since the supervisor looked.
            if self._jobs.begin(id):
                await self._train_and_publish(self._jobs.get_row(id), place, turn)
        except (asyncio.CancelledError, TrainingStopped):
            # The job was cancelled or paused, which its row says, or the server stops: only then is
            # it still running, and queued again. The task ends here, so nobody misses the
            # cancellation.
            self._jobs.requeue(id, "The server is stopping; the job will be run again")
        # What the trainer says of a job is meant for whoever made it.
        except TrainingError as failure:
            param = name_param(row.method, failure.param)
            self._jobs.fail(id, failure.code, failure.message, param)
        # Its weights are trained and do not answer, or could not be read: they are kept for people.
        except AdapterError as error:
            self._jobs.fail(id, "adapter_not_proved", f"{error}{self._keep(row.adapter_digest)}")
        # What needs another remedy than the job: room on the disk, or its repair.
        except OSError as error:
            code = "disk_full" if is_full(error) else "storage_error"
            self._jobs.fail(id, code, f"The model can't be stored: {error}")
        # A fault of the server's: without an end the job would be begun again and again.
        except Exception as error:
            _log.exception("job %s", id)
            code = "disk_full" if is_full(error) else "internal_error"
            self._jobs.fail(id, code, f"The job broke: {error!r}")
        finally:
            # First: no process of this turn is left, and the next start is to look for none.
            self._jobs.set_child(id, None, None)
            await self._tidy(id)

    def _keep(self, digest: str) -> str:
        """Move an unproved model to ``set_aside``, for people to find; returns words about it."""
        # Minutes or days of training: whatever was wrong, the weights are not thrown away. Where
        # the disk refuses even this they go with the job, which has its own reason to tell.
        aside = None
        with contextlib.suppress(OSError):
            aside = self._models.set_aside(digest)
        # There may be none: the training left nothing that could be committed.
        if aside is None:
            return ""
        return f". The trained model is kept in the server's state: {aside.parent.name}/{digest}"

    async def _tidy(self, id: str) -> None:
        row = self._jobs.get_row(id)
        if row.status in ("failed", "cancelled"):
            # Out of the engine before its files go: it may have been published already. An engine
            # that fails in that is no fault of the job; brought back, it loads what is in the
            # table, and this model is not.
            with contextlib.suppress(EngineError, AdapterError):
                await self._pool.withdraw(row.adapter_name)
        self.remove_leftovers(id)

    def remove_leftovers(self, id: str) -> None:
        """Remove an ended job's leftovers; an unfinished one keeps everything.

        The job's model must not be served unless it succeeded.
        """
        row = self._jobs.get_row(id)
        # A model that no job has could be found by nobody. One that is worth keeping lies aside.
        if row.status in ("failed", "cancelled"):
            self._models.remove(row.adapter_digest)
        # An unfinished one goes on from these.
        if row.status in ENDED_STATUSES:
            # Its logs are small and stay.
            for name in ("output", "trained_adapter", CHECKPOINTS):
                shutil.rmtree(self._directory / id / name, ignore_errors=True)

    async def _train_and_publish(self, row: JobRow, place: TrainingPlace, turn: DeviceTurn) -> None:
        id, name, digest = row.id, row.adapter_name, row.adapter_digest
        # 1. The model: committed by an attempt before, or trained and committed now.
        if self._models.is_committed(digest):
            manifest = self._models.manifest(digest)
            self._jobs.events.add(id, "The model was already committed; it is used")
            turn.begun.set()  # who has passed the device on need not wait for what isn't trained
        else:
            manifest = await self._train_and_commit(row, place, turn)
            await self._pool.wait_until_back(row.base_model)
        if self._jobs.get_row(id).status != "running":
            return  # paused meanwhile: the committed model is used when it is resumed
        # 2. It answers under its name, and is proved.
        committed_at = time.monotonic()
        proof = await self._publish(id, name, digest)
        swap_s = time.monotonic() - committed_at
        self._jobs.events.log(id, "published", swap_s=swap_s, proof=asdict(proof))
        # 3. The job has it, unless somebody was faster to cancel or pause it: then nothing may
        #    answer that no job has.
        if not self._succeed(row, manifest, proof, swap_s):
            await self._pool.withdraw(name)

    async def _publish(self, id: str, name: str, digest: str) -> Proof:
        """Load and prove the model, several times before it says no. Raises AdapterError."""
        for attempt in range(1, PUBLISH_ATTEMPTS + 1):
            try:
                return await self._pool.publish(name, digest)
            # What can't be loaded at all is no `NotProvedError`, and is not tried again: the engine
            # has said why.
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
        # Its id follows from the job's: after a kill between here and the transaction, the next
        # attempt finds this file and makes no second one.
        result_file = self._jobs.files.store_result(
            id, _write_metrics_csv(metrics), "step_metrics.csv"
        )
        result = {"unchanged": False, **training, "swap_s": swap_s, "proof": asdict(proof)}
        # Model and status in one transaction: there is no moment with one and not the other.
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
            # Told, because it looks like any success, and its model answers as the parent does.
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
        """Train and commit; returns the manifest."""
        id, validation = row.id, row.validation_file
        parent = self._find_parent(row)
        # A parent that is a base model is what the place trains; an adapter lies beside it.
        below = parent.digest if parent is not None and parent.kind == "adapter" else None
        job = TrainingJob(
            method=row.method,
            base_model_path=place.base_model_path,
            parent_adapter_path=None if below is None else self._models.path(below),
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
            turn.begun.set()
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
                    job.settings, None if below is None else self._models.manifest(below)
                ),
                "seed": row.seed,
                "training": figures,
                "created_at": time.time(),
            }
            # In here, so that a kill while the engine comes back, which takes long, costs nothing.
            manifest = await self._commit(job.output_dir, row.adapter_digest, facts)
            # An engine that is away stays so for the next job, and wakes once for both. A new base
            # model takes the engine's place, which nobody else may be about to use.
            if engines_left and job.settings.result == "adapter" and await turn.pass_on():
                told = "The model is published after the job that trains next, for which the engine"
                self._jobs.events.add(id, f"{told} stays asleep")
            return manifest

    async def _commit(self, output: Path, digest: str, facts: ModelFacts) -> ModelManifest:
        commit = asyncio.ensure_future(
            asyncio.to_thread(self._models.commit, output, digest, facts)
        )
        try:
            return await asyncio.shield(commit)
        except asyncio.CancelledError:
            # The thread can't be interrupted; what it publishes must not appear after we tidied.
            await asyncio.wait({commit})
            raise

    async def _find_intact(self, file_id: str) -> Path:
        """Find a file and compare it right before it is used: its job may have waited for hours.

        Raises TrainingError, as no request is there to be answered.
        """
        try:
            return await self._jobs.files.find_intact(file_id)
        except ApiError as error:
            raise TrainingError(error.code or "file_damaged", error.message) from None

    def _find_parent(self, row: JobRow) -> ModelRow | None:
        if row.parent is None:
            return None
        parent = self._models.get_row(row.parent)
        # Requests can't delete what a job needs, but a state may be restored without it; from other
        # weights another model would come.
        if parent is None:
            raise TrainingError("parent_missing", f"The model {row.parent} was deleted")
        return parent


def _join_steps(told: Sequence[StepFigures], path: Path) -> list[StepFigures]:
    """The figures by step: those in the trainer's own file, else what it told of."""
    by_step = {step_number(row): row for row in told}
    # Not every trainer leaves one; where it does, progress was told of some steps alone.
    if path.exists():
        rows = map(step_data, map(json.loads, path.read_text().splitlines()))
        by_step.update({step_number(row): row for row in rows})
    return [by_step[step] for step in sorted(by_step)]


def _write_metrics_csv(metrics: Sequence[StepFigures]) -> bytes:
    """Write the result file: the columns of every method, then those of this method."""
    of_method = sorted({name for row in metrics for name in row} - {*_RESULT_COLUMNS})
    columns = [*_RESULT_COLUMNS, *(name for name in of_method if name not in _NOT_RESULTS)]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(metrics)
    return out.getvalue().encode()
