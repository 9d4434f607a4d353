"""The table of episodes says what each round paid, of a protocol that a user has added, too."""

from pathlib import Path

import duckdb
from playing import play, saying
from random_play import PROMPT

from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.parquet import parquet_bytes
from nip_core.rollouts.storage.row_tables import canonical_digest
from nip_core.rollouts.storage.table_rows import Episode, RoundReward, read_rows

PROTOCOL = """
from dataclasses import replace

from nip_core.protocols.nip import NipProtocol


class Tutor(NipProtocol):
    name = "tutor"

    def judge(self, round_, seed, y, stance, turns, silent=()):
        result = super().judge(round_, seed, y, stance, turns, silent)
        words = sum(len(turn.text.split()) for turn in turns if turn.round == round_)
        rewards = {**result.rewards, "prover": result.rewards["prover"] + words / 4}
        return replace(result, rewards=rewards)
"""
VERIFIER = ["Question: a?", "Question: is b or c?", "Decision: accept"]
PROVER = ["Answer: it is d", "Answer: e"]


async def played(folder: Path, *verifier: str, **common: object):
    (folder / "tutor.py").write_text(PROTOCOL)
    parameters = load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "interaction_protocol": f"{folder}/tutor.py:Tutor",
            "nip_protocol": {"max_message_rounds": 5},
            "protocol_common": {"verifier_no_guess_reward": -0.5, **common},
            "rl": {"rollouts_per_iteration": None},
            "rollouts": {"failure_threshold": 1.0},
            "agents": {
                "_default": {
                    "model_provider": "SelfHosted",
                    "model_name": "m",
                    "num_invalid_generation_retries": 0,
                    "system_prompt_template_path": str(PROMPT),
                }
            },
        }
    )
    return await play(parameters, saying(verifier=verifier or VERIFIER, prover=PROVER))


async def test_each_round_has_what_it_paid_and_all_rounds_together_the_rewards(tmp_path):
    found = await played(tmp_path)
    [row] = read_rows(found.tables().episodes, Episode)
    assert row.round_rewards == (
        *(RoundReward(0, "prover", 0.5), RoundReward(0, "verifier", -0.5)),
        RoundReward(1, "prover", 1.0),
        *(RoundReward(2, "prover", 1.25), RoundReward(2, "verifier", -0.5)),
        RoundReward(3, "prover", 0.5),
        *(RoundReward(4, "prover", 1.5), RoundReward(4, "verifier", -1.0)),
    )
    file = tmp_path / "episodes.parquet"
    file.write_bytes(parquet_bytes(found.tables().episodes))
    paid = duckdb.sql(
        f"""select r.agent, sum(r.reward) from (select unnest(round_rewards) as r from '{file}')
            group by all"""
    )
    assert dict(paid.fetchall()) == row.rewards == {"prover": 4.75, "verifier": -2.0}


async def test_an_episode_that_failed_has_paid_nobody_in_any_round(tmp_path):
    [row] = (await played(tmp_path, "Question: a?", "Decision: maybe")).typed.episodes
    assert row.outcome == "failed" and row.round_rewards == ()
    assert row.rewards == {"prover": 0.0, "verifier": 0.0}


async def test_what_rounds_have_paid_is_in_no_digest(tmp_path):
    tables = (await played(tmp_path)).tables()
    without = tables.episodes.drop_columns("round_rewards")
    digests = {canonical_digest(t, tables.generations) for t in (tables.episodes, without)}
    assert len(digests) == 1
