"""The way to a server's `TinkerService`, which most servers never need."""

from collections.abc import Mapping
from pathlib import Path

from nip_base.api_errors import ApiError
from nip_base.spec import name_engines
from nip_lm_server.serving.pool import EnginePool
from nip_lm_server.tinker.service import TinkerService
from nip_lm_server.tinker.storage.store import DATABASE


class TinkerDoor:
    """The service of a server, opened by its first request, or at the start if it was used before.

    Raises ApiError 404 where no engine serves Tinker's API.
    """

    def __init__(
        self,
        state_dir: Path,
        pool: EnginePool,
        environment: Mapping[str, str],
        *,
        is_served: bool,
    ):
        self._state_dir, self._pool, self._environment = state_dir, pool, dict(environment)
        self.is_served = is_served
        self._service: TinkerService | None = None
        if is_served and (state_dir / DATABASE).exists():
            self._service = TinkerService(state_dir, pool, self._environment)

    def start(self) -> None:
        """Go on with an earlier server's requests."""
        if self._service is not None:
            self._service.start()

    def open(self) -> TinkerService:
        """Return the service."""
        if not self.is_served:
            raise ApiError(
                404,
                f"Tinker's API is served by --engine {name_engines('trains_resident')}, and this "
                "server has none",
                code="unknown_url",
            )
        if self._service is None:
            self._service = TinkerService(self._state_dir, self._pool, self._environment)
            self._service.start()
        return self._service

    async def stop(self) -> None:
        """Leave everything to the next server."""
        if self._service is not None:
            await self._service.stop()
