"""P(accept) is recorded where a verdict comes with log-probabilities, and changes nothing else."""

import copy
import math

import pytest
from aiohttp import web
from playing import agent_of, play

from nip_core.parameters import load_parameters
from nip_core.protocols import ACCEPT, REJECT, TokenChoice
from nip_core.rollouts.acceptance import estimate_acceptance
from nip_core.rollouts.storage.row_tables import canonical_digest

RECORDS = {"record_p_accept": True}
HOW_LIKELY = {" accept": 0.6, " Accept": 0.1, " reject": 0.2, " so": 0.1}


def settings(protocol="nip", **more):
    model = {"model_provider": "SelfHosted", "freeze_agent": True, "temperature": 0.5}
    rounds = {"nip_protocol": {"max_message_rounds": 3}} if protocol == "nip" else {}
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "interaction_protocol": protocol,
            "code_validation": {"system_prompt_version": "short"},
            "rl": {"rollouts_per_iteration": None},
            "agents": {"_default": model},
            **rounds,
            **more,
        }
    )


def answer(text, tokens, asked):
    content = [
        {
            "token": token,
            "logprob": math.log(top[token]),
            "top_logprobs": [{"token": t, "logprob": math.log(p)} for t, p in top.items()],
        }
        for token, top in tokens
    ]
    given = {"content": content} if asked else None
    choice = {"message": {"content": text}, "finish_reason": "stop", "logprobs": given}
    return {"choices": [choice]}


def judge(body):
    """Ask, answer, accept; with log-probabilities for those who want some."""
    text = "Answer: yes"
    if agent_of(body) == "verifier":
        is_first = len(body["messages"]) < 4
        text = "Question: why?" if is_first else "Decision: accept, because it is right"
    before = {"Decision:": 1.0}
    reason = {", because it is right": 1.0}
    tokens = [("Decision:", before), (" accept", HOW_LIKELY), (*reason, reason)]
    said = answer(text, tokens if text.startswith("Decision") else [], body.get("logprobs"))
    return web.json_response({"model": body["model"], **said})


async def test_only_who_may_decide_is_asked_for_tokens_and_only_p_accept_is_kept():
    played = await play(settings(), judge, of_players=RECORDS)
    asked = {(agent_of(body), body.get("top_logprobs")) for body in played.server.bodies}
    assert asked == {("verifier", 5), ("prover", None)}
    rows = played.answers()
    # 0.7 against 0.2 at the word that decides, at the temperature of play.
    assert rows[-1].p_accept == pytest.approx(0.7**2 / (0.7**2 + 0.2**2), abs=1e-12)
    assert [row.p_accept for row in rows[:-1]] == [None, None]
    assert {row.token_logprobs for row in rows} == {None}


