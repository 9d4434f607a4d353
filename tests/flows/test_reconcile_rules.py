"""Who counts as dead and what is started again; with workers that really die: tests/cluster."""

import uuid
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from prefect import flow, get_client
from prefect.client.schemas.filters import FlowFilter
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Pending, Running

from nip_core.run_store.lease import ThisMachine, acquire
from nip_core.run_store.store import open_store
from nip_prefect.flows.reconcile import reconcile
from nip_prefect.flows.train import train
from nip_prefect.tasks.flow_run_marks import ATTEMPT, EPOCH, OWNER, RUN, STORE
from nip_prefect.tasks.reconcile import (
    bury,
    dead_among,
    delete_idle,
    list_active,
    list_restartable,
    measure_ahead,
    name_outcome,
    restart,
)

OF_RECONCILE = FlowFilter.model_validate({"name": {"any_": ["reconcile"]}})


@pytest.fixture
async def client(prefect_server):
    async with get_client() as client:
        yield client


class FlowRuns:
    """Flow runs of a deployment of their own, each made as a test wants it."""

    def __init__(self, client, store):
        self._client, self._store = client, store

    async def make(self, *states, owner=None, run="r", attempt=1, epoch=0):
        name = f"d-{uuid.uuid4().hex}"
        flow = await self._client.create_flow(train)
        deployment = await self._client.create_deployment(
            flow, name, entrypoint="nip_prefect.flows.train.train"
        )
        made = await self._client.create_flow_run_from_deployment(deployment)
        for state in states:
            await self._client.set_flow_run_state(made.id, state, force=True)
        if owner is not None:
            labels = {RUN: run, STORE: self._store.url, OWNER: owner, ATTEMPT: attempt}
            labels[EPOCH] = epoch
            await self._client.update_flow_run_labels(made.id, labels)
        return await self._client.read_flow_run(made.id)

    async def dead(self, *runs, silent_after_s=600):
        found = await dead_among(self._client, runs, silent_after_s=silent_after_s, watch_s=0)
        return {flow_run.id for flow_run in found}


@pytest.fixture
def flow_runs(client, tmp_path):
    return FlowRuns(client, open_store(tmp_path))


async def test_one_whose_lease_is_alive_is_not_dead(flow_runs, tmp_path):
    with acquire(open_store(tmp_path), "r", ttl_s=1.0) as lease:
        alive = await flow_runs.make(Running(), owner=lease.owner.id)
        assert await flow_runs.dead(alive) == set()
    assert await flow_runs.dead(alive) == {alive.id}  # released, and still not ended


async def test_a_lease_that_is_older_than_the_flow_run_proves_nothing(flow_runs, tmp_path):
    elsewhere = await flow_runs.make(Running(), owner="of another machine", epoch=2)
    assert await flow_runs.dead(elsewhere) == set()  # no lease at all
    with acquire(open_store(tmp_path), "r", ttl_s=1.0):
        assert await flow_runs.dead(elsewhere) == set()
    with acquire(open_store(tmp_path), "r", ttl_s=1.0):
        assert await flow_runs.dead(elsewhere) == {elsewhere.id}


async def test_one_that_was_replaced_is_dead(flow_runs, tmp_path):
    with acquire(open_store(tmp_path), "r", ttl_s=1.0):
        assert len(await flow_runs.dead(await flow_runs.make(Running(), owner="other"))) == 1


@dataclass
class Elsewhere(ThisMachine):
    """An owner on another machine, of which nothing can be learned but the heartbeat."""

    def owner(self):
        return replace(super().owner(), machine="elsewhere")


async def test_a_heartbeat_that_stands_still_is_dead_wherever_it_was(flow_runs, tmp_path):
    lease = acquire(open_store(tmp_path), "r", ttl_s=1.0, machine=Elsewhere(), renew=False)
    stopped = await flow_runs.make(Running(), owner=lease.owner.id)
    assert await flow_runs.dead(stopped) == {stopped.id}


async def test_the_mark_of_an_earlier_attempt_says_nothing(flow_runs, tmp_path):
    with acquire(open_store(tmp_path), "r", ttl_s=1.0):
        starting = await flow_runs.make(Running(), owner="earlier", attempt=0)
        waiting = await flow_runs.make(Pending(), owner="earlier", attempt=0)
        assert await flow_runs.dead(starting, waiting) == set()


async def test_without_a_mark_silence_decides(flow_runs):
    silent = await flow_runs.make(Running())
    taken = await flow_runs.make(Pending())  # by a worker that was killed before it began
    assert await flow_runs.dead(silent, taken, silent_after_s=600) == set()
    assert await flow_runs.dead(silent, taken, silent_after_s=-1) == {silent.id, taken.id}


