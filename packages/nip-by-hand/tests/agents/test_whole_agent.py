"""An agent by itself: its chats, its answers and retries, its examples, its state."""

import copy
import pickle
from collections import Counter

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import scripted_server

from nip_by_hand.agents import (
    AgentNotActiveInChannelError,
    CodeValidationProtocolHandler,
    ContentFilterError,
    ContentIsNoneError,
    ExperimentSettings,
    InvalidDecisionError,
    InvalidResponseError,
    NestedArrayDict,
    NotAllActiveChannelsInResponseError,
    OpenAiWholeAgent,
    OpenAiWholeAgentState,
    PureTextEnvironment,
    UnknownFinishReasonError,
    errors,
)
from nip_by_hand.agents.nested_array_dict import STRING
from nip_core.errors import NipError, SettingsError
from nip_core.game.render import Situation, Turn
from nip_core.parameters import load_parameters

NOWHERE = "http://127.0.0.1:1/v1"


def make_agent(name="verifier", protocol="nip", url=NOWHERE, own=None, **more):
    parameters = load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "interaction_protocol": protocol,
            "code_validation": {"system_prompt_version": "short"},
            "agents": {
                "_default": {
                    "model_provider": "SelfHosted",
                    "model_name": "m",
                    "base_url": url,
                    "num_invalid_generation_retries": 2,
                    **(own or {}),
                }
            },
            **more,
        }
    )
    handler = CodeValidationProtocolHandler(parameters)
    return OpenAiWholeAgent(parameters, ExperimentSettings(), name, handler)


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("NIP_API_KEY", "secret-key")


def histories(agent, turns=()):
    """The three arrays of a history."""
    handler = agent.protocol_handler
    rounds = handler.max_message_rounds
    messages = np.full((rounds, handler.num_message_channels), None, dtype=STRING)
    senders = np.full(messages.shape, -1)
    raw = np.full((rounds, handler.num_agents), None, dtype=STRING)
    for turn in turns:
        a = handler.agent_names.index(turn.agent)
        raw[turn.round, a] = turn.text
        for channel, message in turn.move.messages.items():
            c = handler.message_channel_names.index(channel)
            messages[turn.round, c], senders[turn.round, c] = message, a
    return messages, senders, raw


def played(agent, seed, texts):
    """Turns in which the movers of each round say these texts."""
    game, turns = agent.protocol_handler.game, []
    for round_, text in enumerate(texts):
        now = []
        for name in game.protocol.movers(round_, seed, turns):
            headers = game.form(name, round_, seed, turns).headers.values()
            said = "\n".join(f"{header} {text}" for header in headers) or text
            now.append(Turn(round_, name, said, game.parse(name, round_, seed, said, turns)))
        turns += now
    return turns


def three_turns(agent):
    return played(agent, 5, ["Question: why?", "Answer: because", "Decision: reject"])


# Its chats.


@settings(max_examples=40)
@given(
    st.sampled_from(["nip", "debate", "mnip", "merlin_arthur"]),
    st.lists(st.text("ab :\n", min_size=1).filter(str.strip), min_size=1, max_size=2),
    st.integers(0, 2**31 - 1),
    st.data(),
)
def test_arrays_give_the_chat_that_the_loop_gives(protocol, texts, seed, data):
    agent = make_agent(protocol=protocol)
    name = data.draw(st.sampled_from(agent.protocol_handler.agent_names))
    agent = make_agent(name, protocol=protocol)
    turns = played(agent, seed, [f"Answer: {text}" for text in texts])
    chat = agent._build_chat_messages_prompt(
        *histories(agent, turns), len(texts), "Add 1.", "x + 1", -1, seed
    )
    situation = Situation("Add 1.", "x + 1", None, seed)
    assert chat == agent.protocol_handler.game.render(name, situation, turns, len(texts))


def test_a_chat_can_end_with_the_agents_last_answer_or_with_the_right_one():
    for name, last in (("verifier", "Decision: reject"), ("prover", "Answer: because")):
        agent = make_agent(name)
        place = (*histories(agent, three_turns(agent)), 2, "q", "s", -1, 5)
        plain = agent._build_chat_messages_prompt(*place, ensure_last_message_is_assistant=True)
        assert plain[-1] == {"role": "assistant", "content": last}
    agent = make_agent("verifier")
    place = (*histories(agent, three_turns(agent)), 2, "q", "s", -1, 5)
    right = agent._build_chat_messages_prompt(
        *place,
        y=1,
        ensure_last_message_is_assistant=True,
        replace_last_message_with_true_label=True,
    )
    assert right[-1]["content"] == "Decision: accept" and len(right) == 4
    for no_label in (None, 2):
        with pytest.raises(ValueError, match="true label y"):
            agent._build_chat_messages_prompt(
                *place,
                y=no_label,
                ensure_last_message_is_assistant=True,
                replace_last_message_with_true_label=True,
            )


