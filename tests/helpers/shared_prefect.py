"""One Prefect server for each process that runs tests. As a program: that server.

One for all of them answered some requests with 503 when three used it at once.
Whoever needs it first starts it. Its database is a copy of one with all of Prefect's migrations,
which the first test ever to need it keeps in pytest's cache: they take longer than a run. Everybody
who uses it holds a lock that can be shared, and the server ends as soon as it can have that lock
alone: when all have let go of it, or are dead.
"""

import contextlib
import fcntl
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import prefect
import pytest

START_S = 180.0
_OFF = (
    *("TRIGGERS", "LATE_RUNS", "SCHEDULER", "FOREMAN", "CANCELLATION_CLEANUP"),
    *("REPOSSESSOR", "PAUSE_EXPIRATIONS"),
)
"""Services of the server that no test here asks anything of."""
_TOGETHER = {"BATCH_SIZE": "100", "FLUSH_INTERVAL": "1"}
"""States of task runs are written down once a second: one by one takes a third of the server."""
MIGRATED = Path(__file__).parents[2] / ".pytest_cache" / f"prefect-{prefect.__version__}.db"
"""A database as a new server has it."""


def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the server that all tests of this process share."""
    return tmp_path_factory.getbasetemp() / "shared-prefect"


def database_url(folder: Path) -> str:
    return f"sqlite+aiosqlite:///{folder / 'prefect.db'}"


@contextmanager
def shared_prefect(folder: Path) -> Iterator[str]:
    """The URL of the server's API, for as long as it is needed here."""
    folder.mkdir(exist_ok=True)
    with (folder / "users").open("w") as users:
        with (folder / "starting").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            address = folder / "address"
            if not address.exists():
                with _migrated_once(folder) as done:
                    address.write_text(_start(folder, done))
        yield address.read_text()


def copy_database(source: Path, target: Path) -> None:
    """Copy a database, which may be in use; `target` is there only when it is whole."""
    part = target.with_name(f"{target.name}.{os.getpid()}")
    with (
        # Who only reads does not tidy up the log of a server that writes.
        contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as opened,
        contextlib.closing(sqlite3.connect(part)) as copy,
    ):
        opened.backup(copy)
    part.replace(target)


@contextmanager
def _migrated_once(folder: Path) -> Iterator[dict[str, str]]:
    """The server that starts meanwhile has a migrated database, or makes one for those to come.

    The settings of that server.
    """
    MIGRATED.parent.mkdir(exist_ok=True)
    with MIGRATED.with_suffix(".lock").open("w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)
        if not MIGRATED.exists():
            yield {}
            copy_database(folder / "prefect.db", MIGRATED)
            return
    copy_database(MIGRATED, folder / "prefect.db")
    steps = ("DATABASE_MIGRATE", "BLOCKS_REGISTER")
    yield {f"PREFECT_API_{step}_ON_START": "false" for step in steps}


def _start(folder: Path, settings: dict[str, str]) -> str:
    environment = {
        **os.environ,
        **settings,
        "PREFECT_HOME": str(folder / "home"),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database_url(folder),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_UI_ENABLED": "false",
        # Only what a server for tests needs, as `prefect_test_harness` starts it.
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
        **{f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in _OFF},
        **{f"PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_{k}": v for k, v in _TOGETHER.items()},
    }
    with socket.create_server(("127.0.0.1", 0)) as listener, (folder / "log").open("w") as log:
        subprocess.Popen(
            [sys.executable, __file__, str(folder), str(listener.fileno())],
            env=environment,
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for its users
        )
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
    try:
        # It waits in the backlog until the server is ready.
        urllib.request.urlopen(f"{url}/health", timeout=START_S).close()
    except OSError as error:
        raise RuntimeError(f"no Prefect server ({error}): {(folder / 'log').read_text()}") from None
    return url


def main(folder: Path, listener: int) -> None:
    import uvicorn

    threading.Thread(target=_end_after_users, args=(folder,), daemon=True).start()
    config = uvicorn.Config(
        "prefect.server.api.server:create_app", factory=True, log_level="error", lifespan="on"
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=listener)])


def _end_after_users(folder: Path) -> None:
    with (folder / "users").open() as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        (folder / "address").unlink(missing_ok=True)
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
