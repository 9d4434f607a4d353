"""Trees of responses, played over real HTTP servers: what is asked, recorded and paid.

By hand against a script that sees every request, and at length against the deterministic engine.
"""

import asyncio
import itertools
import random
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from aiohttp import web
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from playing import MemoryLog, agent_of, number_of, play, play_at, problems
from served_here import KEY, serve
from stored_rows import rows_by_episode, typed_tables

from nip_base.spec import ServerSpec
from nip_by_hand.agents.batch import nested_to_rollouts, rollouts_to_nested
from nip_core.errors import StageError
from nip_core.evaluation.episode_transcripts import transcripts_from_tables
from nip_core.game.answer_rows import AnswerPlace
from nip_core.game.render import Game
from nip_core.hashing import derive_key
from nip_core.parameters import load_parameters
from nip_core.rollouts.branching import Branching, nodes_by_round
from nip_core.rollouts.failures import Failures
from nip_core.rollouts.plan import episode_spec, plan_episodes
from nip_core.rollouts.storage.journal import Journal
from nip_core.rollouts.storage.row_tables import canonical_digest
from nip_core.rollouts.trees import (
    expected_rewards,
    list_ancestors,
    parse_path,
)

ACCEPT, REJECT = "Decision: accept", "Decision: reject"
SEED = 6198  # of the settings, where they don't say another


def settings(protocol="nip", rounds=3, malt=None, agents=None, **more):
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "trainer": "pure_text_malt",
            "pure_text_malt": malt or {},
            "interaction_protocol": protocol,
            "nip_protocol": {"max_message_rounds": rounds},
            "code_validation": {"system_prompt_version": "short"},
            "rl": {"rollouts_per_iteration": None},
            "rollouts": {"failure_threshold": 1.0},
            "agents": {
                "_default": {
                    "model_provider": "SelfHosted",
                    "model_name": "m",
                    "max_tokens_per_message": 40,
                    "num_invalid_generation_retries": 1,
                },
                **(agents or {}),
            },
            **more,
        }
    )


def branching(parameters, iteration=0):
    return Branching(parameters, Game(parameters).protocol, iteration)


async def grow(parameters, script, **more):
    """The trees of iteration 0, by default that of a single problem."""
    return await play(parameters, script, branch=branching(parameters), **more)


def leaves(played):
    return {row["branch_path"]: row for row in played.shard.episodes}


def said(played):
    """(path, agent, attempt) -> row."""
    return {(g["branch_path"], g["agent"], g["attempt"]): g for g in played.shard.generations}


def node(spec, path):
    """The same place in a tree, for the keys and seeds of calls that lead there."""
    return replace(spec, branch_path=path)


def paid(row):
    return {entry["agent"]: entry["reward"] for entry in row["rewards"]}


def prover_then_verdicts(body):
    """adp: two proofs; the first convinces once of two times, the second never."""
    if agent_of(body) == "prover":
        return ["good proof", "bad proof"]
    good = any(m["content"] == "good proof" for m in body["messages"])
    return [ACCEPT, REJECT] if good else [REJECT, REJECT]


# Structure


async def test_a_tree_of_adp_by_hand():
    parameters = settings("adp", malt={"num_responses_per_timestep": 2})
    played = await grow(parameters, prover_then_verdicts)
    [spec] = played.specs
    rows, found = leaves(played), said(played)
    assert list(rows) == ["0.0", "0.1", "1.0", "1.1"]
    for path, row in rows.items():
        place = (spec.split, spec.iteration, spec.problem.id, spec.sample, path)
        assert row["key"] == derive_key("episode", "a", *place)
        assert (row["seed"], row["rounds"], row["outcome"]) == (spec.seed, 2, "finished")
    # p0 is buggy.
    assert [paid(row) for row in rows.values()] == [
        {"prover": 1.0, "verifier": -1.0},
        *[{"prover": 0.0, "verifier": 1.0}] * 3,
    ]
    assert {place: g["text"] for place, g in found.items()} == {
        ("0", "prover", 0): "good proof",
        ("1", "prover", 0): "bad proof",
        ("0.0", "verifier", 0): ACCEPT,
        ("0.1", "verifier", 0): REJECT,
        ("1.0", "verifier", 0): REJECT,
        ("1.1", "verifier", 0): REJECT,
    }
    # A generation stands once, with the first leaf below it.
    first = {"0": "0.0", "1": "1.0"} | {path: path for path in rows}
    assert {g["branch_path"]: g["episode"] for g in found.values()} == {
        node: rows[leaf]["key"] for node, leaf in first.items()
    }
    parents = {path: g["parent_key"] for (path, _, _), g in found.items()}
    assert parents["0"] is parents["1"] is None
    assert parents["0.0"] == parents["0.1"] == found["0", "prover", 0]["key"]
    assert parents["1.0"] == parents["1.1"] == found["1", "prover", 0]["key"]


