"""The open runs of this process. Tasks find theirs by its name, so no key is ever a parameter.

offer             let the next flow that opens a run use a session that is open already
offered_settings  the settings of that session, which need not be loaded again
open_run          the session of a flow: the offered one, or a new one; its tasks find it
session_of        the session of a task
find_last_step    the newest step that an earlier attempt of the flow run has completed
retried_task      the decorator of every task
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from aiohttp import ClientError
from prefect import Task, get_client, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
    TaskRunFilterSubFlowRuns,
)
from prefect.client.schemas.objects import FlowRun, State, StateDetails, StateType, TaskRun
from prefect.client.schemas.sorting import TaskRunSort
from prefect.exceptions import Abort, ObjectNotFound, PrefectHTTPStatusError
from prefect.runtime import flow_run
from prefect.states import Completed, Crashed

from nip_core.errors import ServerError
from nip_core.parameters import HyperParameters
from nip_core.session.opening import open_session
from nip_core.session.session import Session
from nip_prefect.tasks.flow_run_marks import mark_flow_run
from nip_prefect.tasks.lost_signals import stops_all_the_same
from nip_prefect.tasks.progress import show_progress
from nip_prefect.tasks.reconcile import bury_parts
from nip_prefect.tasks.secrets import environment_for

PATIENCE_S = 600.0
"""How long a failed flow run of a worker waits for Prefect's server to say who goes on."""
OF_A_WORKER = "PREFECT__FLOW_RUN_ID"
"""Set by Prefect where a worker has started the process."""
_PAUSE_S = 2.0
_LOOKS_FOR_STEPS = 6
_GIVEN_UP = (StateType.CRASHED, StateType.SCHEDULED, StateType.PENDING)
"""States that somebody else has given to a flow run whose process runs here."""
_log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_sessions: dict[str, Session] = {}
_offered: list[Session] = []


@contextmanager
def offer(session: Session) -> Iterator[None]:
    """Lend `session` to the next flow of this process; it must open the same run."""
    _offered.append(session)
    try:
        yield
    finally:
        _offered.clear()


def offered_settings() -> HyperParameters | None:
    """Give the settings of the lent session, or None if there is none."""
    return _offered[0].parameters if _offered else None


@asynccontextmanager
async def open_run(
    parameters: HyperParameters, *, retry_failed_jobs: bool = False
) -> AsyncIterator[Session]:
    """Open the run's session; the tasks of this process find it by the run's name.

    Raises Prefect's Abort where a later attempt of this flow run has taken the run: then the flow
    ends and the flow run's state, which is the other attempt's, stays.
    """
    async with AsyncExitStack() as stack:
        stack.push_async_exit(_leave_to_later_attempt)
        stack.enter_context(stops_all_the_same())
        # A command has opened its session already, beside Prefect's server.
        if _offered:
            session = _offered.pop()
        else:
            session = await stack.enter_async_context(
                open_session(
                    parameters,
                    environment=await environment_for(parameters),
                    retry_failed_jobs=retry_failed_jobs,
                )
            )
        await mark_flow_run(session)
        # Its iterations are flow runs of their own, whose logs Prefect shows on other pages: the
        # records logged here stand on one.
        session = replace(session, log=get_run_logger())
        if (attempt := flow_run.get_run_count()) > 1:
            session.log.info("attempt %d of this flow run; what is finished is kept", attempt)
            await _end_earlier_attempts()
        stack.enter_context(_hold(session))
        await stack.enter_async_context(show_progress(session))
        yield session


