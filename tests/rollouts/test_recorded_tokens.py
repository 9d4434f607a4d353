"""What is recorded for training is what the model generated: its tokens, at its own probabilities.

Played by the bundled model on the embedded engine, compared with transformers alone, and then
trained as an lm_server trains.
"""

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from in_memory import InMemory
from playing import MemoryLog, make_context, problems
from scripted_server import scripted_server
from served_here import KEY, serve
from tiny_model import peft_logprobs
from training_jobs import make_job, progress, run_here

from nip_base import formats
from nip_base.spec import ServerSpec
from nip_core.errors import StageError
from nip_core.game.render import Game
from nip_core.models import resolve_model
from nip_core.parameters import load_parameters
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.engine import play_episodes
from nip_core.rollouts.plan import plan_episodes
from nip_core.rollouts.storage.row_tables import build_tables
from nip_core.scenarios.datasets import load_problems
from nip_core.trainers.grpo import choose_trajectories
from nip_lm_server.chats import chat_template
from nip_lm_server.training.job import read_job
from nip_lm_server.training.methods.rl import read_episodes
from nip_lm_server.training.model import loading

TINY = resolve_model("tiny")
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # Its import takes a second of every process that collects tests.
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed"),
]


def make_game(**changes):
    hosted = {
        "model_provider": "SelfHosted",
        "fine_tune_from_scratch": False,
        "max_tokens_per_message": 64,
    }
    frozen = {"freeze_agent": True, "temperature": 0.3}
    return Game(
        load_parameters(
            {
                "run_name": "a",
                "dataset": "families",
                "trainer": "pure_text_grpo",
                "agents": {"_default": hosted, "prover": frozen},
                "rl": {"rollouts_per_iteration": 16},
                "pure_text_grpo": {"group_size": 4},
                "protocol_common": {"shared_reward": True},
                "nip_protocol": {"max_message_rounds": 3},
                "code_validation": {"system_prompt_version": "short"},
                **changes,
            }
        )
    )


async def play_at(url, log, model="tiny", on=None, first=None, **recorded):
    """The `first` training rollouts of iteration 0, in which the verifier's tokens are recorded."""
    game = make_game()
    on = on or load_problems(game.scenario, "families", "train")
    specs = plan_episodes(game.parameters, on, "train", 0)[:first]
    async with ChatClient(concurrency=16, timeout_s=60, retries=1) as client:
        table = make_context(game, url, client, log, model=model, key=KEY)
        verifier = replace(table.players["verifier"], record_tokens=True, **recorded)
        players = {**table.players, "verifier": verifier}
        shard = await play_episodes(specs, replace(table, players=players))
    return InMemory((build_tables(shard.episodes, shard.generations),))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tmp_path_factory):
    """Rollouts of four groups of four, and the log that they were written to."""
    spec = ServerSpec("embedded", TINY, served_model_name="tiny", options={"threads": 1})
    log = MemoryLog()
    async with serve(tmp_path_factory.mktemp("state") / "s", spec=spec) as here:
        recorded = {"record_logprobs": True, "record_p_accept": True, "top_logprobs": 5}
        rollouts = await play_at(f"{here.url}/v1", log, **recorded)
        few = await play_at(f"{here.url}/v1", MemoryLog(), first=4, record_logprobs=True)
    return rollouts, log, few


def rows_of(played, agent):
    rows = [row for shard in played[0].shards() for row in shard.generations.to_pylist()]
    return [row for row in rows if row["agent"] == agent]


async def test_the_recorded_tokens_are_the_text(played):
    tokenizer, rows = chat_template.load_tokenizer(TINY), rows_of(played, "verifier")
    assert len(rows) >= 16
    for row in rows:
        text = tokenizer.decode(row["completion_token_ids"], skip_special_tokens=True)
        assert text.strip() == row["text"].strip() != ""
        assert len(row["completion_token_ids"]) == row["completion_tokens"]
        assert len(row["prompt_token_ids"]) == row["prompt_tokens"]


async def test_the_recorded_log_probabilities_are_the_model_s_own(played):
    for row in rows_of(played, "verifier")[:6]:
        prompt, answer = row["prompt_token_ids"], row["completion_token_ids"]
        alone = peft_logprobs(Path(TINY), None, [*prompt, *answer])[-len(answer) :]
        assert row["completion_logprobs"] == pytest.approx(alone, abs=1e-3)


async def test_p_accept_is_that_of_the_log_probabilities_and_of_the_model_alone(played):
    tokenizer, alone = chat_template.load_tokenizer(TINY), Alone(TINY)
    decided = [row for row in rows_of(played, "verifier") if row["decision"] in (0, 1)]
    assert len(decided) == 16 and {row["decision"] for row in decided} == {0, 1}
    for row in decided:
        prompt, answer = row["prompt_token_ids"], row["completion_token_ids"]
        word = {1: "accept", 0: "reject"}[row["decision"]]
        # The token with the word's first letter: the shortest beginning of the answer that has it.
        begins = [tokenizer.decode(answer[:n]).lower() for n in range(len(answer) + 1)]
        letters = begins[-1].index(word) + 1
        place = next(n for n, text in enumerate(begins) if len(text) >= letters) - 1
        recorded = [(of["token"], of["logprob"]) for of in row["token_logprobs"][place]["top"]]
        assert row["p_accept"] == pytest.approx(share_of_accept(recorded), abs=1e-6)
        # The model by itself: its last bits are others, as nothing shares its batch.
        likely = alone.logprobs_after([*prompt, *answer[:place]]).topk(5)
        texts = [tokenizer.decode([token]) for token in likely.indices.tolist()]
        own = share_of_accept(zip(texts, likely.values.tolist(), strict=True))
        assert row["p_accept"] == pytest.approx(own, abs=1e-4)