async def test_the_answers_of_an_agent_in_a_node_are_one_request_with_the_seed_of_the_node():
    parameters = settings("adp", malt={"num_responses_per_timestep": 2})
    played = await grow(parameters, prover_then_verdicts)
    [spec] = played.specs
    assert [body["n"] for body in played.server.bodies] == [2, 2, 2]
    first, *others = played.server.bodies
    assert first["seed"] == spec.generation_seed(parameters.seed, AnswerPlace(0, "prover"))
    assert {body["seed"] for body in others} == {
        node(spec, path).generation_seed(SEED, AnswerPlace(1, "verifier")) for path in ("0", "1")
    }
    # The prompt of a request is read once, its answers are six.
    progress = played.progress
    assert (progress.calls, progress.prompt_tokens, progress.completion_tokens) == (6, 21, 18)
    assert sum(g["prompt_tokens"] for g in played.shard.generations) == 42
    assert sum(g["completion_tokens"] for g in played.shard.generations) == 18


async def test_leaves_end_in_different_rounds():
    def script(body):
        if agent_of(body) == "prover":
            return ["Answer: a", "Answer: b"]
        asked = any(m["role"] == "assistant" for m in body["messages"])
        return [ACCEPT, REJECT] if asked else [REJECT, "Question: why?"]

    played = await grow(settings(rounds=3), script)
    rows = leaves(played)
    assert list(rows) == ["0", "1.0.0", "1.0.1", "1.1.0", "1.1.1"]
    assert [row["rounds"] for row in rows.values()] == [1, 3, 3, 3, 3]
    question = said(played)["1", "verifier", 0]
    assert question["episode"] == rows["1.0.0"]["key"]


async def test_a_child_is_one_move_of_all_agents_that_move():
    def script(body):
        agent, number = agent_of(body), len(body["messages"])
        if agent == "verifier":
            return [ACCEPT] * body.get("n", 1)
        return [f"{agent} says {i} after {number}" for i in range(body.get("n", 1))]

    debate = {"max_message_rounds": 2, "sequential": False}
    parameters = settings(
        "debate", debate_protocol=debate, protocol_common={"verifier_first": False}
    )
    played = await grow(parameters, script)
    found = said(played)
    for i in "01":
        assert found[i, "prover0", 0]["text"].startswith(f"prover0 says {i}")
        assert found[i, "prover1", 0]["text"].startswith(f"prover1 says {i}")
        assert found[i, "prover0", 0]["episode"] == found[i, "prover1", 0]["episode"]
        # The verifier answers both, so the last of them is its parent.
        assert found[f"{i}.0", "verifier", 0]["parent_key"] == found[i, "prover1", 0]["key"]
    assert Counter(agent_of(body) for body in played.server.bodies) == {
        "prover0": 1,
        "prover1": 1,
        "verifier": 2,
    }


async def test_the_drawn_prover_and_the_verifier_grow_a_tree_of_merlin_arthur():
    parameters = settings("merlin_arthur")
    played = await grow(
        parameters, lambda body: [ACCEPT if agent_of(body) == "verifier" else "x"] * 2
    )
    [spec] = played.specs
    assert list(leaves(played)) == ["0.0", "0.1", "1.0", "1.1"]
    speaker = played.game.protocol.speaker(spec.seed)
    assert {agent for _, agent, _ in said(played)} == {speaker, "verifier"}


