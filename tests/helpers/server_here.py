"""A run's own lm_server in a thread of the test's process, instead of in a process of its own.

Everything else is as it is: state directory, key, lock, sockets, jobs, models on disk. What it does
not show: that the server is started, watched and ended as a process; packages/nip-lm-server/tests does.

servers_here    sessions that begin meanwhile have their server here
one_here        one server, for runs that name it in lm_server.url
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from nip_base.spec import ServerSpec
from nip_lm_server.auth import make_key_file
from nip_lm_server.client import OwnerError, ServerHandle
from nip_lm_server.engines.base import EngineError
from nip_lm_server.state.directory import KEY_FILE, StateError, check_state_dir
from nip_lm_server.testing import START_S, ServerThread


class _Servers:
    """Takes the place of the functions that start, look at and stop a process."""

    def __init__(self) -> None:
        self.running: dict[str, ServerThread] = {}

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
            check_state_dir(state, spec.replies)
            state.mkdir(parents=True, exist_ok=True)
            state.chmod(0o700)
            (state / "logs").mkdir(0o700, exist_ok=True)
            key = make_key_file(state / KEY_FILE)
            server = ServerThread(spec, state, key, os.environ if env is None else env)
        except (EngineError, StateError, ValueError) as error:
            raise OwnerError(str(error), str(error)) from None
        self.running[server.url] = server
        return ServerHandle(server.url, server.api_key, os.getpid(), True, state)

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
