"""A temporary Prefect server: its files are for its owner alone, its transactions wait in turn."""

import os
from pathlib import Path

import anyio
import httpx
import pytest
from prefect_stack import until

from nip_cli.launching.temporary_prefect import TemporaryPrefect


@pytest.fixture
def server(own_prefect, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", own_prefect["PREFECT_HOME"])
    own = os.umask(0o022)
    try:
        server = TemporaryPrefect()
    finally:
        os.umask(own)
    yield server
    server.stop()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="of Linux alone")
async def test_no_other_user_reads_its_database_and_no_write_at_the_same_time_fails(server):
    # 1. What it makes is its owner's.
    status = Path(f"/proc/{server._process.pid}/status")
    assert "Umask:\t0077\n" in until(status.read_text, "it runs")
    # 2. A request whose transaction opens a session within it does not wait for itself.
    server.wait(60)
    codes: list[int] = []
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        pool = {"name": "p", "type": "process"}
        assert (await client.post("/work_pools/", json=pool)).status_code == 201
        paused = await client.patch(
            "/work_pools/p/queues/default", json={"is_paused": True}, timeout=20
        )
        assert paused.status_code == 204
        # 3. A client that is answered by a 503 waits for two seconds and tries again: none is.
        flow = (await client.post("/flows/", json={"name": "f"})).json()["id"]
        body = {"flow_id": flow, "state": {"type": "RUNNING"}}
        run = (await client.post("/flow_runs/", json=body)).json()["id"]

        async def write(number: int) -> None:
            log = {"name": "l", "level": 20, "message": "m", "timestamp": "2026-01-01T00:00:00Z"}
            task = {"task_key": "t", "dynamic_key": str(number), "flow_run_id": run}
            for path, sent in (("/task_runs/", task), ("/logs/", [{**log, "flow_run_id": run}])):
                codes.append((await client.post(path, json=sent)).status_code)

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(write, number)
    assert codes == [201] * 80