async def test_the_solo_verifier_grows_a_tree_of_one_round():
    played = await grow(
        settings("solo_verifier", malt={"num_responses_per_timestep": 11}),
        lambda body: [ACCEPT, REJECT] * 5 + [REJECT],
    )
    assert list(leaves(played)) == [str(i) for i in range(11)]
    assert len(played.server.bodies) == 1
    # Paths are numbers: 10 comes after 9, not after 1.
    ordered = sorted(leaves(played), key=parse_path)
    assert ordered == [str(i) for i in range(11)]
    assert list_ancestors("0.10.2") == ["0", "0.10", "0.10.2"] and list_ancestors("") == []


async def test_an_agent_without_a_model_answers_in_each_child_by_a_seed_of_its_own():
    parameters = settings("debate", agents={"prover0": {"is_random": True}}, malt={"max_nodes": 20},
                          debate_protocol={"max_message_rounds": 3})  # fmt: skip

    def script(body):
        if agent_of(body) == "verifier" and len(body["messages"]) > 2:
            return [REJECT] * body.get("n", 1)
        if agent_of(body) == "verifier":
            return ["Question for Expert_1: a\nQuestion for Expert_2: b"] * body.get("n", 1)
        return [f"Answer: {i}" for i in range(body.get("n", 1))]

    played = await grow(parameters, script, on=problems(4))
    texts = [g["text"] for g in played.shard.generations if g["agent"] == "prover0"]
    assert len(set(texts)) == len(texts) >= 4


async def test_a_subtree_goes_on_while_its_sibling_is_still_asked():
    """The first child's retry is not answered before the second child's verifier was asked."""
    second_went_on = asyncio.Event()

    async def script(body):
        if agent_of(body) == "verifier":
            if any(m["content"] == "proof" for m in body["messages"]):
                second_went_on.set()
            return [ACCEPT] * body["n"]
        if "n" in body:
            return ["", "proof"]
        await second_went_on.wait()
        return "late proof"

    played = await grow(settings("adp"), script)
    assert said(played)["0", "prover", 1]["text"] == "late proof"
    assert list(leaves(played)) == ["0.0", "0.1", "1.0", "1.1"]


async def test_agents_of_a_round_and_nodes_beside_each_other_are_asked_at_the_same_time():
    waiting = {"prover0": asyncio.Event(), "prover1": asyncio.Event()}

    async def script(body):
        if agent_of(body) in waiting:
            waiting[agent_of(body)].set()
            for event in waiting.values():
                await event.wait()
            return [f"Answer: {i}" for i in range(body["n"])]
        return [REJECT] * body.get("n", 1)

    first = {"verifier_first": False}
    rounds = {"max_message_rounds": 2}
    parameters = settings("debate", debate_protocol=rounds, protocol_common=first)
    played = await grow(parameters, script)
    assert played.server.most_in_flight >= 2
    assert {row["outcome"] for row in played.shard.episodes} == {"finished"}


# What goes wrong


async def test_what_a_server_gives_too_few_of_is_asked_for_by_itself():
    async def play_with(answers):
        return await grow(
            settings("solo_verifier", malt={"num_responses_per_timestep": 3}),
            lambda body: answers if "n" in body else REJECT,
        )

    played = await play_with([ACCEPT, ACCEPT])
    assert [body.get("n") for body in played.server.bodies] == [3, None]
    alone = node(played.specs[0], "2")
    assert played.server.bodies[1]["seed"] == alone.generation_seed(
        SEED, AnswerPlace(0, "verifier")
    )
    texts = {path: g["text"] for (path, _, _), g in said(played).items()}
    assert texts == {"0": ACCEPT, "1": ACCEPT, "2": REJECT}
    # More than was asked for is no child.
    assert list(leaves(await play_with([REJECT] * 5))) == ["0", "1", "2"]


