"""A model that writes its thoughts into its text, under a template that forgets earlier ones, is
trained by policy gradient on the very tokens that it generated.

It is the bundled model, taught to think by supervised training on thoughts beside the text; then it
plays on the embedded engine, and is trained as an lm_server trains.
"""

import importlib.util
import re
from dataclasses import replace

import pytest
import pytest_asyncio
from in_memory import InMemory
from playing import MemoryLog, make_context
from served_here import KEY, serve
from stored_rows import typed_generations
from thinking_model import make_thinking_model
from training_jobs import make_job, progress, run_here

from nip_base import formats
from nip_base.spec import ServerSpec
from nip_core.game.render import Game, Situation
from nip_core.models import resolve_model
from nip_core.parameters import load_parameters
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.engine import play_episodes
from nip_core.rollouts.plan import plan_episodes
from nip_core.rollouts.storage.row_tables import build_tables
from nip_core.scenarios.datasets import load_problems
from nip_core.trainers.dataset import Dataset, write_examples
from nip_core.trainers.grpo import choose_trajectories
from nip_core.trainers.lines import write_jsonl
from nip_lm_server.chats import chat_template
from nip_lm_server.training.job import read_job
from nip_lm_server.training.methods.rl import read_episodes
from nip_lm_server.training.model import loading

pytestmark = [
    pytest.mark.timeout(900),  # a training and two plays of a real model
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed"),
]
THOUGHT = "ok"
# A model of this size also writes one of the tags alone, far behind its thoughts: that is message.
A_THOUGHT = re.compile(r"<think>[^<]*</think>")
VERIFIER = ("verifier",)


def make_game():
    return Game(
        load_parameters(
            {
                "run_name": "a",
                "dataset": "families",
                "trainer": "pure_text_grpo",
                "agents": {
                    "_default": {
                        "model_provider": "SelfHosted",
                        "fine_tune_from_scratch": False,
                        "max_tokens_per_message": 96,
                    },
                    "prover": {"freeze_agent": True, "temperature": 0.3},
                },
                "rl": {"rollouts_per_iteration": 16},
                "pure_text_grpo": {"group_size": 4},
                "protocol_common": {"shared_reward": True},
                "nip_protocol": {"max_message_rounds": 3},
                "code_validation": {"system_prompt_version": "short"},
            }
        )
    )


async def play_with(model, state):
    """The training rollouts of iteration 0; of the verifier with its tokens."""
    game = make_game()
    specs = plan_episodes(
        game.parameters, load_problems(game.scenario, "families", "train"), "train", 0
    )
    spec = ServerSpec("embedded", str(model), served_model_name="tiny", options={"threads": 1})
    async with (
        serve(state, spec=spec) as here,
        ChatClient(concurrency=16, timeout_s=60, retries=1) as client,
    ):
        log = MemoryLog()
        table = make_context(game, f"{here.url}/v1", client, log, model="tiny", key=KEY)
        verifier = replace(table.players["verifier"], record_tokens=True, record_logprobs=True)
        players = {**table.players, "verifier": verifier}
        shard = await play_episodes(specs, replace(table, players=players))
    return InMemory((build_tables(shard.episodes, shard.generations),))


def asked(rollouts, agents=("prover", "verifier")):
    """Each valid answer of these agents with the chat that it answers."""
    game = make_game()
    for shard in rollouts.shards():
        rows = shard.generations.to_pylist()
        for episode in shard.episodes.to_pylist():
            situation = Situation(
                episode["question"], episode["solution"], episode["prover_stance"], episode["seed"]
            )
            of_episode = [row for row in rows if row["episode"] == episode["key"]]
            for row in of_episode:
                if row["agent"] in agents and row["invalid_reason"] is None:
                    before = [other for other in of_episode if other["round"] < row["round"]]
                    turns = game.turns(typed_generations(before), episode["seed"])
                    yield game.render(row["agent"], situation, turns, row["round"]), row


