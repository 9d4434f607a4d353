"""The OpenAI fine-tuning API, spoken to OpenAI and to our own lm_server alike.

Nothing here retries or waits: the ledger decides that, from the three kinds of errors into which
every failure is sorted. Settings that the OpenAI API has no words for go into the body as
``nip``, and only to an lm_server. The key is never logged, and it is taken out of all words of the
server that end in errors or records. The client costs most of a second to import, and playing does
not need it: it is imported when a back-end is made.
"""

import io
import math
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel, JsonValue, ValidationError

from nip_core.jobs.job import (
    KEY_METADATA,
    Backend,
    Busy,
    JobSpec,
    JobView,
    ModelView,
    NoAnswer,
    Payload,
    Refused,
)
from nip_core.jobs.server_calls import LmServer
from nip_core.proxies import http_client
from nip_core.redaction import redact, redact_all
from nip_core.rollouts.client.completions import Endpoint
from nip_core.run_store.documents import first_fault

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_T = TypeVar("_T")
_PAGE = 100
_MOST_PAGES = 1000
_MOST_EVENTS = 2000


class _WireError(BaseModel):
    """Why a job failed, in the API's words."""

    code: object = None
    param: object = None
    message: object = None

    def __str__(self) -> str:
        return ": ".join(str(part) for part in (self.code, self.param, self.message) if part)


class _WireJob(BaseModel):
    """A job of the API, as far as it is read here. A field left out, or null, is not known."""

    id: object = None
    status: object = None
    created_at: float | None = None
    fine_tuned_model: str | None = None
    error: _WireError | None = None
    # Numbers as they came: a job's document has the bytes that the server sent.
    estimated_finish: int | float | None = None
    finished_at: int | float | None = None
    trained_tokens: int | None = None
    hyperparameters: dict[str, JsonValue] | None = None
    method: dict[str, JsonValue] | None = None
    """``type``, and under its name the ``hyperparameters`` of that method."""
    nip: dict[str, JsonValue] | None = None
    """The words of a server of ours beside the API's."""
    metadata: dict[str, object] | None = None

    def effective(self) -> dict[str, JsonValue]:
        """Gather the settings of the training, as the server tells them."""
        # Older words of the API first: where a server speaks both, the newer ones count.
        settings = dict(self.hyperparameters or {})
        method = self.method or {}
        of_method = method.get(str(method.get("type")))
        if isinstance(of_method, dict) and isinstance(of_method.get("hyperparameters"), dict):
            settings |= cast("dict[str, JsonValue]", of_method["hyperparameters"])
        return settings if self.nip is None else {**settings, "nip": self.nip}


