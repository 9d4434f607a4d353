"""What each API takes: a test per row of the table, against the body of a request."""

import pytest

from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_core.parameters.dialects import DIALECTS
from nip_core.rollouts.model_call import request_body
from nip_core.stages.providers import group_endpoints

CHAT = [{"role": "user", "content": "Why?"}]
HOSTS = [
    ("https://api.openai.com/v1", "openai"),
    ("https://openrouter.ai/api/v1", "openrouter"),
    ("https://generativelanguage.googleapis.com/v1beta/openai/", "gemini"),
    ("https://api.anthropic.com/v1/", "anthropic"),
    ("https://api.mistral.ai/v1", "mistral"),
]
# By dialect, what an agent with a seed, a limit and an effort asks for.
BODIES = {
    "openai": {"max_completion_tokens": 9, "seed": 5, "reasoning_effort": "low", "n": 2},
    "self_hosted": {"max_tokens": 9, "seed": 5, "n": 2},
    "openrouter": {"max_tokens": 9, "seed": 5, "reasoning": {"effort": "low"}},
    "gemini": {"max_tokens": 9, "reasoning_effort": "low", "n": 2},
    "anthropic": {"max_tokens": 9},
    "mistral": {"max_tokens": 9, "random_seed": 5, "reasoning_effort": "low", "n": 2},
}


def agent(**settings):
    defaults = {"model_name": "m", "freeze_agent": True, "chat_format": "alternating"}
    values = {
        "run_name": "a",
        "dataset": "x",
        "interaction_protocol": "solo_verifier",
        "agents": {"verifier": {**defaults, **settings}},
    }
    return load_parameters(values).model_agents["verifier"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_has_what_the_api_takes_and_nothing_else(dialect):
    row = DIALECTS[dialect]
    effort = "low" if row.effort else None
    asked = agent(api_dialect=dialect, reasoning_effort=effort)
    body = request_body("m", asked, CHAT, 5, 9, n=2 if row.takes_n else 1)
    assert body == {"model": "m", "messages": CHAT, **BODIES[dialect]}


@pytest.mark.parametrize(("url", "dialect"), HOSTS)
def test_the_host_of_an_address_tells_the_dialect(url, dialect):
    named = request_body("m", agent(api_dialect=dialect), CHAT, 5, 9)
    assert request_body("m", agent(base_url=url), CHAT, 5, 9) == named


def test_an_unknown_host_is_what_its_provider_is():
    at = {"base_url": "http://localhost:8000/v1"}
    assert "max_completion_tokens" in request_body("m", agent(**at), CHAT, 5, 9)
    hosted = agent(**at, model_provider="SelfHosted")
    assert "max_tokens" in request_body("m", hosted, CHAT, 5, 9)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"api_dialect": "anthropic", "reasoning_effort": "low"}, "anthropic takes none"),
        (
            {"model_provider": "SelfHosted", "reasoning_effort": "low"},
            "set lm_server.options.chat_template_kwargs",
        ),
        ({"api_dialect": "mistral", "chat_format": "named"}, "set chat_format: alternating"),
        ({"api_dialect": "anthropic", "temperature": 1.5}, r"at most 1 \(got 1.5\)"),
        ({"served_as": ["x"], "freeze_agent": False}, "set freeze_agent: true"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"api_dialect": "claude"}, "api_dialect"),
    ],
)
def test_what_an_api_would_refuse_or_drop_is_refused_first(settings, said):
    with pytest.raises(SettingsError, match=said):
        agent(**settings)


def test_aliases_reach_whoever_asks():
    values = {"verifier": {"model_name": "m", "freeze_agent": True, "served_as": ["vendor/m"]}}
    parameters = load_parameters(
        {"run_name": "a", "dataset": "x", "interaction_protocol": "solo_verifier", "agents": values}
    )
    endpoints = group_endpoints(parameters, "verifier", {"OPENAI_API_KEY": "key"})
    assert endpoints is not None and endpoints.play.served_as == ("vendor/m",)
