"""The runs of a sweep on a cluster, by the task runners that play shards there."""

import contextvars
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from prefect import flow
from prefect.settings import PREFECT_API_URL

from nip_core.errors import NipError, SettingsError, StageError
from nip_core.parameters.blocks.loop_settings import RolloutParameters
from nip_core.redaction import check_address, show_address
from nip_core.run_store.lease import Lease, acquire
from nip_core.run_store.store import open_store
from nip_prefect.flows.remote_shards import task_runner
from nip_prefect.tasks.flow_run_names import name_flow_run, with_tags, without_tags
from nip_study.declare.declaration import find_declared
from nip_study.plan.swept_runs import Sweep
from nip_study.run_process import LEAVE_S, Ended, run_remotely

_HERE = ("127.0.0.1", "localhost", "::1")
SETTING = "--task-runner"
_work: dict[str, Callable[[], None]] = {}
"""By sweep, the work of its flow."""


class Cluster:
    """Plays runs where `settings` say. Raises SettingsError if that can't be done from here.

    Use as a context manager: it holds the sweep's lease, by which the cluster's machines see that
    the sweep goes on. Raises LeaseError if another process leads this sweep.
    """

    def __init__(self, sweep: Sweep, settings: RolloutParameters, jobs: int):
        self._runner = task_runner(settings, processes=jobs, setting=SETTING)
        self._sweep, self._address, self._jobs = sweep, settings.task_runner_address, jobs
        self._store = open_store(sweep.run_store)
        self._directory = f"sweeps/{sweep.name}"
        self._under_way: set[str] = set()
        self._is_stopped = False
        self._lease: Lease | None = None

    def __enter__(self) -> "Cluster":
        self._lease = acquire(self._store, self._directory)
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def play_all(self, play: Callable[[Any], None], runs: Sequence[Any]) -> None:
        """Call `play` with each run, as many at a time as jobs; `play` may call `play_one`."""
        _check_prefect(self._address)
        name = self._sweep.name
        _work[name] = lambda: self._in_threads(play, runs)
        flow = play_runs.with_options(
            task_runner=self._runner, flow_run_name=name_flow_run("sweep", name)
        )
        try:
            with with_tags(f"sweep:{name}"):
                flow(name)
        finally:
            del _work[name]

    def _in_threads(self, play: Callable[[Any], None], runs: Sequence[Any]) -> None:
        # Tasks belong to the flow run that the thread's context names.
        with without_tags(), ThreadPoolExecutor(self._jobs) as pool:
            for ending in [pool.submit(contextvars.copy_context().run, play, run) for run in runs]:
                ending.result()

    def play_one(self, run: Any, on_start: Callable[[str], None]) -> Ended | None:
        """Play a run, or an attack; None if the sweep was stopped meanwhile. Raises NipError."""
        if self._is_stopped or self._lease is None:
            return None
        errand = {
            "run": run.name,
            "settings": {**run.settings, "run_store": self._store.url},
            "store": self._store.url,
            "directory": self._directory,
            "lease": self._lease.lend().model_dump(),
            "declaration": find_declared(self._store, self._sweep.name),
        }
        self._under_way.add(run.name)
        try:
            future = run_remotely.submit(errand, run.name)
            on_start(run.name)
            result: dict[str, Any] = future.result()
        except NipError:
            raise
        except Exception as error:  # a machine that is gone, in the words of Dask, Ray or Prefect
            raise StageError(
                f"the cluster did not end it ({type(error).__name__}: {error}); running again goes "
                "on with it"
            ) from error
        finally:
            self._under_way.discard(run.name)
        if self._is_stopped:
            return None
        return Ended(result["status"], result["words"], result["log"])

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()

    def stop(self) -> None:
        """Let the cluster stop the runs, and wait until they have saved their work."""
        self._is_stopped = True
        self._release()
        until_s = time.monotonic() + LEAVE_S
        while self._under_way and time.monotonic() < until_s:
            time.sleep(0.1)


@flow(name="sweep", persist_result=False, result_serializer="json")
def play_runs(sweep: str) -> None:
    """Play the rest of this process's sweep as tasks of this flow's task runner."""
    _do(sweep)


def _do(sweep: str) -> None:
    # The flow is sent to the cluster with all that its function names, so it names nothing else.
    _work[sweep]()


def cluster_settings(
    sweep: Sweep, kind: str | None, address: str | None
) -> RolloutParameters | None:
    """Read the named cluster's settings; None for this process's machine.

    Raises SettingsError for a kind that there is not, and where runs play their shards on a cluster
    themselves: they would wait for the places that they hold.
    """
    if kind is None or kind == "local":
        if address is not None:
            raise SettingsError(f"{SETTING}-address: belongs to {SETTING} dask or ray")
        return None
    if kind not in ("dask", "ray"):
        raise SettingsError(f"{SETTING} {kind!r}: use one of local, dask, ray")
    for run in sweep.runs:
        if (inner := run.parameters.rollouts.task_runner) != "local":
            raise SettingsError(
                f"{SETTING}: {run.name} plays its shards on a cluster itself "
                f"(rollouts.task_runner {inner}); either the runs are there or their shards"
            )
    return RolloutParameters(task_runner=kind, task_runner_address=address)


def _check_prefect(address: str | None) -> None:
    """Raise SettingsError where the cluster's machines can't reach the Prefect server."""
    if url := PREFECT_API_URL.value() or "":
        check_address("PREFECT_API_URL", url)
    host = urlsplit(address or "").hostname
    if host is None or host in _HERE:
        return
    if urlsplit(url).hostname in _HERE:
        raise SettingsError(
            f"PREFECT_API_URL {show_address(url)}: the machines of {address} can't reach it; name "
            "a Prefect server that they reach"
        )
