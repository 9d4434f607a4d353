"""Comparing Prefect's flow runs with the processes that there are, for the flow `reconcile`.

measure_ahead      how far this host's clock is ahead of the server's
list_active        flow runs that Prefect counts as going on
dead_among         those of them whose process is gone
bury               set one, its subflows and its tasks to Crashed; it frees concurrency slots
bury_parts         the subflows and tasks alone
list_restartable   crashed flow runs that are to go on
restart            let a worker take one up again
name_outcome       name a flow run of `reconcile` by its work
delete_idle        delete the earlier ones that had nothing to do, or a day has hundreds of them

A flow run that has opened its run is marked with the lease it holds (see `flow_run_marks`): it is
dead if that lease was released or replaced, or if its heartbeat stands still for the time to live.
One without a mark is dead if nothing was heard of it in Prefect for long: no change of state, no
log line, no heartbeat event.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter, LogFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort, LogSort
from prefect.events.filters import EventFilter
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run as current
from prefect.states import AwaitingRetry, Cancelled, Crashed

from nip_core.errors import NipError
from nip_core.records.liveness import Sighting, watch_lease
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_prefect.tasks.flow_run_marks import Mark, read_mark

FLOWS = ("train", "continue-run", "evaluate")
_GOING_ON = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
_OPEN = {"state": {"type": {"any_": _GOING_ON}}}
_OUR_FLOWS = FlowFilter.model_validate({"name": {"any_": list(FLOWS)}})
_MOST = 200
IDLE = "reconcile-idle"
"""The name of a flow run of `reconcile` that found nothing to do."""
_log = logging.getLogger(__name__)
_LOOK_EVERY_S = 1.0
_NO_TIME = timedelta()


async def list_active(client: PrefectClient) -> list[FlowRun]:
    """List nip's flow runs in Prefect's states running, pending and cancelling."""
    return await client.read_flow_runs(
        flow_filter=_OUR_FLOWS,
        flow_run_filter=FlowRunFilter.model_validate(_OPEN),
        sort=FlowRunSort.EXPECTED_START_TIME_ASC,
        limit=_MOST,
    )


async def measure_ahead(client: PrefectClient) -> timedelta:
    """Measure how far this host's clock is ahead of that of Prefect's server.

    By when the present flow run began, so ask at its start: the time since then is counted with it.
    Nothing without a flow run.
    """
    identifier = current.get_id()
    if identifier is None:
        return _NO_TIME
    own = await client.read_flow_run(UUID(identifier))
    return _NO_TIME if own.state is None else datetime.now(UTC) - own.state.timestamp


async def dead_among(
    client: PrefectClient,
    runs: Iterable[FlowRun],
    *,
    silent_after_s: float,
    watch_s: float,
    ahead: timedelta = _NO_TIME,
) -> list[FlowRun]:
    """Those whose process is gone, watched for `watch_s` at least and as long as it takes.

    `silent_after_s`: after how long without a sign of life one counts as dead that holds no run.
    `ahead`: see `measure_ahead`.
    """
    # 1. Those that hold a run are known by its lease, the rest by their silence.
    marked, unmarked = [], []
    for flow_run in runs:
        mark = _current_mark(flow_run)
        if mark is None:
            unmarked.append(flow_run)
        else:
            marked.append((flow_run, mark))
    dead = [r for r in unmarked if await _silent_s(client, r, ahead) > silent_after_s]
    dead += await _without_owner(marked, watch_s)
    # 2. A flow run that ended or restarted while it was watched is left alone.
    return [r for r in dead if (await client.read_flow_run(r.id)).state_id == r.state_id]


def _current_mark(flow_run: FlowRun) -> Mark | None:
    """The mark, if it is of this attempt and the flow is really running."""
    mark = read_mark(flow_run)
    is_pending = flow_run.state_type is StateType.PENDING
    return None if mark is None or is_pending or mark.attempt != flow_run.run_count else mark


async def _without_owner(marked: list[tuple[FlowRun, Mark]], watch_s: float) -> list[FlowRun]:
    """Those whose lease is not theirs any more, or whose heartbeat stopped."""
    started_s = time.monotonic()
    first = {flow_run.id: sighting_of(mark) for flow_run, mark in marked}
    open_ = {flow_run.id: (flow_run, mark) for flow_run, mark in marked}
    dead: list[FlowRun] = []
    while open_:
        elapsed_s = time.monotonic() - started_s
        for identifier, (flow_run, mark) in list(open_.items()):
            earlier, now = first[identifier], sighting_of(mark)
            if now is None or earlier is None:  # the store can't be read: nothing is known
                del open_[identifier]
            elif now.owner == mark.owner and not now.is_gone:
                if now.heartbeat != earlier.heartbeat:
                    del open_[identifier]
                elif elapsed_s >= max(watch_s, now.ttl_s):
                    dead.append(open_.pop(identifier)[0])
            elif elapsed_s >= watch_s:
                dead.append(flow_run)
                del open_[identifier]
        if open_:
            await asyncio.sleep(_LOOK_EVERY_S)
    return dead


def sighting_of(mark: Mark) -> Sighting | None:
    """A look at the lease of the marked run; None if its store can't be read from here.

    A directory may have the same path on another machine: then the lease that is found is older
    than the marked one, or there is none.
    """
    try:
        sighting = watch_lease(RunStore(open_store(mark.store, read_only=True), mark.run))
    except NipError as error:
        _log.warning("%s in %s: can't be looked at from here: %s", mark.run, mark.store, error)
        return None
    return None if sighting.epoch < mark.epoch else sighting


async def _silent_s(client: PrefectClient, flow_run: FlowRun, ahead: timedelta) -> float:
    """Measure the time since the flow run's last sign of life in Prefect, in seconds."""
    now = datetime.now(UTC) - ahead
    heard = [flow_run.state.timestamp if flow_run.state else now]
    logs = await client.read_logs(
        LogFilter.model_validate({"flow_run_id": {"any_": [flow_run.id]}}),
        limit=1,
        sort=LogSort.TIMESTAMP_DESC,
    )
    heard += [log.timestamp for log in logs]
    events = await client.read_events(
        EventFilter.model_validate(
            {
                "event": {"name": ["prefect.flow-run.heartbeat"]},
                "resource": {"id": [f"prefect.flow-run.{flow_run.id}"]},
                "occurred": {"since": now - timedelta(days=1)},
            }
        ),
        limit=1,
    )
    heard += [event.occurred for event in events.events]
    return (now - max(heard)).total_seconds()


