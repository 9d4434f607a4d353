"""nip_verifiers is held to the episodes to which the games in other loops are held."""

import json

import pytest
import seat_games
import verifiers.v1 as vf
from scripted_server import scripted_server
from there import play_in_code

from nip_verifiers import load_environment


@pytest.mark.parametrize("protocol", seat_games.PROTOCOLS)
async def test_chats_answers_and_rewards_are_those_of_play(protocol, monkeypatch):
    monkeypatch.setenv("NIP_API_KEY", "key")
    env = load_environment(
        protocol=protocol, scenario="arithmetic", split="train", settings=[*seat_games.SETTINGS]
    )
    expected = seat_games.expect(protocol)
    async with scripted_server(lambda body: seat_games.answer(body["messages"])) as server:
        client = vf.EvalClientConfig(base_url=server.url, api_key_var="NIP_API_KEY")
        for task, episode in zip(env.taskset, expected, strict=True):
            assert task.data.problem == episode["problem"]
            server.bodies.clear()
            played = await play_in_code(env, client, "policy", task)
            # 1. Each chat, and each answer.
            chats = [json.dumps(call["messages"]) for call in episode["calls"]]
            assert sorted(json.dumps(body["messages"]) for body in server.bodies) == sorted(chats)
            for trace in played.traces:
                agent, rows = trace.agent.name, trace.info["nip"]["generations"]
                calls = seat_games.list_calls(episode, agent)
                assert [(row["text"], row["invalid_reason"] is None) for row in rows] == [
                    (call["text"], call["is_valid"]) for call in calls
                ]
                # 2. The reward, and nothing of a failed episode is trained.
                assert trace.reward == episode["rewards"][agent]
                assert trace.agent.trainable != episode["failed"]
            assert {trace.agent.name for trace in played.traces} == {*episode["rewards"]}
