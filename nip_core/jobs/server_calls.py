"""Calls that our lm_server answers beside the API of OpenAI: its version, its engines.

LmServer          those of one server
version_problem   why a version does not fit this one
"""

from typing import Any, Literal

import aiohttp

from nip_core.errors import ServerError
from nip_core.proxies import proxy_for
from nip_core.redaction import redact
from nip_core.rollouts.chat_client import Endpoint
from nip_lm_server.client import SERVER_VERSION, compatible

EngineAction = Literal["start", "stop", "sleep", "wake"]


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
        """The HTTP status of the server's answer, and its version; None: it says none.

        Raises ServerError where nobody answers.
        """
        status, body = await self._call("GET", "/version")
        version = body.get("version") if status == 200 and isinstance(body, dict) else None
        return status, version if isinstance(version, str) else None

    async def engine(self, base_model: str) -> dict[str, Any]:
        """The engine of a base model: state, device. Raises ServerError."""
        path = f"/nip/engines/{base_model}"
        return self._checked(*await self._call("GET", path), path)

    async def engine_status(self, base_model: str) -> dict[str, Any]:
        """The facts that the engine of a base model tells of itself; none where nobody knows.

        Raises ServerError where nobody answers.
        """
        status, body = await self._call("GET", f"/nip/engines/{base_model}")
        told = body.get("status") if status == 200 and isinstance(body, dict) else None
        return told if isinstance(told, dict) else {}

    async def move_engine(self, base_model: str, action: EngineAction) -> dict[str, Any]:
        """Start, stop, wake or put to sleep; the engine as it then is.

        An engine that can't sleep is stopped instead. Raises ServerError.
        """
        path = f"/nip/engines/{base_model}/{action}"
        status, body = await self._call("POST", path)
        if action == "sleep" and status == 400 and _error(body).get("code") == "unsupported":
            return await self.move_engine(base_model, "stop")
        return self._checked(status, body, path)

    def _checked(self, status: int, body: Any, path: str) -> dict[str, Any]:
        if status == 200 and isinstance(body, dict):
            return body
        reason = str(_error(body).get("message") or "no reason given")
        reason = redact(reason, self.endpoint.api_key)[:1000]
        raise ServerError(f"{self.root}{path}: HTTP {status}: {reason}")

    async def _call(self, verb: str, path: str) -> tuple[int, Any]:
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
    """Tell why a server's version does not fit; None if it does."""
    if version is not None and compatible(version):
        return None
    return f"version {version}, this is {SERVER_VERSION}: use the same version on both sides"


def _error(body: Any) -> dict[str, Any]:
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}
