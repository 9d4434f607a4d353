"""The Prefect server of one command, where no other is named. As a program: that server.

Prefect's own temporary server is a member of the command's process group: Ctrl-C ends it first, and
everything that waits for its answers then waits for time-outs. This one has a session of its own
and ends with the command, however that ends. It starts while the command does something else:
an early connection waits in the socket's queue. Its log is a file without a name. A new database
is laid out as `ready_database` has it, without all of Prefect's migrations. Its transactions wait
for each other, see `queued_database`.
"""

import atexit
import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, Any

from nip_base.machine.processes import watch_parent
from nip_core.errors import ServerError

_STOP_S = 2.0
_TAIL = 2000
_started: "list[TemporaryPrefect]" = []


class TemporaryPrefect:
    """A Prefect server on the database of this user's Prefect home. Starts at once."""

    def __init__(self) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        read_end, self._pipe = os.pipe()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._port = listener.getsockname()[1]
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "nip_cli.launching.temporary_prefect"),
                    *map(str, (os.getpid(), read_end, listener.fileno())),
                ],
                # As Prefect sets them for a temporary server: no UI, few services.
                env={
                    **os.environ,
                    "PREFECT_UI_ENABLED": "0",
                    "PREFECT__SERVER_EPHEMERAL": "1",
                    "PREFECT__SERVER_FINAL": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(read_end, listener.fileno()),
                start_new_session=True,
                umask=0o077,  # a database that it makes has prompts, answers and Secret blocks
            )
        os.close(read_end)
        self._ended = threading.Lock()
        if not _started:
            # Before Prefect is imported: at the end its clients still tell the server things.
            atexit.register(end_temporary)
        _started.append(self)

    @property
    def url(self) -> str:
        """The address of its API."""
        return f"http://127.0.0.1:{self._port}/api"

    def wait(self, timeout_s: float) -> None:
        """Return once it answers. Raises ServerError with the end of its log if it does not."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout_s)
        try:
            connection.request("GET", "/api/health")
            status = connection.getresponse().status
            problem = None if status == 200 else f"HTTP {status}"
        except (OSError, http.client.HTTPException) as error:
            problem = f"{type(error).__name__}: {error}"
        finally:
            connection.close()
        if problem is not None:
            raise ServerError(
                f"no temporary Prefect server ({problem}); its log ends: {self._tail()}"
            )

    def stop(self, wait_s: float = _STOP_S) -> None:
        """End it, by force after `wait_s`. Does nothing when it has been ended."""
        if not self._ended.acquire(blocking=False):
            return
        os.close(self._pipe)
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _tail(self) -> str:
        with contextlib.suppress(OSError):
            return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")[-_TAIL:]
        return ""


def end_temporary(wait_s: float = _STOP_S) -> None:
    """End the temporary servers of this process, by force after `wait_s`."""
    for server in _started:
        server.stop(wait_s)


def main(parent: int, pipe: int, listener: int) -> None:
    """Serve Prefect's API at an open socket until the parent is gone."""
    server: Any = None

    def leave() -> None:
        if server is not None and server.started:
            server.should_exit = True
            time.sleep(_STOP_S)
        os._exit(1)

    watch_parent(parent, pipe, leave)

    from uvicorn import Config, Server

    from nip_cli.launching.queued_database import queue_transactions
    from nip_cli.launching.ready_database import lay_out

    lay_out()
    queue_transactions()
    config = Config(
        "prefect.server.api.server:create_app",
        factory=True,
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=0,  # its one client is gone then
    )
    server = Server(config)
    server.run(sockets=[socket.socket(fileno=listener)])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
