"""The same seed gives the same data with the deterministic engine, however it is played.

Concurrency 1 and 64, one shard or eight, two values of PYTHONHASHSEED: the same canonical digest,
for protocols of every kind.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from playing import play_at, problems
from served_here import KEY, serve

from nip_base.spec import ServerSpec
from nip_core.parameters import DATA_NEUTRAL, load_parameters
from nip_core.rollouts.plan import plan_episodes
from nip_core.rollouts.storage.row_tables import canonical_digest

HERE = Path(__file__).parent

GAMES = {
    "nip": {"nip_protocol": {"max_message_rounds": 5}},
    "debate": {"interaction_protocol": "debate", "debate_protocol": {"max_message_rounds": 5}},
    "mnip": {
        "interaction_protocol": "mnip",
        "mnip_protocol": {"max_message_rounds": 7, "sequential": True},
        "protocol_common": {
            "randomize_prover_stance": True,
            "verifier_decision_scale": "out_of_10",
        },
    },
    "merlin_arthur": {"interaction_protocol": "merlin_arthur"},
    "zero_knowledge": {
        "interaction_protocol": "debate",
        "debate_protocol": {"max_message_rounds": 5, "min_message_rounds": 3},
        "protocol_common": {"zero_knowledge": True, "prover_invalid_response_penalty": -0.5},
    },
    "random": {
        "nip_protocol": {"max_message_rounds": 5},
        "agents": {"prover": {"is_random": True}},
    },
}

# Some answers are invalid, so that retries are part of it; some decide.
_PARTS = (
    "Question for Expert_1: {words:3}?\nQuestion for Expert_2: {words:3}?\n"
    "To Verifier_1: {words:4}\nTo Verifier_2: {words:4}"
)
REPLIES = {
    "seed": 3,
    "default": [
        {"text": _PARTS, "weight": 6},
        {"text": "Decision: accept", "weight": 1},
        {"text": "Decision: reject", "weight": 1},
        {"text": "Decision: {digits:1}", "weight": 1},
        {"text": "Decision: perhaps", "weight": 1},
        {"text": "cut", "weight": 1, "finish_reason": "content_filter"},
    ],
}


def settings(game, concurrency):
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "code_validation": {"system_prompt_version": "short"},
            "rl": {"rollouts_per_iteration": None},
            "rollouts": {"concurrency": concurrency, "failure_threshold": 1.0},
            **GAMES[game],
            "agents": {
                "_default": {
                    "model_provider": "SelfHosted",
                    "model_name": "sim",
                    "num_invalid_generation_retries": 3,
                },
                **GAMES[game].get("agents", {}),
            },
        }
    )


async def digest_of(game, concurrency, num_shards):
    """The canonical digest of 12 episodes, played by a server of their own."""
    parameters = settings(game, concurrency)
    specs = plan_episodes(parameters, problems(12), "train", 0)
    with tempfile.TemporaryDirectory() as state:
        replies = Path(state) / "replies.yaml"
        replies.write_text(yaml.safe_dump(REPLIES))
        spec = ServerSpec("deterministic", "sim", replies=str(replies))
        async with serve(Path(state), spec=spec) as here:
            played = await play_at(
                f"{here.url}/v1", parameters, specs, num_shards, model="sim", key=KEY
            )
    tables = played.tables()
    assert {e["outcome"] for e in played.episodes} >= {"finished"}
    assert any(g["attempt"] for g in played.shard.generations), "nothing was asked for again"
    return canonical_digest(tables.episodes, tables.generations)


@pytest.fixture(scope="module")
def digests():
    """By game, what one process gets with one call at a time and one shard."""

    async def all_of_them():
        return {game: await digest_of(game, 1, 1) for game in GAMES}

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("game", list(GAMES))
async def test_concurrency_and_shards_change_nothing(game, digests):
    assert await digest_of(game, 64, 1) == digests[game]
    assert await digest_of(game, 64, 8) == digests[game]


def test_games_differ(digests):
    assert len(set(digests.values())) == len(GAMES)


def main():
    async def all_of_them():
        for game in GAMES:
            print(game, await digest_of(game, 64, 8))

    asyncio.run(all_of_them())


@pytest.mark.long
def test_the_hash_seed_of_the_process_changes_nothing(digests):
    path = os.pathsep.join([str(HERE), str(HERE.parent / "helpers"), *sys.path])
    asked = subprocess.run(
        [sys.executable, "-c", "import test_determinism; test_determinism.main()"],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert asked.returncode == 0, asked.stderr
    assert dict(line.split() for line in asked.stdout.splitlines()) == digests


def test_neither_shards_nor_concurrency_are_in_any_key_or_seed():
    one, other = settings("debate", 1), settings("debate", 64)
    other = other.model_copy(
        update={"rollouts": other.rollouts.model_copy(update={"episodes_per_shard": 3})}
    )
    assert "rollouts" in DATA_NEUTRAL
    assert plan_episodes(one, problems(9), "train", 2) == plan_episodes(
        other, problems(9), "train", 2
    )


async def digest_at(latency, concurrency, tmp_path):
    """The canonical digest of 12 episodes, with calls in flight that follow a server so slow."""
    parameters = settings("nip", concurrency)
    specs = plan_episodes(parameters, problems(12), "train", 0)
    replies = tmp_path / f"{concurrency}-{latency['mean']}.yaml"
    replies.write_text(yaml.safe_dump({**REPLIES, "latency_s": latency}))
    spec = ServerSpec("deterministic", "sim", replies=str(replies))
    async with serve(tmp_path / replies.stem, spec=spec) as here:
        played = await play_at(
            f"{here.url}/v1", parameters, specs, model="sim", key=KEY, follows=True, joins=True,
            timeout_s=10,
        )  # fmt: skip
    tables = played.tables()
    return canonical_digest(tables.episodes, tables.generations)


async def test_equal_seeds_give_equal_data_at_any_speed_of_the_server(tmp_path):
    digests = {
        await digest_at(latency, concurrency, tmp_path)
        for latency, concurrency in (
            ({"mean": 0.0}, 64),
            ({"mean": 0.01, "max": 0.1}, 64),
            ({"mean": 0.08, "max": 0.4}, 16),
        )
    }
    assert len(digests) == 1
