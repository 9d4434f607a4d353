"""From rollouts to what a job is sent: the dataset's manifest says what that is."""

import pytest
from small_game import write_config

from nip_core.parameters import load_parameters
from nip_core.session.opening import open_session
from nip_core.stages.choosing import build_dataset, describe_dataset
from nip_core.stages.playing import commit_split, play_shard, split_play
from nip_core.trainers.dataset import open_dataset
from nip_core.trainers.lines import read_held_out


async def test_tokens_and_cost_are_those_of_what_is_trained_on(tmp_path):
    config = write_config(
        tmp_path,
        fine_tuning={"validation_fraction": 0.3},
        prices={"deterministic": {"training_usd": 3.0}},
        rl={"num_iterations": 1, "rollouts_per_iteration": 40, "num_epochs": 2},
    )
    async with open_session(load_parameters(config)) as session:
        for shard in split_play(session, 0, "train").plan.shards:
            await play_shard(session, 0, "train", shard)
        commit_split(session, 0, "train")
        facts = build_dataset(session, 0, "verifier")
        dataset = open_dataset(session.run.store, session.run.dataset(0, "verifier"))
        out = read_held_out(session.parameters, dataset)
        rows = list(dataset.rows())
    trained = [row for row in rows if row["question_id"] not in out]
    tokens = sum(row["tokens"] for row in trained)
    assert 0 < len(trained) < len(rows)
    assert (facts.examples, facts.validation_examples) == (
        len(rows),
        len(rows) - len(trained),
    )
    assert facts.tokens == tokens
    assert facts.training_usd == pytest.approx(2 * tokens * 3.0 / 1e6)
    assert describe_dataset(facts, 2).startswith(
        f"{len(trained)} examples, {len(rows) - len(trained)} for validation, {tokens:,} tokens, "
    )
