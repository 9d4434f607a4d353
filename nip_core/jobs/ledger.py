"""The job ledger. It alone submits fine-tune jobs, each exactly once.

open_ledger        the ledger of a run over a provider's back-end
Ledger.ensure_job  submit a job, or find the one that was submitted before, after any kill
Ledger.poll        follow a job to its end
Ledger.give_up     cancel a job after its deadline
Ledger.record      the record of a job
Ledger.abandon     end a submission that was cut short
Ledger.cancel      ask the back-end to stop a job

A job's document goes intent -> submitted -> terminal. Before every create the document says that
one is open. After a create with an unknown outcome (no answer, a 5xx, a crash) the jobs that carry
the key are listed until the back-end's list can no longer lag behind, and a job in it is adopted.
Only a list that was read, late enough, without the job allows another create, which
carries the same idempotency key. If the list can't be read, that is the end: JobError.

Covered: crashes and lost answers at any point, lists that lag by less than `settle_s`, several
runners (by the lease and conditional writes). Not covered: a back-end whose list lags by more.
"""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from nip_base.formats import MIN_EXAMPLES
from nip_base.wire import ACTIVE_STATUSES, ENDED_STATUSES
from nip_core.errors import DeadlineError, JobError, ParkedError, RunConflictError
from nip_core.jobs.document import JobDocument
from nip_core.jobs.job import (
    Backend,
    BackendTrouble,
    Busy,
    Clock,
    JobAttempt,
    JobRecord,
    JobSpec,
    JobView,
    NoAnswer,
    Outcome,
    Payload,
    Refused,
)
from nip_core.jobs.services import open_backend
from nip_core.jobs.uploads import SENDS, ensure_file
from nip_core.jobs.waiting import FIRST_PAUSE_S, LONGEST_PAUSE_S, Pauses, Waiting
from nip_core.parameters.services.providers import Provider
from nip_core.rollouts.client.completions import Endpoint
from nip_core.run_store.lease import Lease
from nip_core.run_store.run import RunStore

_log = logging.getLogger(__name__)

# "paused" is not in the API's description; a back-end that says it is understood all the same.
_KNOWN = frozenset({*ACTIVE_STATUSES, *ENDED_STATUSES, "paused"})


@dataclass(frozen=True)
class _Look:
    """The result of one look at a job."""

    record: JobRecord  # with the news
    asked_s: float | None = None  # how long to wait before the next look, as the back-end says
    trouble: str = ""  # why nothing was seen
    ends_as: Outcome | None = None  # how the job ends if every look is like this for `settle_s`
    view: JobView | None = None  # the view, if there was one


@asynccontextmanager
async def open_ledger(
    run: RunStore,
    provider: type[Provider],
    endpoint: Endpoint,
    *,
    settle_s: float,
    lease: Lease | None = None,
    clock: Clock | None = None,
    timeout_s: float = 120.0,
) -> "AsyncIterator[tuple[Ledger, Backend]]":
    """Open the run's ledger and a provider's back-end; both are closed at the end.

    The rest: see `Ledger`.
    """
    async with open_backend(provider, endpoint, timeout_s=timeout_s) as backend:
        backend.run = run, lease
        yield Ledger(run, backend, settle_s=settle_s, lease=lease, clock=clock), backend