async def test_of_openrouter_each_answer_is_a_request():
    parameters = settings(
        "solo_verifier",
        malt={"frozen_agents_generate_one_response": False},
        agents={"verifier": {"model_provider": "OpenRouter", "freeze_agent": True}},
    )
    played = await grow(parameters, lambda body: ACCEPT)
    assert ["n" in body for body in played.server.bodies] == [False, False]
    assert len({body["seed"] for body in played.server.bodies}) == 2
    assert list(leaves(played)) == ["0", "1"]


async def test_an_invalid_answer_is_asked_for_again_alone():
    def script(body):
        return ["Decision: perhaps", ACCEPT] if "n" in body else REJECT

    played = await grow(settings("solo_verifier"), script)
    found = said(played)
    assert {place: g["text"] for place, g in found.items()} == {
        ("0", "verifier", 0): "Decision: perhaps",
        ("0", "verifier", 1): REJECT,
        ("1", "verifier", 0): ACCEPT,
    }
    [spec] = played.specs
    child = node(spec, "0")
    assert played.server.bodies[1]["seed"] == child.generation_seed(
        SEED, AnswerPlace(0, "verifier", 1)
    )
    assert found["0", "verifier", 1]["key"] == child.generation_key(AnswerPlace(0, "verifier", 1))


async def test_a_leaf_that_fails_leaves_the_others_alone():
    def script(body):
        if agent_of(body) == "prover":
            return ["good proof", "bad proof"]
        if any(m["content"] == "bad proof" for m in body["messages"]):
            return ["Decision: perhaps"] * body.get("n", 1)
        return [ACCEPT, REJECT]

    played = await grow(settings("adp"), script)
    rows = leaves(played)
    assert {path: row["outcome"] for path, row in rows.items()} == {
        "0.0": "finished",
        "0.1": "finished",
        "1.0": "failed",
        "1.1": "failed",
    }
    assert rows["1.0"]["error"].startswith("verifier, round 1: 2 invalid answers")
    assert paid(rows["1.1"]) == {"prover": 0.0, "verifier": 0.0}
    assert played.shard.failed == [] and played.progress.episodes_failed == 0
    assert played.progress.episodes_done == 1


async def test_a_server_that_refuses_to_give_several_answers_is_asked_for_each():
    def script(body):
        if "n" in body:
            return web.json_response({"error": {"message": "n is not supported"}}, status=400)
        return ACCEPT

    played = await grow(settings("solo_verifier"), script)
    assert [body.get("n") for body in played.server.bodies] == [2, None, None]
    assert {row["outcome"] for row in played.shard.episodes} == {"finished"}
    assert {place: g["text"] for place, g in said(played).items()} == {
        ("0", "verifier", 0): ACCEPT,
        ("1", "verifier", 0): ACCEPT,
    }


async def test_a_prompt_that_is_too_long_fails_all_children_and_is_not_sent_again():
    error = {"message": "too long", "code": "context_length_exceeded"}
    played = await grow(
        settings("solo_verifier"),
        lambda body: web.json_response({"error": error}, status=400),
    )
    assert {row["outcome"] for row in played.shard.episodes} == {"failed"}
    assert len(played.shard.episodes) == 2 and len(played.server.bodies) == 1
    assert played.shard.generations == []


async def test_a_tree_fails_when_all_its_leaves_do_and_counts_as_one_episode():
    def script(body):
        return [ACCEPT if number_of(body) else "Decision: perhaps"] * body.get("n", 1)

    failures = Failures(10)
    rollouts = {"failure_threshold": 0.1}
    played = await grow(
        settings("solo_verifier", rollouts=rollouts), script, on=problems(10), failures=failures
    )
    failed = [spec.key for spec in played.specs if spec.problem.id == "p0"]
    assert played.shard.failed == failed and failures.keys == set(failed)
    assert played.progress.episodes_failed == 1
    with pytest.raises(StageError, match=r"2 of 2 episodes failed.*p[01]: verifier, round 0"):
        await grow(
            settings("solo_verifier", rollouts={"failure_threshold": 0.5}),
            lambda body: ["Decision: perhaps"] * body.get("n", 1),
            on=problems(2),
        )


