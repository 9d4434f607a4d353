"""The job table: creating a job exactly once, its transitions and its pages.

JobTable.create           refuses or enters a job, enforces the idempotency key
JobTable.begin ... fail   transitions, each a compare-and-set: of two that race, one wins
JobTable.pause, resume    a paused job has status `queued` and is not begun until it is resumed
JobTable.retrieve, list   the objects of the API

`supervisor` does the work that a transition starts (validation, training, commit), `events` and
`objects` have the API's objects, and `settings` turns a request into a plan.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nip_base import wire
from nip_base.api_errors import ApiError, not_found
from nip_base.wire import CreateJobRequest
from nip_lm_server.jobs.events import JobError, JobEvents
from nip_lm_server.jobs.objects import (
    CheckpointObject,
    JobObject,
    build_checkpoint,
    build_job_object,
    name_checkpoint,
)
from nip_lm_server.jobs.settings import resolve_request
from nip_lm_server.state.database import UNFINISHED, Database, damage_error, dump, load
from nip_lm_server.state.files import FileStore
from nip_lm_server.state.models import ModelStore, adapter_digest, adapter_name
from nip_lm_server.state.rows import JobRow, read_row

if TYPE_CHECKING:
    from nip_lm_server.serving.pool import EnginePool


class JobTable:
    """The jobs of one server."""

    def __init__(
        self, database: Database, files: FileStore, models: ModelStore, pool: "EnginePool"
    ):
        self.database, self.files, self.models, self.pool = database, files, models, pool
        self.events = JobEvents(database)

    # Creating

    def create(
        self,
        request: CreateJobRequest,
        payload: Mapping[str, Any],
        key: str | None,
        admit: Callable[[], None] = lambda: None,
    ) -> tuple[JobObject, bool]:
        """Enter a job and return (its object, whether it is new).

        The same `key` with the same payload returns the first job. Raises ApiError 409 for the
        same key with another payload, 400 for a request that can't be trained. `admit` is called
        before a new job is entered, and may raise, too. There is no await in here and the key's
        column is unique, so two requests that race make one job.
        """
        # 1. The same request again returns the first job. Ids of files are random, so the digest in
        #    a model's name, and the comparison of two payloads, use the files' content.
        payload_digest = _digest_payload(payload)
        content_digest = _digest_payload(self._name_files_by_content(payload))
        first = self._find_first_job(key, payload_digest, content_digest)
        if first is not None:
            return build_job_object(first), False
        # 2. A request that can't be trained is refused before anything is written.
        self._check_files(request)
        plan = resolve_request(request, self.pool, self.models)
        admit()
        # 3. From here on there is a job.
        id = "ftjob-" + secrets.token_hex(12)
        digest = adapter_digest(key or id, content_digest)
        with self.database.transaction():
            seq = self.database.insert(
                "jobs",
                id=id,
                idempotency_key=key,
                payload_digest=payload_digest,
                method=plan.method,
                model=request.model,
                base_model=plan.base_model,
                parent=plan.parent,
                training_file=request.training_file,
                validation_file=request.validation_file,
                settings=plan.settings.model_dump_json(),
                seed=secrets.randbelow(2**31) if request.seed is None else request.seed,
                metadata=dump(request.metadata),
                suffix=request.suffix,
                adapter_name=adapter_name(plan.named_after, request.suffix, digest),
                adapter_digest=digest,
                status="validating_files",
                created_at=time.time(),
            )
            for name, value in (request.metadata or {}).items():
                self.database.insert("job_metadata", job_seq=seq, key=name, value=value)
            self.events.add(id, f"Created fine-tuning job: {id}")
            self.events.add(id, f"Validating training file: {request.training_file}")
            if plan.note is not None:
                self.events.add(id, plan.note, level="warn")
        facts = {"model": request.model, "method": plan.method}
        self.events.log(id, "created", key=key, **facts, settings=plan.settings.model_dump())
        return self.retrieve(id), True

    def _find_first_job(
        self, key: str | None, payload_digest: str, content_digest: str
    ) -> JobRow | None:
        """Find an earlier job of this key. Raises ApiError 409 if it has another payload."""
        row = self.database.fetch_one("SELECT * FROM jobs WHERE idempotency_key = ?", key)
        if row is None:
            return None
        first = read_row(JobRow, row)
        is_same = first.payload_digest == payload_digest
        if not is_same and first.adapter_digest != adapter_digest(str(key), content_digest):
            raise ApiError(
                409,
                f"Idempotency-Key {key!r} was used for job {first.id} with another "
                "payload: use a new key for a new job",
                code="idempotency_key_reused",
                param="Idempotency-Key",
            )
        return first

    def _name_files_by_content(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Put the SHA-256 of each known file in the place of its id."""
        contents = dict(payload)
        for field in ("training_file", "validation_file"):
            row = self.database.fetch_one(
                "SELECT sha256 FROM files WHERE id = ?", payload.get(field)
            )
            if row is not None:
                contents[field] = row["sha256"]
        return contents

    def _check_files(self, request: CreateJobRequest) -> None:
        for param in ("training_file", "validation_file"):
            id = getattr(request, param)
            if id is None:
                continue
            try:
                purpose = self.files.get_purpose(id)
            except ApiError:
                raise ApiError(
                    400, f"invalid {param}: {id}", code="invalid_file", param=param
                ) from None
            if purpose != "fine-tune":
                raise ApiError(
                    400,
                    f"invalid {param}: {id} has purpose {purpose!r}, expected 'fine-tune'",
                    code="invalid_file_purpose",
                    param=param,
                )

    # Reading

    def get_row(self, id: str) -> JobRow:
        """Return the table's row of a job. Raises ApiError 404."""
        row = self.database.fetch_one("SELECT * FROM jobs WHERE id = ?", id)
        if row is None:
            raise not_found("fine-tuning job", id, "fine_tuning_job_id")
        return read_row(JobRow, row)

    def refuse_broken_rows(self) -> None:
        """Raise StateError if a job can't be read, because it could be neither shown nor run."""
        for row in self.database.fetch_all("SELECT * FROM jobs"):
            try:
                build_job_object(read_row(JobRow, row))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                problem = f"job {row['id']}: {' '.join(str(error).split())}"
                raise damage_error(self.database.path, problem) from error

    def list_rows_in(self, statuses: Sequence[str]) -> list[JobRow]:
        """Jobs in any of these statuses, oldest first."""
        marks = ", ".join("?" * len(statuses))
        rows = self.database.fetch_all(
            f"SELECT * FROM jobs WHERE status IN ({marks}) ORDER BY seq",  # noqa: S608
            *statuses,
        )
        return [read_row(JobRow, row) for row in rows]

    def retrieve(self, id: str) -> JobObject:
        """The object of a job. Raises ApiError 404."""
        return build_job_object(self.get_row(id))

    def list(
        self, *, limit: int, after: str | None, metadata: Mapping[str, str] | None
    ) -> wire.Page[JobObject]:
        """One page of jobs, newest first.

        `metadata` keeps jobs that have all these pairs; an empty mapping keeps those without any.
        """
        conditions, values = ["1"], []
        if after is not None:
            conditions.append("seq < ?")
            row = self.database.fetch_one("SELECT seq FROM jobs WHERE id = ?", after)
            if row is None:
                raise not_found("fine-tuning job", after, "after")
            values.append(row["seq"])
        if metadata is not None and not metadata:
            conditions.append("metadata IS NULL")
        for key, value in (metadata or {}).items():
            conditions.append(
                "seq IN (SELECT job_seq FROM job_metadata WHERE key = ? AND value = ?)"
            )
            values += [key, value]
        rows = self.database.fetch_all(
            f"SELECT * FROM jobs WHERE {' AND '.join(conditions)} ORDER BY seq DESC LIMIT ?",  # noqa: S608
            *values,
            limit + 1,
        )
        jobs = [build_job_object(read_row(JobRow, row)) for row in rows[:limit]]
        return wire.list_object(jobs, len(rows) > limit)

    def list_checkpoints(
        self, id: str, *, limit: int, after: str | None
    ) -> wire.PageWithEnds[CheckpointObject]:
        """List a job's one usable checkpoint: its final weights. None before success."""
        row = self.get_row(id)
        if after is not None and after != name_checkpoint(row):
            raise not_found("checkpoint", after, "after")
        is_shown = row.status == "succeeded" and after is None and limit > 0
        return wire.list_with_ends([build_checkpoint(row)] if is_shown else [], False, none=None)

    # Changing

    def transition(self, id: str, earlier: Sequence[str], status: str, **columns: Any) -> bool:
        """Set the status, and `columns`, if it is one of `earlier`. Returns whether it was."""
        names = "".join(f", {name} = ?" for name in columns)
        marks = ", ".join("?" * len(earlier))
        # The status is in the condition: of two transitions that race, one changes the row, and the
        # other returns False.
        n_changed = self.database.execute(
            f"UPDATE jobs SET status = ?{names} WHERE id = ? AND status IN ({marks})",  # noqa: S608
            status,
            *columns.values(),
            id,
            *earlier,
        )
        return n_changed == 1

    def move(
        self,
        id: str,
        earlier: Sequence[str],
        status: str,
        message: str,
        failure: JobError | None = None,
        **columns: Any,
    ) -> bool:
        """Do a `transition`, with an event for the API and a line of the job's log."""
        level = "info" if failure is None else "error"
        with self.database.transaction():
            is_changed = self.transition(id, earlier, status, **columns)
            if is_changed:
                self.events.add(id, message, level=level, data=failure)
        # After the transaction: the log is for people, and a disk that refuses its line must not
        # undo the transition.
        if is_changed:
            self.events.log(id, status, level, **dict(failure or {}))
        return is_changed

    def begin(self, id: str) -> bool:
        """Move a job from `queued` to `running`, as one more attempt. False if it must not run."""
        with self.database.transaction():
            # `paused` is in the condition: a client may have paused the job since the supervisor's
            # look.
            n_changed = self.database.execute(
                "UPDATE jobs SET status = 'running', attempts = attempts + 1, "
                "started_at = coalesce(started_at, ?) "
                "WHERE id = ? AND status = 'queued' AND paused = 0",
                time.time(),
                id,
            )
            if n_changed != 1:
                return False
            row = self.get_row(id)
            attempt, progress = row.attempts, load(row.progress)
            if progress is not None:
                # The pace of an earlier attempt tells nothing about the end of this one.
                self.database.execute(
                    "UPDATE jobs SET progress = ? WHERE id = ?",
                    dump({**progress, "time_left_s": None}),
                    id,
                )
            verb = "started" if attempt == 1 else f"continues (attempt {attempt})"
            self.events.add(id, f"Fine-tuning job {verb}")
        self.events.log(id, "running", attempt=attempt)
        return True

    def pause(self, id: str) -> tuple[JobObject, bool]:
        """Keep an unfinished job from running; returns (its object, whether this call did it).

        Pausing a paused job is no error. Raises ApiError 404, 400 if it ended.
        """
        with self.database.transaction():
            # The API's description has no status for a paused job, so it is `queued`, with a column
            # of its own. A client that polls waits, as it should.
            n_changed = self.database.execute(
                "UPDATE jobs SET paused = 1, "  # noqa: S608
                "status = CASE status WHEN 'running' THEN 'queued' ELSE status END "
                f"WHERE id = ? AND paused = 0 AND {UNFINISHED}",
                id,
            )
            if n_changed:
                self.events.add(id, "The job was paused")
        row = self.get_row(id)
        if not row.paused:
            raise _ended_error(row, "paused")
        if n_changed:
            self.events.log(id, "paused")
        return build_job_object(row), n_changed == 1

    def resume(self, id: str) -> JobObject:
        """Let a paused job run again, from its last checkpoint.

        Raises ApiError 404, 400 if it is not paused.
        """
        with self.database.transaction():
            n_changed = self.database.execute(
                "UPDATE jobs SET paused = 0 WHERE id = ? AND paused = 1",
                id,
            )
            if n_changed:
                self.events.add(id, "The job was resumed")
        row = self.get_row(id)
        if not n_changed:
            raise ApiError(
                400,
                f"The job {id} is not paused: its status is {row.status!r}",
                code="job_not_paused",
                param="fine_tuning_job_id",
            )
        self.events.log(id, "resumed")
        return build_job_object(row)

    def cancel(self, id: str) -> tuple[JobObject, bool]:
        """Cancel an unfinished job; returns (its object, whether this call did it).

        Cancelling a cancelled job is no error. Raises ApiError 404, 400 if it succeeded or failed.
        """
        is_changed = self.move(
            id,
            wire.ACTIVE_STATUSES,
            "cancelled",
            "The job was cancelled",
            finished_at=time.time(),
            paused=0,
        )
        row = self.get_row(id)
        if row.status != "cancelled":
            raise _ended_error(row, "cancelled")
        return build_job_object(row), is_changed

    def fail(self, id: str, code: str, message: str, param: str | None = None) -> None:
        """End a job without a model. A cancelled job stays cancelled."""
        error: JobError = {"code": code, "message": message, "param": param}
        self.move(
            id,
            wire.ACTIVE_STATUSES,
            "failed",
            f"The job failed: {message}",
            failure=error,
            finished_at=time.time(),
            error=dump(error),
            paused=0,
        )

    def requeue(self, id: str, message: str) -> None:
        """Move a job from `running` back to `queued`, with an event. Any other job stays."""
        self.move(id, ("running",), "queued", message)

    def set_child(self, id: str, pid: int | None, identity: str | None) -> None:
        """Write down the training process: the next start can end it."""
        self.database.execute(
            "UPDATE jobs SET child_pid = ?, child_identity = ? WHERE id = ?", pid, identity, id
        )
        if pid is not None:
            self.events.begin_attempt(id)
            self.events.log(id, "process_started", pid=pid)


def _ended_error(row: JobRow, verb: str) -> ApiError:
    return ApiError(
        400,
        f"The job {row.id} has status {row.status!r} and can't be {verb}",
        code="job_already_ended",
        param="fine_tuning_job_id",
    )


def _digest_payload(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