def teach(base, rollouts, folder):
    """The weights of `base`, taught to write a thought before what was answered in `rollouts`."""
    data = folder / "thoughts.jsonl"
    data.write_bytes(
        formats.to_jsonl(
            {
                "messages": [
                    *chat,
                    {"role": "assistant", "content": row["text"], "reasoning_content": THOUGHT},
                ]
            }
            for chat, row in asked(rollouts)
        )
    )
    job = make_job(
        base, folder / "taught", data=data, use_lora=False, result="base",
        # A larger rate leaves a model that babbles here and writes neat tags there, by its last bits.
        learning_rate=2e-3, n_epochs=10, batch_size=8,
    )  # fmt: skip
    run_here(job)
    return job / "out"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tmp_path_factory):
    """The directory of a model that thinks, and rollouts of four groups of four by it."""
    folder = tmp_path_factory.mktemp("thinking")
    before = await play_with(resolve_model("tiny"), folder / "before")
    model = teach(make_thinking_model(folder / "base"), before, folder)
    return model, await play_with(model, folder / "after")


async def test_it_thinks_and_nobody_is_shown_its_thoughts(played):
    chats = list(asked(played[1]))
    texts = [row["text"] for _, row in chats]
    thoughtful = [text for text in texts if text.startswith("<think>\n") and "</think>" in text]
    assert len(thoughtful) > 0.8 * len(texts)
    for chat, row in chats:
        from_others = [m["content"] for m in chat if m["role"] == "user"]
        assert not any(map(A_THOUGHT.search, from_others)), row["agent"]


async def test_prompts_are_those_of_the_template_without_earlier_thoughts(played):
    model, rollouts = played
    tokenizer = chat_template.load_tokenizer(str(model))
    second = 0
    for chat, row in asked(rollouts, VERIFIER):
        assert row["prompt_token_ids"] == chat_template.encode_prompt(tokenizer, chat)
        text = tokenizer.decode(row["completion_token_ids"], skip_special_tokens=True)
        assert text.strip() == row["text"].strip()
        assert not A_THOUGHT.search(tokenizer.decode(row["prompt_token_ids"]))
        own = [m["content"] for m in chat if m["role"] == "assistant"]
        second += any(map(A_THOUGHT.search, own))
    assert second >= 8  # answers after a turn of its own that had thoughts


async def test_every_generated_token_is_trained_once_after_the_prompt_it_was_given(
    played, tmp_path
):
    model, rollouts = played
    # 1. From the rollouts to the file of a job, as a run makes it.
    choice = choose_trajectories(make_game(), "verifier", 0, rollouts, VERIFIER)
    write_examples(tmp_path / "trajectories.parquet", "trajectories", choice.examples)
    rows = list(Dataset(tmp_path / "trajectories.parquet", "trajectories", "a").rows())
    data = tmp_path / "data.jsonl"
    assert write_jsonl(rows, "trajectories", data, "the data") >= 4
    # 2. A turn is a sequence of its own where the next prompt has forgotten its thoughts.
    job = make_job(
        model, tmp_path / "job", data=data, method="trajectories", advantage="given",
        learning_rate=1e-3, n_epochs=1,
    )  # fmt: skip
    text = loading.load_text(read_job(job))
    generations = {row["key"]: row for _, row in asked(rollouts, VERIFIER)}
    apart = 0
    for episode, row in zip(read_episodes(data, text, "given", "training_file"), rows, strict=True):
        recorded = [generations[key] for key in row["generations"]]
        if all("</think>" in turn["text"] for turn in recorded):
            assert len(episode.sequences) == len(recorded)
            for sequence, turn in zip(episode.sequences, recorded, strict=True):
                prompt, answer = turn["prompt_token_ids"], turn["completion_token_ids"]
                assert list(sequence.input_ids) == [*prompt, *answer]
                assert list(sequence.actions) == [False] * len(prompt) + [True] * len(answer)
            apart += len(recorded) > 1
    assert apart >= 2
    # 3. The policy that acted is the one that is trained: its probabilities are the recorded ones.
    run_here(job)
    assert progress(job)[0]["policy/ratio"] == pytest.approx(1.0, abs=1e-3)