def share_of_accept(likely):
    """P(accept) at temperature 1, with which tokens that are trained are sampled."""
    masses = {"accept": 0.0, "reject": 0.0}
    for token, logprob in likely:
        text = token.strip().lower()
        for name in masses:
            masses[name] += math.exp(logprob) if text and name.startswith(text) else 0.0
    assert all(masses.values())
    return masses["accept"] / sum(masses.values())


async def test_recording_p_accept_changes_no_text_and_no_digest(played):
    with_it, without = (
        {row["key"]: row for shard in rollouts.shards() for row in shard.generations.to_pylist()}
        for rollouts in (played[0], played[2])
    )
    assert without.keys() < with_it.keys() and len(without) == 12
    for key, row in without.items():
        assert row["p_accept"] is None
        same = {**with_it[key], "p_accept": None, "token_logprobs": row["token_logprobs"]}
        # Their last bits depend on what shared the batch, whoever asks for what.
        assert same.pop("completion_logprobs") == pytest.approx(
            row.pop("completion_logprobs"), abs=2e-4
        )
        assert {**same, "episode": row["episode"]} == row


class Alone:
    """The model by transformers, without a server."""

    def __init__(self, path):
        import torch
        from transformers import AutoModelForCausalLM

        self.torch, self.model = torch, AutoModelForCausalLM.from_pretrained(path).eval()

    def logprobs_after(self, ids):
        with self.torch.inference_mode():
            return self.model(self.torch.tensor([ids])).logits[0, -1].log_softmax(-1)


async def test_of_agents_that_are_not_trained_no_tokens_are_kept(played):
    for row in rows_of(played, "prover"):
        assert row["prompt_token_ids"] is row["completion_token_ids"] is None
        assert row["completion_logprobs"] is row["token_logprobs"] is None


async def test_a_killed_shard_has_the_tokens_in_its_journal(played):
    kept = {r["generation"]["key"]: r["generation"] for r in played[1].records}
    for row in rows_of(played, "verifier"):
        for column in ("prompt_token_ids", "completion_token_ids"):
            assert kept[row["key"]][column] == row[column]
        logprobs = kept[row["key"]]["completion_logprobs"]
        assert logprobs == pytest.approx(row["completion_logprobs"], rel=1e-6)


async def test_what_is_chosen_is_trained_once_token_for_token(played, tmp_path):
    choice = choose_trajectories(make_game(), "verifier", 0, played[0], ["verifier"])
    examples = list(choice.examples)
    assert len(examples) >= 4 and len({e.group_id for e in examples}) >= 2
    data = tmp_path / "data.jsonl"
    data.write_bytes(formats.to_jsonl(map(line_of, examples)))
    job = make_job(
        Path(TINY), tmp_path / "job", data=data, method="trajectories", advantage="given",
        learning_rate=1e-3, n_epochs=1,
    )  # fmt: skip
    text = loading.load_text(read_job(job))
    read = read_episodes(data, text, "given", "training_file")
    assert [e.advantage for e in read] == [e.advantage for e in examples]
    for episode, example in zip(read, examples, strict=True):
        generated = [t for turn in example.turns for t in turn.completion_token_ids]
        trained = [
            token
            for sequence in episode.sequences
            for token, is_action in zip(sequence.input_ids, sequence.actions, strict=True)
            if is_action
        ]
        assert trained == generated
    run_here(job)
    # The model has not changed yet: the sampler's log-probabilities are the trainer's.
    assert progress(job)[0]["policy/ratio"] == pytest.approx(1.0, abs=1e-3)


def line_of(example):
    turns = [
        {
            "prompt_token_ids": list(turn.prompt_token_ids),
            "completion_token_ids": list(turn.completion_token_ids),
            "logprobs": list(turn.logprobs),
        }
        for turn in example.turns
    ]
    return {
        "turns": turns,
        "group_id": example.group_id,
        "reward": example.reward,
        "advantage": example.advantage,
    }


async def test_what_is_trained_is_sampled_as_the_model_is_whatever_a_server_defaults_to():
    def script(body):
        return web.json_response(
            {
                "model": "m",
                "choices": [
                    {
                        "index": 0,
                        "message": {"content": "Decision: accept"},
                        "finish_reason": "stop",
                        "token_ids": [4, 5],
                    }
                ],
                "prompt_token_ids": [1, 2, 3],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2},
            }
        )

    async with scripted_server(script) as server:
        rollouts = await play_at(server.url, MemoryLog(), model="m", on=problems(4))
    [asked] = {json.dumps({k: body.get(k) for k in SAMPLING}) for body in server.bodies}
    assert json.loads(asked) == SAMPLING
    [row] = {tuple(g["completion_token_ids"]) for g in rows_of((rollouts,), "verifier")}
    assert row == (4, 5)


SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "return_token_ids": True,
    "logprobs": False,  # which the deterministic engine has not
    "top_k": None,
    "min_p": None,
}


async def test_a_server_without_token_ids_is_refused_with_what_to_do():
    async with scripted_server(lambda body: "Decision: accept") as server:
        with pytest.raises(StageError, match=r"gives no token ids.*use an lm_server"):
            await play_at(server.url, MemoryLog(), model="m", on=problems(4))