def test_an_answer_that_is_replaced_by_the_label_is_a_verifiers_last_one():
    for name, ends, said in (
        ("verifier", False, "ensure_last_message_is_assistant"),
        ("prover", True, "prover .* decides nothing"),
    ):
        agent = make_agent(name)
        with pytest.raises(ValueError, match=said):
            agent._build_chat_messages_prompt(
                *(*histories(agent, three_turns(agent)), 2, "q", "s", -1, 5),
                y=1,
                ensure_last_message_is_assistant=ends,
                replace_last_message_with_true_label=True,
            )
    agent = make_agent("verifier")
    steps = timesteps(agent, [three_turns(agent)])
    with pytest.raises(ValueError, match="ensure_last_message_is_assistant"):
        agent.build_fine_tune_dataset(steps, False, replace_verifier_guess_with_true_label=True)
    with pytest.raises(ValueError, match=r"true label y, 0 or 1, .* \(got 2\)"):
        other = timesteps(agent, [three_turns(agent)], y=2)
        agent.build_fine_tune_dataset(other, replace_verifier_guess_with_true_label=True)
    unlabelled = NestedArrayDict(
        {key: steps[key] for key in (*_TOP_KEYS, *_NEXT_KEYS)}, steps.batch_size
    )
    assert agent.build_fine_tune_dataset(unlabelled)
    with pytest.raises(ValueError, match=r'timesteps: "y", the true labels, .* is missing'):
        agent.build_fine_tune_dataset(unlabelled, replace_verifier_guess_with_true_label=True)


def test_an_agent_that_never_spoke_has_no_last_answer():
    agent = make_agent("prover")
    turns = three_turns(agent)[:1]
    with pytest.raises(AgentNotActiveInChannelError, match="prover said nothing"):
        agent._build_chat_messages_prompt(
            *histories(agent, turns), 0, "q", "s", -1, 5, ensure_last_message_is_assistant=True
        )
    assert agent.build_fine_tune_dataset(timesteps(agent, [turns, three_turns(agent)])) == (
        agent.build_fine_tune_dataset(timesteps(agent, [three_turns(agent)]))
    )


_TOP_KEYS = ("round", "seed", "question", "solution", "prover_stance")
_NEXT_KEYS = tuple(
    ("next", key) for key in ("message_history", "message_agent_id", "raw_message_history")
)


def timesteps(agent, all_turns, y=1):
    size = (len(all_turns),)
    arrays = [histories(agent, turns) for turns in all_turns]
    keys = ("message_history", "message_agent_id", "raw_message_history")
    return NestedArrayDict(
        {
            "round": np.array([turns[-1].round for turns in all_turns]),
            "seed": np.full(size, 5),
            "y": np.full(size, y),
            "question": np.full(size, "q", dtype=STRING),
            "solution": np.full(size, "s", dtype=STRING),
            "prover_stance": np.full(size, -1),
            **{("next", key): np.stack([a[i] for a in arrays]) for i, key in enumerate(keys)},
        },
        size,
    )


def test_examples_are_the_agents_sides_and_only_a_verifiers_guess_is_replaced():
    for name, plain, replaced in (
        ("verifier", "Decision: reject", "Decision: accept"),
        ("prover", "Answer: because", "Answer: because"),
    ):
        agent = make_agent(name)
        steps = timesteps(agent, [three_turns(agent)])
        [[item], [other]] = (
            agent.build_fine_tune_dataset(steps, replace_verifier_guess_with_true_label=r)
            for r in (False, True)
        )
        assert item["messages"][-1] == {"role": "assistant", "content": plain}
        assert other["messages"][-1] == {"role": "assistant", "content": replaced}
        assert item["messages"][:-1] == other["messages"][:-1]
    prover = make_agent("prover")
    [whole] = prover.build_fine_tune_dataset(
        timesteps(prover, [three_turns(prover)[:1]]), ensure_last_message_is_assistant=False
    )
    assert [m["role"] for m in whole["messages"]] == ["system", "user"]


def test_arrays_that_cannot_hold_none_say_the_same_with_empty_texts():
    for name in ("verifier", "prover"):
        agent = make_agent(name)
        steps = timesteps(agent, [three_turns(agent)])
        expected = agent.build_fine_tune_dataset(steps)
        for kind in (object, np.dtypes.StringDType(), "U40"):
            for key in ("message_history", "raw_message_history"):
                texts = steps["next", key]
                empty = np.array(["" if text is None else text for text in texts.flat], dtype=kind)
                steps["next", key] = empty.reshape(texts.shape)
            assert agent.build_fine_tune_dataset(steps) == expected