async def _leave_to_later_attempt(
    kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    """Raise Abort in the place of an error if this attempt of the flow run is not the last.

    Who has lost the run to another host mostly learns it from the lease. A host that was cut off
    may fail by anything else before that: its cluster is out of reach, or its store. Then the flow
    run may be taken for dead already, and the next attempt not begun.
    """
    if not isinstance(error, Exception) or (identifier := flow_run.get_id()) is None:
        return
    seen = await _read_flow_run(UUID(identifier), error)
    if seen is None:
        return
    if seen.run_count > flow_run.get_run_count():
        reason = f"attempt {seen.run_count} of this flow run goes on"
    elif seen.state_type in _GIVEN_UP:
        reason = "this flow run was taken for dead meanwhile, and goes on elsewhere or not at all"
    else:
        return
    get_run_logger().warning("%s: %s", reason, error)
    raise Abort(reason) from error


async def _read_flow_run(identifier: UUID, error: Exception) -> FlowRun | None:
    """Read a flow run that has failed by `error`; None if Prefect's server does not tell.

    A flow run that a worker has started waits for a server that is out of reach, up to PATIENCE_S.
    An error that is told as soon as a cut cable is back would end what goes on elsewhere.
    """
    patience_s = PATIENCE_S if os.environ.get(OF_A_WORKER) == str(identifier) else 0.0
    end_s, is_told = time.monotonic() + patience_s, False
    while True:
        try:
            async with get_client() as client:
                return await client.read_flow_run(identifier)
        except Exception as refused:  # of any kind: `error` tells the flow's end
            if isinstance(refused, ObjectNotFound):
                return None
            if isinstance(refused, PrefectHTTPStatusError) and refused.response.status_code < 500:
                return None
            if patience_s and not is_told:
                is_told = True
                _log.warning(
                    "the flow failed (%s), and Prefect's server does not answer; for %g s it is "
                    "asked whether another attempt goes on",
                    error,
                    patience_s,
                )
            if time.monotonic() >= end_s:
                return None
        await asyncio.sleep(_PAUSE_S)


async def _end_earlier_attempts() -> None:
    """Set to Crashed the remains of earlier attempts of this flow run.

    A worker that reports a crash does so of the flow run alone, not of its iterations.
    """
    identifier = flow_run.get_id()
    assert identifier is not None  # it has a number of attempts
    async with get_client() as client:
        state: State[Any] = Crashed(message="Its process is gone; a later attempt goes on.")
        await bury_parts(client, UUID(identifier), state)


async def find_last_step() -> list[State[str]]:
    """Find the end of the task run that an earlier attempt of this flow run ended with, if any.

    The first task run of an attempt comes after it. A flow run that is called comes after those
    that it came after before: both attempts have one place for it.
    """
    if flow_run.get_run_count() <= 1:
        return []
    end_states = TaskRunFilterStateType(
        any_=[StateType.COMPLETED, StateType.FAILED, StateType.CRASHED]
    )
    of_this = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(str(flow_run.get_id()))]))
    newest: list[TaskRun] = []
    async with get_client() as client:
        # The server learns of ends by events, which come a little later.
        for _ in range(_LOOKS_FOR_STEPS):
            newest = await client.read_task_runs(
                flow_run_filter=of_this,
                task_run_filter=TaskRunFilter(
                    state=TaskRunFilterState(type=end_states),
                    subflow_runs=TaskRunFilterSubFlowRuns(exists_=False),
                ),
                sort=TaskRunSort.END_TIME_DESC,
                limit=1,
            )
            if newest:
                break
            await asyncio.sleep(_PAUSE_S / 4)
    # Its own end has no result any more, without which Prefect waits for none; its place counts.
    places = [StateDetails(task_run_id=step.id) for step in newest]
    return [Completed(data="ended", state_details=place) for place in places]


@contextmanager
def _hold(session: Session) -> Iterator[None]:
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


async def is_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Return whether trying a task again can help: the network or the server was the trouble.

    Everything else (settings, data, a full disk, a failed job) is for people.
    """
    try:
        await state.aresult()
    except (ServerError, ClientError, TimeoutError, ConnectionError) as error:
        attempt, limit = task_run.run_count + 1, (task.retries or 0) + 1
        words = f"{task_run.name} failed and is tried again, attempt {attempt} of {limit}: {error}"
        for session in _sessions.values():
            session.progress.count_retry(f"{task.name}: {error}")
            session.tell("retry", words, task=task.name)
        return True
    except Exception:
        return False
    return False


async def limit_by_tag(task: Task[P, R], tag: str) -> Task[P, R]:
    """Put `task` under `tag` if the tag has a limit in Prefect, otherwise leave it as it is.

    Prefect takes a slot for each tag of each task run, limited or not. On SQLite that often meets
    a locked database and costs two seconds.
    """
    async with get_client() as client:
        try:
            await client.read_concurrency_limit_by_tag(tag)
        except ObjectNotFound:
            return task
    return task.with_options(tags=[tag])


def retried_task(name: str, run_name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Decorate a function as a task, as all of them are.

    A task is tried again when the network or a server was the trouble; finished work is
    skipped then, so a repetition is cheap. Prefect neither caches nor keeps results: the run
    store does, and a task's result is small JSON.
    """
    return task(
        name=name,
        task_run_name=run_name,
        cache_policy=NO_CACHE,
        persist_result=False,
        result_serializer="json",
        retries=2,
        retry_delay_seconds=[2.0, 10.0],
        retry_jitter_factor=0.5,
        retry_condition_fn=is_transient,
    )
