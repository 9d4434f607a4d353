"""docs/examples/trl_games.py and docs/howto/games-in-your-loop.md: nip's games in TRL's loop, as nip plays them."""

import asyncio
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import seat_games

from nip_core.models import resolve_model

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
RIGHT_SIZE = 60  # lines that are not empty, of each that a user copies
LOGPROB = -0.25
SEATS = [
    (protocol, agent)
    for protocol in seat_games.PROTOCOLS
    for agent in seat_games.make_it(protocol).parameters.model_agents
]


@pytest.fixture
def trl_games(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("trl_games")


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(resolve_model("tiny-arithmetic")))


def make_trainer(tokenizer, write, process=0, **kwargs):
    """The part of a GRPOTrainer with vLLM that is asked, whose model `write` is; notes prompts."""
    asked = []

    def generate(prompts, images, fields, num_generations):
        assert num_generations == 1
        asked.extend(prompts)
        ids = [[*tokenizer.encode(write(p)), tokenizer.eos_token_id] for p in prompts]
        return ids, [[LOGPROB] * len(answer) for answer in ids]

    return SimpleNamespace(
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        use_vllm=True,
        accelerator=SimpleNamespace(process_index=process),
        chat_template_kwargs=kwargs,
        asked=asked,
        _generate_single_turn=generate,
    )


def split_answers(row, mask, tokenizer):
    """The texts of the trained tokens, each up to its end."""
    texts = tokenizer.decode([t for t, on in zip(row, mask, strict=True) if on])
    return texts.split(tokenizer.eos_token)[:-1]


@pytest.mark.parametrize(("protocol", "agent"), SEATS)
def test_chats_answers_and_rewards_are_those_of_play(protocol, agent, trl_games, tokenizer):
    # 1. The rows as the trainer asks for them, with the answers that are on record.
    calls = [seat_games.list_calls(e, agent) for e in seat_games.expect(protocol)]
    prompts = [
        tokenizer.apply_chat_template(c["messages"], add_generation_prompt=True, return_dict=False)
        for of_episode in calls
        for c in of_episode
    ]
    texts = [call["text"] for of_episode in calls for call in of_episode]
    by_prompt = dict(zip(map(tuple, prompts), texts, strict=True))
    trainer = make_trainer(tokenizer, lambda prompt: by_prompt[tuple(prompt)])
    game = seat_games.make_it(protocol)
    games = trl_games.Games(game, agent, seat_games.name_functions(protocol, [agent]))
    names = [name for name in games.dataset["prompt"] for _ in range(seat_games.GROUP)]
    rows = games.rollout(names, trainer)
    # 2. The same chats, and the same rewards.
    assert sorted(trainer.asked) == sorted(prompts)
    assert trl_games.pay(**rows, completions=[]) == [
        None if episode["failed"] else episode["rewards"][agent]
        for episode in seat_games.expect(protocol)
    ]
    # 3. What is trained are valid answers, and the last tokens those of the last chat and answer.
    for i, of_episode in enumerate(calls):
        ids, mask, old = (rows[key][i] for key in ("completion_ids", "env_mask", "logprobs"))
        assert len(ids) == len(mask) == len(old) > 0 and rows["prompt_ids"][i]
        assert [LOGPROB if on else 0 for on in mask] == old
        trained = split_answers(ids, mask, tokenizer)
        valid = [call["text"] for call in of_episode if call["is_valid"]]
        assert trained == valid, "a chat that grows keeps all of them"
        if of_episode and of_episode[-1]["is_valid"]:
            chat = tokenizer.apply_chat_template(
                of_episode[-1]["messages"], add_generation_prompt=True, return_dict=False
            )
            end = [*tokenizer.encode(valid[-1]), tokenizer.eos_token_id]
            assert rows["prompt_ids"][i] + ids == [*chat, *end]
            assert mask[-len(end) :] == [1] * len(end)


