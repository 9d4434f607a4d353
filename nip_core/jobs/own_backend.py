"""A user's back-end, as the ledger can rely on one.

Errors and jobs of a service go on record and on the screen, and a service may send back its input.
An error that its class raises beside the three kinds of `BackendTrouble` is its own mistake, and is
named as such.
"""

import inspect
from dataclasses import replace
from typing import Any

from pydantic import JsonValue

from nip_base.importing import find_line
from nip_core.errors import JobError, NipError
from nip_core.jobs.job import (
    KEY_METADATA,
    Backend,
    BackendTrouble,
    JobSpec,
    JobView,
    ModelView,
    Payload,
)
from nip_core.redaction import redact, redact_all


class OwnBackend(Backend):
    """Calls to a back-end of the user's."""

    def __init__(self, kind: type[Backend], address: str, key: str) -> None:
        super().__init__(address, key)
        self._name, self._file = kind.__name__, inspect.getfile(kind)
        self._own = kind(address, key)
        self.proves, self.tells_steps = kind.proves, kind.tells_steps

    async def upload(self, filename: str, data: Payload) -> str:
        file_id: str = await self._call(str, "upload", filename, data)
        return file_id

    async def create_job(
        self, spec: JobSpec, file_id: str, validation_file_id: str | None = None
    ) -> JobView:
        job = await self._call(JobView, "create_job", spec, file_id, validation_file_id)
        return self._view("create_job", job)

    async def find_jobs(self, key: str) -> list[JobView]:
        jobs = [self._view("find_jobs", job) for job in await self._call(list, "find_jobs", key)]
        for job in jobs:
            # Adopted, it would be taken for the model of another group.
            if job.metadata.get(KEY_METADATA, key) != key:
                raise self._mistake(
                    "find_jobs", f"returned job {job.id}, whose {KEY_METADATA} is not {key}"
                )
        return jobs

    async def retrieve_job(self, job_id: str) -> JobView:
        return self._view("retrieve_job", await self._call(JobView, "retrieve_job", job_id))

    async def cancel_job(self, job_id: str) -> JobView:
        return self._view("cancel_job", await self._call(JobView, "cancel_job", job_id))

    async def find_file(self, filename: str, size_bytes: int) -> str | None:
        file_id: str | None = await self._call(str | None, "find_file", filename, size_bytes)
        return file_id

    async def job_events(self, job_id: str) -> list[dict[str, JsonValue]]:
        events = await self._call(list, "job_events", job_id)
        redacted: list[dict[str, JsonValue]] = redact_all(events, self.key)
        return redacted

    async def check_jobs(self) -> None:
        await self._call(object, "check_jobs")

    async def describe_model(self, name: str) -> ModelView:
        facts: ModelView = await self._call(ModelView, "describe_model", name)
        return facts

    async def bring_model(self, name: str) -> ModelView:
        facts: ModelView = await self._call(ModelView, "bring_model", name)
        return facts

    async def aclose(self) -> None:
        await self._call(object, "aclose")

    async def _call(self, kind: Any, name: str, *arguments: object) -> Any:
        """Make a call, and check its answer. Raises BackendTrouble, or JobError for a mistake."""
        # Raised outside the handlers: a client's error may hold the key, as it was sent.
        failure: NipError
        try:
            answer = await getattr(self._own, name)(*arguments)
        except BackendTrouble as error:
            failure = error
            failure.message = redact(error.message, self.key)
            failure.args = (failure.message, *error.args[1:])
        except NipError:
            raise
        except Exception as error:  # any error that a user's class raises
            text = " ".join(str(error).split())
            raised = f"raised {type(error).__name__}: {text:.500}{find_line(error, self._file)}"
            failure = self._mistake(name, raised)
        else:
            if isinstance(answer, kind):
                return answer
            expected = kind.__name__ if isinstance(kind, type) else kind
            failure = self._mistake(name, f"returned {answer!r:.200}, and has to return {expected}")
        raise failure from None

    def _view(self, name: str, job: object) -> JobView:
        """Check a job, and take the key out of its words."""
        if not isinstance(job, JobView):
            raise self._mistake(name, f"returned {job!r:.200} in the place of a JobView")
        texts = (job.id, job.status, job.fine_tuned_model or "", job.error or "")
        if not all(isinstance(text, str) for text in texts):
            raise self._mistake(name, f"returned {job!r:.200}, whose words have to be texts")
        return replace(
            job,
            error=redact(job.error, self.key) if job.error else None,
            effective=redact_all(dict(job.effective), self.key),
        )

    def _mistake(self, name: str, trouble: str) -> JobError:
        message = redact(f"{self._name}.{name} ({self._file}) {trouble}", self.key)
        return JobError(
            f"{message}; mend it and run again: what is on record is kept, and a job is looked for "
            "before another one is made"
        )
