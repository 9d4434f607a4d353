"""A run's own lm_server in a thread of the test's process, instead of in a process of its own.

Everything else is as it is: state directory, key, lock, sockets, jobs, models on disk. What it does
not show: that the server is started, watched and ended as a process; packages/nip-lm-server/tests does.

servers_here    sessions that begin meanwhile have their server here
one_here        one server, for runs that name it in lm_server.url
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from aiohttp import web

from nip_base.spec import ServerSpec
from nip_lm_server.api.app import close_server, make_app, open_server
from nip_lm_server.api.connections import make_runner
from nip_lm_server.auth import KeyRing, make_key_file
from nip_lm_server.client import OwnerError, ServerHandle
from nip_lm_server.engines.base import EngineError
from nip_lm_server.state.directory import KEY_FILE, LOCK, StateError, check_state_dir, try_lock

START_S = 120.0


class _Server:
    """One server, from its lock to its release."""

    def __init__(self, spec: ServerSpec, state: Path, environment: Mapping[str, str]):
        check_state_dir(state, spec.replies)
        state.mkdir(parents=True, exist_ok=True)
        state.chmod(0o700)
        (state / "logs").mkdir(0o700, exist_ok=True)
        self.key = make_key_file(state / KEY_FILE)
        self._spec, self._state, self._environment = spec, state, environment
        self._started = threading.Event()
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.thread.start()
        assert self._started.wait(START_S), "the server does not start"
        if self._error is not None:
            raise self._error

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        try:
            lock = try_lock(self._state / LOCK)
            if lock is None:
                raise StateError(f"another server uses the state directory {self._state}")
            try:
                await self._run()
            finally:
                os.close(lock)
        except BaseException as error:
            if self._started.is_set():
                raise
            self._error = error
            self._started.set()

    async def _run(self) -> None:
        keys = KeyRing([self.key])
        services = await open_server(self._state, self._spec, keys, self._environment)
        runner = make_runner(make_app(services), drain_s=0.5)
        try:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._started.set()
            await self._end.wait()
        finally:
            await runner.cleanup()
            await close_server(services)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self.thread.join(START_S)
        assert not self.thread.is_alive(), "the server does not end"


class _Servers:
    """Takes the place of the functions that start, look at and stop a process."""

    def __init__(self) -> None:
        self.running: dict[str, _Server] = {}

    def start(
        self,
        spec: ServerSpec,
        state: Path,
        *,
        timeout_s: float = START_S,
        env: Mapping[str, str] | None = None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> ServerHandle:
        try:
            server = _Server(spec, state, os.environ if env is None else env)
        except (EngineError, StateError, ValueError) as error:
            raise OwnerError(str(error), str(error)) from None
        self.running[server.url] = server
        return ServerHandle(server.url, server.key, os.getpid(), True, state)

    def is_running(self, handle: ServerHandle) -> bool:
        server = self.running.get(handle.url)
        return server is not None and server.thread.is_alive()

    def stop(self, handle: ServerHandle, **_: Any) -> None:
        if (server := self.running.pop(handle.url, None)) is not None:
            server.stop()


@contextmanager
def servers_here() -> Iterator[None]:
    """Sessions that begin in this process meanwhile have their server in a thread."""
    servers = _Servers()
    place = "nip_core.servers.own_server"
    with (
        mock.patch(f"{place}.start_or_attach", servers.start),
        mock.patch(f"{place}.is_running", servers.is_running),
        mock.patch(f"{place}.stop", servers.stop),
    ):
        yield
    assert servers.running == {}, "a session has left its server running"


@contextmanager
def one_here(spec: ServerSpec, state: Path) -> Iterator[ServerHandle]:
    """A server that answers."""
    servers = _Servers()
    handle = servers.start(spec, state)
    yield handle
    servers.stop(handle)
