"""Episodes over a real HTTP server: who is asked what, what is recorded, who is paid.

The players are scripts behind `scripted_server`; the log is one in memory, which keeps what a
journal on disk would keep.
"""

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from playing import MemoryLog, agent_of, make_context, number_of, play, problems, saying
from scripted_server import scripted_server

from nip_core.concurrency import gather_or_cancel
from nip_core.errors import ServerError, StageError, StoreError
from nip_core.game.answer_rows import AnswerPlace
from nip_core.game.render import Game
from nip_core.hashing import derive_seed, digest
from nip_core.parameters import load_parameters
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.engine import EPISODES_PER_CALL, play_episodes
from nip_core.rollouts.failures import Failures
from nip_core.rollouts.plan import cut_into_shards, plan_episodes

SAMPLING = {"max_tokens": 40, "temperature": 0.5}


def settings(protocol="nip", rounds=3, minimum=1, retries=3, rollouts=None, **more):
    own = {} if protocol == "solo_verifier" else {"prover": {"model_name": "m"}}
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "interaction_protocol": protocol,
            "nip_protocol": {"max_message_rounds": rounds, "min_message_rounds": minimum},
            "code_validation": {"system_prompt_version": "short"},
            "rl": {"rollouts_per_iteration": None},
            "rollouts": {"failure_threshold": 1.0, "transport_retries": 2, **(rollouts or {})},
            "agents": {
                **own,
                "_default": {
                    "model_provider": "SelfHosted",
                    "model_name": "m",
                    "max_tokens_per_message": 40,
                    "temperature": 0.5,
                    "num_invalid_generation_retries": retries,
                },
            },
            **more,
        }
    )


# What the agents see of problem p0, after the system prompt that `body` puts first.
NO_MORE = {"role": "system", "content": Game(settings()).prompts.last_round_message}


def own(text):
    return {"role": "assistant", "content": text}


def expert(text):
    return {"role": "user", "content": text, "name": "Expert"}


def verifier(text):
    return {"role": "user", "content": text, "name": "Verifier"}


def body(played, round_, agent, *messages, attempt=0):
    """The whole request that `agent` should get about p0 in this round."""
    seed = played.specs[0].seed
    prompt = played.game.prompts.filled(agent, None, seed).fill(
        {"question": "Return x plus 0.", "solution": "x + 0"}
    )
    return {
        "model": f"{agent}-model",
        "messages": [{"role": "system", "content": prompt}, *messages],
        "seed": played.seed("p0", round_, agent, attempt),
        **SAMPLING,
    }


def summary(generations):
    return [
        (g["round"], g["agent"], g["attempt"], g["text"], g["decision"], g["invalid_reason"])
        for g in generations
    ]