def test_tokens_that_the_next_chat_does_not_have_are_not_trained(trl_games, tokenizer):
    question, verdict = "Is step 2 right?", "Decision: accept"
    # The model wrote letter by letter; the next chat has the words as a tokenizer cuts them.
    spelled = [i for letter in question for i in tokenizer.encode(letter)]
    canonical, end = tokenizer.encode(question), tokenizer.eos_token_id
    assert spelled != canonical and tokenizer.decode(spelled) == question
    said = iter(([*spelled, end], [*tokenizer.encode(verdict), end]))
    trainer = make_trainer(tokenizer, None)
    trainer._generate_single_turn, trainer.use_vllm = lambda *_: ([next(said)], None), False
    game = seat_games.make_it("nip")
    games = trl_games.Games(game, "verifier", {"prover": seat_games.ask})
    rows = games.rollout(games.dataset["prompt"][2:], trainer)
    assert rows["logprobs"] is None and rows["paid"][0] is not None
    [ids], [mask] = rows["completion_ids"], rows["env_mask"]
    assert ids[: len(canonical)] == canonical  # as the second answer had it before it
    same = next(i for i, (a, b) in enumerate(zip(spelled, canonical, strict=False)) if a != b)
    assert mask[: len(canonical)] == [1] * same + [0] * (len(canonical) - same)
    assert split_answers(ids[len(canonical) :], mask[len(canonical) :], tokenizer) == [verdict]


def test_an_answer_without_a_token_is_asked_again_and_takes_no_other_out(trl_games, tokenizer):
    question, verdict = "Is step 2 right?", "Decision: accept"
    texts, end = (tokenizer.encode(question), [], tokenizer.encode(verdict)), tokenizer.eos_token_id
    said = iter([[*text, end] if text else [] for text in texts])
    trainer = make_trainer(tokenizer, None)
    trainer._generate_single_turn, trainer.use_vllm = lambda *_: ([next(said)], None), False
    games = trl_games.Games(seat_games.make_it("nip"), "verifier", {"prover": seat_games.ask})
    rows = games.rollout(games.dataset["prompt"][2:], trainer)
    [ids], [mask] = rows["completion_ids"], rows["env_mask"]
    assert split_answers(ids, mask, tokenizer) == [question, verdict]


def test_the_trainers_chat_template_arguments_are_those_of_the_rows(trl_games, tokenizer):
    trainer = make_trainer(
        tokenizer, lambda prompt: "It is so.", chat_template="A {{ word }}: ", word="chat"
    )
    games = trl_games.Games(seat_games.make_it("adp"), "prover", {"verifier": seat_games.ask})
    rows = games.rollout(games.dataset["prompt"][:1], trainer)
    assert [tokenizer.decode(asked) for asked in trainer.asked] == ["A chat: "]
    assert rows["prompt_ids"] == trainer.asked


def test_processes_play_different_games_of_a_group(trl_games, tokenizer):
    game, seeds = seat_games.make_it("adp"), []

    async def note(messages, seed, **sampling):
        seeds.append(seed)
        return "Decision: accept"

    games = trl_games.Games(game, "prover", {"verifier": note})
    [name, *_] = games.dataset["prompt"]
    for process in range(seat_games.GROUP):
        games.rollout([name], make_trainer(tokenizer, lambda prompt: "It is so.", process))
    assert len({*seeds}) == seat_games.GROUP


def test_a_loop_that_runs_already_gives_the_training_a_thread(trl_games, tokenizer):
    """As in a notebook: docs/howto/games-in-your-loop.md, under Limits."""
    games = trl_games.Games(seat_games.make_it("adp"), "prover", {"verifier": seat_games.ask})
    trainer = make_trainer(tokenizer, lambda prompt: "It is so.")
    names = games.dataset["prompt"][:1]
    rows = asyncio.run(asyncio.to_thread(games.rollout, names, trainer))
    assert len(rows["paid"]) == 1
    assert "`await asyncio.to_thread(trainer.train)`" in seat_games.PAGE.read_text(encoding="utf-8")


@pytest.mark.long
def test_trl_trains_a_prover_against_a_frozen_verifier(tmp_path):
    """As the page says it, in a folder with the file that it says to copy."""
    seat_games.write_page(tmp_path, "trl_games", "train_trl.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "train_trl.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    state = json.loads((tmp_path / "grpo/checkpoint-8/trainer_state.json").read_text())
    rewards = [row["reward"] for row in state["log_history"] if "reward" in row]
    assert len(rewards) == 8 and sum(rewards[-3:]) / 3 > rewards[0] + 0.2, rewards


@pytest.mark.parametrize("name", ["trl_games", "tinker_cookbook_games"])
def test_what_a_user_copies_stays_short(name):
    lines = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert 40 < sum(bool(line.strip()) for line in lines) <= RIGHT_SIZE
    assert f"(../examples/{name}.py)" in seat_games.PAGE.read_text(encoding="utf-8")
