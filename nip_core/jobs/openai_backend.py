"""The OpenAI fine-tuning API, spoken to OpenAI and to our own lm_server alike.

Nothing here retries or waits: the ledger decides that, from the three kinds of errors into which
every failure is sorted. Settings that the OpenAI API has no words for go into the body as
``nip``, and only to an lm_server. The key is never logged, and it is taken out of all words of the
server that end in errors or records. Eight requests are made here, so OpenAI's own client, eleven
megabytes and half a second at each start, is not used.
"""

import io
import math
import os
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

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
from nip_core.proxies import make_http_client
from nip_core.redaction import redact, redact_all
from nip_core.rollouts.client.completions import Endpoint
from nip_core.run_store.documents import first_fault

if TYPE_CHECKING:
    import httpx

_ACCOUNTS = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
"""Headers that say who pays, for a key of several, by the variables that OpenAI's clients read."""
_JOBS = "/fine_tuning/jobs"
_PAGE = 100
_MOST_PAGES = 1000
_MOST_EVENTS = 2000


class _WireError(BaseModel):
    """Why a job or a call failed, in the API's words."""

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

    def __init__(self, address: str, key: str, *, timeout_s: float = 120.0) -> None:
        """Make the connections' pool. `timeout_s` is the longest wait for a piece of an answer.

        Raises SettingsError for a proxy that can't be used.
        """
        import httpx

        super().__init__(address, key)
        self._root = address.rstrip("/")
        headers = {header: os.environ.get(name, "") for header, name in _ACCOUNTS.items()}
        headers["Authorization"] = f"Bearer {key}" if key else ""
        sent = {header: value for header, value in headers.items() if value}
        self._client = make_http_client(
            httpx.AsyncClient, address, timeout=timeout_s, headers=sent, follow_redirects=True
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def find_file(self, filename: str, size_bytes: int) -> str | None:
        async for file in self._list("/files", purpose="fine-tune", order="desc"):
            # An upload that was cut short may stand under the name.
            usable = file.get("status") != "error" and file.get("bytes") == size_bytes
            if file.get("filename") == filename and usable:
                return _text(file.get("id"), "file id")
        return None

    async def upload(self, filename: str, data: Payload) -> str:
        # An open file is sent as it is read.
        with io.BytesIO(data) if isinstance(data, bytes) else data.open("rb") as opened:
            file = await self._ask(
                "POST",
                "/files",
                files={"file": (filename, opened, "application/jsonl")},
                data={"purpose": "fine-tune"},
            )
        return _text(file.get("id"), "file id")

    async def create_job(
        self, spec: JobSpec, file_id: str, validation_file_id: str | None = None
    ) -> JobView:
        nip = spec.nip.model_dump(exclude_unset=True)
        self._check_words(nip)
        method = {
            "type": spec.method,
            spec.method: {"hyperparameters": dict(spec.hyper_parameters)},
        }
        body: dict[str, Any] = {
            "model": spec.parent_model,
            "training_file": file_id,
            "method": method,
            "metadata": spec.metadata,
            "seed": spec.seed,
        }
        if spec.suffix:
            body["suffix"] = spec.suffix
        if validation_file_id is not None:
            body["validation_file"] = validation_file_id
        if spec.integrations:
            body["integrations"] = [dict(integration) for integration in spec.integrations]
        if nip:
            body["nip"] = nip
        headers = {"Idempotency-Key": spec.key}
        return self._view(await self._ask("POST", _JOBS, json=body, headers=headers))

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
        jobs = self._list(_JOBS, **{f"metadata[{KEY_METADATA}]": key, "limit": _PAGE})
        return [
            self._view(job)
            async for job in jobs
            if isinstance(metadata := job.get("metadata"), dict)
            and metadata.get(KEY_METADATA) == key
        ]

    async def check_jobs(self) -> None:
        """Ask for one job of any key, to learn whether this key may list jobs at all."""
        await self._ask("GET", _JOBS, params={"limit": 1})

    async def retrieve_job(self, job_id: str) -> JobView:
        return self._view(await self._ask("GET", _address_job(job_id)))

    async def cancel_job(self, job_id: str) -> JobView:
        return self._view(await self._ask("POST", f"{_address_job(job_id)}/cancel"))

    async def job_events(self, job_id: str) -> list[dict[str, JsonValue]]:
        events: list[dict[str, JsonValue]] = []
        async for event in self._list(f"{_address_job(job_id)}/events", limit=_PAGE):
            told = {name: value for name, value in event.items() if value is not None}
            events.append(redact_all(_finite(told), self.key))
            if len(events) >= _MOST_EVENTS:
                break
        return events[::-1]  # the API gives the newest first

    async def describe_model(self, name: str) -> ModelView:
        model = await self._ask("GET", f"/models/{quote(name, safe=':')}")
        # The fields that servers of nip add to a model's description.
        extension = redact_all(model, self.key).get("nip")
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

    async def _list(self, path: str, **query: Any) -> AsyncIterator[dict[str, Any]]:
        """List what stands at a path, page by page."""
        cursor: object = None
        for _ in range(_MOST_PAGES):
            page = await self._ask(
                "GET", path, params=query | ({"after": cursor} if cursor else {})
            )
            items = page.get("data")
            if not (isinstance(items, list) and all(isinstance(item, dict) for item in items)):
                raise NoAnswer(f"{self.address}{path}: its list has no data")
            for item in items:
                yield item
            if not items or not page.get("has_more"):
                return
            if (last := items[-1].get("id")) == cursor:
                break
            cursor = last
        raise NoAnswer(f"{self.address}{path}: its list does not end")

    async def _ask(self, verb: str, path: str, **request: Any) -> dict[str, Any]:
        """Send a request, once, and return the JSON object of its answer."""
        # Raised outside the handlers: their errors hold the server's answer as it came, and must
        # not be printed as the cause.
        import httpx

        failure: Refused | Busy | NoAnswer
        try:
            response = await self._client.request(verb, self._root + path, **request)
            if not response.is_success:
                failure = self._sorted(response)
            elif isinstance(answer := response.json(), dict):
                return answer
            else:
                failure = NoAnswer(f"{self.address}: no usable answer (no JSON object)")
        # Timeouts included, an answer that is cut off, and one that is no JSON.
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            failure = NoAnswer(redact(f"{self.address}: no usable answer ({error!r})", self.key))
        raise failure

    def _sorted(self, response: "httpx.Response") -> Refused | Busy | NoAnswer:
        status, error = response.status_code, _read_error(response)
        message = f"{self.address}: HTTP {status}: {self._message(error, response.text)}"
        retry_after_s = _retry_after_s(response.headers)
        # A quota that is used up is a 429, too, but no waiting mends it.
        if status == 429 and error.code != "insufficient_quota":
            return Busy(message, retry_after_s)
        # A redirect, a timeout, a fault: the effect of the call there is not known.
        if status < 400 or status == 408 or status >= 500:
            return NoAnswer(message, retry_after_s)
        return Refused(message, status)

    def _message(self, error: _WireError, text: str) -> str:
        message = error.message if isinstance(error.message, str) else text.strip()
        if isinstance(error.param, str) and error.param not in message:
            message = f"{error.param}: {message}"
        return redact(message or "no reason given", self.key)[:1000]

    def _view(self, job: Mapping[str, Any]) -> JobView:
        """Read a job, and check it."""
        try:
            wire = _WireJob.model_validate(_finite(job))
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


def _address_job(job_id: str) -> str:
    return f"{_JOBS}/{quote(job_id, safe=':')}"


def _read_error(response: "httpx.Response") -> _WireError:
    """Read the error of an answer; an empty one where it has none in the API's form."""
    try:
        body = response.json()
        return _WireError.model_validate(body.get("error", body))
    except (AttributeError, ValueError):
        return _WireError()


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
