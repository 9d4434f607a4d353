"""The rule of `bags`: what answers not every challenge is rejected, and the verifier is not asked."""

import pytest
from in_memory import InMemory
from playing import agent_of, play
from scripted_game import scripted_run

from nip_core import loop
from nip_core.errors import SettingsError
from nip_core.evaluation.metrics import evaluate
from nip_core.game.render import Game, make_situation
from nip_core.parameters import load_parameters
from nip_core.protocols import Move, Turn
from nip_core.protocols.scales import SCALES
from nip_core.rollouts.branching import Branching
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.scenarios import RULE_MODEL, Scenario, find_scenario
from nip_core.scenarios.checked import call_for_rejection
from nip_core.scenarios.datasets import load_problems
from nip_core.trainers.expert_iteration import choose_examples
from nip_core.trainers.grpo import choose_trajectories
from nip_core.trainers.malt import choose_pairs
from nip_core.upkeep.verify import verify_run
from nip_study.plan.attack_run import attack_settings

SIZES = {"train_size": 8, "validation_size": 4, "test_size": 8}
ANSWER, NO_ANSWER = "Answer: 1: A, 2: B", "Answer: They differ."


def settings(protocol="adp", trainer="pure_text_ei", common=None, rounds=None, **own):
    return load_parameters(
        {
            "run_name": "a",
            "scenario": "bags",
            "dataset": "lists",
            "interaction_protocol": protocol,
            "trainer": trainer,
            "rl": {"rollouts_per_iteration": None},
            "protocol_common": {"shared_reward": False, **(common or {})},
            "nip_protocol": rounds or {},
            "pure_text_ei": {"reward_threshold": -9.0},
            "scenario_settings": {"challenges": 2, **SIZES, **own},
            "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "m"}},
        }
    )


def half_answers(body):
    """A prover that answers every second time, and a verifier that believes it."""
    if agent_of(body) == "verifier":
        return ["Decision: accept", "Decision: reject"][: body.get("n", 1)]
    return [ANSWER if body["seed"] % 2 else NO_ANSWER] * body.get("n", 1)


async def played_by_rule(parameters, script=half_answers, **more):
    game = Game(parameters)
    on = load_problems(game.scenario, "lists", "train")
    return await play(parameters, script, on=on, game=game, **more)


def in_memory(played):
    tables = played.tables()
    return InMemory((RolloutTables(tables.episodes, tables.generations),))


@pytest.mark.parametrize(
    ("messages", "rejected"),
    [
        (["Answer: 1: A, 2: B, 3: A"], False),
        (["1:A 2:B 3:B, and 9: A"], False),
        (["1 is A, 1: A, right. 2 is B, 2: B, right. 3 is A, 3: B, wrong."], False),
        (["Answer: 1: C, 2: C, 3: C"], True),
        (["Answer: 1: A, 2: B"], True),
        (["Answer: 4: A, 5: B, 6: A"], True),
        (["1 is A, 1: A, right."], True),
        (["1: A, 2: B, 3: A, 1: B"], True),
        (["1: A, 2: B, 3: A, 3: A"], False),
        (["Answer: They differ."], True),
        ([""], True),
        ([], True),
        (["1: A, 2: B", "3: A"], True),
        (["1: A, 2: B, 3: A", "They differ."], False),
    ],
)
def test_a_message_answers_where_it_names_one_list_for_every_challenge(messages, rejected):
    kind = find_scenario("bags")
    assert kind(kind.Settings(unanswered="reject")).rejects({}, messages) is rejected
    assert kind(kind.Settings()).rejects({}, messages) is False


def test_a_rule_without_answers_is_refused():
    with pytest.raises(SettingsError, match=r"unanswered: reject needs challenges .*got chall.* 0"):
        settings(unanswered="reject", challenges=0)
    with pytest.raises(SettingsError, match=r"unanswered: .*solo_verifier has none.*take adp"):
        settings("solo_verifier", unanswered="reject")


