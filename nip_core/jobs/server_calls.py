"""Calls to our lm_server beside the API of OpenAI: its version, its engines."""

from typing import Literal

import aiohttp
from pydantic import BaseModel, JsonValue, ValidationError

from nip_base.version import SERVER_VERSION, compatible
from nip_core.errors import ServerError
from nip_core.proxies import proxy_for
from nip_core.redaction import redact
from nip_core.rollouts.client.completions import Endpoint

EngineAction = Literal["start", "stop", "sleep", "wake"]


class TemplateFacts(BaseModel):
    """The facts of a model's chat template, by its engine."""

    writes_date: bool = False
    """It writes today's date into each prompt."""
    shows_names: bool | None = None
    """It tells speakers of one role apart by their names; None: not known."""
    thoughts: str | None = ""
    """How it writes the thoughts before an answer; None: not at all, "": not known."""
    unset: list[str] = []
    """Variables that it reads and no setting has set."""


class EngineStatus(BaseModel):
    """An engine's own facts. Only servers of ours tell them."""

    device: str | None = None
    max_lora_rank: int | None = None
    template_facts: TemplateFacts | None = None
    """None: it has no template, or does not say."""


class EngineFacts(BaseModel):
    """An engine as its server shows it."""

    state: str = ""
    status: EngineStatus = EngineStatus()


class _ModelFacts(BaseModel):
    """The facts that a server of ours adds to a model that a job has made."""

    kind: str
    base_model: str


class _ShownModel(BaseModel):
    nip: _ModelFacts


class _ListedModel(BaseModel):
    id: str
    nip: dict[str, JsonValue]


class _ListedModels(BaseModel):
    data: list[_ListedModel]


class _WireError(BaseModel):
    code: object = None
    message: object = None


class _ErrorBody(BaseModel):
    error: _WireError = _WireError()


class LmServer:
    """An lm_server at an address. Each call opens a connection of its own and closes it."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = 600.0):
        """`endpoint` is the server's API, with /v1; `timeout_s` the longest wait for an answer.

        An engine's start is answered once it is up, which takes as long as its model's loading.
        """
        self.endpoint = endpoint
        self.root = endpoint.base_url.removesuffix("/v1")
        self._timeout_s = timeout_s

    async def version(self) -> tuple[int, str | None]:
        """Ask for the server's version: HTTP status, and version (None: it says none).

        Raises ServerError where no server answers.
        """
        status, body = await self._call("GET", "/version")
        version = body.get("version") if status == 200 and isinstance(body, dict) else None
        return status, version if isinstance(version, str) else None

    async def engine(self, base_model: str) -> EngineFacts:
        """Ask for the engine of a base model. Raises ServerError."""
        path = f"/nip/engines/{base_model}"
        return self._read_engine(*await self._call("GET", path), path)

    async def engine_status(self, base_model: str) -> EngineStatus | None:
        """Ask for the status of a base model's engine; None where it is not known.

        Raises ServerError where no server answers.
        """
        status, body = await self._call("GET", f"/nip/engines/{base_model}")
        if status != 200:
            return None
        try:
            return EngineFacts.model_validate(body).status
        except ValidationError:  # another server's, at an address of this form
            return None

    async def list_models(self) -> list[str]:
        """List the names that a server of ours has; none of another's, which may answer to more.

        Raises ServerError where no server answers.
        """
        status, body = await self._call("GET", "/v1/models")
        try:
            listed = _ListedModels.model_validate(body).data if status == 200 else []
        except ValidationError:
            return []
        return [model.id for model in listed]

    async def find_base(self, model: str) -> str | None:
        """Ask over which base model an adapter was trained; None if it is no adapter of ours.

        Raises ServerError where no server answers.
        """
        status, body = await self._call("GET", f"/v1/models/{model}")
        if status != 200:
            return None
        try:
            facts = _ShownModel.model_validate(body).nip
        except ValidationError:  # a base model, or another server's
            return None
        return None if facts.kind == "base" else facts.base_model

    async def move_engine(self, base_model: str, action: EngineAction) -> EngineFacts:
        """Start, stop, wake or put to sleep; returns the engine as it then is.

        An engine that can't sleep is stopped instead. Raises ServerError.
        """
        path = f"/nip/engines/{base_model}/{action}"
        status, body = await self._call("POST", path)
        if action == "sleep" and status == 400 and _read_error(body).code == "unsupported":
            return await self.move_engine(base_model, "stop")
        return self._read_engine(status, body, path)

    def _read_engine(self, status: int, body: JsonValue, path: str) -> EngineFacts:
        if status == 200:
            try:
                return EngineFacts.model_validate(body)
            except ValidationError:
                pass  # not ours: it is said below, with the reason that it gives
        reason = redact(str(_read_error(body).message or "no reason given"), self.endpoint.api_key)
        raise ServerError(f"{self.root}{path}: HTTP {status}: {reason[:1000]}")

    async def _call(self, verb: str, path: str) -> tuple[int, JsonValue]:
        headers = {"Authorization": f"Bearer {self.endpoint.api_key}"}
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as http,
                http.request(verb, self.root + path, proxy=proxy_for(self.root)) as response,
            ):
                try:
                    return response.status, await response.json(content_type=None)
                except ValueError:
                    return response.status, None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerError(
                f"{self.root}{path}: no answer ({redact(f'{type(error).__name__}: {error}')})"
            ) from None


def version_problem(version: str | None) -> str | None:
    """Say why a server's version does not fit; None if it does."""
    if version is not None and compatible(version):
        return None
    return f"version {version}, this is {SERVER_VERSION}: use the same version on both sides"


def _read_error(body: JsonValue) -> _WireError:
    try:
        return _ErrorBody.model_validate(body).error
    except ValidationError:
        return _WireError()
