"""Which stages Prefect tries again by itself."""

import asyncio
from concurrent.futures import CancelledError as FutureCancelledError
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from prefect import flow, get_client
from prefect.client.schemas.objects import StateType
from prefect.exceptions import Abort
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import AwaitingRetry, Crashed, Running, Scheduled
from prefect_stack import free_port
from tcp_proxy import TcpProxy

from nip_core.errors import LeaseError, SettingsError, StageError
from nip_core.parameters import load_parameters
from nip_core.rollouts.client.chat_client import TransportError
from nip_core.stages.playing import play_shard
from nip_prefect.tasks import runtime
from nip_prefect.tasks.calls import TASKS
from nip_prefect.tasks.runtime import limit_by_tag, open_run, retried_task, session_of


@pytest.mark.parametrize(
    ("error", "tries"),
    [(TransportError("no answer"), 3), (StageError("stop"), 1), (SettingsError("wrong"), 1)],
)
async def test_only_what_may_pass_is_tried_again(error, tries, prefect_server):
    tried = []

    @retried_task("trying", "trying")
    async def trying() -> None:
        tried.append(1)
        raise error

    quick = trying.with_options(retry_delay_seconds=[0.0, 0.0])

    @flow
    async def once() -> None:
        await quick()

    with pytest.raises(type(error)):
        await once()
    assert len(tried) == tries


def test_a_run_that_is_not_open_is_named():
    with pytest.raises(RuntimeError, match="'nowhere' is not open"):
        session_of("nowhere")


async def test_a_tag_is_put_on_a_task_only_where_somebody_has_limited_it(prefect_server):
    task = TASKS[play_shard]
    assert (await limit_by_tag(task, "nobody-limits-this")) is task
    async with get_client() as client:
        await client.create_concurrency_limit("somebody-limits-this", 1)
    tagged = await limit_by_tag(task, "somebody-limits-this")
    assert tagged.tags == {"somebody-limits-this"}
    assert (tagged.retries, tagged.fn) == (task.retries, task.fn)


@pytest.mark.parametrize(
    ("kind", "states"),
    [
        (LeaseError, ()),
        pytest.param(LeaseError, (Scheduled(), Running()), marks=pytest.mark.long),
        pytest.param(FutureCancelledError, (), marks=pytest.mark.long),
        pytest.param(FutureCancelledError, (Crashed(),), marks=pytest.mark.long),
        pytest.param(FutureCancelledError, (Crashed(), AwaitingRetry()), marks=pytest.mark.long),
        (FutureCancelledError, (Scheduled(), Running())),
    ],
)
async def test_an_attempt_that_another_has_replaced_leaves_the_state_of_the_flow_run_alone(
    kind, states, prefect_server, tmp_path
):
    parameters = load_parameters("deterministic", [f"run_store={tmp_path}"])
    identifiers = []

    @flow
    async def losing() -> None:
        async with open_run(parameters):
            identifiers.append(flow_run.get_id())
            async with get_client() as client:
                for state in states:  # as by `reconcile` and a worker on another host
                    await client.set_flow_run_state(identifiers[0], state, force=True)
            raise kind("taken over by another runner")

    with pytest.raises(Abort if states else kind, match=r"goes on|taken over"):
        await losing()
    async with get_client() as client:
        seen = await client.read_flow_run(identifiers[0])
    assert seen.state.type == (states[-1].type if states else StateType.FAILED)


async def test_a_failed_flow_run_of_a_worker_waits_for_a_server_that_is_out_of_reach(
    monkeypatch, prefect_server, caplog
):
    lost = OSError("no route to the cluster")
    runtime._log.addHandler(caplog.handler)

    @flow
    async def once() -> str | None:
        return flow_run.get_id()

    identifier = UUID(await once())
    there, port = urlsplit(prefect_server), free_port()
    monkeypatch.setattr(runtime, "_PAUSE_S", 0.1)
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}{there.path}"}):
        # 1. In a terminal an error is told at once.
        assert await runtime._read_flow_run(identifier, lost) is None
        # 2. Under a worker, when the server is back or has been waited for.
        monkeypatch.setenv(runtime.OF_A_WORKER, str(identifier))
        asked = asyncio.create_task(runtime._read_flow_run(identifier, lost))
        await asyncio.sleep(0.5)
        assert not asked.done()
        back = await asyncio.start_server(TcpProxy(there.port).serve, "127.0.0.1", port)
        assert (await asked).run_count == 1
        back.close()
        monkeypatch.setattr(runtime, "PATIENCE_S", 0.5)
        assert await runtime._read_flow_run(identifier, lost) is None
    runtime._log.removeHandler(caplog.handler)
    told = [record.getMessage() for record in caplog.records]
    assert [words for words in told if "no route to the cluster" in words]
    # 3. That there is no such flow run, or no more, is an answer.
    gone = UUID(int=1)
    monkeypatch.setenv(runtime.OF_A_WORKER, str(gone))
    assert await asyncio.wait_for(runtime._read_flow_run(gone, lost), 20) is None
