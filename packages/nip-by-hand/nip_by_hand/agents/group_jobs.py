"""The fine-tune jobs of a shared model group, outside of a run of the loop.

GroupJobs  submit a job through the ledger, close its record, prove the model that it made

`nip_core.stages.training` says how a model is trained; the records stand where the
loop puts them, in ``jobs/<group>.json`` of an iteration.
"""

import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal

from nip_base.formats import describe_problems, to_jsonl, validate
from nip_base.wire import ENDED_STATUSES
from nip_by_hand.agents.chat_types import Example
from nip_core.errors import DatasetError, JobError, RunConflictError, SettingsError
from nip_core.hashing import derive_key, digest
from nip_core.jobs.job import Backend, JobRecord, JobSpec, Refused
from nip_core.jobs.ledger import Ledger, open_ledger
from nip_core.parameters import HyperParameters
from nip_core.records.models import ServedModel
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.servers.endpoints import Endpoints
from nip_core.stages.proving import prove
from nip_core.trainers.group_job import Parent, group_job

_SUFFIX = re.compile(r"[A-Za-z0-9._-]{1,64}")


class GroupJobs:
    """The jobs of one group, recorded under one run."""

    def __init__(
        self, hyper_params: HyperParameters, group: str, run_name: str, endpoints: Endpoints
    ):
        """Create jobs and ask models `endpoints` these addresses. Raises SettingsError for an
        unusable run name.
        """
        self._parameters, self._group, self._at = hyper_params, group, endpoints
        self._run = RunStore(open_store(hyper_params.run_store), run_name)

    async def submit(
        self,
        dataset: Sequence[Example],
        method: Literal["supervised", "dpo"],
        parent: Parent,
        iteration: int,
        job_name: str | None,
    ) -> JobRecord:
        """The job of these examples, submitted now or before; the record decides.

        After one that ended without a model this is a new attempt. Raises SettingsError for a name
        that can't be used, DatasetError for examples that no server would take, RunConflictError
        where another job is recorded in its place, and as `Ledger.ensure_job` does.
        """
        # 1. Bring the examples into a stable order without a pattern, whichever agent came first.
        rows = sorted(
            dataset, key=lambda row: derive_key("example order", self._parameters.seed, row)
        )
        problems = validate(method, enumerate(rows, start=1), min_examples=0)
        if problems:
            raise DatasetError(f"group {self._group!r}: {describe_problems(problems)}")
        async with self._ledger() as (ledger, backend):
            # 2. Learn whether this is a new attempt.
            attempt = await self._attempt(ledger, backend, iteration)
            # 3. Submit it, or find it.
            spec = self._spec(rows, method, parent, iteration, job_name, attempt)
            try:
                return await ledger.ensure_job(spec, to_jsonl(rows))
            except RunConflictError as error:
                raise RunConflictError(
                    f"group {self._group!r} already has another job for this place in run "
                    f"{self._run.name!r}: switch to its model first, or give the run another name "
                    f"(ExperimentSettings.run_id); {error}"
                ) from None

    async def made_model(self, job_id: str, iteration: int) -> str:
        """Name the model of a succeeded job, and close the job's record. Raises JobError."""
        async with self._ledger() as (ledger, backend):
            # 1. Without a name the record stays open, as the job may yet get one.
            model = (await backend.retrieve_job(job_id)).fine_tuned_model
            if model is None:
                raise JobError(
                    f"job {job_id} of group {self._group!r} has succeeded, but {backend.address} "
                    "names no model of it; look there what became of it, then switch, or create a "
                    "job, again"
                )
            # 2. With one it is closed.
            record = ledger.record(iteration, self._group)
            if record is not None and record.id == job_id:
                await self._look_again(ledger, backend, record)
        return model

    async def prove_model(self, name: str, base_model: str, job_id: str) -> ServedModel:
        """Prove the model of a job; its digest and proof come with it.

        Raises StageError if it can't be proved.
        """
        rollouts = self._parameters.rollouts
        async with ChatClient(
            concurrency=1,
            timeout_s=rollouts.request_timeout_s,
            retries=rollouts.transport_retries,
        ) as client:
            model = ServedModel(name, base_model, job_id=job_id)
            return await prove(self._parameters, self._group, self._at, client, model)

    def _spec(
        self,
        rows: Sequence[Example],
        method: str,
        parent: Parent,
        iteration: int,
        job_name: str | None,
        attempt: int,
    ) -> JobSpec:
        spec = group_job(
            self._parameters,
            self._run.name,
            iteration,
            self._group,
            parent,
            method=method,
            dataset_digest=digest(rows),
            examples=len(rows),
            attempt=attempt,
            suffix=job_name,
        )
        if not _SUFFIX.fullmatch(spec.suffix or ""):
            raise SettingsError(
                f"job_name: {spec.suffix!r} can't be used; 1 to 64 letters, digits, dots, dashes "
                "and underscores, as it becomes part of the new model's name"
            )
        return spec

    async def _attempt(self, ledger: Ledger, backend: Backend, iteration: int) -> int:
        """Give the attempt on record, or the next one where it has ended without a model."""
        record = ledger.record(iteration, self._group)
        if record is None:
            return 0
        record = await self._look_again(ledger, backend, record)
        # A refused one left no job, and is tried again as it is.
        over = record.state == "terminal" and record.outcome not in ("succeeded", "refused")
        return record.attempt + 1 if over else record.attempt

    async def _look_again(self, ledger: Ledger, backend: Backend, record: JobRecord) -> JobRecord:
        """The record, with the job's end in it if it has ended meanwhile."""
        if record.state != "submitted" or record.id is None:
            return record
        try:
            is_ended = (await backend.retrieve_job(record.id)).status in ENDED_STATUSES
        except Refused as error:
            is_ended = error.status == 404
        if not is_ended:
            return record
        settings = self._parameters.fine_tuning
        return await ledger.poll(
            record, interval_s=settings.poll_interval_s, deadline_s=settings.deadline_s
        )

    def _ledger(self) -> AbstractAsyncContextManager[tuple[Ledger, Backend]]:
        return open_ledger(
            self._run,
            self._parameters.group_parameters(self._group).provider,
            self._at.control,
            settle_s=self._parameters.fine_tuning.settle_s,
        )