async def test_a_silent_prover_pays_in_its_child_alone():
    def script(body):
        if agent_of(body) == "verifier":
            return [REJECT] * body.get("n", 1)
        return ["", "proof"] if "n" in body else ""

    common = {"prover_invalid_response_penalty": -0.5}
    played = await grow(settings("adp", protocol_common=common), script)
    assert {path: paid(row)["prover"] for path, row in leaves(played).items()} == {
        "0.0": -0.5,
        "0.1": -0.5,
        "1.0": 0.0,
        "1.1": 0.0,
    }
    assert said(played)["0.0", "verifier", 0]["parent_key"] is None


# Where it branches


async def test_rounds_of_frozen_agents_have_one_child():
    for one_response, agents, expected in (
        (True, {"verifier": {"freeze_agent": True}}, ["0.0", "1.0"]),
        (False, {"verifier": {"freeze_agent": True}}, ["0.0", "0.1", "1.0", "1.1"]),
        (True, {"prover": {"freeze_agent": True}}, ["0.0", "0.1"]),
    ):
        parameters = settings(
            "adp", malt={"frozen_agents_generate_one_response": one_response}, agents=agents
        )
        played = await grow(
            parameters,
            lambda body: [ACCEPT if agent_of(body) == "verifier" else "x"] * body.get("n", 1),
        )
        assert list(leaves(played)) == expected


def test_who_is_not_scheduled_is_frozen_for_that_iteration():
    schedule = {
        "_type": "AlternatingPeriodicUpdateSchedule",
        "period": 2,
        "first_agent_num_iterations": 1,
        "first_agent": True,
    }
    parameters = settings("adp", agents={
        "prover": {"update_schedule": schedule},
        "verifier": {"update_schedule": {**schedule, "first_agent": False}},
    })  # fmt: skip
    shapes = []
    for iteration in (0, 1):
        spec = episode_spec(parameters, "train", iteration, problems(1)[0], 0)
        shapes.append(branching(parameters, iteration).shape(spec))
    assert sorted(shapes) == [(1, 2), (2, 1)]


@hypothesis_settings(max_examples=60)
@given(
    st.integers(1, 5).map(lambda half: 2 * half - 1),
    st.integers(2, 5),
    st.one_of(st.none(), st.integers(1, 200)),
    st.booleans(),
    st.integers(0, 30),
)
def test_the_budget_holds_in_the_worst_case_and_is_used_up(rounds, k, most, frozen, problem):
    malt = {"num_responses_per_timestep": k, "max_nodes": most}
    agents = {"prover": {"freeze_agent": True}} if frozen else {}
    parameters = settings(rounds=rounds, malt=malt, agents=agents)
    grown = branching(parameters)
    spec = episode_spec(parameters, "train", 0, problems(31)[problem], 0)
    shape = grown.shape(spec)
    assert len(shape) == rounds and shape == branching(parameters).shape(spec)
    may = [r for r in range(rounds) if not frozen or r % 2 == 0]
    assert all(shape[r] in ((1, k) if r in may else (1,)) for r in range(rounds))
    total = sum(nodes_by_round(shape))
    if most is None:
        assert all(shape[r] == k for r in may)
        return
    assert total <= max(most, rounds)
    for r in may:
        wider = [k if i == r else width for i, width in enumerate(shape)]
        assert shape[r] == k or sum(nodes_by_round(wider)) > most


def test_over_the_problems_every_turn_branches():
    parameters = settings(rounds=9, malt={"max_nodes": 128})
    grown = branching(parameters)
    specs = [episode_spec(parameters, "train", 0, p, 0) for p in problems(100)]
    shapes = [grown.shape(spec) for spec in specs]
    assert all(sum(shape[r] == 2 for shape in shapes) >= 20 for r in range(9))
    # The second time that a problem is played it branches elsewhere.
    again = [episode_spec(parameters, "train", 0, p, 1) for p in problems(100)]
    assert shapes != [grown.shape(spec) for spec in again]
    assert nodes_by_round((2, 1, 3)) == (2, 2, 6)


