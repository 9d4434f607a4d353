"""Shards that are played by other processes, on a cluster of each kind, give the same data."""

import os

import pytest
from flow_graphs import draw
from small_game import write_config

from nip_core.errors import SettingsError
from nip_core.parameters.blocks.loop_settings import RolloutParameters
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_prefect.flows import remote_shards
from nip_prefect.flows.train import train

RL = {"num_iterations": 1, "rollouts_per_iteration": 60, "num_epochs": 1}


def digests(folder) -> dict:
    run = RunStore(open_store(folder / "runs"), "small")
    return {
        stage: read_manifest(run.store, run.rollouts(*stage)).extra["canonical_digest"]
        for stage in [(0, "test"), (0, "train"), (1, "test")]
    }


@pytest.fixture(scope="module")
async def played_here(stack, tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("here")
    await train(str(write_config(folder, rl=RL)))
    return digests(folder)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", [pytest.param("dask", marks=pytest.mark.short), "ray"])
async def test_a_cluster_plays_the_same(kind, played_here, stack, tmp_path, monkeypatch):
    pytest.importorskip(f"prefect_{kind}")
    played = []
    original = remote_shards.play_remotely

    async def watched(*values):
        newest = await original(*values)
        played.extend(newest)
        return newest

    monkeypatch.setattr("nip_prefect.flows.iteration.play_remotely", watched)
    rollouts = {"episodes_per_shard": 20, "task_runner": kind}
    state = await train(
        str(write_config(tmp_path, rl=RL, rollouts=rollouts)),
        return_state=True,
    )
    result = await state.result()
    assert result["status"] == "finished"
    assert digests(tmp_path) == played_here
    assert {job["status"] for job in result["iterations"][0]["jobs"].values()} == {"succeeded"}
    assert len(played) == 5 and os.getpid() not in {shard["process"] for shard in played}
    # A flow run of its own stands between the plan and the commit, and in it each shard comes after
    # what all of them have to know.
    graphs = await draw(str(state.state_details.flow_run_id))
    before, shards = graphs["iteration-small-0"].before, graphs["play-small-train-0"].before
    assert before["play-small-train-0"] == {"plan-train-0"}
    assert before["commit-train-0"] == {"play-small-train-0"}
    named = {f"play-train-0-{number:04d}": {"make-ticket"} for number in range(3)}
    assert shards == {"make-ticket": set(), **named}
    assert all(graph.roots == [graph.first] for graph in graphs.values())


def test_a_task_runner_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(remote_shards._RUNNERS, "dask", ("prefect_dusk", "DaskTaskRunner"))
    with pytest.raises(SettingsError, match="needs prefect-dusk, which is not installed"):
        remote_shards.task_runner(RolloutParameters(task_runner="dask"))
