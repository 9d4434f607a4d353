"""The run of a sweep as a process: a `nip train` with its settings, which ends with its caller.

A process of a cluster reads and writes the run store by itself, as those that play shards do. The
sweep's leader holds a lease of the sweep's directory; a run whose leader has released it, or has
not renewed it for its time to live, is stopped there, and goes on when the sweep does.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import yaml
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.settings import PREFECT_API_URL

from nip_core.errors import LeaseError, SettingsError, StoreError
from nip_core.run_store.lease import LeaseDocument, read_lease
from nip_core.run_store.run_documents import DECLARATION
from nip_core.run_store.store import MissingFileError, Store, open_store

Errand = dict[str, Any]
"""`run` and its `settings`, the `store`'s URL, the `directory` of the sweep there, its `lease`
as it was lent, and the SHA-256 of its `declaration`, or None."""

LEAVE_S = 30.0
"""Seconds that a run may take to put away what it has."""
_LOOK_S = 0.5  # how often the process is looked at
_BEATS_PER_TTL = 10  # how often the lease is
_CHILD = (
    "import sys; sys.path[:] = {path!r}; from nip_core import processes; "
    "processes.end_with({caller}); from nip_cli.cli import main; main()"
)


@dataclass(frozen=True)
class Ended:
    """How a run's process ended."""

    status: int
    """Its exit code, negative for a signal."""
    words: str
    """The last that it said."""
    log: str
    """Where all that it said stands."""


class RunProcess:
    """A `nip train` with the settings of a file. Starts at once."""

    def __init__(self, settings: Path, out: IO[bytes], environment: Mapping[str, str]):
        start = _CHILD.format(path=sys.path, caller=os.getpid())
        self._process = subprocess.Popen(
            [sys.executable, "-c", start, "train", str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,  # signals are the caller's to pass on
        )

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code; None if it has not ended in time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def ask_to_stop(self) -> None:
        """Ask it to put away what it has, and to end."""
        self._process.terminate()

    def stop(self, until: float) -> int:
        """Wait until then, on the monotonic clock, for the process to follow a signal; then kill
        it.
        """
        status = self.wait(max(0.0, until - time.monotonic()))
        if status is None:
            self._process.kill()
            return self._process.wait()
        return status


def name_declaration(environment: Mapping[str, str], sha256: str | None) -> dict[str, str]:
    """Give the environment of a run's process, with the declaration that the run begins under."""
    variables = {name: value for name, value in environment.items() if name != DECLARATION}
    return variables if sha256 is None else {**variables, DECLARATION: sha256}


def write_settings(settings: Mapping[str, Any], path: Path) -> None:
    """Write them as `nip train` reads them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True))


def last_line(log: str) -> str:
    """Find nip's last line in its own name, or else the last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    by_name = [line for line in lines if line.startswith("nip: ")]
    return (by_name or lines or ["it said nothing"])[-1].removeprefix("nip: ")


@task(
    name="run-apart",
    task_run_name="run-{name}",
    cache_policy=NO_CACHE,
    persist_result=False,
    result_serializer="json",
)
def run_remotely(errand: Errand, name: str) -> dict[str, Any]:
    """Play a run of a sweep to its end in a process of this machine; returns `Ended` as JSON.

    `name` is the run's. Raises SettingsError if the run store here is not that of the sweep, and
    LeaseError if no process leads the sweep any longer.
    """
    # 1. The same store, and a sweep that goes on.
    store, leader = _same_store(errand), _Leader(errand)
    if not leader.is_there(store):
        raise LeaseError(f"{errand['directory']}: nobody leads this sweep any longer")
    # 2. The run, as on the machine of the sweep.
    with tempfile.TemporaryDirectory(prefix="nip-") as folder:
        settings, log = Path(folder) / f"{name}.yaml", Path(folder) / "log"
        write_settings(errand["settings"], settings)
        environment = name_declaration(os.environ, errand.get("declaration"))
        if url := PREFECT_API_URL.value():
            environment["PREFECT_API_URL"] = url
        with log.open("wb") as out:
            process = RunProcess(settings, out, environment)
            try:
                while (status := process.wait(_LOOK_S)) is None and leader.is_there(store):
                    pass
            finally:  # the cluster may stop this task, too
                if process.wait(0) is None:
                    process.ask_to_stop()
                    status = process.stop(time.monotonic() + LEAVE_S)
        # 3. Its output, beside the other runs' output.
        text = log.read_bytes()
    place = f"{errand['directory']}/logs/{name}.log"
    store.put(place, _before(store, place) + text)
    words = last_line(text.decode(errors="replace"))
    assert status is not None
    result = Ended(status, words, str(store.local_path(place) or f"{store.url}/{place}"))
    return {**asdict(result), "process": os.getpid(), "host": socket.gethostname()}


def _same_store(errand: Errand) -> Store:
    """The run store of the sweep, opened here. Raises SettingsError if another one is here."""
    url, path = errand["store"], f"{errand['directory']}/lease.json"
    try:
        read_lease(open_store(url, read_only=True), path)
        return open_store(url)
    except StoreError as error:
        raise SettingsError(
            f"run_store {url}: {socket.gethostname()} does not see there what the sweep has put "
            f"there ({error}); runs on a cluster need a bucket (s3://, gs://), or a disk that all "
            "of its machines share under this path"
        ) from None


def _before(store: Store, path: str) -> bytes:
    try:
        return store.get(path)
    except MissingFileError:
        return b""


class _Leader:
    """The sweep's leader, as its lease shows; no time of day is compared."""

    def __init__(self, errand: Errand):
        self._path = f"{errand['directory']}/lease.json"
        self._lent = LeaseDocument.model_validate(errand["lease"])
        self._ttl_s = self._lent.ttl_s
        self._beat: int | None = None
        self._since_s = self._looked_s = float("-inf")

    def is_there(self, store: Store) -> bool:
        """Return whether the sweep goes on; looks at the lease ten times in its time to live."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._ttl_s / _BEATS_PER_TTL:
            return True
        self._looked_s = now_s
        try:
            document, _ = read_lease(store, self._path)
        except MissingFileError:
            return False
        except StoreError:  # it may be back before the time to live is over
            document = self._lent.model_copy(update={"heartbeat": self._beat})
        if document.state != "held" or document.owner.id != self._lent.owner.id:
            return False
        if document.heartbeat != self._beat:
            self._beat, self._since_s = document.heartbeat, now_s
        return now_s - self._since_s < self._ttl_s
