"""The library plays what `nip play` and `nip attack` play, with functions in the place of a server."""

import asyncio
import random
from functools import partial

import pytest
from openai import AsyncOpenAI
from played_elsewhere import play_here, write_config
from server_here import one_here

from nip_base.spec import ServerSpec
from nip_core import loop
from nip_core.attacks import Attack
from nip_core.errors import SettingsError, StageError
from nip_core.library import (
    ModelAnswer,
    RequestRefusedError,
    attack,
    compare,
    make_attack_game,
    make_game,
    measure,
    play,
)
from nip_core.records.iterations import Records
from nip_core.rollouts.plan import ATTACK, TEST
from nip_core.rollouts.storage.tables import StoredRollouts, read_rollouts
from nip_core.run_store.facts import read_split_digest
from nip_core.run_store.run import RunStore
from nip_study.plan.attack_run import attack_settings

SMALL = ("dataset_options.max_test_size=8", "dataset_options.max_train_size=8")


def game(*settings, protocol="adp"):
    return make_game(protocol=protocol, scenario="arithmetic", settings=[*SMALL, *settings])


def answer(messages, seed, number=0):
    """What a model says: a verdict where one is asked for, drawn by chat and seed."""
    drawn = random.Random(f"{messages} {seed} {number}")
    if "Decision: accept" in messages[0]["content"]:
        return drawn.choice(["Decision: accept", "Decision: reject"])
    return f"Step {drawn.randrange(1, 5)} is right."


async def ask(messages, seed, n=1, **sampling):
    return [answer(messages, seed, number) for number in range(n)]


class SaysNothing(Attack):
    """An attack of one's own: it writes a message and asks no model."""

    async def choose(self, turn):
        return await turn.write("I have nothing to say.")


GAME = {
    "scenario": "arithmetic",
    "dataset": "chains",
    "interaction_protocol": "adp",
    "scenario_settings": {"train_size": 20, "validation_size": 4, "test_size": 12},
}
ATTACKS = {
    "best-of-n": {"n": [1, 2], "continuations": 2, "score_by": "verdicts"},
    "script": {"script": "right-step", "score_by": "verdicts"},
}


def check_same(ours, run, split):
    """The same rows in the same order, under the same keys."""
    place = run.rollouts(0, split)
    stored = read_rollouts(run.store, place)
    assert ours.episodes.to_pylist() == stored.episodes.to_pylist()
    assert ours.generations.to_pylist() == stored.generations.to_pylist()
    assert ours.digest == read_split_digest(run.store, place)


def test_episodes_and_attacks_are_those_of_nip_play_and_nip_attack(tmp_path, monkeypatch):
    with one_here(ServerSpec("deterministic", "deterministic"), tmp_path / "server") as server:
        monkeypatch.setenv("NIP_API_KEY", server.api_key)
        config = write_config(tmp_path, server.url, 12, **GAME)
        run = play_here(config)

        async def play_by_functions():
            async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.api_key) as client:
                function = partial(client.chat.completions.create, model="deterministic")
                opened = make_game(str(config))
                played = await play(opened, function)
                attacks = {
                    by: await attack(opened, function, by, own_test=played, **options)
                    for by, options in ATTACKS.items()
                }
            return played, attacks

        played, attacks = asyncio.run(play_by_functions())
        check_same(played, run, TEST)
        assert measure(played).accuracy == Records(run).of(0).stored_metrics(TEST).accuracy
        for by, ours in attacks.items():
            chosen = {"by": by, "iteration": 0, **ATTACKS[by]}
            settings = attack_settings(str(tmp_path / "runs"), "both", chosen)
            asyncio.run(loop.train(settings))
            there = RunStore(run.store, settings.run_name)
            check_same(ours, there, ATTACK)
            choices = StoredRollouts(run.store, [there.rollouts(0, ATTACK)]).choices()
            assert ours.tables.choices.to_pylist() == choices.to_pylist()
            theirs = Records(there).of(0).attack
            for name in ("trained", "lost_to_lying", "lost_to_script", "reach", "agents"):
                assert getattr(ours.figures, name) == getattr(theirs, name), name
            assert [row.soundness_ci95 for row in ours.figures.by_n] == [
                row.soundness_ci95 for row in theirs.by_n
            ]


async def test_an_answer_is_listed_with_the_messages_that_it_was_asked_with_and_its_reward():
    asked = {}

    async def remember(messages, seed, **sampling):
        text = answer(messages, seed)
        # Sometimes cut off, so that some are asked again, with a hint.
        if random.Random(seed).random() < 0.3:
            return ModelAnswer("", "length")
        asked.setdefault(text, []).append(messages)
        return text

    played = await play(game(protocol="nip"), remember)
    rewards = {row["key"]: dict(row) for row in played.episodes.to_pylist()}
    invalid = [row for row in played.generations.to_pylist() if row["invalid_reason"]]
    counted = 0
    assert invalid, "no answer was asked for again"
    for agent in ("prover", "verifier"):
        for listed in played.list_answers(agent):
            assert listed.messages in asked[listed.text]
            [paid] = [r for r in rewards[listed.episode]["rewards"] if r["agent"] == agent]
            assert listed.reward == paid["reward"]
            counted += 1
    failed = {row["key"] for row in played.episodes.to_pylist() if row["outcome"] == "failed"}
    valid = [
        row
        for row in played.generations.to_pylist()
        if row["invalid_reason"] is None and row["episode"] not in failed
    ]
    assert counted == len(valid) > 0