def test_an_expected_reward_is_the_mean_over_answers_not_over_leaves():
    leaves = {
        (0,): {"a": 1.0, "b": 0.0},
        (1, 0): {"a": 0.0, "b": 0.0},
        (1, 1, 0): {"a": 1.0, "b": 1.0},
        (1, 1, 1): None,
        (1, 2): None,
        (2, 0): None,
    }
    assert expected_rewards(leaves) == {
        **leaves,
        (1, 1): {"a": 1.0, "b": 1.0},
        (1,): {"a": 0.5, "b": 0.5},
        (2,): None,
        (): {"a": 0.75, "b": 0.25},
    }


# At length, on the deterministic engine

GAMES = {
    "nip": {"rounds": 5, "malt": {"max_nodes": 24}},
    "debate": {
        "protocol": "debate",
        "debate_protocol": {"max_message_rounds": 3},
        "malt": {"num_responses_per_timestep": 3, "max_nodes": 16},
    },
    "adp": {"protocol": "adp", "agents": {"verifier": {"freeze_agent": True}}},
    "solo_verifier": {"protocol": "solo_verifier", "malt": {"num_responses_per_timestep": 4}},
    "merlin_arthur": {
        "protocol": "merlin_arthur",
        "protocol_common": {"prover_invalid_response_penalty": -0.5},
    },
    "zero_knowledge": {"rounds": 3, "protocol_common": {"zero_knowledge": True}},
}
REPLIES = {
    "seed": 5,
    "default": [
        {
            "text": "Question for Expert_1: {words:3}?\nQuestion for Expert_2: {words:3}?\n"
            "To Verifier_1: {words:4}\nTo Verifier_2: {words:4}",
            "weight": 6,
        },
        {"text": "Decision: accept", "weight": 2},
        {"text": "Decision: reject", "weight": 2},
        {"text": "Decision: perhaps", "weight": 2},
    ],
}
COUNT = 8


async def at_length(game, concurrency=64, num_shards=1, **more):
    parameters = settings(**GAMES[game])
    rollouts = parameters.rollouts.model_copy(update={"concurrency": concurrency})
    parameters = parameters.model_copy(update={"rollouts": rollouts})
    specs = plan_episodes(parameters, problems(COUNT), "train", 0)
    with tempfile.TemporaryDirectory() as state:
        replies = Path(state) / "replies.yaml"
        replies.write_text(yaml.safe_dump(REPLIES))
        spec = ServerSpec("deterministic", "sim", replies=str(replies))
        async with serve(Path(state), spec=spec) as here:
            return await play_at(
                f"{here.url}/v1", parameters, specs, num_shards, model="sim", key=KEY,
                branch=branching(parameters), **more,
            )  # fmt: skip


def digest_of(played):
    tables = played.tables()
    return canonical_digest(tables.episodes, tables.generations)


@pytest.fixture(scope="module", params=list(GAMES))
async def whole(request):
    """A game and what came of it with one call at a time."""
    played = await at_length(request.param, concurrency=1)
    outcomes = Counter(row["outcome"] for row in played.shard.episodes)
    assert outcomes["finished"] and len(played.shard.episodes) > COUNT
    assert any(g["attempt"] for g in played.shard.generations), "nothing was asked for again"
    return request.param, played


async def test_the_same_seed_gives_the_same_trees_whatever_concurrency_and_shards(whole):
    game, played = whole
    assert digest_of(await at_length(game, 64, 8)) == digest_of(played)


