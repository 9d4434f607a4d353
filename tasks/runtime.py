"""The open runs of this process. Tasks find theirs by its name, so no key is ever a parameter."""

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import ClientError

from nip_core.errors import ServerError
from nip_core.stages.session import Session
from prefect import Task
from prefect.client.schemas.objects import State, TaskRun

_sessions: dict[str, Session] = {}


@contextmanager
def hold(session: Session) -> Iterator[None]:
    """Let the tasks of this process find `session` by its run's name."""
    name = session.run.name
    if name in _sessions:
        raise RuntimeError(f"run {name!r} is already open in this process")
    _sessions[name] = session
    try:
        yield
    finally:
        del _sessions[name]


def session_of(run: str) -> Session:
    """The open session of a run."""
    try:
        return _sessions[run]
    except KeyError:
        raise RuntimeError(
            f"run {run!r} is not open in this process; its tasks run inside the flow that opened it"
        ) from None


def open_sessions() -> list[Session]:
    """All open sessions of this process."""
    return list(_sessions.values())


def is_transient(task: Task[..., object], task_run: TaskRun, state: State[object]) -> bool:
    """Whether trying the stage again can help: the network or the server was the trouble.

    Everything else (settings, data, a full disk, a failed job) is for people.
    """
    try:
        state.result()
    except (ServerError, ClientError, TimeoutError, ConnectionError):
        return True
    except Exception:
        return False
    return False


RETRIES = {
    "retries": 2,
    "retry_delay_seconds": [2, 10],
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": is_transient,
    "result_serializer": "json",
    "persist_result": False,
}
"""How every stage is tried again: what is finished is skipped, so a repetition is cheap."""
