"""The document of one job in the run store, replaced only where it is as it was last read."""

from typing import Any

from pydantic import ValidationError

from nip_core.errors import CorruptionError, LeaseError, StoreError
from nip_core.jobs.job import FORMAT_VERSION, Clock, JobEvent, JobRecord, Outcome
from nip_core.run_store.documents import decode, encode, first_fault
from nip_core.run_store.lease import Lease
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError, Store

_REMEDY = (
    "restore the file from a copy. Without one, remove it and run again: the job, if it was "
    "submitted, is found at the back-end by its key"
)


class JobDocument:
    """``jobs/<group>.json``, with an event in it for every change."""

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        lease: Lease | None,
        clock: Clock,
    ) -> None:
        """Reads nothing yet; call `load` before `save`."""
        self.path = path
        self._store, self._lease, self._clock = store, lease, clock
        self._etag: str | None = None

    def load(self) -> JobRecord | None:
        """Read the record; None if there is none. Raises CorruptionError if it can't be read."""
        try:
            data, self._etag = self._store.get_with_etag(self.path)
        except MissingFileError:
            return None
        return _parse(data, self.path)

    def save(self, record: JobRecord, event: str | None, **changes: Any) -> JobRecord:
        """Write `record` with `changes` and an `event`; return it as written.

        Raises LeaseError if another runner has written it or taken the run over.
        """
        if event is not None:
            changes["events"] = (*record.events, JobEvent(at=self._clock.now(), what=event))
        record = record.model_copy(update=changes)
        data = encode(record.model_dump(mode="json"))
        fence = self._lease.fence if self._lease else None
        if self._etag is None:
            is_written = self._store.put_if_absent(self.path, data, fence=fence)
            self._etag = self._store.get_with_etag(self.path)[1] if is_written else None
        else:
            self._etag = self._store.put_if_match(self.path, data, self._etag, fence=fence)
        if self._etag is None:
            raise LeaseError(f"{self.path}: changed by another runner meanwhile; run again")
        return record

    def end(
        self, record: JobRecord, outcome: Outcome, reason: str | None, event: str, **changes: Any
    ) -> JobRecord:
        """Write the end of the job."""
        changes = {"finished_at": self._clock.now(), **changes}
        return self.save(record, event, state="terminal", outcome=outcome, reason=reason, **changes)


def read_job(run: RunStore, path: str) -> JobRecord | None:
    """Read the record at a path of the store; None if there is none. Raises CorruptionError."""
    try:
        data = run.store.get(path)
    except MissingFileError:
        return None
    return _parse(data, path)


def _parse(data: bytes, path: str) -> JobRecord:
    document = decode(data, path, _REMEDY)
    # The version before all else: a later one may have other keys.
    version = document.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise StoreError(
            f"{path}: format version {version}, this version of nip reads {FORMAT_VERSION}; use "
            "the version of nip that wrote it"
        )
    try:
        return JobRecord.model_validate(document)
    except ValidationError as error:
        raise CorruptionError(
            f"{path}: damaged, not a job record ({first_fault(error)}); {_REMEDY}"
        ) from error


def count_billed_tokens(job: JobRecord, expected: int | None) -> int:
    """Count the tokens of training of all attempts of a job.

    Of one that goes on, or has succeeded at a back-end that doesn't say, the `expected` ones (None:
    not known).
    """
    earlier = sum(attempt.trained_tokens or 0 for attempt in job.previous)
    if job.trained_tokens is not None:
        return earlier + job.trained_tokens
    # A create with an unknown outcome may have made a job: its cost counts until then.
    was_sent = job.id is not None or job.creates_open > 0
    if was_sent and job.outcome in (None, "succeeded"):
        return earlier + (expected or 0)
    return earlier
