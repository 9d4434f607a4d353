"""Flow runs whose process is gone are found and finished, whoever was killed and how."""

import asyncio
import os
import signal
import time

import psutil
import pytest
from prefect import get_client
from prefect.deployments import run_deployment
from prefect_stack import kill_tree, until
from slow_game import digests, is_playing, runner_of, slow_config

from nip_prefect.flows.reconcile import reconcile
from nip_prefect.flows.train import train

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


async def states_of(flow_run_id):
    async with get_client() as client:
        return [s.name for s in await client.read_flow_run_states(flow_run_id)]


async def reconcile_until_ended(flow_run_id, deadline_s=300):
    """Run reconcile as its schedule would; the flow run as it ended, and what was found dead."""
    dead, restarted = [], []
    end_s = time.monotonic() + deadline_s
    async with get_client() as client:
        while time.monotonic() < end_s:
            found = await reconcile(watch_s=3, restart_after_s=20)
            dead += found["dead"]
            restarted += found["restarted"]
            flow_run = await client.read_flow_run(flow_run_id)
            if flow_run.state.is_completed() or flow_run.state.is_failed():
                return flow_run, dead, restarted
            await asyncio.sleep(1)
    raise AssertionError(f"still {flow_run.state} after {deadline_s} s")


def test_schedules_make_flow_runs(stack):
    """A server with packages that do not fit together goes without them, and says so in its log."""
    deployment = stack.api("/deployments/name/train/weekly-training")
    wanted = {
        "deployments": {"id": {"any_": [deployment["id"]]}},
        "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}},
    }
    until(lambda: stack.api("/flow_runs/filter", wanted), "the weekly training is scheduled")


@pytest.mark.parametrize("killed", ["flow", "worker-sigterm", "both"])
async def test_a_flow_run_whose_process_is_gone_is_finished(stack, killed, tmp_path):
    name = f"reconciled-{killed}"
    config = slow_config(tmp_path / "killed", name)
    worker = stack.start_worker()
    started = await run_deployment(
        "train/quickstart", parameters={"config_file": str(config)}, timeout=0
    )
    await asyncio.to_thread(until, lambda: is_playing(tmp_path / "killed", name), "it plays")
    runner = runner_of(tmp_path / "killed", name)
    if killed == "flow":
        os.kill(runner, signal.SIGKILL)
    elif killed == "worker-sigterm":
        worker.send_signal(signal.SIGTERM)
        worker.wait(timeout=60)
    else:
        kill_tree(worker.pid, signal.SIGKILL)
        worker.wait(timeout=60)
    await asyncio.to_thread(until, lambda: not psutil.pid_exists(runner), "the flow is gone")
    if killed != "flow":
        # Nobody told the server.
        assert (await states_of(started.id))[-1] == "Running"
        worker = stack.start_worker()
    ended, dead, restarted = await reconcile_until_ended(started.id)
    assert ended.state.is_completed(), ended.state
    # A worker that lives reports the crash of a flow itself.
    assert len(dead) == (killed != "flow"), await states_of(started.id)
    assert len(restarted) == 1 and ended.run_count == 2
    assert ended.name == f"train-{name}-attempt-2"
    of_it = {"flow_runs": {"parent_flow_run_id": {"any_": [str(ended.id)]}}}
    iterations = stack.api("/flow_runs/filter", of_it)
    assert all(set(ended.tags) <= set(flow_run["tags"]) for flow_run in iterations)
    assert {f["state_type"] for f in iterations} <= {"COMPLETED", "CRASHED"}  # none goes on
    worker.terminate()
    worker.wait(timeout=60)

    straight = slow_config(tmp_path / "straight", name)
    await train(str(straight))
    assert digests(tmp_path / "killed", name) == digests(tmp_path / "straight", name)