async def test_a_store_that_cannot_be_read_is_no_proof(flow_runs, tmp_path):
    flow_runs._store = type("Gone", (), {"url": "file:///nonexistent/store"})
    assert await flow_runs.dead(await flow_runs.make(Running(), owner="x")) == set()


async def test_what_is_dead_is_buried_with_what_it_was_asked_for(client, flow_runs):
    running = await flow_runs.make(Running())
    cancelling = await flow_runs.make(Running(), Cancelling())
    assert {running.id, cancelling.id} <= {r.id for r in await list_active(client)}
    for flow_run in (running, cancelling):
        await bury(client, flow_run)
    states = [(await client.read_flow_run(r.id)).state for r in (running, cancelling)]
    assert states[0].is_crashed() and states[1].is_cancelled()


async def again(client, **changes):
    limits = {"older_than_s": 0, "not_older_than_s": 3600, "max_attempts": 3} | changes
    return {flow_run.id for flow_run in await list_restartable(client, **limits)}


async def test_a_crashed_flow_run_goes_on_a_few_times(client, flow_runs):
    crashed = await flow_runs.make(Running(), Crashed(), owner="gone", run="few")
    never_started = await flow_runs.make(Pending(), Crashed())
    assert {crashed.id, never_started.id} <= await again(client)
    # run_count is 1 for the first and 0 for the second.
    assert (await again(client, max_attempts=1)) & {crashed.id, never_started.id} == {
        never_started.id
    }
    assert not await again(client, max_attempts=0)
    assert crashed.id not in await again(client, older_than_s=60)
    assert crashed.id not in await again(client, not_older_than_s=0)
    # As on hosts whose clocks are two hours ahead of the server's, and behind.
    hours = timedelta(hours=2)
    assert crashed.id not in await again(client, ahead=hours, older_than_s=60)
    assert crashed.id in await again(client, ahead=-hours, older_than_s=7000, not_older_than_s=7400)


async def test_one_that_crashed_a_moment_ago_goes_on_if_the_host_is_slow(client, flow_runs):
    crashed = await flow_runs.make(Pending(), Crashed())
    # Seconds between the start of reconcile and its look at the clock count as ahead.
    assert crashed.id in await again(client, ahead=timedelta(seconds=20))


async def test_a_run_that_another_flow_run_took_up_is_left_alone(client, flow_runs, tmp_path):
    crashed = await flow_runs.make(Running(), Crashed(), owner="gone", run="taken")
    await flow_runs.make(Running(), Completed(), owner="later", run="taken")
    assert crashed.id not in await again(client)
    held = await flow_runs.make(Running(), Crashed(), owner="gone", run="held")
    assert held.id in await again(client)
    with acquire(open_store(tmp_path), "held", ttl_s=1.0):
        assert held.id not in await again(client)
    assert held.id in await again(client)


async def test_a_flow_run_without_a_deployment_cannot_be_started_again(client, flow_runs):
    local = await client.create_flow_run(train, parameters={"config": "c"}, state=Running())
    await client.set_flow_run_state(local.id, Crashed(), force=True)
    assert local.id not in await again(client)


async def test_a_flow_run_that_is_started_again_says_which_attempt_it_is(client, flow_runs):
    crashed = await flow_runs.make(Running(), Crashed())
    assert await restart(client, crashed, 5) == "attempt 2 of 5"
    state = (await client.read_flow_run(crashed.id)).state
    assert state.is_scheduled() and "attempt 2 of 5" in state.message
    # At a time of the server's clock, or it would wait for that of the host.
    assert state.state_details.scheduled_time == crashed.state.timestamp


async def test_a_host_knows_how_far_its_clock_is_ahead(client):
    @flow
    async def asking() -> timedelta:
        return await measure_ahead(client)

    assert timedelta(seconds=-1) < await asking() < timedelta(seconds=30)
    assert await measure_ahead(client) == timedelta()


async def test_of_the_flow_runs_of_reconcile_those_that_did_something_stay(client):
    async def make(state, dead, restarted):
        made = await client.create_flow_run(reconcile, state=Running())
        await name_outcome(client, made.id, dead, restarted)
        await client.set_flow_run_state(made.id, state, force=True)
        return made.id

    idle = [await make(Completed(), 0, 0) for _ in range(3)]
    useful, failed = await make(Completed(), 1, 2), await make(Crashed(), 0, 0)
    too_many = (await client.create_flow_run(reconcile, state=Cancelled())).id
    await delete_idle(client, idle[-1])
    names = {r.id: r.name for r in await client.read_flow_runs(flow_filter=OF_RECONCILE)}
    assert names.keys() >= {idle[-1], useful, failed}
    assert not names.keys() & {*idle[:-1], too_many}
    assert names[useful] == "reconcile-1-dead-2-restarted"
