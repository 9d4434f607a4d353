"""The lm_server of a run: started with the session, watched, started again when it died."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from nip_core.agents.chat_client import Endpoint
from nip_core.errors import ServerError, SettingsError
from nip_core.lm_server.owner import (
    OwnerError,
    ServerHandle,
    is_running,
    start_or_attach,
    stop,
)
from nip_core.lm_server.spec import ServerSpec

T = TypeVar("T")
_LOOK_EVERY_S = 0.25


class OwnServer:
    """One server in one state directory. All methods are for one event loop."""

    def __init__(
        self,
        spec: ServerSpec,
        directory: Path,
        *,
        timeout_s: float,
        environment: Mapping[str, str],
    ) -> None:
        """`timeout_s`: the longest wait for it to answer. Nothing is started yet."""
        self._spec, self._directory = spec, directory
        self._timeout_s, self._environment = timeout_s, environment
        self._handle: ServerHandle | None = None
        self._starting = asyncio.Lock()

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers now; after a restart the port is another one."""
        assert self._handle is not None, "call ensure() first"
        return Endpoint(f"{self._handle.url}/v1", self._handle.api_key)

    async def ensure(self) -> None:
        """Start the server unless it runs.

        Raises SettingsError with the server's own word if it refuses what it was asked to run,
        ServerError if it does not come up.
        """
        async with self._starting:
            if self._handle is not None and is_running(self._handle):
                return
            self.stop()
            try:
                self._handle = await asyncio.to_thread(
                    start_or_attach,
                    self._spec,
                    self._directory,
                    timeout_s=self._timeout_s,
                    env=self._environment,
                )
            except OwnerError as error:
                if error.reason is not None:
                    raise SettingsError(f"lm_server: {error.reason}") from None
                raise ServerError(f"lm_server: {error}") from None

    async def during(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` while the server runs. Raises ServerError as soon as it has died."""
        await self.ensure()
        doing = asyncio.ensure_future(work())
        watching = asyncio.ensure_future(self._until_dead())
        try:
            await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise ServerError(
                    f"the run's lm_server ended by itself; its log is {self._directory / 'logs'}. "
                    "It is started again when the stage is"
                )
            return doing.result()
        finally:
            for task in (doing, watching):
                task.cancel()
            await asyncio.gather(doing, watching, return_exceptions=True)

    def stop(self) -> None:
        """End the server if this process started it."""
        if self._handle is not None:
            stop(self._handle)
            self._handle = None

    async def _until_dead(self) -> None:
        # A process that ends sets no event.
        while self._handle is not None and is_running(self._handle):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EVERY_S)
