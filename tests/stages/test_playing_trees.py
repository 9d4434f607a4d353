"""A stage of trees: what is committed, whatever concurrency and shards, and which trees failed."""

import asyncio
from dataclasses import replace

import pytest
import yaml
from small_game import write_config

from nip_core.concurrency import gather_or_cancel
from nip_core.errors import StageError
from nip_core.parameters import load_parameters
from nip_core.rollouts.plan import plan_episodes
from nip_core.rollouts.storage.shard_manifests import shard_manifest
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.rollouts.trees import parse_path
from nip_core.run_store.manifest import read_manifest
from nip_core.session.opening import open_session
from nip_core.stages.choosing import build_dataset
from nip_core.stages.playing import commit_split, plan_split, play_shard, split_play

REPLIES = {
    "default": [
        {"text": "Decision: {choice:accept|reject}", "weight": 1},
        {"text": "Decision: perhaps", "weight": 1},
    ]
}
GROUPS = ("prover", "verifier")


class Stage:
    """What a run with these settings of `rollouts` commits for its first iteration."""

    def __init__(self, folder, **rollouts):
        self.folder = folder
        replies = folder / "replies.yaml"
        replies.write_text(yaml.safe_dump(REPLIES))
        config = write_config(
            folder,
            trainer="pure_text_malt",
            interaction_protocol="adp",
            lm_server={"engine": "deterministic", "replies": str(replies)},
            rl={"num_iterations": 1, "rollouts_per_iteration": 30},
            rollouts={"failure_threshold": 0.5, **rollouts},
            agents={
                "_default": {
                    "model_provider": "SelfHosted",
                    "model_name": "deterministic",
                    "max_tokens_per_message": 32,
                    "num_invalid_generation_retries": 0,
                }
            },
        )
        self.parameters = load_parameters(config)

    async def play(self):
        async with open_session(self.parameters) as session:
            self.shards = split_play(session, 0, "train").plan.shards
            for shard in self.shards:
                await play_shard(session, 0, "train", shard)
            self.digest = commit_split(session, 0, "train").canonical_digest
            self.datasets = {g: build_dataset(session, 0, g).digest for g in GROUPS}
            self.failures = split_play(session, 0, "train").failures.keys
            directory = session.run.rollouts(0, "train")
            self.failed = [
                key
                for shard in self.shards
                for key in read_manifest(session.run.store, directory, shard_manifest(shard)).extra[
                    "failed"
                ]
            ]
            self.rollouts = read_rollouts(session.run.store, directory)
            self.specs = plan_episodes(self.parameters, session.problems["train"], "train", 0)
        return self


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    return asyncio.run(Stage(tmp_path_factory.mktemp("one")).play())


def test_leaves_are_committed_tree_by_tree_in_the_order_of_the_plan(stage):
    rows = stage.rollouts.episodes.to_pylist()
    order = {(spec.problem.id, spec.sample): i for i, spec in enumerate(stage.specs)}
    places = [
        (order[row["problem"], row["sample"]], parse_path(row["branch_path"])) for row in rows
    ]
    assert places == sorted(places) and len({tree for tree, _ in places}) == 30


def test_a_tree_is_on_record_as_failed_if_all_its_leaves_did(stage):
    outcomes = {}
    for row in stage.rollouts.episodes.to_pylist():
        outcomes.setdefault((row["problem"], row["sample"]), set()).add(row["outcome"])
    failed = [
        spec.key for spec in stage.specs if outcomes[spec.problem.id, spec.sample] == {"failed"}
    ]
    assert stage.failed == failed and stage.failures == set(failed)
    assert 0 < len(failed) < sum("failed" in found for found in outcomes.values()) < 30


async def test_concurrency_and_shards_change_neither_trees_nor_pairs(stage, tmp_path):
    other = await Stage(tmp_path, episodes_per_shard=4, concurrency=1).play()
    assert len(other.shards) == 8 and len(stage.shards) == 1
    assert other.digest == stage.digest
    assert other.datasets == stage.datasets
    assert other.failed == stage.failed


@pytest.mark.long
async def test_failures_count_over_shards_that_did_not_see_each_other(stage, tmp_path):
    failed = len(stage.failed)
    assert failed > 1
    threshold = (failed - 0.5) / len(stage.specs)
    alone = Stage(tmp_path, episodes_per_shard=5, failure_threshold=threshold)
    async with open_session(alone.parameters) as session:
        shards = split_play(session, 0, "train").plan.shards
        # As at once in processes of their own.
        await gather_or_cancel(
            play_shard(replace(session, splits={}), 0, "train", s) for s in shards
        )
        expected = f"{failed} of {len(stage.specs)} episodes failed.*--rerun-from 0:play"
        with pytest.raises(StageError, match=expected):
            commit_split(session, 0, "train")
    more = Stage(alone.folder, episodes_per_shard=5, failure_threshold=0.5)
    async with open_session(more.parameters) as session:
        assert plan_split(session, 0, "train") == []
        assert session.progress.episodes_failed == failed
        commit_split(session, 0, "train")
    async with open_session(alone.parameters) as session:
        commit_split(session, 0, "train")  # what is finished is not looked at again