async def bury(client: PrefectClient, flow_run: FlowRun) -> None:
    """Record a flow run's process as gone: Crashed, or Cancelled if a user asked for it."""
    state: State[Any] = Crashed(message="Its process is gone; found by reconcile.")
    await bury_parts(client, flow_run.id, state)
    if flow_run.state_type is StateType.CANCELLING:
        state = Cancelled(message="Its process is gone; found by reconcile.")
    await client.set_flow_run_state(flow_run.id, state, force=True)


async def bury_parts(client: PrefectClient, identifier: UUID, state: State[Any]) -> None:
    """Set the open subflows and tasks of a flow run to this state."""
    of_it = {"any_": [identifier]}
    children = FlowRunFilter.model_validate({"parent_flow_run_id": of_it, **_OPEN})
    for child in await client.read_flow_runs(flow_run_filter=children):
        await bury_parts(client, child.id, state)
        await client.set_flow_run_state(child.id, state, force=True)
    tasks = TaskRunFilter.model_validate({"flow_run_id": of_it, **_OPEN})
    for task_run in await client.read_task_runs(task_run_filter=tasks):
        await client.set_task_run_state(task_run.id, state, force=True)


async def list_restartable(
    client: PrefectClient,
    *,
    older_than_s: float,
    not_older_than_s: float,
    max_attempts: int,
    ahead: timedelta = _NO_TIME,
) -> list[FlowRun]:
    """List crashed flow runs of deployments, without those taken up by another process.

    `older_than_s` keeps clear of a worker's late second report of a crash. Left alone are those
    that ran `max_attempts` times, those of a run that another flow run took up later, and those of
    a run that another process holds now.
    """
    now = datetime.now(UTC) - ahead
    oldest = now - timedelta(seconds=not_older_than_s)
    waiting = [*_GOING_ON, StateType.SCHEDULED, StateType.PAUSED]
    end_filter = FlowRunFilter.model_validate({"end_time": {"after_": oldest}})
    open_ = FlowRunFilter.model_validate({"state": {"type": {"any_": waiting}}})
    recent = [
        flow_run
        for state in (end_filter, open_)
        for flow_run in await client.read_flow_runs(
            flow_filter=_OUR_FLOWS,
            flow_run_filter=state,
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
            limit=_MOST,
        )
    ]
    # 1. The server's clock is past all that it has written, also where `ahead` is a bit too much.
    now = max([now, *map(_changed_at, recent)])
    # 2. Of the flow runs of one run the newest counts, not the earlier ones.
    newest: dict[tuple[str, str], FlowRun] = {}
    for flow_run in sorted(recent, key=_changed_at):
        if (mark := read_mark(flow_run)) is not None:
            newest[mark.store, mark.run] = flow_run
    # 3. Those that crashed long enough ago, and whose run no process holds.
    crashed = []
    for flow_run in recent:
        mark = read_mark(flow_run)
        age_s = (now - _changed_at(flow_run)).total_seconds()
        if (
            flow_run.state_type is StateType.CRASHED
            and flow_run.deployment_id is not None
            and flow_run.run_count < max_attempts
            and older_than_s <= age_s <= not_older_than_s
            and (mark is None or newest[mark.store, mark.run].id == flow_run.id)
            and not (mark is not None and _is_held(mark))
        ):
            crashed.append(flow_run)
    return crashed


