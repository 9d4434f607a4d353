"""Playing by hand is playing the loop: the same requests, the same data."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scripted_server import scripted_server

from nip_by_hand.agents import (
    CodeValidationProtocolHandler,
    ExperimentSettings,
    NestedArrayDict,
    OpenAiWholeAgent,
    PureTextEnvironment,
    RandomWholeAgent,
)
from nip_by_hand.agents.batch import rollouts_to_nested
from nip_by_hand.agents.history import final_timesteps
from nip_core.errors import SettingsError
from nip_core.hashing import derive_seed
from nip_core.parameters import load_parameters
from nip_core.progress.board import Progress
from nip_core.protocols import protocol_names
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.client.completions import Endpoint
from nip_core.rollouts.engine import play_episodes
from nip_core.rollouts.model_call import Player
from nip_core.rollouts.plan import plan_episodes
from nip_core.rollouts.shard_context import ShardContext
from nip_core.rollouts.storage.row_tables import build_tables
from nip_core.scenarios import Problem

GAMES = {
    **{name: {"interaction_protocol": name} for name in protocol_names()},
    "debate in turn": {
        "interaction_protocol": "debate",
        "debate_protocol": {"sequential": True, "max_message_rounds": 7},
    },
    "drawn stance, shared reward": {
        "interaction_protocol": "mnip",
        "protocol_common": {"randomize_prover_stance": True, "shared_reward": True},
    },
    "silent provers": {"protocol_common": {"prover_invalid_response_penalty": -0.5}},
    "scale": {"protocol_common": {"verifier_decision_scale": "likert_scale_5"}},
    "zero knowledge": {"protocol_common": {"zero_knowledge": True}},
    "a rule that rejects": {
        "interaction_protocol": "adp",
        "scenario": "bags",
        "dataset": "lists",
        "code_validation": {},
        "scenario_settings": {"challenges": 1, "unanswered": "reject"},
    },
}


class NoLog:
    async def append(self, record):
        pass


def settings(url, game=None, **agents):
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "code_validation": {"system_prompt_version": "short"},
            "rl": {"rollouts_per_iteration": None},
            "rollouts": {"failure_threshold": 1.0},
            "agents": {
                "_default": {
                    "model_provider": "SelfHosted",
                    "model_name": "m",
                    "base_url": url,
                    "num_invalid_generation_retries": 20,  # three of ten answers of a verifier decide
                    "retry_hint": True,
                    "temperature": 0.5,
                },
                **agents,
            },
            **(game or {}),
        }
    )


def problems(count):
    """They are problems of `bags`, too."""
    questions = (f"A: {i} 1\nB: {i} 0" for i in range(count))
    return [Problem(f"p{i}", f"q{i}", q, f"x + {i}", i % 2) for i, q in enumerate(questions)]


def script_for(parameters):
    """Answers by the request alone: messages with every header, decisions, and invalid answers."""
    handler = CodeValidationProtocolHandler(parameters)
    scale = list(handler.protocol.scale.values)

    def script(body):
        chance = derive_seed(body) % 100
        if chance < 15:
            return ""
        system = body["messages"][0]["content"]
        verifier = system.startswith("You are the verifier") or "erifier" in system[:40]
        if verifier and chance < 45:
            return f"Decision: {scale[chance % len(scale)]}"
        headers = {
            header
            for name in handler.agent_names
            for header in handler.agent_spec(name).response_channel_headers.values()
        }
        parts = [f"{header} part {chance}" for header in sorted(headers)]
        return "\n".join(parts) or ("Answer: 1: A" if chance % 2 else f"Answer: {chance}")

    return script


async def by_loop(parameters, url, specs):
    players = {
        name: Player(name, "random" if own.is_random else "m", Endpoint(url, "k"), own)
        for name, own in parameters.agents.items()
    }
    handler = CodeValidationProtocolHandler(parameters)
    async with ChatClient(concurrency=64, timeout_s=10, retries=2) as client:
        context = ShardContext(handler.game, players, client, NoLog(), {}, Progress())
        shard = await play_episodes(specs, context)
    order = [spec.key for spec in specs]
    episodes = sorted(shard.episodes, key=lambda row: order.index(row.key))
    tables = build_tables(episodes, shard.generations)
    return rollouts_to_nested(handler.game, tables.episodes, tables.generations, prompts=False)


async def by_hand(parameters, specs):
    handler = CodeValidationProtocolHandler(parameters)
    environment = PureTextEnvironment(parameters, ExperimentSettings(), handler)
    agents = {
        name: (RandomWholeAgent if own.is_random else OpenAiWholeAgent)(
            parameters, ExperimentSettings(), name, handler
        )
        for name, own in parameters.agents.items()
    }
    data = environment.reset(specs)
    steps = []
    for _ in range(handler.max_message_rounds):
        actions = {name: await agent.aforward(data, environment) for name, agent in agents.items()}
        steps.append(environment.step(data, actions))
        data = environment.advance(steps[-1])
    assert environment.is_over(data)
    return NestedArrayDict.stack(steps, dim=1)


def requests(server):
    return sorted(json.dumps(body, sort_keys=True) for body in server.bodies)


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("NIP_API_KEY", "k")


@pytest.mark.parametrize("game", GAMES.values(), ids=GAMES)
async def test_by_hand_the_same_is_asked_and_the_same_is_recorded_as_in_the_loop(game):
    parameters = settings("http://127.0.0.1:1/v1", game)
    script = script_for(parameters)
    async with scripted_server(script) as first, scripted_server(script) as second:
        specs = plan_episodes(parameters, problems(6), "train", 0)
        loop = await by_loop(parameters, first.url, specs)
        hand = await by_hand(settings(second.url, game), specs)
    assert requests(first) == requests(second) and len(first.bodies) > 6
    shared = [key for key in loop.keys() if key[0] not in ("episode", "generation")]  # noqa: SIM118
    assert sorted(shared) == sorted(hand.keys())
    for key in shared:
        one, other = loop[key], hand[key]
        same = np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        assert one.dtype == other.dtype and same, (key, one, other)


async def test_an_agent_without_a_model_plays_by_hand_as_in_the_loop():
    random = {"is_random": True}
    parameters = settings(
        "http://127.0.0.1:1/v1",
        {"interaction_protocol": "debate"},
        prover0=random,
        prover1=random,
        verifier=random,
    )
    specs = plan_episodes(parameters, problems(6), "train", 0)
    loop, hand = (
        await by_loop(parameters, "http://127.0.0.1:1/v1", specs),
        await by_hand(parameters, specs),
    )
    assert np.array_equal(loop["agents", "raw_message"], hand["agents", "raw_message"])
    assert np.array_equal(loop["next", "agents", "reward"], hand["next", "agents", "reward"])


def action(parameters, handler, raw, message=None, decision=2):
    text = np.dtypes.StringDType(na_object=None)
    return NestedArrayDict(
        {
            "message": np.array([[message]], dtype=text),
            "raw_message": np.array([raw], dtype=text),
            "decision": np.array([decision]),
        },
        (1,),
    )


def nip_environment():
    parameters = settings("http://127.0.0.1:1/v1")
    handler = CodeValidationProtocolHandler(parameters)
    return parameters, handler, PureTextEnvironment(parameters, ExperimentSettings(), handler)


def test_an_episode_is_played_with_actions_of_ones_own():
    parameters, handler, environment = nip_environment()
    start = environment.reset([replace(problems(2)[1], y=1)])
    asked = environment.step(
        start, {"verifier": action(parameters, handler, "Question: a?", "Question: a?")}
    )
    data = environment.advance(asked)
    assert start["message_history"][0, 0, 0] is None, "the state before is left as it was"
    assert data["message_history"][0, 0, 0] == "Question: a?" and data["round"][0] == 1
    told = environment.step(data, {"prover": action(parameters, handler, "Answer: b", "Answer: b")})
    data = environment.advance(told)
    end = environment.step(
        data, {"verifier": action(parameters, handler, "Decision: accept", None, 1)}
    )
    assert end["next", "agents", "reward"].tolist() == [[1.0, 1.0]]
    assert environment.is_over(environment.advance(end))
    rollout = NestedArrayDict.stack([asked, told, end], dim=1)
    assert final_timesteps(rollout)["round"].tolist() == [2]


def test_who_has_the_turn_must_speak_and_others_must_not():
    parameters, handler, environment = nip_environment()
    start = environment.reset(problems(1))
    with pytest.raises(ValueError, match="episode 0: verifier said nothing in its round 0"):
        environment.step(start, {})
    with pytest.raises(ValueError, match="episode 0: prover has no turn in round 0"):
        environment.step(start, {"prover": action(parameters, handler, "Answer: b", "Answer: b")})
    with pytest.raises(ValueError, match="judge"):
        environment.step(start, {"judge": action(parameters, handler, "x", "x")})


def test_a_game_that_needs_log_probabilities_is_refused():
    game = {
        "protocol_common": {"zero_knowledge": True},
        "zk_protocol": {"similarity": "log_probs"},
    }
    handler = CodeValidationProtocolHandler(settings("http://127.0.0.1:1/v1", game))
    with pytest.raises(SettingsError, match="set it to text"):
        PureTextEnvironment(handler.hyper_params, ExperimentSettings(), handler)


async def test_a_turn_is_the_same_in_a_batch_of_any_shape():
    parameters = settings(None, verifier={"use_dummy_api": True}, prover={"use_dummy_api": True})
    handler = CodeValidationProtocolHandler(parameters)
    environment = PureTextEnvironment(parameters, ExperimentSettings(), handler)
    agent = OpenAiWholeAgent(parameters, ExperimentSettings(), "verifier", handler)
    data = environment.reset(problems(4))
    flat = await agent.aforward(data, environment)
    wide = await agent.aforward(NestedArrayDict.stack([data, data]), environment)
    single = await agent.aforward(data[2], environment)
    assert wide[1].equals(flat) and single.equals(flat[2])
    assert flat["message"].shape == (4, 1) and set(agent.out_keys) == {k for (k,) in flat.keys()}  # noqa: SIM118
    nothing = await agent.aforward(environment.reset([]), environment)
    assert nothing.batch_size == (0,)