async def test_nip_with_three_rounds_asks_answers_and_decides():
    played = await play(
        settings(), saying(verifier=["Question: a?", "Decision: accept"], prover=["Answer: b"])
    )
    assert played.server.bodies == [
        body(played, 0, "verifier"),
        body(played, 1, "prover", verifier("Question: a?")),
        body(
            played,
            2,
            "verifier",
            own("Question: a?"),
            expert("Answer: b"),
            NO_MORE,
        ),
    ]
    spec = played.specs[0]
    assert played.episodes == [
        {
            "key": spec.key,
            "run": "a",
            "split": "train",
            "iteration": 0,
            "problem": "p0",
            "question_id": "q0",
            "sample": 0,
            "branch_path": "",
            "protocol": "nip",
            "question": "Return x plus 0.",
            "solution": "x + 0",
            "columns": None,
            "drawn": None,
            "y": 0,
            "difficulty": "sums",
            "mutation": None,
            "seed": spec.seed,
            "prover_stance": None,
            "opponent": None,
            "opponent_iteration": None,
            "opponent_run": None,
            "rounds": 3,
            "decision": 1,
            "decision_value": 1.0,
            "outcome": "finished",
            "error": None,
            "rewards": [
                {"agent": "prover", "reward": 1.0},
                {"agent": "verifier", "reward": -1.0},
            ],
            "round_rewards": [
                {"round": 2, "agent": "prover", "reward": 1.0},
                {"round": 2, "agent": "verifier", "reward": -1.0},
            ],
        }
    ]
    keys = [
        spec.generation_key(AnswerPlace(r, agent))
        for r, agent in enumerate(["verifier", "prover", "verifier"])
    ]
    said = ["Question: a?", "Answer: b", "Decision: accept"]
    assert played.generations() == [
        {
            "key": keys[r],
            "parent_key": keys[r - 1] if r else None,
            "episode": spec.key,
            "branch_path": "",
            "round": r,
            "agent": agent,
            "exchange": 0,
            "attempt": 0,
            "model_asked": f"{agent}-model",
            "model_served": f"{agent}-model",
            "text": said[r],
            "decision": 1 if r == 2 else 2,
            "decision_value": 1.0 if r == 2 else None,
            "p_accept": None,
            "finish_reason": "stop",
            "invalid_reason": None,
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "reasoning": None,
            "reasoning_tokens": None,
            "prompt_token_ids": None,
            "completion_token_ids": None,
            "completion_logprobs": None,
            "token_logprobs": None,
            "tool_result": None,
        }
        for r, agent in enumerate(["verifier", "prover", "verifier"])
    ]
    assert sorted(row["key"] for row in played.shard.timings) == sorted(keys)
    for row in played.shard.timings:
        assert row["started_at"].tzinfo is not None
        assert 0 < row["latency_s"] < 10 and row["transport_retries"] == 0
    assert [r["generation"]["key"] for r in played.log.records] == keys


async def test_nip_with_five_rounds_goes_on_until_the_verifier_decides():
    played = await play(
        settings(rounds=5),
        saying(
            verifier=["Question: a?", "Question: c?", "Decision: reject"],
            prover=["Answer: b", "Answer: d"],
        ),
    )
    assert played.server.bodies[3:] == [
        body(
            played,
            3,
            "prover",
            verifier("Question: a?"),
            own("Answer: b"),
            verifier("Question: c?"),
        ),
        body(
            played,
            4,
            "verifier",
            own("Question: a?"),
            expert("Answer: b"),
            own("Question: c?"),
            expert("Answer: d"),
            NO_MORE,
        ),
    ]
    # Nobody is told to decide before the last round.
    assert NO_MORE not in played.server.bodies[2]["messages"]
    [episode] = played.episodes
    assert (episode["rounds"], episode["decision"], episode["outcome"]) == (5, 0, "finished")
    assert episode["rewards"] == [
        {"agent": "prover", "reward": 0.0},
        {"agent": "verifier", "reward": 1.0},
    ]


async def test_a_decision_ends_the_episode_at_once():
    played = await play(settings(rounds=9), lambda body: "Decision: reject")
    assert len(played.server.bodies) == 1
    assert (played.episodes[0]["rounds"], played.episodes[0]["outcome"]) == (1, "finished")


async def test_adp_is_one_message_and_a_verdict():
    played = await play(
        settings("adp"), saying(prover=["Answer: b"], verifier=["Decision: reject"])
    )
    assert played.server.bodies == [
        body(played, 0, "prover"),
        body(played, 1, "verifier", expert("Answer: b")),
    ]
    [episode] = played.episodes
    assert (episode["protocol"], episode["rounds"], episode["decision"]) == ("adp", 2, 0)
    assert episode["rewards"] == [
        {"agent": "prover", "reward": 0.0},
        {"agent": "verifier", "reward": 1.0},
    ]


async def test_the_solo_verifier_decides_alone():
    played = await play(settings("solo_verifier"), saying(verifier=["Decision: accept"]))
    assert played.server.bodies == [body(played, 0, "verifier")]
    [episode] = played.episodes
    assert (episode["rounds"], episode["decision"], episode["outcome"]) == (1, 1, "finished")
    assert episode["rewards"] == [{"agent": "verifier", "reward": -1.0}]


