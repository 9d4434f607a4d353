"""Going on: extended, forked, with its server killed, with something changed underneath."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from small_game import FEW, train_here, write_config

from nip_core.errors import LeaseError, RunConflictError
from nip_core.loop import play
from nip_core.parameters import load_parameters
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.opening import open_session
from nip_core.session.prepare import fork_run
from nip_lm_server.engines.scripted.reply_rules import DEFAULT_FILE
from nip_lm_server.state.directory import read_card
from nip_prefect.flows.train import train

in_thread = pytest.mark.usefixtures("server_in_thread")


def run_in(folder: Path, name: str = "small") -> RunStore:
    return RunStore(open_store(folder / "runs"), name)


def digest_of(run: RunStore, iteration: int = 0, split: str = "train") -> str:
    return read_manifest(run.store, run.rollouts(iteration, split)).extra["canonical_digest"]


@pytest.fixture(scope="module")
async def trained(tmp_path_factory):
    """A folder with the finished run `small`, and its summary."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, await train_here(write_config(folder, rl=FEW))


@pytest.fixture
def config(trained, tmp_path):
    """The configuration of a copy of that run, in `tmp_path`."""
    shutil.copytree(trained[0] / "runs", tmp_path / "runs")
    return write_config(tmp_path, rl=FEW)


async def test_a_fork_goes_on_with_the_models_it_began_with(trained, config, tmp_path):
    _, base = trained
    changes = ["run_name=forked", "rl.num_iterations=2", "rl.lr=0.01"]
    forked = load_parameters(config, changes)
    fork_run(load_parameters(config), forked)
    result = await train_here(config, changes)
    assert result["status"] == "finished"
    assert result["iterations"][1]["models"] == base["iterations"][1]["models"]
    assert result["iterations"][0]["jobs"] == base["iterations"][0]["jobs"]
    assert result["iterations"][2]["models"]["verifier"].startswith("ft:deterministic:forked-0001")
    assert run_in(tmp_path, "forked").open().forked_from == "small"
    assert (await train_here(config))["iterations"] == base["iterations"]


@in_thread
async def test_a_run_in_progress_is_not_forked(tmp_path):
    config = write_config(tmp_path)
    async with open_session(load_parameters(config)):
        with pytest.raises(LeaseError):
            fork_run(load_parameters(config), load_parameters(config, ["run_name=other"]))


@in_thread
async def test_an_extension_needs_nothing_of_finished_iterations_but_their_models(config, tmp_path):
    run = run_in(tmp_path)
    folder = run.store.local_path(run.rollouts(0, "train"))
    next(folder.glob("episodes-*.parquet")).write_bytes(b"damaged")
    async with open_session(load_parameters(config, ["rl.num_iterations=2"])) as session:
        await play(session, 1, "train")


async def kill_server_when(folder: Path, condition) -> None:
    """SIGKILL the run's own server as soon as `condition` holds."""
    while not condition():
        await asyncio.sleep(0.01)
    card = read_card(folder / "runs" / "small" / "lm_server")
    assert card is not None
    os.kill(card.pid, signal.SIGKILL)


@pytest.mark.kill_matrix
@pytest.mark.parametrize("stage", ["playing", "training"])
async def test_a_killed_server_is_started_again_and_nothing_changes(
    stage, tmp_path, prefect_server, monkeypatch
):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    straight.mkdir(), killed.mkdir()
    replies = yaml.safe_load(DEFAULT_FILE.read_text())
    replies |= {"latency_s": {"mean": 0.02}, "training": {"seconds": 1.0}}
    path = tmp_path / "replies.yaml"
    path.write_text(yaml.safe_dump(replies))
    server = {"engine": "deterministic", "replies": str(path)}
    await train(str(write_config(straight, rl=FEW, lm_server=server)))
    config = write_config(
        killed, rl=FEW, lm_server=server, rollouts={"concurrency": 8, "episodes_per_shard": 20}
    )
    journals = killed / "runs" / "small" / "journals" / "0000" / "train"
    job = killed / "runs" / "small" / "iterations" / "0000" / "jobs" / "prover.json"
    conditions = {
        "playing": lambda: any(j.stat().st_size > 2000 for j in journals.glob("*.journal")),
        "training": lambda: job.exists() and '"submitted"' in job.read_text(),
    }
    killing = asyncio.create_task(kill_server_when(killed, conditions[stage]))
    result = await train(str(config))
    await killing
    assert result["status"] == "finished"
    for split, iteration in (("train", 0), ("test", 1)):
        assert digest_of(run_in(killed), iteration, split) == digest_of(
            run_in(straight), iteration, split
        )


def own_dataset(folder: Path, flip: bool) -> str:
    target = folder / "data"
    target.mkdir(exist_ok=True)
    for split in ("train", "validation", "test"):
        rows = [
            {
                "id": f"{split}-{i}",
                "question": f"Return {i} ({split}).",
                "solution": f"def f():\n    return {i}  # {split}",
                "y": int((i % 2 == 0) != flip),
            }
            for i in range(40)
        ]
        pq.write_table(pa.Table.from_pylist(rows), target / f"{split}.parquet")
    return str(target)


@in_thread
async def test_a_dataset_that_changed_underneath_is_refused(tmp_path):
    config = write_config(tmp_path, dataset=own_dataset(tmp_path, flip=False), rl=FEW)
    async with open_session(load_parameters(config)):
        pass
    own_dataset(tmp_path, flip=True)
    with pytest.raises(RunConflictError, match=r"content of problems\.train"):
        async with open_session(load_parameters(config)):
            pass


@in_thread
async def test_a_template_that_changed_underneath_is_refused(tmp_path):
    template = tmp_path / "prover.txt"
    template.write_text("$question $solution")
    agents = {
        "_default": {"model_provider": "SelfHosted", "model_name": "deterministic"},
        "prover": {"system_prompt_template_path": str(template)},
    }
    config = write_config(tmp_path, agents=agents)
    async with open_session(load_parameters(config)):
        pass
    template.write_text("Now $question $solution")
    with pytest.raises(RunConflictError, match=r"content of templates\.prover"):
        async with open_session(load_parameters(config)):
            pass


@in_thread
async def test_a_refused_runner_leaves_no_trace_in_the_run(tmp_path):
    config = write_config(tmp_path)
    async with open_session(load_parameters(config)):
        with pytest.raises(LeaseError):
            async with open_session(load_parameters(config, ["rl.num_iterations=0"])):
                pass
    run = run_in(tmp_path)
    assert run.open().parameters["rl"]["num_iterations"] == 2
    assert run.store.list(f"{run.root}/openings") == []
