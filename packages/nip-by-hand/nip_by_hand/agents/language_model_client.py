"""Our lm_server as a group needs it: is it there, its engine up or away, a job.

LanguageModelClient   the calls of a group
TrainingJobInfo       a fine-tune job as the server reports it
job_status            its status, for the server's word

Jobs are not created here: that is the ledger's alone (`nip_core.jobs.ledger`).
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nip_by_hand.agents.errors import TrainingJobNotFoundClientError
from nip_core.errors import ServerError, SettingsError
from nip_core.jobs.job import BackendTrouble, Refused
from nip_core.jobs.server_calls import LmServer, version_problem
from nip_core.jobs.services import open_backend
from nip_core.parameters.services.providers import SelfHosted

_LOOK_EVERY_S = 0.5
_LONGEST_LOOK_S = 5.0


JobStatus = Literal["pending", "running", "succeeded", "failed", "cancelled", "not_found"]

_STATUSES: dict[str, JobStatus] = {
    word: word for word in ("running", "succeeded", "failed", "cancelled")
}


def job_status(server_word: str) -> JobStatus:
    """The status of a job for its name in the API.

    A job that has not begun, is paused or is not known is pending: none of these is an end.
    """
    return _STATUSES.get(server_word, "pending")


@dataclass(frozen=True)
class TrainingJobInfo:
    """A fine-tune job. Times are seconds since the epoch."""

    job_id: str
    status: JobStatus
    server_status: str  # in the server's own word: validating_files, queued, paused, ...
    fine_tuned_model: str | None
    error: str | None
    created_at: float
    finished_at: float | None
    trained_tokens: int | None
    settings: Mapping[str, Any] = field(default_factory=dict)  # with which it really trains
    metadata: Mapping[str, str] = field(default_factory=dict)


LmTrainingJobInfo = TrainingJobInfo
"""The name that this class has where it is a language-model server's."""


class LanguageModelClient(LmServer):
    """An lm_server at an address. Each call opens a connection of its own and closes it."""

    async def get_version(self) -> str | None:
        """Ask for the server's version; None if the server isn't ours.

        Raises ServerError where no server answers, or a proxy for an absent one.
        """
        status, version = await self.version()
        if status >= 500:
            raise ServerError(f"{self.root}/version: HTTP {status}")
        return version

    async def wait_for_ready(
        self, timeout_s: float, on_waiting: Callable[[], None] = lambda: None
    ) -> None:
        """Return once the server answers; `on_waiting` is called if it does not at once.

        Raises TimeoutError after `timeout_s`, SettingsError if its version does not fit ours or it
        has none.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        is_logged = False
        while True:
            # 1. Ask, for a moment only: a server that takes the call may never answer.
            look_s = min(max(end - loop.time(), 0.05), _LONGEST_LOOK_S)
            try:
                async with asyncio.timeout(look_s):
                    version = await self.get_version()
                break
            except (ServerError, TimeoutError) as error:
                trouble = str(error) or f"no answer in {look_s:.2g} s"
            # 2. Name the awaited server once, and give up in time.
            if not is_logged:
                on_waiting()
                is_logged = True
            if loop.time() >= end:
                raise TimeoutError(
                    f"{self.root}: no lm_server answered within {timeout_s:g} s ({trouble}); "
                    "start it with `nip serve`"
                )
            await asyncio.sleep(min(_LOOK_EVERY_S, max(0.0, end - loop.time())))
        # 3. A server answers: it must be one of ours, of a version that fits.
        if version is None:
            raise SettingsError(
                f"the server at {self.root} does not say its version, so it is no lm_server; for "
                "another API set model_provider: OpenAI and base_url"
            )
        if problem := version_problem(version):
            raise SettingsError(f"the server at {self.root} has {problem}")

    async def get_training_job(self, job_id: str) -> LmTrainingJobInfo:
        """A fine-tune job. Raises TrainingJobNotFoundClientError, ServerError."""
        try:
            async with open_backend(SelfHosted, self.endpoint) as backend:
                view = await backend.retrieve_job(job_id)
        except BackendTrouble as error:
            is_missing = isinstance(error, Refused) and error.status == 404
            kind = TrainingJobNotFoundClientError if is_missing else ServerError
            raise kind(f"job {job_id}: {error}") from error
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
