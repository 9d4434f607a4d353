"""Calls by OpenAI's `tools` in a log: each with its argument and its result, as they were sent."""

import json

import pytest
from playing import agent_of, play, problems
from scripted_server import calling, refuse_request

from nip_core.parameters import load_parameters
from nip_inspect.export_sample import Split, sample_of

CHAIN = {
    "question": "Start with 47. Add 8. Subtract 10.",
    "solution": "1: 47 + 8 = 55\n2: 55 - 10 = 44",
    "y": 0,
}


@pytest.mark.parametrize("form", ["named", "alternating"])
async def test_each_call_stands_in_the_chats_with_its_result(form):
    agent = {
        **{"model_provider": "OpenAI", "model_name": "m", "base_url": "http://127.0.0.1:1/v1"},
        **{"freeze_agent": True, "chat_format": form},
    }
    parameters = load_parameters(
        {
            **{"run_name": "a", "dataset": "chains", "scenario": "arithmetic"},
            **{"interaction_protocol": "adp", "agents": {"_default": agent}},
            "rl": {"rollouts_per_iteration": None},
            "tool": {"per_turn": 2, "call": "native"},
        }
    )
    left = [
        *(calling(("check", json.dumps({"argument": n}))) for n in "21"),
        "Decision: reject",
    ]

    def script(body):
        said = "It is so." if agent_of(body) == "prover" else None
        return refuse_request(body) or said or left.pop(0)

    played = await play(parameters, script, on=problems(1, **CHAIN))
    [episode], rows = played.typed.episodes, played.typed.generations
    split = Split(played.game, {}, {episode.problem: "q"}, parameters.to_dict(), {0: 1.0})
    sample = sample_of(split, 0, episode, [*rows], 1)
    chat = [event for event in sample.events if event.event == "model"][-1].input
    first, result, second, other = chat[-4:]
    assert [call.arguments for m in (first, second) for call in m.tool_calls] == [
        {"argument": "2"},
        {"argument": "1"},
    ]
    assert first.id != second.id
    assert (result.role, result.text) == ("tool", "Result: 2: 55 - 10 = 45")
    assert (result.tool_call_id, other.tool_call_id) == (
        first.tool_calls[0].id,
        second.tool_calls[0].id,
    )