async def test_a_verdict_before_min_message_rounds_is_not_registered_and_nobody_hears_it():
    played = await play(
        settings(rounds=5, minimum=3, protocol_common={"verifier_no_guess_reward": 0.25}),
        saying(verifier=["Decision: accept", "Decision: reject"], prover=["Answer: b"]),
    )
    assert played.server.bodies[1:] == [
        body(played, 1, "prover"),
        body(played, 2, "verifier", own("Decision: accept"), expert("Answer: b")),
    ]
    [episode] = played.episodes
    assert (episode["rounds"], episode["decision"], episode["outcome"]) == (3, 0, "finished")
    assert episode["rewards"][1] == {"agent": "verifier", "reward": 1.25}


async def test_rounds_that_end_without_a_verdict_terminate():
    played = await play(
        settings(), saying(verifier=["Question: a?", "Question: c?"], prover=["Answer: b"])
    )
    assert played.server.bodies[-1]["messages"][-1] == NO_MORE
    [episode] = played.episodes
    assert (episode["rounds"], episode["decision"], episode["outcome"]) == (3, 2, "terminated")
    assert episode["error"] is None
    assert episode["rewards"] == [
        {"agent": "prover", "reward": 0.0},
        {"agent": "verifier", "reward": -1.0},
    ]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("  \n", "empty answer"),
        ("Decision: perhaps", "invalid decision 'perhaps'"),
        ("Decision: accept\nDecision: reject", "two contradicting decisions"),
        ({"text": None}, "no content"),
        (
            {"text": "Decision: acc", "finish_reason": "content_filter"},
            "finish reason content_filter",
        ),
    ],
    ids=["empty", "unknown", "two", "none", "filtered"],
)
async def test_an_invalid_answer_is_asked_for_again_with_a_new_seed(answer, reason):
    troubles = [answer, answer]
    usual = saying(verifier=["Question: a?", "Decision: accept"], prover=["Answer: b"])
    played = await play(settings(), lambda body: troubles.pop() if troubles else usual(body))
    assert played.server.bodies[:3] == [
        body(played, 0, "verifier", attempt=attempt) for attempt in range(3)
    ]
    assert len({b["seed"] for b in played.server.bodies}) == 5
    text = (answer["text"] or "") if isinstance(answer, dict) else answer
    rows = played.generations()
    assert summary(rows[:3]) == [
        (0, "verifier", 0, text, 2, reason),
        (0, "verifier", 1, text, 2, reason),
        (0, "verifier", 2, "Question: a?", 2, None),
    ]
    # An invalid answer is nobody's parent.
    assert [row["parent_key"] for row in rows] == [None, None, None, rows[2]["key"], rows[3]["key"]]
    assert played.episodes[0]["outcome"] == "finished"


async def test_an_answer_cut_by_the_token_limit_is_taken_as_it_is():
    def script(body):
        return {"text": "Question: why does it", "finish_reason": "length"}

    played = await play(settings(), script)
    assert {row["finish_reason"] for row in played.generations()} == {"length"}
    assert played.episodes[0]["outcome"] == "terminated"


async def test_half_a_surrogate_pair_is_replaced_so_that_the_answer_can_be_stored():
    usual = saying(verifier=["Question: \ud83d?", "Decision: accept"], prover=["Answer: b"])
    played = await play(settings(), usual)
    text = played.generations()[0]["text"]
    assert text.encode() == b"Question: ??"
    assert played.server.bodies[1]["messages"][1]["content"] == text
    assert played.episodes[0]["outcome"] == "finished"


async def test_half_a_surrogate_pair_in_a_providers_own_words_is_replaced_too():
    usual = saying(verifier=["Question: a?", "Decision: accept"], prover=["Answer: b"])

    def script(body):
        if agent_of(body) == "verifier" or number_of(body) == 0:
            return {"text": usual(body), "finish_reason": "stop"}
        if number_of(body) == 1:
            error = {"error": {"message": "not \ud83d"}}
            return web.json_response(error, status=400)
        return {"text": "Answer: b", "finish_reason": "\ud83d"}

    played = await play(settings(), script, on=problems(3))
    assert [e["outcome"] for e in played.episodes] == ["finished", "failed", "failed"]
    assert played.episodes[1]["error"] == "prover, round 1: HTTP 400: not ?"
    assert "finish reason ?" in played.episodes[2]["error"]


