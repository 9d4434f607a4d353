"""Provers that stay silent, agents without a model, several who move at once, and what their
answers are measured by."""

import asyncio
import math

import pytest
from aiohttp import web
from playing import MemoryLog, agent_of, play, play_at, problems, saying
from scripted_server import scripted_server

from nip_core.errors import StageError
from nip_core.game.answer_rows import read_tokens
from nip_core.parameters import load_parameters
from nip_core.protocols.similarity import token_similarity
from nip_core.rollouts.plan import plan_episodes
from nip_core.rollouts.storage.row_tables import canonical_digest

MODEL = {"model_provider": "SelfHosted", "model_name": "m", "num_invalid_generation_retries": 1}


def settings(protocol="nip", agents=None, **more):
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "interaction_protocol": protocol,
            "nip_protocol": {"max_message_rounds": 5},
            "code_validation": {"system_prompt_version": "short"},
            "rl": {"rollouts_per_iteration": None},
            "rollouts": {"failure_threshold": 1.0, "transport_retries": 0},
            "agents": {"_default": MODEL, **(agents or {})},
            **more,
        }
    )


# Silence

PENALTY = {"prover_invalid_response_penalty": -0.25}


def silent_prover(body):
    if agent_of(body) == "prover":
        return "" if len(body["messages"]) == 2 else "Answer: d"
    asked = sum(m["role"] == "assistant" for m in body["messages"])
    return ["Question: a?", "Question: c?", "Decision: accept"][asked]


async def test_a_prover_without_valid_answers_is_silent_and_pays_and_the_game_goes_on():
    played = await play(settings(protocol_common=PENALTY), silent_prover)
    [episode] = played.episodes
    assert (episode["outcome"], episode["rounds"], episode["error"]) == ("finished", 5, None)
    # Paid for the acceptance of a wrong solution, less the penalty of one round.
    assert played.rewards() == {"prover": 1.0 - 0.25, "verifier": -1.0}
    rows = played.generations()
    assert [(g["round"], g["agent"], g["invalid_reason"]) for g in rows] == [
        (0, "verifier", None),
        (1, "prover", "empty answer"),
        (1, "prover", "empty answer"),
        (2, "verifier", None),
        (3, "prover", None),
        (4, "verifier", None),
    ]
    # The silent round leaves nothing: the verifier sees its own question as the last message, and
    # its next one follows on the first.
    verifiers = [b["messages"][1:] for b in played.server.bodies if agent_of(b) == "verifier"]
    assert verifiers[1] == [{"role": "assistant", "content": "Question: a?"}]
    assert [g["parent_key"] for g in rows[3:]] == [rows[i]["key"] for i in (0, 3, 4)]


@pytest.mark.parametrize("kept", [2, 3, 5])
async def test_a_silence_that_was_recorded_is_the_same_silence_after_a_resume(kept):
    parameters = settings(protocol_common=PENALTY)
    whole = await play(parameters, silent_prover)
    part = {r["generation"]["key"]: r for r in whole.log.records[:kept]}
    resumed = await play(parameters, silent_prover, recorded=part)
    assert (resumed.episodes, resumed.generations()) == (whole.episodes, whole.generations())
    assert len(resumed.server.bodies) == len(whole.log.records) - kept


async def test_without_a_penalty_such_a_prover_fails_its_episode():
    played = await play(settings(), silent_prover)
    assert played.episodes[0]["error"].startswith("prover, round 1: 2 invalid answers")


async def test_a_verifier_is_never_silent():
    played = await play(settings(protocol_common=PENALTY), lambda body: "")
    assert played.episodes[0]["error"].startswith("verifier, round 0: 2 invalid answers")
    assert set(played.rewards().values()) == {0.0}


async def test_a_refused_request_is_no_silence():
    def script(body):
        if agent_of(body) == "prover":
            return web.json_response({"error": {"message": "no"}}, status=400)
        return "Question: a?"

    played = await play(settings(protocol_common=PENALTY), script)
    assert played.episodes[0]["error"] == "prover, round 1: HTTP 400: no"


# Agents without a model


@pytest.mark.parametrize("randoms", [("prover",), ("verifier",), ("prover", "verifier")])
async def test_random_agents_play_without_a_model_and_reproducibly(randoms):
    parameters = settings(agents={name: {"is_random": True} for name in randoms})
    usual = saying(
        prover=["Answer: b"] * 3, verifier=["Question: a?", "Question: c?", "Decision: accept"]
    )
    played = await play(parameters, usual, on=problems(12))
    again = await play(parameters, usual, on=problems(12), num_shards=5)
    assert {agent_of(b) for b in played.server.bodies} == {"prover", "verifier"} - set(randoms)
    assert {e["outcome"] for e in played.episodes} <= {"finished", "terminated"}
    random_rows = [g for g in played.shard.generations if g["agent"] in randoms]
    assert {(g["model_asked"], g["model_served"]) for g in random_rows} == {("random", "random")}
    assert len({g["text"] for g in random_rows}) > 5
    assert digest(played) == digest(again)
    # They are no calls: nothing was answered by a server, and nothing is counted as if it were.
    assert played.progress.calls == len(played.server.bodies)
    assert not set(randoms) & set(played.progress.tokens_by_agent)