@pytest.mark.parametrize("version", ["v1", "short"])
def test_agents_are_told_of_the_rule_where_they_are_told_of_challenges(version):
    by_rule, plain = (
        Game(settings(system_prompt_version=version, **own))
        for own in ({"unanswered": "reject"}, {})
    )
    for role in ("prover", "verifier"):
        text, before = (g.scenario.addition(role, g.protocol) for g in (by_rule, plain))
        assert text.removeprefix(before).count("is rejected") == (version == "v1")
        assert text.startswith(before)
    assert "unanswered" not in plain.parameters.to_dict()["scenario_settings"]


def test_a_rule_is_asked_only_after_provers_and_where_a_verdict_counts():
    rounds = {"min_message_rounds": 4, "max_message_rounds": 5}
    game = Game(settings("nip", rounds=rounds, unanswered="reject"))
    [problem, *_] = load_problems(game.scenario, "lists", "train")
    situation = make_situation(problem, None, 0)
    assert [r for r in range(5) if game.rejects(situation, [], r)] == [3, 4]
    answer = Turn(1, "prover", ANSWER, Move(messages={"main": ANSWER}))
    assert not game.rejects(situation, [answer], 4)
    asked = Turn(0, "verifier", ANSWER, Move(messages={"main": ANSWER}))  # no prover's
    assert game.rejects(situation, [asked], 4)
    soon = Game(settings("nip", unanswered="reject"))
    assert [r for r in range(3) if soon.rejects(situation, [], r)] == [2]


class Unsure(Scenario):
    name, words = "unsure", find_scenario("bags").words

    def rejects(self, texts, messages):
        return "no"


def test_a_rule_that_returns_something_else_is_an_error_that_names_it():
    with pytest.raises(SettingsError, match=r"scenario unsure: rejects must return .*got 'no'"):
        call_for_rejection(Unsure(Unsure.Settings()), {}, [])


@pytest.mark.parametrize("scale", ["accept_reject", "likert_scale_5", "out_of_10"])
async def test_who_answers_nothing_is_rejected_without_a_call(scale):
    parameters = settings(unanswered="reject", common={"verifier_decision_scale": scale})

    def script(body):
        best = SCALES[scale].highest
        return f"Decision: {best}" if agent_of(body) == "verifier" else half_answers(body)

    own = {"record_p_accept": True}
    played = await played_by_rule(parameters, script, of_players=own)
    rows = {row["episode"]: row for row in played.shard.generations if row["agent"] == "verifier"}
    ruled = {key for key, row in rows.items() if row["model_asked"] == RULE_MODEL}
    said = {g["episode"]: g["text"] for g in played.shard.generations if g["agent"] == "prover"}
    assert ruled == {key for key, text in said.items() if text == NO_ANSWER}
    assert 0 < len(ruled) < len(rows) == len(said) == 8
    asked = [body for body in played.server.bodies if agent_of(body) == "verifier"]
    assert len(asked) == len(rows) - len(ruled)
    for episode in played.typed.episodes:
        row, by_rule = rows[episode.key], episode.key in ruled
        assert episode.outcome == "finished" and episode.decision == int(not by_rule)
        assert episode.decision_value == (-1.0 if by_rule else 1.0)
        assert episode.rewards["prover"] == float(not by_rule)
        if by_rule:
            assert row["p_accept"] == (0.0 if scale == "accept_reject" else None)
            assert row["prompt_tokens"] == row["completion_tokens"] == 0
            assert row["invalid_reason"] is None and row["model_served"] == RULE_MODEL
    # After a kill the journal has them all.
    again = await played_by_rule(parameters, script, recorded=played.log.by_key(), of_players=own)
    assert again.server.bodies == []
    before, after = (sorted(p.shard.generations, key=str) for p in (played, again))
    assert before == after


