"""Training by MALT end to end on the deterministic engine: expert iteration first, then trees."""

from collections import Counter

import pytest
from small_game import train_here, write_config

from nip_core.rollouts.storage.table_rows import read_rows
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.rollouts.trees import Leaf, tree_of
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.trainers.dataset import open_dataset

MALT = {
    "trainer": "pure_text_malt",
    "pure_text_malt": {"num_initial_ei_iterations": 1},
    "rl": {"num_iterations": 2, "rollouts_per_iteration": 30, "num_epochs": 1},
    "text_rl": {"test_scheme": "last"},
}


@pytest.fixture(scope="module")
async def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("malt")
    result = await train_here(write_config(folder, **MALT))
    return result, RunStore(open_store(folder / "runs"), "small")


def played(run, iteration, split):
    return read_rollouts(run.store, run.rollouts(iteration, split))


async def test_only_training_by_preferences_grows_trees(trained):
    _, run = trained
    for iteration, split in ((0, "train"), (2, "test")):
        rollouts = played(run, iteration, split)
        for table in (rollouts.episodes, rollouts.generations):
            assert set(table["branch_path"].to_pylist()) == {""}
    trees = played(run, 1, "train")
    leaves = trees.episodes.to_pylist()
    tree = {row.key: tree_of(row) for row in read_rows(trees.episodes, Leaf)}
    nodes = {(tree[g["episode"]], g["branch_path"]) for g in trees.generations.to_pylist()}
    sizes = Counter(place for place, _ in nodes)
    assert len(sizes) == 30 and len(leaves) > 60
    assert max(sizes.values()) == 14  # two answers in each of three rounds


async def test_each_iteration_is_trained_by_its_own_method(trained):
    result, run = trained
    assert result["status"] == "finished"
    for iteration, method in ((0, "supervised"), (1, "dpo")):
        for group in ("prover", "verifier"):
            job = run.read_json(run.job(iteration, group))
            assert (job["method"], job["outcome"]) == (method, "succeeded")
    last = result["iterations"][2]["models"]
    assert last == {g: run.read_json(run.job(1, g))["model"] for g in ("prover", "verifier")}


async def test_a_pair_can_be_followed_back_to_two_answers_to_one_prompt(trained):
    _, run = trained
    rollouts = played(run, 1, "train")
    generations = {row["key"]: row for row in rollouts.generations.to_pylist()}
    episodes = {row["key"]: row for row in rollouts.episodes.to_pylist()}
    for group in ("prover", "verifier"):
        directory = run.dataset(1, group)
        rows = list(open_dataset(run.store, directory).rows())
        counts = read_manifest(run.store, directory).extra["counts"]
        assert counts["candidates"] == 30 and counts["pairs"] == len(rows) >= 10
        for row in rows:
            better, worse = (generations[key] for key in row["generations"])
            assert (better["text"], worse["text"]) == (row["chosen"], row["rejected"])
            assert better["parent_key"] == worse["parent_key"] and better["agent"] == group
            assert row["reward"] > row["rejected_reward"]
            assert episodes[row["episode"]]["problem"] == row["problem"]