def digest(played):
    tables = played.tables()
    return canonical_digest(tables.episodes, tables.generations)


async def test_random_verifiers_decide_on_every_answer_of_the_scale_and_the_value_is_recorded():
    parameters = settings(
        "solo_verifier",
        agents={"verifier": {"is_random": True}},
        protocol_common={"verifier_decision_scale": "out_of_10"},
    )
    played = await play(parameters, lambda body: "", on=problems(150))
    decided = {
        (g["text"], g["decision"], g["decision_value"])
        for g in played.shard.generations
        if g["decision"] != 2
    }
    values = [round(i / 5 - 1, 3) for i in range(11)]
    assert decided == {
        (f"Decision: {i}", 3 if v == 0 else int(v > 0), v) for i, v in enumerate(values)
    }
    for episode in played.episodes:
        [row] = played.generations(episode["problem"])
        assert (episode["decision"], episode["decision_value"]) == (
            row["decision"],
            row["decision_value"],
        )


# Log-probabilities of tokens


def zero_knowledge(**more):
    return settings(
        "adp",
        protocol_common={"zero_knowledge": True},
        zk_protocol={"similarity": "log_probs", "top_logprobs": 2},
        agents=more,
    )


def chances(token, p):
    return {"token": token, "logprob": math.log(p)}


def with_logprobs(body):
    """The simulator and the adversarial verifier write the same, one surer than the other."""
    agent = agent_of(body)
    if agent == "prover":
        [to_one, to_other] = sorted({"To Verifier_1:", "To Verifier_2:"})
        return f"{to_one} yes\n{to_other} no"
    share = {"adversarial_verifier": 0.75, "simulator": 0.5}.get(agent, 1.0)
    content = [{**chances("Decision: accept", share), "top_logprobs": [chances("B", 0.125)]}]
    return web.json_response(
        {
            "model": body["model"],
            "choices": [
                {
                    "message": {"content": "Decision: accept"},
                    "finish_reason": "stop",
                    "logprobs": {"content": content} if body.get("logprobs") else None,
                }
            ],
        }
    )


@pytest.fixture
def templates(tmp_path):
    """Prompts for every agent, so that this does not wait for the protocol's own."""
    for_each = {}
    for agent in ("prover", "verifier", "adversarial_verifier", "simulator"):
        path = tmp_path / f"{agent}.txt"
        path.write_text("$question\n$solution\n")
        for_each[agent] = {"system_prompt_template_path": str(path)}
    return for_each


async def test_log_probabilities_are_asked_for_recorded_and_paid_by(templates):
    played = await play(zero_knowledge(**templates), with_logprobs)
    for body in played.server.bodies:
        asked = {key: body.get(key) for key in ("logprobs", "top_logprobs")}
        if agent_of(body) in ("adversarial_verifier", "simulator"):
            assert asked == {"logprobs": True, "top_logprobs": 2}
        else:
            assert asked == {"logprobs": None, "top_logprobs": None}
    rows = {g["agent"]: g["token_logprobs"] for g in played.generations()}
    assert rows["prover"] is None and rows["verifier"] is None
    assert rows["simulator"] == [{**chances("Decision: accept", 0.5), "top": [chances("B", 0.125)]}]
    similarity = token_similarity(
        read_tokens(rows["adversarial_verifier"]), read_tokens(rows["simulator"])
    )
    assert 0.5 < similarity < 1
    assert played.rewards()["simulator"] == similarity
    assert played.rewards()["adversarial_verifier"] == -similarity
    again = await play(zero_knowledge(**templates), with_logprobs, recorded=played.log.by_key())
    assert again.server.bodies == [] and again.episodes == played.episodes
    tables = played.tables()
    assert tables.generations["token_logprobs"].null_count == 2


async def test_a_server_without_log_probabilities_stops_the_stage_with_the_way_out(templates):
    def script(body):
        said = with_logprobs(body)
        return said if isinstance(said, str) else "Decision: accept"

    with pytest.raises(StageError, match=r"gives no log-probabilities; set zk_protocol\.similar"):
        await play(zero_knowledge(**templates), script)


# Several at once


async def test_an_error_that_concerns_everybody_does_not_wait_for_the_other_movers(templates):
    """The verifiers move together, and the simulator's answer never comes."""
    never = asyncio.Event()

    async def script(body):
        if agent_of(body) == "prover":
            return with_logprobs(body)
        if agent_of(body) == "simulator":
            await never.wait()
        return web.json_response({"error": {"message": "wrong key"}}, status=401)

    parameters = zero_knowledge(**templates)
    specs = plan_episodes(parameters, problems(1), "train", 0)
    log = MemoryLog()
    async with scripted_server(script) as server:
        with pytest.raises(StageError, match="refuses every call"):
            await asyncio.wait_for(play_at(server.url, parameters, specs, log=log), 5)
        never.set()
    assert [r["generation"]["agent"] for r in log.records] == ["prover"]
