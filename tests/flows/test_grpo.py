"""Policy gradient end to end on the deterministic engine: groups, tokens, a curriculum."""

import math
from collections import Counter, defaultdict

import pytest
from small_game import train_here, write_config

from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.trainers.dataset import open_dataset

AGENT = {
    "model_provider": "SelfHosted",
    "model_name": "deterministic",
    "max_tokens_per_message": 32,
    "fine_tune_from_scratch": False,
    "shared_model_group": "both",
}
GRPO = {
    "trainer": "pure_text_grpo",
    "agents": {"_default": AGENT},
    "protocol_common": {"shared_reward": False},
    "pure_text_grpo": {"group_size": 4},
    "rl": {"num_iterations": 2, "rollouts_per_iteration": 64, "num_epochs": 1},
    "curriculum": {"enabled": True, "initial_percentile": 0.5, "expansion_interval": 2},
}


@pytest.fixture(scope="module")
async def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grpo")
    result = await train_here(write_config(folder, **GRPO))
    return result, RunStore(open_store(folder / "runs"), "small")


def played(run, iteration, split="train"):
    return read_rollouts(run.store, run.rollouts(iteration, split))


def dataset(run, iteration):
    return list(open_dataset(run.store, run.dataset(iteration, "both")).rows())


async def test_training_plays_groups_that_begin_alike_and_tests_play_single_episodes(trained):
    result, run = trained
    assert result["status"] == "finished"
    episodes = played(run, 1).episodes.to_pylist()
    assert set(Counter(e["problem"] for e in episodes).values()) == {4}
    assert len({(e["problem"], e["seed"]) for e in episodes}) == 16
    texts = defaultdict(set)
    for row in played(run, 1).generations.to_pylist():
        texts[row["episode"]].add(row["text"])
    assert len({frozenset(said) for said in texts.values()}) > 16  # they do not play alike
    assert len({e["problem"] for e in played(run, 1, "test").episodes.to_pylist()}) == 20


async def test_tokens_are_kept_of_training_alone(trained):
    _, run = trained
    for split, kept in (("train", True), ("test", False)):
        for row in played(run, 0, split).generations.to_pylist():
            assert (row["completion_token_ids"] is not None) == kept


async def test_a_trajectory_can_be_followed_back_to_what_was_generated(trained):
    _, run = trained
    for iteration in (0, 1):
        rollouts = played(run, iteration)
        generations = {row["key"]: row for row in rollouts.generations.to_pylist()}
        episodes = {row["key"]: row for row in rollouts.episodes.to_pylist()}
        rows, sums = dataset(run, iteration), defaultdict(list)
        assert len(rows) >= 10 and {row["agent"] for row in rows} == {"prover", "verifier"}
        for row in rows:
            sums[row["group_id"]].append(row["advantage"])
            paid = {r["agent"]: r["reward"] for r in episodes[row["episode"]]["rewards"]}
            assert row["reward"] == paid[row["agent"]]
            for key, turn in zip(row["generations"], row["turns"], strict=True):
                source = generations[key]
                assert (source["episode"], source["agent"]) == (row["episode"], row["agent"])
                for ids in ("prompt_token_ids", "completion_token_ids"):
                    assert list(turn[ids]) == source[ids]
        assert all(math.fsum(found) == pytest.approx(0, abs=1e-9) for found in sums.values())
        job = run.read_json(run.job(iteration, "both"))
        assert (job["method"], job["outcome"]) == ("trajectories", "succeeded")


async def test_the_curriculum_s_state_is_on_record_and_holds(trained):
    _, run = trained
    shares = []
    for iteration in (0, 1):
        facts = read_manifest(run.store, run.dataset(iteration, "both")).extra
        state = facts["curriculum"]
        shares.append((state["current_percentile"], state["last_expansion_epoch"]))
        assert state["total_groups"] == 16
        assert {r["problem"] for r in dataset(run, iteration)} <= set(state["included_groups"])
        left = 16 - sum(state["left_out"].values())
        assert len(state["included_groups"]) == left <= 16 * state["current_percentile"]
        groups = {row["group_id"] for row in dataset(run, iteration)}
        counts = facts["counts"]
        left_out = counts.get("zero_variance_groups", 0) + counts.get("small_groups", 0)
        assert counts["candidates"] == len(groups) + left_out == 2 * left
    assert shares == [(0.5, -1), (0.7, 1)]


@pytest.mark.long
async def test_the_same_seed_gives_the_same_trajectories_whatever_concurrency_and_shards(
    trained, tmp_path
):
    _, run = trained
    changes = {
        "rollouts": {"episodes_per_shard": 6, "concurrency": 1},  # groups lie across shards
        "rl": {**GRPO["rl"], "num_iterations": 1},
        "text_rl": {"test_scheme": "none"},
    }
    await train_here(write_config(tmp_path, **{**GRPO, **changes}))
    other = RunStore(open_store(tmp_path / "runs"), "small")
    digests = [
        (
            read_manifest(r.store, r.rollouts(0, "train")).extra["canonical_digest"],
            read_manifest(r.store, r.dataset(0, "both")).extra["digest"],
        )
        for r in (run, other)
    ]
    assert digests[0] == digests[1]