async def test_too_many_invalid_answers_fail_the_episode_and_leave_the_others_alone():
    usual = saying(verifier=["Question: a?", "Decision: accept"], prover=["Answer: b"])

    def script(body):
        return "" if number_of(body) == 1 and agent_of(body) == "prover" else usual(body)

    played = await play(settings(retries=2), script, on=problems(4))
    failed = played.episodes[1]
    assert failed["outcome"] == "failed" and failed["decision"] == 2 and failed["rounds"] == 2
    assert failed["error"] == (
        "prover, round 1: 3 invalid answers, the last because of empty answer"
    )
    assert [entry["reward"] for entry in failed["rewards"]] == [0.0, 0.0]
    assert summary(played.generations("p1")) == [
        (0, "verifier", 0, "Question: a?", 2, None),
        (1, "prover", 0, "", 2, "empty answer"),
        (1, "prover", 1, "", 2, "empty answer"),
        (1, "prover", 2, "", 2, "empty answer"),
    ]
    untroubled = await play(settings(retries=2), usual, on=problems(4))
    assert [e for e in played.episodes if e["problem"] != "p1"] == [
        e for e in untroubled.episodes if e["problem"] != "p1"
    ]
    for problem in ("p0", "p2", "p3"):
        assert played.generations(problem) == untroubled.generations(problem)
    assert (played.progress.episodes_done, played.progress.episodes_failed) == (4, 1)
    assert untroubled.progress.episodes_failed == 0


async def test_rewards_of_rounds_before_a_failure_are_not_paid():
    def script(body):
        return "" if agent_of(body) == "prover" else "Question: a?"

    parameters = settings(retries=0, protocol_common={"verifier_no_guess_reward": 0.25})
    played = await play(parameters, script)
    assert [entry["reward"] for entry in played.episodes[0]["rewards"]] == [0.0, 0.0]


async def test_a_conversation_that_outgrows_the_context_fails_alone_and_is_not_retried():
    usual = saying(verifier=["Question: a?", "Decision: accept"], prover=["Answer: b"])

    def script(body):
        if number_of(body) == 1 and agent_of(body) == "prover":
            error = {"message": "900 tokens are too many", "code": "context_length_exceeded"}
            return web.json_response({"error": error}, status=400)
        return usual(body)

    played = await play(settings(), script, on=problems(3))
    assert [e["outcome"] for e in played.episodes] == ["finished", "failed", "finished"]
    assert played.episodes[1]["error"] == "prover, round 1: HTTP 400: 900 tokens are too many"
    assert summary(played.generations("p1")) == [(0, "verifier", 0, "Question: a?", 2, None)]
    assert len(played.server.bodies) == 3 + 2 + 3


async def test_a_silent_server_stops_the_shard_and_is_no_outcome_of_an_episode():
    def script(body):
        if number_of(body) == 1:
            return web.Response(status=503, headers={"Retry-After": "0.01"})
        return "Decision: accept"

    with pytest.raises(ServerError, match="no answer after 3 tries"):
        await play(settings(), script, on=problems(2))


async def test_transport_retries_are_counted_in_the_timings_and_nowhere_else():
    first = Counter()

    def script(body):
        first[body["seed"]] += 1
        if first[body["seed"]] == 1 and agent_of(body) == "prover":
            return web.Response(status=429, headers={"Retry-After": "0.01"})
        return usual(body)

    usual = saying(verifier=["Question: a?", "Decision: accept"], prover=["Answer: b"])
    played, untroubled = await play(settings(), script), await play(settings(), usual)
    assert played.generations() == untroubled.generations()
    assert played.episodes == untroubled.episodes
    retries = {row["key"]: row["transport_retries"] for row in played.shard.timings}
    assert [retries[row["key"]] for row in played.generations()] == [0, 1, 0]
    assert played.progress.retries == 1 and played.progress.calls == 3