async def test_answers_are_a_list_of_an_agent_that_there_is():
    played = await play(game(), ask, "train", limit=4)
    assert len(played.list_answers("prover")) == 4
    with pytest.raises(SettingsError, match="no agent 'provers'; did you mean 'prover'"):
        played.list_answers("provers")


async def test_a_function_that_is_not_async_is_refused_by_its_agent():
    def reply(messages, **sampling):
        return "Every step is right."

    with pytest.raises(StageError, match=r"of prover is not async: it returned .* str; write"):
        await play(game(), {"prover": reply, "verifier": ask}, limit=1)


async def test_tokens_are_kept_where_they_are_asked_for():
    async def generate(messages, seed, return_token_ids, temperature, **sampling):
        assert return_token_ids and temperature == 1.0
        tokens = [{"token": "a", "logprob": -0.5, "top": []}]
        text = answer(messages, seed)
        return ModelAnswer(text, prompt_token_ids=[1, 2], token_ids=[3], tokens=tokens)

    played = await play(game(), generate, "train", records_tokens=True, limit=4)
    listed = [*played.list_answers("prover")]
    assert len(listed) == 4
    for one in listed:
        assert (one.prompt_token_ids, one.token_ids, one.logprobs) == ([1, 2], [3], [-0.5])


async def test_an_attack_of_ones_own_is_a_class_and_its_losses_are_compared():
    opened = game()
    own_test = await play(opened, ask)
    attacked = await attack(opened, ask, SaysNothing, own_test=own_test)
    chosen = attacked.choose()
    assert {a.text for a in chosen.list_answers("prover")} == {"I have nothing to say."}
    [row] = attacked.figures.by_n
    assert row.soundness == measure(chosen).soundness
    assert attacked.figures.lost_to_lying.problems == own_test.episodes["y"].to_pylist().count(0)
    assert compare(own_test, own_test).difference == 0


async def test_an_attack_by_training_has_the_episodes_that_its_provers_learn_from():
    opened = game("pure_text_grpo.group_size=2")
    with pytest.raises(SettingsError, match="by: sneaky trains provers; play the train split"):
        await attack(opened, ask, "sneaky")
    attacking = make_attack_game(opened, "sneaky")
    played = await play(attacking, ask, "train", limit=8)
    assert {row["y"] for row in played.episodes.to_pylist()} == {0}
    groups = {}
    for one in played.list_answers("prover"):
        groups.setdefault(one.problem, []).append(one.reward)
    assert {reward for group in groups.values() for reward in group} == {0.0, 1.0}


async def test_a_request_that_a_function_refuses_fails_its_episode_alone():
    async def refuse_one(messages, seed, **sampling):
        if "Calculation" in messages[0]["content"] and seed % 4 == 0:
            raise RequestRefusedError("too long for this model")
        return answer(messages, seed)

    played = await play(game("rollouts.failure_threshold=1.0"), refuse_one)
    failed = [row for row in played.episodes.to_pylist() if row["outcome"] == "failed"]
    assert 0 < len(failed) < 8
    assert all("too long for this model" in row["error"] for row in failed)


async def give_a_number(messages, **sampling):
    return 5


async def break_down(messages, **sampling):
    raise ZeroDivisionError("of the caller's")


@pytest.mark.parametrize(
    ("models", "split", "error", "words"),
    [
        ({"prover": ask}, "test", SettingsError, r"verifier of protocol adp has no function \(got"),
        (ask, "tset", SettingsError, "split 'tset': use one of train, validation, test"),
        (ask, "attack", SettingsError, "split 'attack': use one of train, validation, test"),
        (
            give_a_number,
            "test",
            StageError,
            "of prover returned a value of type int that is no answer",
        ),
        (break_down, "test", ZeroDivisionError, "of the caller's"),
    ],
)
async def test_what_is_wrong_is_an_error_that_names_it(models, split, error, words):
    with pytest.raises(error, match=words):
        await play(game(), models, split)


@pytest.mark.parametrize(
    ("by", "options", "words"),
    [
        ("best-of", {}, "by: there is no attack 'best-of'"),
        ("best-of-n", {"m": 3}, "options.m: unknown setting"),
        ("script", {"script": "no-such"}, "has no script 'no-such'"),
    ],
)
def test_an_attack_that_can_not_be_is_refused_before_anything_is_asked(by, options, words):
    with pytest.raises(SettingsError, match=words):
        make_attack_game(game(), by, **options)


async def test_a_function_that_returns_at_once_lets_the_loop_go_on_after_each_round():
    async def ponder(messages, **sampling):  # it asks as long as it may
        decides = "Decision: accept" in messages[0]["content"]
        return "Question: is it so?" if decides else "Every step is right."

    task, turns = asyncio.create_task(play(game(protocol="nip"), ponder)), 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    rounds = task.result().episodes["rounds"].to_pylist()
    assert turns > max(rounds) > 4
