"""Our lm_server as a group needs it: is it there, its engine up or away, a job.

Jobs are not created here: that is the ledger's alone (`nip_core.jobs.ledger`).
"""

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import aiohttp

from nip_core.agents.errors import TrainingJobNotFoundClientError
from nip_core.agents.job_info import LmTrainingJobInfo, job_status
from nip_core.errors import ServerError, SettingsError
from nip_core.jobs.job import Busy, NoAnswer, Refused
from nip_core.jobs.openai_backend import open_backend
from nip_core.redaction import redact
from nip_core.rollouts.chat_client import Endpoint
from nip_lm_server.client import SERVER_VERSION, compatible

EngineAction = Literal["start", "stop", "sleep", "wake"]
_LOOK_EVERY_S = 0.5
_LONGEST_LOOK_S = 5.0


class LanguageModelClient:
    """An lm_server at an address. Each call opens a connection of its own and closes it."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = 600.0):
        """`endpoint` is the server's API, with /v1; `timeout_s` the longest wait for an answer.

        An engine's start is answered once it is up, which takes as long as its model's loading.
        """
        self.endpoint = endpoint
        self._root = endpoint.base_url.removesuffix("/v1")
        self._timeout_s = timeout_s

    async def get_version(self) -> str | None:
        """The server's version; None for a server that isn't ours.

        Raises ServerError where nobody answers, or somebody for a server that isn't there.
        """
        status, body = await self._call("GET", "/version")
        if status >= 500:
            raise ServerError(f"{self._root}/version: HTTP {status}")
        version = body.get("version") if status == 200 and isinstance(body, dict) else None
        return version if isinstance(version, str) else None

    async def wait_for_ready(
        self, timeout_s: float, on_waiting: Callable[[], None] = lambda: None
    ) -> None:
        """Return once the server answers; `on_waiting` is called if it does not at once.

        Raises TimeoutError after `timeout_s`, SettingsError if its version does not fit ours or it
        has none.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        told = False
        while True:
            look_s = min(max(end - loop.time(), 0.05), _LONGEST_LOOK_S)
            try:
                async with asyncio.timeout(look_s):
                    version = await self.get_version()
                break
            except (ServerError, TimeoutError) as error:
                trouble = str(error) or f"no answer in {look_s:.2g} s"
            if not told:
                on_waiting()
                told = True
            if loop.time() >= end:
                raise TimeoutError(
                    f"{self._root}: no lm_server answered within {timeout_s:g} s ({trouble}); "
                    "start it with `nip serve`"
                )
            await asyncio.sleep(min(_LOOK_EVERY_S, max(0.0, end - loop.time())))
        if version is None:
            raise SettingsError(
                f"the server at {self._root} does not say its version, so it is no lm_server; for "
                "another API set model_provider: OpenAI and base_url"
            )
        if not compatible(version):
            raise SettingsError(
                f"the server at {self._root} has version {version}, this is {SERVER_VERSION}: use "
                "the same version on both sides"
            )

    async def engine(self, base_model: str) -> dict[str, Any]:
        """The engine of a base model: state, device. Raises ServerError."""
        return await self._expect("GET", f"/nip/engines/{base_model}")

    async def move_engine(self, base_model: str, action: EngineAction) -> dict[str, Any]:
        """Start, stop, wake or put to sleep; the engine as it then is.

        An engine that can't sleep is stopped instead. Raises ServerError.
        """
        path = f"/nip/engines/{base_model}/"
        status, body = await self._call("POST", path + action)
        if action == "sleep" and status == 400 and _code(body) == "unsupported":
            return await self._expect("POST", path + "stop")
        return self._checked(status, body, path + action)

    async def get_training_job(self, job_id: str) -> LmTrainingJobInfo:
        """A fine-tune job. Raises TrainingJobNotFoundClientError, ServerError."""
        try:
            async with open_backend(self.endpoint, extensions=True) as backend:
                view = await backend.retrieve_job(job_id)
        except Refused as error:
            if error.status == 404:
                raise TrainingJobNotFoundClientError(f"job {job_id}: {error}") from error
            raise ServerError(f"job {job_id}: {error}") from error
        except (Busy, NoAnswer) as error:
            raise ServerError(f"job {job_id}: {error}") from error
        return LmTrainingJobInfo(
            job_id=view.id,
            status=job_status(view.status),
            server_status=view.status,
            fine_tuned_model=view.fine_tuned_model,
            error=view.error,
            created_at=view.created_at,
            finished_at=view.finished_at,
            trained_tokens=view.trained_tokens,
            settings=view.effective,
            metadata=view.metadata,
        )

    async def _expect(self, verb: str, path: str) -> dict[str, Any]:
        return self._checked(*await self._call(verb, path), path)

    def _checked(self, status: int, body: Any, path: str) -> dict[str, Any]:
        if status != 200 or not isinstance(body, dict):
            raise ServerError(f"{self._root}{path}: HTTP {status}: {_said(body, self.endpoint)}")
        return body

    async def _call(self, verb: str, path: str) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.endpoint.api_key}"}
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        try:
            async with aiohttp.ClientSession(timeout=timeout, headers=headers) as http:
                async with http.request(verb, self._root + path) as response:
                    try:
                        return response.status, await response.json(content_type=None)
                    except ValueError:
                        return response.status, None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerError(
                f"{self._root}{path}: no answer ({type(error).__name__}: {error})"
            ) from None


def _code(body: Any) -> str | None:
    error = body.get("error") if isinstance(body, dict) else None
    return error.get("code") if isinstance(error, dict) else None


def _said(body: Any, endpoint: Endpoint) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    said = error.get("message") if isinstance(error, dict) else None
    return redact(str(said or "no reason given"), endpoint.api_key)[:1000]