async def test_each_generation_names_the_model_that_answered():
    def script(body):
        return {"model": f"{body['model']}-2024-07-18", "text": "Decision: accept"}

    played = await play(settings(), script)
    [row] = played.generations()
    assert row["model_asked"] == "verifier-model"
    assert row["model_served"] == "verifier-model-2024-07-18"
    assert played.progress.tokens_by_agent == {"verifier": (7, 3)}


async def test_the_openai_api_gets_its_own_name_for_the_token_limit():
    parameters = settings(
        "solo_verifier",
        agents={"verifier": {"model_provider": "OpenAI", "max_tokens_per_message": 40}},
    )
    played = await play(parameters, lambda body: "Decision: accept")
    [asked] = played.server.bodies
    assert asked["max_completion_tokens"] == 40
    assert set(asked) == {"model", "messages", "max_completion_tokens", "seed"}


# Failures and resuming


async def test_too_many_failures_stop_the_shard_and_the_log_keeps_what_was_generated():
    parameters = settings(retries=1, rollouts={"failure_threshold": 0.2, "concurrency": 2})
    usual = saying(verifier=["Question: a?", "Decision: accept"], prover=["Answer: b"])

    def script(body):
        bad = number_of(body) in (2, 5, 7) and agent_of(body) == "prover"
        return "" if bad else usual(body)

    log, asked = MemoryLog(), problems(10)
    with pytest.raises(StageError, match=r"3 of 10 episodes failed.*0\.2.*prover, round 1"):
        await play(parameters, script, on=asked, log=log)
    kept = log.by_key()
    # Two episodes were in flight, so at most two calls were under way when it stopped.
    assert 3 * 3 <= len(kept) == len(log.records)

    seeds = {s.problem.id: s for s in plan_episodes(parameters, asked, "train", 0)}
    mended = await play(
        settings(retries=20, rollouts={"failure_threshold": 0.2}),
        usual,
        on=asked,
        recorded=kept,
    )
    recorded_seeds = {
        spec.generation_seed(parameters.seed, AnswerPlace(g["round"], g["agent"], g["attempt"]))
        for g in (record["generation"] for record in kept.values())
        for spec in seeds.values()
        if spec.key == g["episode"]
    }
    assert len(recorded_seeds) == len(kept)
    assert recorded_seeds.isdisjoint(b["seed"] for b in mended.server.bodies)
    assert {e["outcome"] for e in mended.episodes} == {"finished"}
    # Every call stands in the rows once: those of the first run and those of the second.
    keys = [row["key"] for row in mended.shard.generations]
    assert len(keys) == len(set(keys)) == len(kept) + len(mended.server.bodies)
    assert mended.progress.calls_reused == len(kept)
    assert mended.progress.calls == len(mended.server.bodies)


async def test_as_many_failures_as_the_threshold_allows_are_outcomes():
    parameters = settings(retries=0, rollouts={"failure_threshold": 0.2})

    def script(body):
        return "" if number_of(body) in (2, 5) else "Decision: accept"

    played = await play(parameters, script, on=problems(10))
    assert Counter(e["outcome"] for e in played.episodes) == {"finished": 8, "failed": 2}


@pytest.mark.parametrize(("failing", "stops"), [(29, False), (30, True)])
async def test_the_threshold_is_a_share_without_rounding_errors(failing, stops):
    """0.29 * 100 is a little less than 29 in floating point."""
    parameters = settings(retries=0, rollouts={"failure_threshold": 0.29})

    def script(body):
        return "" if number_of(body) < failing else "Decision: accept"

    if stops:
        with pytest.raises(StageError, match="30 of 100 episodes failed"):
            await play(parameters, script, on=problems(100))
    else:
        played = await play(parameters, script, on=problems(100))
        assert Counter(e["outcome"] for e in played.episodes) == {"finished": 71, "failed": 29}


