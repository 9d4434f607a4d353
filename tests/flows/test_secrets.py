"""A key from a Secret block reaches the server that wants it, and stands nowhere else."""

import asyncio
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prefect import get_client
from prefect.blocks.system import Secret
from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterStartTime
from prefect.settings import get_current_settings
from server_here import one_here
from small_game import FEW, write_config

from nip_base.spec import ServerSpec
from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_prefect.flows.train import train
from nip_prefect.tasks.secrets import block_name, environment_for


@pytest.fixture
def lm_server(tmp_path):
    with one_here(ServerSpec("deterministic", "deterministic"), tmp_path / "server") as handle:
        yield handle


@pytest.fixture
async def config(lm_server, tmp_path, monkeypatch):
    monkeypatch.delenv("NIP_API_KEY", raising=False)
    runs = {"run_name": "secretive", "run_store": str(tmp_path / "runs")}
    server = {"url": lm_server.url}
    watched = {"poll_interval_s": 0.05, "settle_s": 0.0}
    return write_config(tmp_path, rl=FEW, lm_server=server, fine_tuning=watched, **runs)


async def everything_prefect_shows(began: datetime) -> str:
    """The latest flow runs, task runs, logs, artifacts and events of the server, as text."""
    of_this = TaskRunFilter(start_time=TaskRunFilterStartTime(after_=began))
    async with get_client() as client, asyncio.timeout(60):
        while not (tasks := await client.read_task_runs(task_run_filter=of_this)) or not all(
            task.state is not None and task.state.is_final() for task in tasks
        ):
            await asyncio.sleep(0.1)  # they are written down together
        found = []
        for kind in ("flow_runs", "task_runs", "logs", "artifacts", "events"):
            latest = {"sort": "TIMESTAMP_DESC"} if kind == "logs" else {}  # as the others are
            answer = await client._client.post(f"/{kind}/filter", json=latest)
            answer.raise_for_status()
            found.append(json.dumps(answer.json()))
        return "".join(found)


async def test_a_key_from_a_block_is_used_and_stands_nowhere(
    prefect_server, config, lm_server, tmp_path, capfd
):
    key, began = lm_server.api_key, datetime.now(UTC)
    await Secret(value=key).save(block_name("NIP_API_KEY"), overwrite=True)
    try:
        result = await train(str(config))
    finally:
        async with get_client() as client:
            block = await client.read_block_document_by_name("nip-api-key", "secret")
            await client.delete_block_document(block.id)
    assert result["status"] == "finished"
    assert "NIP_API_KEY" not in os.environ
    shown = await everything_prefect_shows(began)
    assert "nip-secretive-cost" in shown and key not in shown
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if key.encode() in path.read_bytes()] == []
    database = str(get_current_settings().server.database.connection_url.get_secret_value())
    folder = Path(database.split("///")[1].split("?")[0]).parent
    kept = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pem"]
    assert any("db" in path.name for path in kept)
    assert [path for path in kept if key.encode() in path.read_bytes()] == []
    said = capfd.readouterr()
    assert key not in said.out + said.err


async def test_without_key_and_block_the_variable_is_named(prefect_server, config):
    with pytest.raises(SettingsError, match="NIP_API_KEY"):
        await train(str(config))


async def test_the_environment_comes_first(prefect_server, config, monkeypatch):
    monkeypatch.setenv("NIP_API_KEY", "from-the-environment")
    found = await environment_for(load_parameters(config))
    assert found["NIP_API_KEY"] == "from-the-environment"