class Ledger:
    """Submits and follows the jobs of one run. Not for concurrent use on one job."""

    def __init__(
        self,
        run: RunStore,
        backend: Backend,
        *,
        settle_s: float,
        patience_s: float = 300.0,
        lease: Lease | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`settle_s`: how long the back-end's lists may lag behind, in seconds.

        `patience_s`: how long calls that a busy or silent back-end leaves undone are repeated,
        where repeating them is safe. By a rule of thumb: with much less, a back-end that is just
        being started again would stop the run; with much more, one that is gone is told of late.
        """
        self._run, self._backend, self._lease = run, backend, lease
        self._clock = clock or Clock()
        self._waiting = Waiting(backend.address, self._clock, settle_s, patience_s)

    def record(self, iteration: int, group: str) -> JobRecord | None:
        """Return the record of the newest attempt, or None. Raises CorruptionError."""
        return self._document(iteration, group).load()

    async def ensure_job(
        self,
        spec: JobSpec,
        dataset: Payload,
        validation: Payload | None = None,
        *,
        note: str | None = None,
    ) -> JobRecord:
        """Submit the job for `spec`, unless an earlier call has; return its record.

        `dataset` is the JSONL to train on, `validation` the validation file. A job that
        has ended is returned as recorded, except for one that was refused: no job came of it, so
        it is tried again. `note` is put on record with the intent, before anything is sent.

        Raises JobError if the back-end refuses the job (recorded as its outcome) or the outcome
        of the submission can't be learned; RunConflictError if another job is on record that has
        not ended, or is a later attempt; LeaseError if another runner has the run.
        """
        # 1. Begin with the record; write the intent where there is none of this job. A record
        #    with another key may be an ended attempt before this one: `_begin` knows the rule.
        document = self._document(spec.iteration, spec.group)
        record = document.load()
        if record is None or record.key != spec.key:
            record = self._begin(document, spec, record, note)
        # The reason of a refusal may have been mended since: a key, a limit of the account.
        elif record.outcome == "refused":
            record = document.save(
                record, "trying again", state="intent", outcome=None, reason=None, finished_at=None
            )
        # An earlier call has submitted it, or it has ended since.
        if record.state != "intent":
            return record
        # 2. Too few examples make no job, and no back-end is asked.
        if spec.examples < MIN_EXAMPLES:
            reason = f"{spec.examples} examples, {MIN_EXAMPLES} needed"
            return document.end(record, "skipped", reason, f"skipped: {reason}")
        # 3. A create may have been sent, and its answer is not on record: adopt the job if it has
        #    made one.
        if record.creates_open:
            _log.warning("%s: a submission was cut short; looking for its job", document.path)
            view = await self._find_job(spec.key)
            if view is not None:
                return self._submitted(document, record, view, adopted=True)
        # 4. Upload the files, unless they are there; then make one job. Each file is on record as
        #    soon as it is there, so a kill costs one upload at most.
        try:
            if record.file_id is None:
                file_id = await ensure_file(self._backend, self._waiting, dataset)
                record = document.save(record, "training file is there", file_id=file_id)
            if validation is not None and record.validation_file_id is None:
                file_id = await ensure_file(self._backend, self._waiting, validation)
                record = document.save(
                    record, "validation file is there", validation_file_id=file_id
                )
            return await self._submit(document, record, spec)
        # 5. A refusal is an outcome: no job came of it, so it may be tried again as it is.
        except Refused as error:
            message = (
                f"{self._backend.address}: refused the job of group {spec.group}, iteration "
                f"{spec.iteration} (HTTP {error.status}): {error}"
            )
            # A file may be what was refused, so the next try looks for them again. And a refusal
            # says that nothing happened: no create is open any more. The record is read once more,
            # because the create has written to it since.
            changes = {"file_id": None, "validation_file_id": None, "creates_open": 0}
            document.end(
                document.load() or record, "refused", str(error), f"refused: {error}", **changes
            )
            raise JobError(message) from error

    async def poll(
        self,
        record: JobRecord,
        *,
        interval_s: float,
        deadline_s: float,
        counted_from_s: float | None = None,
        park_after_s: float | None = None,
        longest_pause_s: float | None = None,
        watch: Callable[[JobView | None, str], Awaitable[None]] | None = None,
    ) -> JobRecord:
        """Follow a submitted job until it ends; return its final record.

        Looks every `interval_s`, less and less often while nothing changes (up to
        `longest_pause_s`; None: ten times `interval_s`, or 30 s), and not before the back-end
        asks to. `watch` is told of each look at a job that goes on: its view, or None and the
        reason for a failed look. `deadline_s` counts from submission, or from the time of day
        `counted_from_s` (for a back-end that stands still when its runner does). Failed looks are
        repeated; a status that is not known is not an end. A job that the back-end does not know,
        or that has succeeded and names no model, for `settle_s` is one.

        Raises DeadlineError when the deadline passes, JobError when the back-end denies access,
        and ParkedError when the job goes on for `park_after_s` from now; the record stays as it
        is, and polling again goes on.
        """
        # 1. Begin with the record, which another process may have written meanwhile.
        document = self._document(record.iteration, record.group)
        record = document.load() or record
        if record.state == "terminal":
            return record
        if record.id is None or record.submitted_at is None:
            raise JobError(f"{document.path}: not submitted yet; call ensure_job first")
        # 2. Set the ends of waiting on the monotonic clock.
        # The time of day may jump while this process waits, but not before it starts waiting.
        if self._backend.stands_still and counted_from_s is None:
            counted_from_s = self._clock.now()
        since_s = record.submitted_at if counted_from_s is None else counted_from_s
        # A clock that was set back since the submission must not put the deadline off.
        elapsed_s = max(0.0, self._clock.now() - since_s)
        started_s = self._clock.monotonic()
        end_s = started_s + deadline_s - elapsed_s
        park_s = math.inf if park_after_s is None else started_s + park_after_s
        # Ten intervals, by a rule of thumb: a job of days is not asked for all the time, and one of
        # seconds is not slept through.
        longest_pause_s = longest_pause_s or min(10 * interval_s, LONGEST_PAUSE_S)
        # An interval that a user has set counts, also where it is above the longest pause.
        pauses = Pauses(interval_s, max(interval_s, longest_pause_s))
        lost_since_s: float | None = None
        while True:
            # 3. Look; an end that is seen is on record.
            look = await self._look(document, record, pauses.longest_s)
            if look.record.state == "terminal":
                return look.record
            if watch is not None:
                await watch(look.view, look.trouble)
            # Something happens again, so the next look is soon.
            if look.record.status != record.status:
                pauses.reset()
            record, now_s = look.record, self._clock.monotonic()
            # 4. A job that stays lost, or nameless, for as long as lists may lag has ended.
            if look.ends_as is not None:
                lost_since_s = now_s if lost_since_s is None else lost_since_s
                if now_s - lost_since_s >= self._waiting.settle_s:
                    event = f"{look.ends_as.replace('_', ' ')}: {look.trouble}"
                    return document.end(record, look.ends_as, look.trouble, event)
            # A look that failed says neither that the job is there nor that it is gone.
            elif not look.trouble:
                lost_since_s = None
            # 5. Stop at the deadline, or park; else wait and look again.
            job = f"job {record.id} (group {record.group}, iteration {record.iteration})"
            # Where both have passed, the deadline counts: it can end the job, which parking can't.
            if now_s >= end_s:
                failed = f", last look failed: {look.trouble}" if look.trouble else ""
                raise DeadlineError(
                    f"{job}: not finished {deadline_s:g} s after its submission, last status "
                    f"{record.status!r}{failed}; raise deadline_s (of a run: "
                    "fine_tuning.deadline_s) to wait longer, or cancel it"
                )
            if look.trouble:
                _log.warning("job %s: looking again, because %s", record.id, look.trouble)
            if now_s >= park_s:
                raise ParkedError(f"{job} goes on, {record.status}; run again to look after it")
            await self._clock.sleep(min(end_s - now_s, park_s - now_s, pauses.next(look.asked_s)))

    async def _look(
        self, document: JobDocument, record: JobRecord, longest_pause_s: float
    ) -> "_Look":
        """Look at a submitted job once, and record what is new. Raises JobError for no access."""
        try:
            view = await self._backend.retrieve_job(str(record.id))
        # Such a look has learned nothing, and repeating it costs nothing.
        except (Busy, NoAnswer) as error:
            return _Look(record, error.retry_after_s, str(error))
        except Refused as error:
            # Waiting mends no key. Any other refusal may pass, and the deadline bounds it.
            if error.status in {401, 403}:
                raise JobError(f"job {record.id}: can't be looked at: {error}") from error
            if error.status == 404:
                # No end by itself: a copy of the back-end's data may lag behind, see `poll`.
                return _Look(record, None, f"the back-end does not know it: {error}", "not_found")
            return _Look(record, None, str(error))
        is_nameless = view.status == "succeeded" and not view.fine_tuned_model
        # A success without a name is no end yet, see below.
        if view.status in ENDED_STATUSES and not is_nameless:
            return _Look(await self._finish(document, record, view))
        # Each change goes on record when it is seen: a process that goes on after a kill, and one
        # that shows the run, knows how far the job is.
        if view.status != record.status:
            record = self._note(document, record, view.status)
        if is_nameless:
            # Without a name there is nothing to serve. It may still come: `poll` bears with it.
            return _Look(record, None, "it has succeeded, but names no model", "failed")
        if view.estimated_finish is None:
            return _Look(record, view=view)
        # Half of the rest, because it is an estimate; for the same reason no longer than the
        # longest pause.
        left_s = view.estimated_finish - self._clock.now()
        return _Look(record, min(left_s / 2, longest_pause_s), view=view)

    async def give_up(self, record: JobRecord, reason: str) -> JobRecord:
        """Cancel a job after its deadline; return its final record.

        Its outcome is "deadline", or how it ended before it was cancelled. Raises JobError if it
        can't be cancelled, as then it may still make a model.
        """
        document = self._document(record.iteration, record.group)
        record = document.load() or record
        # On record before anything is cancelled: a runner that is killed in between goes on with
        # the cancelling, and does not take the job for one that failed.
        if record.state != "terminal" and not record.given_up:
            record = document.save(record, f"given up: {reason}", given_up=True, reason=reason)
        try:
            await self.cancel(record)
        except JobError as error:
            # It may just have ended; that is seen below.
            _log.warning("%s", error)
        try:
            return await self.poll(
                record,
                interval_s=FIRST_PAUSE_S,  # a cancelled job ends soon
                deadline_s=self._waiting.patience_s,
                counted_from_s=self._clock.now(),  # its own deadline is over
            )
        except DeadlineError as error:
            # Not as it is: the longer deadline that it advises would not end the job.
            raise JobError(
                f"job {record.id}: was to be cancelled, because it is {reason}, but still goes on "
                f"{self._waiting.patience_s:g} s later; cancel it at the back-end and run again"
            ) from error

    async def abandon(self, record: JobRecord) -> JobRecord:
        """End a submission cut short, or adopt the job if it has made one.

        An adopted job goes on: this settles only whether there is one, so that a caller who wants
        it stopped can name it to `cancel`. Raises JobError if that can't be learned.
        """
        document = self._document(record.iteration, record.group)
        record = document.load() or record
        # Submitted or ended: nothing was cut short.
        if record.state != "intent":
            return record
        # Without an open create none was sent, so there is no job to look for.
        if record.creates_open:
            view = await self._find_job(record.key)
            if view is not None:
                return self._submitted(document, record, view, adopted=True)
        return document.end(record, "cancelled", "before there was a job", "cancelled")

    async def cancel(self, record: JobRecord) -> None:
        """Ask the back-end to stop the job; `poll` then sees how it ended. Raises JobError."""
        # There is no job yet, or none any more.
        if record.id is None or record.state == "terminal":
            return
        job_id = record.id
        try:
            await self._waiting.until_answered(lambda: self._backend.cancel_job(job_id))
        except Refused as error:
            # It may just have ended, which the caller finds out by looking.
            raise JobError(f"job {job_id}: can't be cancelled: {error}") from error

    def _document(self, iteration: int, group: str) -> JobDocument:
        return JobDocument(
            self._run.store,
            self._run.job(iteration, group),
            lease=self._lease,
            clock=self._clock,
        )

    def _begin(
        self, document: JobDocument, spec: JobSpec, earlier: JobRecord | None, note: str | None
    ) -> JobRecord:
        """Write the intent; an ended attempt in `earlier` is kept as an earlier one."""
        previous: tuple[JobAttempt, ...] = ()
        if earlier is not None:
            # One that was refused has made no job, so any other may take its place.
            over = earlier.state == "terminal" and spec.attempt > earlier.attempt
            if not over and earlier.outcome != "refused":
                raise RunConflictError(
                    f"{document.path}: holds attempt {earlier.attempt} with key {earlier.key} "
                    f"({earlier.outcome or earlier.state}), which can't become attempt "
                    f"{spec.attempt} with key {spec.key} (stored -> given): "
                    f"{earlier.difference_to(spec)}"
                )
            # Kept: the tokens of an attempt were paid for, and `max_attempts` counts all of them.
            last = earlier.model_dump(mode="json", exclude={"previous"})
            previous = (*earlier.previous, JobAttempt.model_validate(last))
        record = JobRecord.from_spec(spec, self._clock.now(), previous)
        return document.save(record, "intent" if note is None else f"intent: {note}")

    async def _submit(self, document: JobDocument, record: JobRecord, spec: JobSpec) -> JobRecord:
        """Create the job; after an unknown outcome look for it first. Raises Refused."""

        async def create() -> JobView:
            # Here, before each sending: commits are fenced by the store, but a back-end knows no
            # fence and would take the job of a runner that was replaced.
            if self._lease is not None:
                self._lease.check()
            return await self._backend.create_job(
                spec, str(record.file_id), record.validation_file_id
            )

        # Not for ever: a back-end that takes a create and never answers would be sent it again and
        # again. After the last one the record has its creates open, so the next call looks first.
        for _ in range(SENDS):
            # 1. Say that a create is open before it is sent: a crash then leaves a trace.
            record = document.save(
                record, None, creates_open=record.creates_open + 1, sent_at=self._clock.now()
            )
            # 2. Send it. Only "busy" is sent again at once: nothing happened then.
            try:
                view = await self._waiting.until_answered(create, repeat_unknown=False)
                return self._submitted(document, record, view, adopted=False)
            except NoAnswer as error:
                trouble = str(error)
            # 3. No answer: adopt the job if it is listed; only its sure absence allows another.
            _log.warning("%s: outcome of the submission unknown: %s", document.path, trouble)
            adopted = await self._find_job(spec.key)
            if adopted is not None:
                return self._submitted(document, record, adopted, adopted=True)
        raise JobError(
            f"{self._backend.address}: {SENDS} submissions got no answer and left no job with "
            f"metadata nip_key={spec.key} (last: {trouble}); run again when the server is well"
        )

    async def _find_job(self, key: str) -> JobView | None:
        """Find the job with `key`; None when it certainly was not created."""

        async def find() -> JobView | None:
            jobs = await self._backend.find_jobs(key)
            if len(jobs) > 1:
                # Only a back-end that ignores the key, and lists jobs later than `settle_s`, has
                # several.
                _log.warning("%d jobs with key %s; the first is taken", len(jobs), key)
            # The first, so that every process that looks takes the same.
            return min(jobs, key=lambda job: (job.created_at, job.id), default=None)

        return await self._waiting.until_settled(find)

    def _submitted(
        self, document: JobDocument, record: JobRecord, view: JobView, *, adopted: bool
    ) -> JobRecord:
        return document.save(
            record,
            f"found and adopted {view.id}" if adopted else f"submitted as {view.id}",
            state="submitted",
            id=view.id,
            # By this side's clock, which the deadline goes by, and not later than it was.
            submitted_at=record.sent_at or self._clock.now(),
            status=view.status,
        )

    def _note(self, document: JobDocument, record: JobRecord, status: str) -> JobRecord:
        """Put on record a status that is no end; also one that is not known here.

        A back-end may come to have further statuses, and a job that goes on must not be lost.
        """
        if status not in _KNOWN:
            _log.warning("job %s: status %r is not known; waiting on", record.id, status)
        return document.save(record, status, status=status)

    async def _finish(self, document: JobDocument, record: JobRecord, view: JobView) -> JobRecord:
        outcome = cast(Outcome, view.status)
        # A job that succeeded before the cancelling reached it has made a model that was paid for,
        # so it is taken.
        if record.given_up and outcome != "succeeded":
            outcome = "deadline"
        try:
            events = await self._backend.job_events(view.id)
        except BackendTrouble as error:
            # They are for showing losses: a model that is there is not given up for want of them.
            _log.warning("job %s: its events can't be read: %s", view.id, error)
            events = []
        succeeded = outcome == "succeeded"
        given_up = record.reason if record.given_up else None
        reason = None if succeeded else given_up or view.error or "no reason given"
        return document.end(
            record,
            outcome,
            reason,
            f"{outcome}: {view.fine_tuned_model if succeeded else reason}",
            status=view.status,
            model=view.fine_tuned_model if succeeded else None,
            finished_at=view.finished_at or self._clock.now(),  # not every back-end says it
            trained_tokens=view.trained_tokens,
            effective=dict(view.effective),
            backend_events=tuple(events),
        )