async def test_after_a_kill_what_the_journal_has_is_not_asked_for_again(whole, tmp_path):
    game, played = whole
    path = tmp_path / "journal"
    async with Journal(path, sync_interval_s=0) as journal:
        journal.replay()
        for record in played.log.records:
            await journal.append(record)
    size, rng = path.stat().st_size, random.Random(game)
    for part in (rng.uniform(0.2, 0.4), rng.uniform(0.6, 0.9)):
        path.write_bytes(path.read_bytes()[: int(size * part)])
        torn = Journal(path)
        recorded = {record["generation"]["key"]: record for record in torn.replay()}
        torn.close()
        assert 0 < len(recorded) < len(played.log.records)
        log = MemoryLog()
        again = await at_length(game, log=log, recorded=recorded)
        assert digest_of(again) == digest_of(played)
        assert again.progress.calls_reused == len(recorded)
        assert not log.by_key().keys() & recorded.keys()
        assert log.by_key().keys() | recorded.keys() == played.log.by_key().keys()
        # So that the second cut is of the whole journal.
        async with Journal(path, sync_interval_s=0) as journal:
            journal.replay()
            for record in played.log.records[len(recorded) :]:
                await journal.append(record)


async def test_of_a_request_that_was_recorded_in_part_only_the_rest_is_taken():
    whole = await at_length("solo_verifier")
    some = [r for r in whole.log.records if r["generation"]["branch_path"] in ("1", "3")]
    recorded = {r["generation"]["key"]: r for r in some}
    log = MemoryLog()
    again = await at_length("solo_verifier", recorded=recorded, log=log)
    assert digest_of(again) == digest_of(whole)
    assert len(log.records) == len(whole.log.records) - len(some)


async def test_every_leaf_is_a_game_that_its_own_generations_tell(whole):
    """The batch plays each leaf again from its texts and refuses rewards that they don't earn."""
    _, played = whole
    tables = played.tables()
    batch = rollouts_to_nested(played.game, tables.episodes, tables.generations)
    episodes, generations = nested_to_rollouts(played.game, batch)
    assert episodes.equals(tables.episodes)
    assert generations.equals(tables.generations)
    part = nested_to_rollouts(played.game, batch[3:])
    typed_tables(part[0].to_pylist(), part[1].to_pylist())  # each has its episode
    again = rollouts_to_nested(played.game, *part)
    assert (again["generation", "key"] == batch[3:]["generation", "key"]).all()


async def test_a_leaf_has_the_generations_of_its_path_and_no_others(whole):
    _, played = whole
    tables = played.tables()
    found = rows_by_episode(tables)
    tree = {row["key"]: row["problem"] for row in tables.episodes.to_pylist()}
    for leaf in tables.episodes.to_pylist():
        mine = [
            row["key"]
            for row in tables.generations.to_pylist()
            if tree[row["episode"]] == leaf["problem"]
            and f"{leaf['branch_path']}.".startswith(f"{row['branch_path']}.")
        ]
        assert sorted(row["key"] for row in found[leaf["key"]]) == sorted(mine)
        assert [row["round"] for row in found[leaf["key"]]] == sorted(
            row["round"] for row in found[leaf["key"]]
        )
        rounds = {row["round"] for row in found[leaf["key"]]}
        assert max(rounds) < leaf["rounds"] == len(parse_path(leaf["branch_path"]))
    assert set(itertools.chain.from_iterable(
        [row["key"] for row in rows] for rows in found.values()
    )) == set(tables.generations["key"].to_pylist())  # fmt: skip


async def test_the_transcript_of_a_leaf_has_all_that_was_said_on_its_path(whole):
    _, played = whole
    tables = played.tables()
    found = rows_by_episode(tables)
    limit = 7
    shown = transcripts_from_tables(tables.episodes, tables.generations, limit, 0)
    assert len(shown) == limit
    for transcript in shown:
        texts = Counter((row["round"], row["text"]) for row in found[transcript.key])
        assert Counter((m.round, m.text) for m in transcript.messages) == texts
    turned = tables.episodes.take(pa.array(range(tables.episodes.num_rows - 1, -1, -1)))
    assert transcripts_from_tables(turned, tables.generations, limit, 0) == shown
