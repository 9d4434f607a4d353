"""Submissions of the adapters, for programs without a run: numbered, and any process can go on.

Submissions       the submissions under each run id; `submit`, `look`, `follow`, `cancel`
LiveSubmission    the error of a submission while an earlier one is under way

Submission n of a run id is the job of iteration n of a run in the directory, so its document is
the ledger's, and the ledger alone creates its job::

    <run>/run_id.json                         the run id as it was given
    <run>/lease.json, fences/                 held while something is submitted
    <run>/iterations/0002/jobs/<group>.json   submission 2

Covered: processes killed anywhere; several that submit under one run id at once (by the lease) or
ask at once (by conditional writes). Not covered: a state directory that was deleted. A server of
nip then still gives the job of the same data under the same run id, by its key; others make a new
one.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict

from nip_base.wire import ENDED_STATUSES, NipSettings
from nip_core.concurrency import in_thread
from nip_core.errors import JobError, LeaseError, NipError, SettingsError
from nip_core.hashing import digest
from nip_core.jobs.document import read_job
from nip_core.jobs.job import Backend, JobRecord, JobSpec, JobView
from nip_core.jobs.ledger import Ledger
from nip_core.run_store.lease import Lease, acquire
from nip_core.run_store.run import RUN_NAME, RunStore, read_document
from nip_core.run_store.store import open_store

FORMAT_VERSION = 1
_LEASE_TTL_S = 10.0
_TRIES = 20  # of changes that another process was faster with

MakeSpec = Callable[[int], JobSpec]
"""The spec of the submission with a number; see `Submissions.spec`."""


class RunIdDocument(BaseModel):
    """``run_id.json``: the run id whose submissions lie here."""

    model_config = ConfigDict(frozen=True, extra="allow")

    format_version: int = FORMAT_VERSION
    run_id: str


class LiveSubmission(NipError, ValueError):
    """Something else is under way under this run id. The message names it."""


class Submissions:
    """The submissions in a state directory. Reading creates no file but the directory."""

    def __init__(self, directory: str, group: str, *, settle_s: float, patience_s: float = 300.0):
        """`group` keeps apart several adapters' submissions under one run id.

        `settle_s` and `patience_s` are the ledger's: how long the back-end's lists may lag behind,
        and how long to bear with one that is busy or silent, in seconds. Raises StoreError or
        SettingsError for a directory that can't be used.
        """
        self._store, self._group = open_store(directory, setting="state_dir"), group
        self._settle_s, self._patience_s = settle_s, patience_s

    # Reading ----------------------------------------------------------------------------------

    def run(self, run_id: str) -> RunStore:
        """Give the place of the submissions of `run_id`.

        Raises SettingsError in the case that another run id has the same place.
        """
        run = RunStore(self._store, run_name(run_id))
        document = read_document(run, f"{run.root}/run_id.json", RunIdDocument)
        # Two run ids may give one name of a run: they must not share its numbers.
        if document is not None and document.run_id != run_id:
            raise SettingsError(
                f"run_id {run_id!r}: its directory {run.root} in {self._store.url} belongs to "
                f"{document.run_id!r}; use another run_id or another state directory"
            )
        return run

    def record(self, run_id: str, number: int) -> JobRecord | None:
        """Read the record of a submission; None if there is none of this number."""
        if not 0 <= number <= 9999:
            return None
        run = self.run(run_id)
        return read_job(run, run.job(number, self._group))

    def newest(self, run_id: str) -> tuple[int, JobRecord] | None:
        """Find the last submission, with its number; None if there is none."""
        run = self.run(run_id)
        names = self._store.list(f"{run.root}/iterations")
        for number in sorted((int(name.rstrip("/")) for name in names), reverse=True):
            record = self.record(run_id, number)
            if record is not None:
                return number, record
        return None

    def last_model(self, run_id: str, next_number: int) -> str | None:
        """Find the model of the last successful submission before number `next_number`."""
        for number in range(next_number - 1, -1, -1):
            record = self.record(run_id, number)
            if record is not None and record.succeeded:
                return record.model
        return None

    def spec(
        self,
        run_id: str,
        number: int,
        *,
        parent_model: str,
        dataset_digest: str,
        examples: int,
        method: str,
        seed: int,
        hyper_parameters: dict[str, Any],
        nip: NipSettings,
        integrations: Sequence[Mapping[str, Any]] = (),
    ) -> JobSpec:
        """Make the spec of a submission's job."""
        run = self.run(run_id).name
        return JobSpec(
            run=run,
            iteration=number,
            group=self._group,
            dataset_digest=dataset_digest,
            parent_model=parent_model,
            parent_model_digest=digest(parent_model),
            seed=seed,
            examples=examples,
            method=method,
            hyper_parameters=hyper_parameters,
            nip=nip,
            suffix=f"{run}-{number:04d}",
            integrations=integrations,
        )

    # Doing ------------------------------------------------------------------------------------

    async def submit(
        self,
        run_id: str,
        make_spec: MakeSpec,
        data: bytes,
        backend: Backend,
    ) -> tuple[int, JobRecord]:
        """Submit `data`, once, and return the number of the submission with its record.

        A submission that was cut short goes on. While the last submission is under way, the same
        one is returned; everything else raises LiveSubmission. After its end the next
        number begins. Raises JobError as `Ledger.ensure_job`, LeaseError if another process is
        still submitting under this run id after the time to bear with a back-end.
        """
        # One process at a time decides under which number it submits, and does so.
        async with self._submitting(run_id) as lease:
            number = self._number(run_id, make_spec)
            ledger = self._ledger(run_id, backend, lease)
            return number, await ledger.ensure_job(make_spec(number), data)

    async def look(
        self, run_id: str, number: int, backend: Backend
    ) -> tuple[JobRecord, JobView | None]:
        """Bring the record up to date; return it, with the back-end's view of a job still going on.

        Raises LookupError for a submission that is not on record, and the errors of the
        back-end's calls.
        """
        record = self._known(run_id, number)
        if record.id is None or record.state == "terminal":
            return record, None
        view = await backend.retrieve_job(record.id)
        if view.status not in ENDED_STATUSES:
            return record, view
        following = self.follow(
            run_id, number, backend, interval_s=1.0, deadline_s=60.0, counted_from_s=time.time()
        )
        return await following, None

    async def follow(
        self,
        run_id: str,
        number: int,
        backend: Backend,
        *,
        interval_s: float,
        deadline_s: float,
        counted_from_s: float | None = None,
    ) -> JobRecord:
        """Wait for the end of a submission, as `Ledger.poll`. Raises LookupError besides."""
        for _ in range(_TRIES):
            record = self._known(run_id, number)
            if record.state == "intent":
                raise JobError(
                    f"run_id {run_id!r}: submission {number} was cut short, or goes on in another "
                    "process; submit it again"
                )
            try:
                return await self._ledger(run_id, backend).poll(
                    record,
                    interval_s=interval_s,
                    deadline_s=deadline_s,
                    counted_from_s=counted_from_s,
                )
            except LeaseError:
                continue  # another process wrote its view: go on from there
        raise JobError(f"{self._path(run_id, number)}: other processes keep changing it")

    async def cancel(self, run_id: str, number: int, backend: Backend) -> JobRecord:
        """Ask the back-end to stop the job; return the record, ended if no job came of it.

        A submission that was cut short is ended only when the back-end surely has no job of it.
        """
        record = self._known(run_id, number)
        if record.state == "intent":
            async with self._submitting(run_id) as lease:
                record = await self._ledger(run_id, backend, lease).abandon(record)
        await self._ledger(run_id, backend).cancel(record)
        return self._known(run_id, number)

    # Inside -----------------------------------------------------------------------------------

    def _number(self, run_id: str, make_spec: MakeSpec) -> int:
        """Choose the number for the next submission. Raises LiveSubmission."""
        # 1. After an end the next number begins; of a refusal no job came.
        newest = self.newest(run_id)
        if newest is None:
            return 0
        number, record = newest
        if record.outcome == "refused":
            return number
        if record.state == "terminal":
            return number + 1
        # 2. The same submission goes on under its number.
        if make_spec(number).key == record.key:
            return number
        # 3. Anything else has to wait, or the earlier one to be cancelled.
        if record.state == "submitted":
            state = f"under way as job {record.id} (last status {record.status!r})"
            advice = "wait for its end or cancel it"
        else:
            state = "cut short: whether its job was created is not recorded"
            advice = "submit the same collection with the same settings again, or cancel it"
        raise LiveSubmission(
            f"run_id {run_id!r}: another collection, or one with other settings, is submission "
            f"{number} and is {state}; {advice}"
        )

    def _known(self, run_id: str, number: int) -> JobRecord:
        record = self.record(run_id, number)
        if record is None:
            raise LookupError(
                f"run_id {run_id!r}: no submission {number} is on record in {self._store.url}"
            )
        return record

    @asynccontextmanager
    async def _submitting(self, run_id: str) -> AsyncIterator[Lease]:
        """Hold the lease of the run id, after waiting for its present holder."""
        # 1. Write down whose place this is; whoever was first has it.
        run = self.run(run_id)
        document = RunIdDocument(format_version=FORMAT_VERSION, run_id=run_id)
        run.write_json_once(f"{run.root}/run_id.json", document.model_dump())
        self.run(run_id)
        # 2. Wait for the lease, as long as its holder may bear with the back-end.
        give_up_s = time.monotonic() + self._patience_s + self._settle_s
        while True:
            taking = asyncio.create_task(
                asyncio.to_thread(acquire, self._store, run.root, ttl_s=_LEASE_TTL_S)
            )
            try:
                lease = await asyncio.shield(taking)
                break
            except asyncio.CancelledError:
                taking.add_done_callback(_release)  # the thread can't be stopped
                raise
            except LeaseError:
                if time.monotonic() > give_up_s:
                    raise
                await asyncio.sleep(0.2)
        # 3. Give it back, also after an error.
        try:
            yield lease
        finally:
            await in_thread(lease.release)  # also where a task is cancelled before it begins

    def _ledger(self, run_id: str, backend: Backend, lease: Lease | None = None) -> Ledger:
        return Ledger(
            self.run(run_id),
            backend,
            settle_s=self._settle_s,
            patience_s=self._patience_s,
            lease=lease,
        )

    def _path(self, run_id: str, number: int) -> str:
        return self.run(run_id).job(number, self._group)


def _release(taking: "asyncio.Task[Lease]") -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result().release()


def run_name(run_id: str) -> str:
    """Derive the run's name from a run id: the id itself where it can be one, else with a hash."""
    if RUN_NAME.fullmatch(run_id):
        return run_id
    letters = re.sub(r"[^a-z0-9]+", "-", run_id.lower()).strip("-")[:28].strip("-")
    return f"{letters or 'run'}-{digest(run_id)[:12]}"