def _changed_at(flow_run: FlowRun) -> datetime:
    assert flow_run.state is not None  # every flow run of a deployment has one
    return flow_run.state.timestamp


def _is_held(mark: Mark) -> bool:
    sighting = sighting_of(mark)
    return sighting is None or (sighting.owner not in (None, mark.owner) and not sighting.is_gone)


async def restart(client: PrefectClient, flow_run: FlowRun, max_attempts: int) -> str:
    """Do the same as the button Retry: the next free worker goes on with it; return the attempt."""
    attempt = f"attempt {flow_run.run_count + 1} of {max_attempts}"
    # At once, also where this host's clock is ahead of the server's, which would wait for it.
    state: State[Any] = AwaitingRetry(
        scheduled_time=_changed_at(flow_run), message=f"Started again by reconcile: {attempt}."
    )
    await client.set_flow_run_state(flow_run.id, state, force=True)
    return attempt


async def name_outcome(client: PrefectClient, identifier: UUID, dead: int, restarted: int) -> None:
    """Name the flow run of `reconcile` by its work, as reconcile-1-dead-1-restarted."""
    did = [f"{n}-{verb}" for n, verb in ((dead, "dead"), (restarted, "restarted")) if n]
    await client.update_flow_run(identifier, name="-".join(["reconcile", *did]) if did else IDLE)


async def delete_idle(client: PrefectClient, but: UUID) -> None:
    """Delete the ended, idle flow runs of `reconcile`, all `but` one."""
    end_filter = {"state": {"type": {"any_": [StateType.COMPLETED, StateType.CANCELLED]}}}
    for flow_run in await client.read_flow_runs(
        flow_filter=FlowFilter.model_validate({"name": {"any_": ["reconcile"]}}),
        flow_run_filter=FlowRunFilter.model_validate(end_filter),
        sort=FlowRunSort.START_TIME_DESC,
        limit=_MOST,
    ):
        # One that was due while another went on is cancelled before it has begun.
        did_nothing = flow_run.name == IDLE or flow_run.run_count == 0
        if did_nothing and flow_run.id != but:
            with contextlib.suppress(ObjectNotFound):  # deleted meanwhile by another process
                await client.delete_flow_run(flow_run.id)