def test_timesteps_of_another_shape_are_refused():
    agent = make_agent()
    steps = timesteps(agent, [three_turns(agent)])
    with pytest.raises(ValueError, match=r"batch size \(n,\) are needed, got \(1, 2\)"):
        agent.build_fine_tune_dataset(NestedArrayDict.stack([steps, steps], dim=1))
    with pytest.raises(ValueError, match="histories of 2 channels and 3 agents are needed"):
        make_agent(protocol="debate").build_fine_tune_dataset(steps)


# Its answers.


async def ask(agent, round_=0, turns=()):
    return await agent._agenerate_next_message_and_decision(
        *histories(agent, turns), round_, "q", "s", 5, -1
    )


async def test_an_invalid_answer_is_asked_for_again_with_another_seed_and_counted():
    said = iter(["", "Decision: perhaps", {"text": "Question: a", "finish_reason": "length"}])
    async with scripted_server(lambda body: next(said)) as server:
        answer = await ask(make_agent(url=server.url))
    assert (answer.retry_count, answer.token_limit) == (2, True)
    assert (answer.messages, answer.decision) == ({"main": "Question: a"}, 2)
    assert len({body["seed"] for body in server.bodies}) == 3
    assert len({str(body["messages"]) for body in server.bodies}) == 1


async def test_where_only_a_decision_is_of_use_a_message_is_asked_for_again_and_the_last_stands():
    texts = ["Question: should I accept?", "Question: why?", "**Verdict:** reject"]
    for said, decision, retries in ((texts, 0, 2), (texts[:1] * 3, 2, 2), (texts[2:], 0, 0)):
        answers = iter(said)
        async with scripted_server(lambda body, answers=answers: next(answers)) as server:
            answer = await ask(make_agent(protocol="solo_verifier", url=server.url))
        assert (answer.decision, answer.retry_count) == (decision, retries)


@pytest.mark.parametrize(
    ("protocol", "said", "error"),
    [
        ("nip", {"text": "x", "finish_reason": "content_filter"}, ContentFilterError),
        ("nip", {"text": "x", "finish_reason": "tool_calls"}, UnknownFinishReasonError),
        ("nip", {"text": None}, ContentIsNoneError),
        ("nip", "Decision: perhaps", InvalidDecisionError),
        ("nip", " ", InvalidResponseError),
        ("debate", "Question for Expert_1: a", NotAllActiveChannelsInResponseError),
    ],
)
async def test_what_stays_unusable_is_raised_as_what_it_is(protocol, said, error):
    async with scripted_server(lambda body: said) as server:
        with pytest.raises(error) as caught:
            await ask(make_agent(protocol=protocol, url=server.url))
    assert type(caught.value) is error
    assert caught.value.num_retries == 2 and len(server.bodies) == 3
    if isinstance(caught.value, InvalidResponseError):
        assert caught.value.response_text == said


async def test_a_prover_may_be_silent_only_where_the_game_has_a_price_for_it():
    common = {"protocol_common": {"prover_invalid_response_penalty": -0.5}}
    async with scripted_server(lambda body: "") as server:
        for name, round_ in (("prover", 1), ("verifier", 0)):
            for more in (common, {}):
                agent = make_agent(name, url=server.url, **more)
                turns = three_turns(agent)[:round_]
                if name == "prover" and more:
                    silent = await ask(agent, round_, turns)
                    assert (silent.raw_message, silent.retry_count) == (None, 2)
                else:
                    with pytest.raises(InvalidResponseError):
                        await ask(agent, round_, turns)


async def test_who_has_no_turn_is_not_asked():
    for name, round_ in (("prover", 0), ("verifier", 1), ("verifier", 99)):
        with pytest.raises(ValueError, match=f"{name} has no turn in round {round_}"):
            await ask(make_agent(name), round_)


async def test_a_raw_call_gives_text_and_reason():
    def script(body):
        assert body["messages"] == [{"role": "user", "content": "hello"}]
        return {"text": "hi", "finish_reason": "length"}

    async with scripted_server(script) as server:
        agent = make_agent(url=server.url)
        chat = [{"role": "user", "content": "hello"}]
        assert await agent._amake_generation_api_call(chat) == ("hi", "length")
    assert server.headers[0]["Authorization"] == "Bearer secret-key"


async def test_synchronous_methods_name_their_coroutine_inside_a_running_loop():
    agent = make_agent(own={"use_dummy_api": True, "base_url": None})
    environment = PureTextEnvironment(
        agent.hyper_params, ExperimentSettings(), agent.protocol_handler
    )
    data = environment.reset([])
    with pytest.raises(RuntimeError, match="await aforward"):
        agent(data, environment)
    with pytest.raises(RuntimeError, match="await _amake_generation_api_call"):
        agent._make_generation_api_call([])
    with pytest.raises(RuntimeError, match="await _agenerate_next_message_and_decision"):
        agent._generate_next_message_and_decision(*histories(agent), 0, "q", "s", 5, -1)