async def test_nobody_is_trained_on_a_verdict_of_the_rule():
    parameters = settings(unanswered="reject")
    played = await played_by_rule(parameters)
    rows = [row for row in played.shard.generations if row["agent"] == "verifier"]
    ruled = {row["episode"] for row in rows if row["model_asked"] == RULE_MODEL}
    game, shards = Game(parameters), in_memory(played)
    choice = choose_examples(game, "verifier", 0, shards, ["verifier"])
    learned = {example.episode for example in choice.examples}
    assert learned == {row["episode"] for row in rows} - ruled
    assert choice.counts["by_rule"] == len(ruled) and choice.counts["candidates"] == len(rows)
    of_prover = choose_examples(game, "prover", 0, shards, ["prover"])
    assert len([*of_prover.examples]) == len(rows) and "by_rule" not in of_prover.counts
    sampled = choose_trajectories(game, "all", 0, shards, ["prover", "verifier"])
    assert sampled.counts["by_rule"] == len(ruled)
    assert sampled.counts["candidates"] == 2 * len(rows) - len(ruled)


async def test_verdicts_of_the_rule_are_counted():
    tables = (await played_by_rule(settings(unanswered="reject"))).tables()
    agents = evaluate(tables.episodes, tables.generations).as_json()["agents"]
    ruled = tables.generations["model_asked"].to_pylist().count(RULE_MODEL)
    assert agents["verifier"]["by_rule"] == ruled > 0 and "by_rule" not in agents["prover"]


async def test_a_tree_does_not_branch_where_the_rule_decides():
    parameters = settings(trainer="pure_text_malt", unanswered="reject")
    game = Game(parameters)
    branch = Branching(parameters, game.protocol, 0)

    def script(body):
        if agent_of(body) == "verifier":
            return half_answers(body)
        return [ANSWER, NO_ANSWER][: body.get("n", 1)]

    played = await played_by_rule(parameters, script, branch=branch)
    paths = {}
    for episode in played.shard.episodes:
        paths.setdefault(episode["problem"], []).append(episode["branch_path"])
    assert len(paths) == 8 and {tuple(found) for found in paths.values()} == {("0.0", "0.1", "1.0")}
    shards = in_memory(played)
    pairs = choose_pairs(game, "all", 0, shards, ["prover", "verifier"])
    keys = {row["key"] for row in played.shard.generations if row["model_asked"] == RULE_MODEL}
    assert len(keys) == 8
    assert all(keys.isdisjoint(pair.generations) for pair in pairs.examples)
    # The answer is worth more than none, and of two verdicts on it one is right.
    assert pairs.counts["turns"] == 16 and pairs.counts["pairs"] > 8


@pytest.mark.parametrize(
    "attack", [{"by": "script", "script": "no-answer"}, {"by": "best-of-n", "n": [1, 2]}]
)
async def test_a_run_that_is_attacked_is_fooled_by_no_message_without_an_answer(
    tmp_path, monkeypatch, attack
):
    """Best-of-n takes the answer, as the other message is known to be rejected."""

    def script(body):
        if body["model"] == "verifier":
            return ["Decision: accept"] * body.get("n", 1)
        return [NO_ANSWER, ANSWER][: body.get("n", 1)]

    own = {"challenges": 2, "unanswered": "reject", **SIZES, "test_size": 12}
    async with scripted_run(
        tmp_path, monkeypatch, script, scenario="bags", dataset="lists", scenario_settings=own
    ) as server:
        chosen = {**attack, "iteration": 0}
        parameters = attack_settings(
            str(tmp_path), "scripted", chosen, overrides=["attack.continuations=2"]
        )
        result = await loop.train(parameters)
    run = RunStore(open_store(tmp_path), result["run"])
    rows = read_rollouts(run.store, run.rollouts(0, "attack")).generations.to_pylist()
    asked = [row for row in rows if row["agent"] == "verifier" and row["model_asked"] == "verifier"]
    ruled = [row for row in rows if row["model_asked"] == RULE_MODEL]
    first, *more = result["attack"]["by_n"]
    assert (first["soundness"], first["completeness"]) == (1.0, 0.0)
    # Each question's first message is rejected, and so is each estimate of it.
    assert len(ruled) == (12 if not more else 12 + 2 * 12)
    if not more:
        assert asked == [] and server.bodies == []
    else:
        assert more[0]["soundness"] == 0.0 and len(asked) == 12 + 2 * 12
    assert verify_run(run).problems == {}
