"""What is recorded of probabilities follows from the settings, and what can't be is an error."""

import pytest

from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_core.parameters.derived.recording import records_p_accept

NO_TOKENS = {
    "api_dialect": "anthropic",
    "base_url": "http://a/v1",
    "chat_format": "alternating",
}


def settings(agent=None, **more):
    model = {"model_provider": "SelfHosted", "freeze_agent": True, **(agent or {})}
    return load_parameters({"run_name": "a", "dataset": "x", "agents": {"_default": model}, **more})


@pytest.mark.parametrize(
    ("agent", "engine", "by_itself", "where_asked_for"),
    [
        ({}, "embedded", True, True),
        ({}, "vllm", True, True),
        ({}, "deterministic", False, False),
        ({"use_dummy_api": True}, "embedded", False, False),
        ({"base_url": "http://elsewhere/v1"}, "embedded", False, True),
        ({"model_provider": "OpenAI", "model_name": "gpt-4o"}, "embedded", False, True),
    ],
)
def test_p_accept_is_recorded_by_itself_where_the_run_serves_a_model(
    agent, engine, by_itself, where_asked_for
):
    expected = {None: by_itself, True: where_asked_for, False: False}
    for asked, is_recorded in expected.items():
        parameters = settings(
            agent, lm_server={"engine": engine}, rollouts={"record_p_accept": asked}
        )
        assert records_p_accept(parameters, parameters.model_agents["verifier"]) is is_recorded


def test_an_api_without_log_probabilities_is_asked_for_none_by_itself():
    agent = {"model_provider": "OpenAI", **NO_TOKENS}
    parameters = settings(agent)
    assert not records_p_accept(parameters, parameters.model_agents["verifier"])


@pytest.mark.parametrize("setting", [{"record_p_accept": True}, {"record_top_logprobs": 5}])
@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (
            NO_TOKENS,
            r"the API of agents\.\w+ gives no log-probabilities \(api_dialect anthropic\)",
        ),
        (
            {"model_name": "gpt-5", "reasoning_effort": "low"},
            r"OpenAI gives no log-probabilities with agents\.\w+\.reasoning_effort \(got low\)",
        ),
    ],
)
def test_what_can_not_be_recorded_is_refused_before_anything_is_paid(setting, agent, words):
    (name,) = setting
    with pytest.raises(SettingsError, match=rf"rollouts\.{name}: {words}; leave"):
        settings({"model_provider": "OpenAI", **agent}, rollouts=setting)


def test_a_scale_that_has_no_p_accept_is_refused_with_what_to_use_instead():
    scale = {"verifier_decision_scale": "out_of_10"}
    with pytest.raises(SettingsError, match=r"record_p_accept: .* is out_of_10.*decision_value"):
        settings(protocol_common=scale, rollouts={"record_p_accept": True})
    settings(protocol_common=scale)  # by itself it is no error