@pytest.mark.parametrize(("failing", "stops"), [((0, 5), False), ((0, 5, 9), True)])
async def test_the_threshold_is_that_of_the_stage_however_it_is_cut(failing, stops):
    """Two of ten may fail. In shards of one, the first failure would be all of its shard."""
    parameters = settings(retries=0, rollouts={"failure_threshold": 0.2})

    def script(body):
        return "" if number_of(body) in failing else "Decision: accept"

    stage = {"on": problems(10), "num_shards": 10, "failures": Failures(episodes=10)}
    if stops:
        with pytest.raises(StageError, match="3 of 10 episodes failed"):
            await play(parameters, script, **stage)
    else:
        played = await play(parameters, script, **stage)
        assert Counter(e["outcome"] for e in played.episodes) == {"finished": 8, "failed": 2}


async def test_playing_a_shard_again_counts_its_failures_once_and_forgets_the_mended_ones():
    parameters = settings(retries=0, rollouts={"failure_threshold": 0.2})
    failures = Failures(episodes=10)
    for bad in ((0, 5), (0, 5), (5, 6)):
        await play(
            parameters,
            lambda body, bad=bad: "" if number_of(body) in bad else "Decision: accept",
            on=problems(10),
            failures=failures,
        )
        assert len(failures.keys) == 2


async def test_a_content_filter_on_every_retry_is_the_outcome_of_its_episode_alone():
    def script(body):
        if number_of(body) == 1:
            return {"text": "Decision: accept", "finish_reason": "content_filter"}
        return "Decision: accept"

    played = await play(settings(retries=20), script, on=problems(3))
    assert [e["outcome"] for e in played.episodes] == ["finished", "failed", "finished"]
    assert played.episodes[1]["error"] == (
        "verifier, round 0: 21 invalid answers, the last because of finish reason content_filter"
    )
    # What was filtered decides nothing, though it reads like a verdict.
    assert {g["decision"] for g in played.generations("p1")} == {2}
    assert [g["attempt"] for g in played.generations("p1")] == list(range(21))


async def test_what_is_recorded_is_not_asked_for_again():
    first = await play(settings(), varied, on=problems(6))
    second = await play(settings(), varied, on=problems(6), recorded=first.log.by_key())
    assert second.server.bodies == []
    assert second.log.records == []
    assert rows(second.shard) == rows(first.shard)
    assert sorted_by_key(second.shard.timings) == sorted_by_key(first.shard.timings)
    # Their pace and time left go by what is played now, which is none of them.
    assert second.progress.episodes_done == second.progress.episodes_before == 6
    assert first.progress.episodes_before == 0


@pytest.mark.parametrize("kept", [1, 5, 11])
async def test_a_run_that_was_cut_anywhere_ends_with_the_same_rows(kept):
    whole = await play(settings(), varied, on=problems(6))
    part = {r["generation"]["key"]: r for r in whole.log.records[:kept]}
    resumed = await play(settings(), varied, on=problems(6), recorded=part)
    assert rows(resumed.shard) == rows(whole.shard)
    assert len(resumed.server.bodies) == len(whole.log.records) - kept
    assert len(resumed.log.records) == len(whole.log.records) - kept
    asked = {record["generation"]["episode"] for record in resumed.log.records}
    assert resumed.progress.episodes_before == 6 - len(asked)


async def test_a_recorded_answer_that_is_not_valid_any_more_is_refused_by_its_key():
    whole = await play(settings("adp"), saying(verifier=["Decision: accept"], prover=["Answer: b"]))
    rows = whole.log.by_key()
    [key] = [k for k, row in rows.items() if row["generation"]["agent"] == "verifier"]
    rows[key]["generation"]["text"] = "Decision: maybe"
    with pytest.raises(StageError, match=rf"generation {key}: .*another version of nip"):
        await play(settings("adp"), lambda body: "", recorded=rows)