async def test_the_run_s_own_server_is_asked_for_the_likeliest_where_a_verdict_may_begin():
    def judge_at_the_verdict(body):
        text = "Question: why?" if len(body["messages"]) < 4 else "Decision: accept"
        if agent_of(body) == "prover":
            text = "Answer: yes"
        said = answer(text, [("Decision:", {"Decision:": 1.0}), (" accept", HOW_LIKELY)], True)
        said["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = []
        return web.json_response({"model": body["model"], **said})

    def with_token_ids(body):
        said = answer("Decision: accept", [("Decision: accept", {"Decision: accept": 1.0})], True)
        said["choices"][0]["token_ids"] = [1]
        return web.json_response({"model": body["model"], "prompt_token_ids": [2], **said})

    own = {**RECORDS, "has_own_server": True}
    played = await play(settings(), judge_at_the_verdict, of_players=own)
    asked = {(agent_of(b), str(b.get("logprobs_at"))) for b in played.server.bodies}
    assert asked == {("verifier", "['accept', 'reject']"), ("prover", "None")}
    # Training on the answers' own tokens needs the log-probabilities of all.
    trained = await play(settings(), with_token_ids, of_players={**own, "record_tokens": True})
    [(whose, words)] = {(agent_of(b), str(b.get("top_logprobs_at"))) for b in trained.server.bodies}
    assert (whose, words) == ("verifier", "['accept', 'reject']")
    elsewhere = await play(settings(), judge, of_players=RECORDS)
    kept = await play(settings(), judge, of_players={**own, "top_logprobs": 2})
    for other in (elsewhere, kept):
        assert all(not {*body} & {"top_logprobs_at", "logprobs_at"} for body in other.server.bodies)
    assert all("logprobs_at" not in body for body in trained.server.bodies)
    assert played.answers()[-1].p_accept == elsewhere.answers()[-1].p_accept


async def test_what_is_said_and_its_digest_are_the_same_with_and_without_it():
    with_it = await play(settings(), judge, of_players=RECORDS)
    without = await play(settings(), judge)
    assert {body.get("logprobs") for body in without.server.bodies} == {None}
    digests = {
        canonical_digest(t.episodes, t.generations) for t in (with_it.tables(), without.tables())
    }
    assert len(digests) == 1
    assert without.tables().generations["p_accept"].null_count == 3


async def test_a_resumed_shard_has_what_its_journal_has_also_of_an_earlier_version():
    played = await play(settings(), judge, of_players=RECORDS)
    again = await play(settings(), judge, of_players=RECORDS, recorded=played.log.by_key())
    assert again.server.bodies == [] and again.answers() == played.answers()
    earlier = copy.deepcopy(played.log.by_key())
    for record in earlier.values():
        del record["generation"]["p_accept"]
    resumed = await play(settings(), judge, of_players=RECORDS, recorded=earlier)
    assert [row.p_accept for row in resumed.answers()] == [None] * 3
    assert resumed.rewards() == played.rewards()


async def test_a_scale_with_more_answers_is_asked_for_no_tokens():
    scale = {"verifier_decision_scale": "out_of_10"}

    def script(body):
        return "Decision: 7" if agent_of(body) == "verifier" else "Answer: yes"

    played = await play(settings("adp", protocol_common=scale), script, of_players=RECORDS)
    assert {body.get("logprobs") for body in played.server.bodies} == {None}
    assert {row.p_accept for row in played.answers()} == {None}


async def test_of_tokens_that_are_kept_there_are_as_many_as_were_asked_for_without_it():
    kept = await play(settings(), judge, of_players={**RECORDS, "top_logprobs": 2})
    rows = kept.answers()
    [place] = [t for t in rows[-1].token_logprobs if t["token"] == " accept"]
    assert [other["token"] for other in place["top"]] == [" accept", " Accept"]
    assert rows[-1].p_accept == pytest.approx(0.49 / 0.53, abs=1e-12)


@pytest.mark.parametrize(
    ("before", "word", "behind"),
    [
        ("Decision criteria: reject if a step fails.\nMy final answer:", " reject", ""),
        ("Verdict:", " accept", "\nReasons to accept: all steps hold."),
        ("It is unacceptable to stop here. I", " accept", " it, as no step is unacceptable."),
        ("**Decision**\n\n", "accept", " (I see no reason to reject)"),
    ],
)
def test_it_is_read_where_the_verdict_stands(before, word, behind):
    decision = ACCEPT if "accept" in word else REJECT
    right = {word: math.log(0.8), " accept" if decision == REJECT else " reject": math.log(0.2)}
    wrong = {" accept": math.log(0.5), " reject": math.log(0.5)}
    pieces = [piece for text in (before, behind) for piece in (text.split(" "),)]
    around = [[TokenChoice(f" {part}", 0.0, wrong) for part in parts] for parts in pieces]
    tokens = [*around[0], TokenChoice(word, right[word], right), *around[1]]
    likely = estimate_acceptance(tokens, decision)
    assert likely == pytest.approx(0.8 if decision == ACCEPT else 0.2)


@pytest.mark.parametrize(
    "token",
    [
        TokenChoice(" accept", -0.1, {}),
        TokenChoice(" accept", -0.1, {" accept": -0.1}),
        TokenChoice('"decision":"accept"', -0.1, {'"decision":"accept"': -0.1, "I": -2.0}),
    ],
)
def test_a_token_that_says_nothing_of_the_other_word_gives_none(token):
    assert estimate_acceptance([token], ACCEPT) is None