def test_without_a_loop_they_just_work():
    agent = make_agent(own={"use_dummy_api": True, "base_url": None})
    answer = agent._generate_next_message_and_decision(*histories(agent), 0, "q", "s", 5, -1)
    assert answer.raw_message
    assert agent._make_generation_api_call([{"role": "user", "content": "a"}])[1] == "stop"


@pytest.mark.parametrize("protocol", ["nip", "debate"])
def test_dummy_answers_are_valid_reproducible_and_decide_in_two_of_five(protocol):
    verifier = make_agent(protocol=protocol, own={"use_dummy_api": True, "base_url": None})
    form = verifier._usual_form()
    counts = Counter()
    for i in range(500):
        chat = [{"role": "user", "content": str(i)}]
        text = verifier._generate_dummy_response(chat)
        assert text == verifier._generate_dummy_response(chat)
        move = verifier.protocol_handler.game.parse("verifier", 0, 0, text, [])
        counts[move.decision] += 1
        assert move.messages.keys() == (set(form.channels) if move.decision == 2 else set())
    assert all(70 < counts[verdict] < 130 for verdict in (0, 1)) and 250 < counts[2] < 350
    prover = "prover" if protocol == "nip" else "prover0"
    said = make_agent(prover, protocol, own={"use_dummy_api": True, "base_url": None})
    text = said._generate_dummy_response([{"role": "user", "content": "a"}])
    assert "Decision" not in text


# What it is.


def test_an_agent_knows_its_channels_and_its_settings():
    agent = make_agent("prover1", "mnip")
    assert agent.visible_message_channel_mask.tolist() == [False, True]
    assert agent.visible_message_channel_indices.tolist() == [1]
    assert agent.num_visible_message_channels == 1
    assert (agent.agent_id, agent.is_prover, agent.is_verifier) == (1, True, False)
    assert agent.model_name == agent.base_model_name == "m"
    assert agent.agent_spec.human_name == "Expert_2"
    assert "$problem" in agent.system_prompt_template.template
    headers = make_agent("verifier", "mnip").agent_spec.response_channel_headers
    assert set(headers) == set(agent.protocol_handler.message_channel_names)


def test_copies_and_pickles_leave_the_client_behind_and_the_agent_keeps_it():
    agent = make_agent()
    client = agent.client
    assert str(client.base_url).startswith(NOWHERE) and client.api_key == "secret-key"
    for other in (copy.copy(agent), copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))):
        assert other._client is None
        assert other.hyper_params == agent.hyper_params
    assert b"secret-key" not in pickle.dumps(agent)
    assert agent.client is client


def test_the_state_is_the_model():
    agent = make_agent()
    agent.set_state(OpenAiWholeAgentState("ft:m:1"))
    assert agent.model_name == "ft:m:1" and agent.base_model_name == "m"
    for checkpoint in (agent.get_state_dict(), OpenAiWholeAgentState("ft:m:1")):
        other = make_agent()
        other.set_state(checkpoint)
        assert other.model_name == "ft:m:1"
    with pytest.raises(ValueError, match="unknown keys"):
        agent.set_state({"model": "x"})
    assert agent.model_name == "ft:m:1"


def test_a_name_that_is_no_agent_is_refused():
    with pytest.raises(SettingsError, match="prover, verifier"):
        make_agent("judge")


def test_errors_of_agents_can_be_pickled_and_say_what_was_got():
    made = [
        errors.NotGuessedError(3),
        ContentFilterError(3),
        UnknownFinishReasonError(3, "tool_calls"),
        InvalidDecisionError(3, "Decision: perhaps", "invalid decision"),
        AgentNotActiveInChannelError("prover", "main"),
        errors.TrainingJobNotFoundClientError("no job"),
    ]
    for error in made:
        other = pickle.loads(pickle.dumps(error))
        assert (type(other), str(other)) == (type(error), str(error))
        assert isinstance(error, NipError)
    assert "perhaps" in str(made[3]) and "3 retries" in str(made[3])


@pytest.mark.parametrize(
    ("field", "value"), [("device", "cuda"), ("num_rollout_workers", 8), ("test_run", True)]
)
def test_an_experiments_setting_that_means_nothing_is_refused_with_the_reason(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value!r}, but means nothing here"):
        ExperimentSettings(**{field: value})
    with pytest.raises(ValueError, match="typo"):
        ExperimentSettings(typo=1)


async def test_a_refusal_by_the_server_reaches_the_caller_without_the_key():
    def script(body):
        return web.json_response({"error": {"message": "key secret-key"}}, status=401)

    async with scripted_server(script) as server:
        with pytest.raises(NipError) as caught:
            await ask(make_agent(url=server.url))
    assert "secret-key" not in str(caught.value) and "401" in str(caught.value)