async def test_a_generation_is_durable_before_the_next_one_is_asked_for():
    asked_when_durable = []

    class SlowLog(MemoryLog):
        async def append(self, record):
            await asyncio.sleep(0.02)
            await super().append(record)
            asked_when_durable.append(len(seen))

    seen = []
    usual = saying(verifier=["Question: a?", "Decision: accept"], prover=["Answer: b"])

    def script(body):
        seen.append(body)
        return usual(body)

    await play(settings(), script, log=SlowLog())
    assert asked_when_durable == [1, 2, 3]


async def test_a_log_that_cannot_write_stops_the_shard_with_its_own_error():
    class FullLog:
        async def append(self, record):
            raise StoreError("disk full")

    with pytest.raises(StoreError, match="disk full"):
        await play(settings(), varied, on=problems(4), log=FullLog())


async def test_a_refusal_that_concerns_every_call_stops_the_shard_at_once():
    refusal = {"error": {"message": "wrong key"}}
    with pytest.raises(StageError, match="refuses every call"):
        await play(settings(), lambda body: web.json_response(refusal, status=401), on=problems(4))


# The same rows however they are played


def varied(body):
    """A player whose answer follows from model, messages and seed: some invalid, some verdicts."""
    draw = derive_seed("reply", body["model"], body["messages"], body["seed"]) % 10
    if draw == 0:
        return ""
    if agent_of(body) == "prover":
        return f"Answer: {draw}"
    if draw < 5:
        return f"Decision: {'accept' if draw < 3 else 'reject'}"
    return f"Question: {draw}"


def unsteady():
    """`varied` after random waits, and with passing troubles of the transport."""
    first = Counter()

    async def script(body):
        await asyncio.sleep(random.random() * 0.01)
        first[body["seed"]] += 1
        if random.random() < 0.05 and first[body["seed"]] == 1:
            return web.Response(status=503, headers={"Retry-After": "0.01"})
        return varied(body)

    return script


def sorted_by_key(table):
    return sorted(table, key=lambda row: row["key"])


def rows(shard):
    return sorted_by_key(shard.episodes), sorted_by_key(shard.generations)


async def play_unsteadily(concurrency, num_shards):
    # With one retry some episodes fail, and they too must do so alike.
    parameters = settings(rounds=5, retries=1, rollouts={"concurrency": concurrency})
    played = await play(parameters, unsteady(), on=problems(40), num_shards=num_shards)
    outcomes = Counter(e["outcome"] for e in played.episodes)
    assert min(outcomes["finished"], outcomes["terminated"] + outcomes["failed"]) > 0
    return digest(rows(played.shard))


async def test_concurrency_and_shards_do_not_change_the_rows():
    digests = [await play_unsteadily(c, s) for c, s in [(1, 1), (64, 1), (64, 4), (3, 4)]]
    assert len(set(digests)) == 1