class OpenAIBackend(Backend):
    """A fine-tuning API with OpenAI's protocol."""

    def __init__(
        self,
        address: str,
        key: str,
        *,
        timeout_s: float = 120.0,
        client: "AsyncOpenAI | None" = None,
    ) -> None:
        """`client` replaces the one made from the other arguments; it must not retry."""
        from openai import AsyncOpenAI

        self._client = client or AsyncOpenAI(
            base_url=address,
            api_key=key,
            # The ledger decides on repetition: a create that the client repeats may make
            # a second job, and be paid twice.
            max_retries=0,
            timeout=timeout_s,
            http_client=http_client(address),
        )
        super().__init__(address, self._client.api_key)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def find_file(self, filename: str, size_bytes: int) -> str | None:
        async def find() -> str | None:
            count = 0
            async for file in self._client.files.list(purpose="fine-tune", order="desc"):
                count += 1
                # An upload that was cut short may stand under the name.
                usable = file.status != "error" and file.bytes == size_bytes
                if file.filename == filename and usable:
                    return _text(file.id, "file id")
            return None

        return await self._call(find())

    async def upload(self, filename: str, data: Payload) -> str:
        # An open file is sent as it is read; of a path the client would read the whole first.
        with io.BytesIO(data) if isinstance(data, bytes) else data.open("rb") as opened:
            file = await self._call(
                self._client.files.create(
                    file=(filename, opened, "application/jsonl"), purpose="fine-tune"
                )
            )
        return _text(getattr(file, "id", None), "file id")

    async def create_job(
        self, spec: JobSpec, file_id: str, validation_file_id: str | None = None
    ) -> JobView:
        nip = spec.nip.model_dump(exclude_unset=True)
        self._check_words(nip)
        method = {
            "type": spec.method,
            spec.method: {"hyperparameters": dict(spec.hyper_parameters)},
        }
        body: dict[str, Any] = {"method": method, "metadata": spec.metadata, "seed": spec.seed}
        if spec.suffix:
            body["suffix"] = spec.suffix
        if validation_file_id is not None:
            body["validation_file"] = validation_file_id
        if spec.integrations:
            body["integrations"] = [dict(integration) for integration in spec.integrations]
        if nip:
            body["nip"] = nip
        # The whole body goes as `extra_body`, so that no version of the client drops a word of it.
        job = await self._call(
            self._client.fine_tuning.jobs.create(
                model=spec.parent_model,
                training_file=file_id,
                extra_body=body,
                extra_headers={"Idempotency-Key": spec.key},
            )
        )
        return self._view(job)

    def _check_words(self, nip: Mapping[str, Any]) -> None:
        """Raise Refused for settings that the API has no words for."""
        # Refused and not dropped: the job would be on record with settings that it never had.
        if nip:
            raise Refused(
                f"{self.address} has no words for {sorted(nip)}; leave these "
                "settings out, or use a server of nip"
            )

    async def find_jobs(self, key: str) -> list[JobView]:
        # A server that ignores the filter sends all jobs; the comparison here decides.
        async def find() -> list[JobView]:
            views: list[JobView] = []
            cursor: str | None = None
            for _ in range(_MOST_PAGES):
                query = {f"metadata[{KEY_METADATA}]": key, "limit": _PAGE}
                page = await self._client.fine_tuning.jobs.list(
                    extra_query=query | ({"after": cursor} if cursor else {})
                )
                jobs = getattr(page, "data", None)
                if not isinstance(jobs, list):
                    raise NoAnswer(f"{self.address}: its list of jobs has no data")
                views += [
                    self._view(job) for job in jobs if (job.metadata or {}).get(KEY_METADATA) == key
                ]
                if not jobs or not page.has_more:
                    return views
                if jobs[-1].id == cursor:
                    break
                cursor = jobs[-1].id
            raise NoAnswer(f"{self.address}: its list of jobs does not end")

        return await self._call(find())

    async def check_jobs(self) -> None:
        """Ask for one job of any key, to learn whether this key may list jobs at all."""
        await self._call(self._client.fine_tuning.jobs.list(limit=1))

    async def retrieve_job(self, job_id: str) -> JobView:
        return self._view(await self._call(self._client.fine_tuning.jobs.retrieve(job_id)))

    async def cancel_job(self, job_id: str) -> JobView:
        return self._view(await self._call(self._client.fine_tuning.jobs.cancel(job_id)))

    async def job_events(self, job_id: str) -> list[dict[str, JsonValue]]:
        async def read() -> list[dict[str, JsonValue]]:
            events: list[dict[str, JsonValue]] = []
            pages = self._client.fine_tuning.jobs.list_events(job_id, limit=_PAGE)
            async for event in pages:
                dumped = event.model_dump(mode="json", exclude_none=True)
                events.append(redact_all(_finite(dumped), self.key))
                if len(events) >= _MOST_EVENTS:
                    break
            return events[::-1]  # the API gives the newest first

        return await self._call(read())

    async def describe_model(self, name: str) -> ModelView:
        model = await self._call(self._client.models.retrieve(name))
        described: dict[str, Any] = redact_all(model.model_dump(mode="json"), self.key)
        # The fields that servers of nip add to a model's description.
        extension = described.get("nip")
        if not isinstance(extension, dict):
            return ModelView()
        return ModelView(
            digest=extension.get("content_digest"),
            kind=extension.get("kind"),
            proof=extension.get("proof"),
            is_served=extension.get("served"),
            is_lm_servers=True,
        )

    async def bring_model(self, name: str) -> ModelView:
        facts = await self.describe_model(name)
        # A base model of the server's configuration says no kind.
        if (facts.kind or "base") == "base" and facts.is_served is False:
            await LmServer(Endpoint(self.address, self.key)).move_engine(name, "start")
            facts = await self.describe_model(name)
        return facts

    async def _call(self, call: Awaitable[_T]) -> _T:
        # Raised outside the handlers: the client's errors hold the server's answer as it came, and
        # must not be printed as the cause.
        from openai import APIConnectionError, APIStatusError, OpenAIError

        failure: Refused | Busy | NoAnswer
        try:
            return await call
        except APIStatusError as error:
            failure = self._sorted(error)
        except APIConnectionError as error:  # timeouts included
            cause = f" ({error.__cause__!r})" if error.__cause__ else ""
            failure = NoAnswer(redact(f"{self.address}: {error}{cause}", self.key))
        except (OpenAIError, ValueError, TypeError, AttributeError) as error:
            # Any error of the client for an answer that is cut off or breaks the API's promise.
            failure = NoAnswer(redact(f"{self.address}: unusable answer ({error!r})", self.key))
        raise failure

    def _sorted(self, error: "APIStatusError") -> Refused | Busy | NoAnswer:
        status = error.status_code
        message = f"{self.address}: HTTP {status}: {self._message(error)}"
        retry_after_s = _retry_after_s(error.response.headers)
        # A quota that is used up is a 429, too, but no waiting mends it.
        if status == 429 and error.code != "insufficient_quota":
            return Busy(message, retry_after_s)
        # A redirect, a timeout, a fault: the effect of the call there is not known.
        if status < 400 or status == 408 or status >= 500:
            return NoAnswer(message, retry_after_s)
        return Refused(message, status)

    def _message(self, error: "APIStatusError") -> str:
        body = error.body
        message = body.get("message") if isinstance(body, Mapping) else None
        if not isinstance(message, str):
            message = str(error)
        elif isinstance(error.param, str) and error.param not in message:
            message = f"{error.param}: {message}"
        return redact(message, self.key)[:1000]

    def _view(self, job: Any) -> JobView:
        """Read a job from the client's object, and check it: the client has checked nothing."""
        try:
            wire = _WireJob.model_validate(_finite(job.model_dump(mode="json")))
            return JobView(
                id=_text(wire.id, "job id"),
                status=_text(wire.status, "job status"),
                created_at=wire.created_at or 0.0,
                fine_tuned_model=wire.fine_tuned_model or None,
                error=redact(str(wire.error or ""), self.key) or None,
                estimated_finish=wire.estimated_finish,
                finished_at=wire.finished_at,
                trained_tokens=wire.trained_tokens,
                effective=wire.effective(),
                metadata={name: str(value) for name, value in (wire.metadata or {}).items()},
            )
        except (AttributeError, TypeError, ValueError) as failure:
            fault = first_fault(failure) if isinstance(failure, ValidationError) else repr(failure)
            reason = redact(f"unusable answer: not a job ({fault})", self.key)
        raise NoAnswer(reason)


class NipBackend(OpenAIBackend):
    """An lm_server: OpenAI's protocol with additions."""

    proves = True
    tells_steps = True

    def _check_words(self, nip: Mapping[str, Any]) -> None:
        """Take them all: the server refuses what it does not know."""


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by None: servers send them, JSON documents can't have them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return value


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read the seconds to wait from either header of the server; a date is not used."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit_s
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise NoAnswer(f"unusable answer: no {field}")
    return value