def test_the_hash_seed_of_the_process_does_not_change_the_rows():
    here = Path(__file__)
    command = "import asyncio, test_engine; print(asyncio.run(test_engine.play_unsteadily(16, 2)))"
    path = os.pathsep.join([str(here.parent), str(here.parents[1] / "helpers"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == asyncio.run(play_unsteadily(16, 2))


# Scheduling


async def test_a_slow_episode_holds_up_no_other():
    """The slow one is answered only after all others are over: a barrier would never end."""
    verdicts = []
    others_done = asyncio.Event()
    usual = saying(verifier=["Question: a?", "Decision: accept"], prover=["Answer: b"])

    async def script(body):
        if number_of(body) == 0 and len(body["messages"]) == 1:
            await others_done.wait()
        said = usual(body)
        if said.startswith("Decision"):
            verdicts.append(number_of(body))
            if len(verdicts) == 7:
                others_done.set()
        return said

    parameters = settings(rollouts={"concurrency": 3})
    played = await asyncio.wait_for(play(parameters, script, on=problems(8)), 20)
    assert verdicts[-1] == 0 and sorted(verdicts) == list(range(8))
    assert {e["outcome"] for e in played.episodes} == {"finished"}


async def test_calls_in_flight_are_bounded_by_the_settings():
    async def script(body):
        await asyncio.sleep(0.02)
        return varied(body)

    parameters = settings(rollouts={"concurrency": 3})
    played = await play(parameters, script, on=problems(15))
    assert played.server.most_in_flight == 3
    assert played.progress.episodes_in_flight == 0


async def test_no_more_answers_are_at_risk_than_calls_are_allowed_in_flight():
    """An answer that is not yet durable is paid again after a kill."""

    class SlowLog(MemoryLog):
        at_risk = most_at_risk = 0

        async def append(self, record):
            await asyncio.sleep(0.02)
            await super().append(record)
            SlowLog.at_risk -= 1

    async def script(body):
        SlowLog.at_risk += 1
        SlowLog.most_at_risk = max(SlowLog.most_at_risk, SlowLog.at_risk)
        await asyncio.sleep(0.005)
        return varied(body)

    parameters = settings(rollouts={"concurrency": 3})
    await play(parameters, script, on=problems(15), log=SlowLog())
    assert SlowLog.most_at_risk == 3
    assert SlowLog.at_risk == 0


async def test_shards_that_share_their_places_end_one_after_another():
    """All at once they would all end at the end, and a kill would find none of them committed."""
    ended: list[str] = []

    async def script(body):
        await asyncio.sleep(0.002)
        return varied(body)

    parameters = settings(rollouts={"concurrency": 2})
    game = Game(parameters)
    async with (
        scripted_server(script) as server,
        ChatClient(concurrency=2, timeout_s=10, retries=2) as client,
    ):
        context = make_context(game, server.url, client, MemoryLog())
        context = replace(context, places=client.make_places(EPISODES_PER_CALL))

        async def shard(name, specs):
            await play_episodes(specs, context)
            ended.append(name)

        parts = cut_into_shards(plan_episodes(parameters, problems(24), "train", 0), 8)
        await gather_or_cancel(shard(str(i), part) for i, part in enumerate(parts))
        assert ended == ["0", "1", "2"]
        assert server.most_in_flight == 2


def open_tasks():
    """Names of unfinished tasks, without those of the server on this loop and the test's own."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    names = [task.get_coro().__qualname__ for task in tasks]
    return [name for name in names if not name.startswith("RequestHandler")]


async def test_cancelling_leaves_no_task_behind():
    all_asked, never = asyncio.Event(), asyncio.Event()

    async def script(body):
        if server.in_flight == 4:
            all_asked.set()
        await never.wait()

    parameters = settings(rollouts={"concurrency": 4})
    specs = plan_episodes(parameters, problems(10), "train", 0)
    async with scripted_server(script) as server:
        async with ChatClient(concurrency=64, timeout_s=30, retries=2) as client:
            context = make_context(Game(parameters), server.url, client, MemoryLog())
            before = open_tasks()
            playing = asyncio.create_task(play_episodes(specs, context))
            await asyncio.wait_for(all_asked.wait(), 10)
            assert len(open_tasks()) > len(before) + len(specs)
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing
            assert open_tasks() == before
            assert context.progress.episodes_in_flight == 0
            never.set()  # lets the server's handlers end


async def test_a_stopped_shard_leaves_no_task_behind():
    refusal = {"error": {"message": "no such model"}}
    asked = []

    async def script(body):
        asked.append(body)
        if len(asked) == 4:
            return web.json_response(refusal, status=404)
        await never.wait()

    never = asyncio.Event()
    parameters = settings(rollouts={"concurrency": 4})
    specs = plan_episodes(parameters, problems(10), "train", 0)
    async with scripted_server(script) as server:
        async with ChatClient(concurrency=64, timeout_s=30, retries=2) as client:
            before = open_tasks()
            with pytest.raises(StageError, match="no such model"):
                await asyncio.wait_for(
                    play_episodes(
                        specs, make_context(Game(parameters), server.url, client, MemoryLog())
                    ),
                    10,
                )
            assert open_tasks() == before
            never.set()
