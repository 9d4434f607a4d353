"""What each API takes: a test per row of the table, against the body of a request."""

from datetime import date

import pytest

from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_core.parameters.services.dialects import DIALECTS
from nip_core.parameters.shutdowns import LAST_JOBS, SHUTDOWNS, list_shutdown_warnings
from nip_core.rollouts.model_call import request_body
from nip_core.servers.endpoints import find_group_endpoints

CHAT = [{"role": "user", "content": "Why?"}]
HOSTS = [
    ("https://api.openai.com/v1", "openai"),
    ("https://openrouter.ai/api/v1", "openrouter"),
    ("https://generativelanguage.googleapis.com/v1beta/openai/", "gemini"),
    ("https://api.anthropic.com/v1/", "anthropic"),
    ("https://api.together.xyz/v1", "together"),
    ("https://api.mistral.ai/v1", "mistral"),
]
# By dialect, what an agent with a seed, a limit and an effort asks for.
BODIES = {
    "openai": {"max_completion_tokens": 9, "seed": 5, "reasoning_effort": "low", "n": 2},
    "self_hosted": {"max_tokens": 9, "seed": 5, "n": 2},
    "openrouter": {"max_tokens": 9, "seed": 5, "reasoning": {"effort": "low"}},
    "together": {"max_tokens": 9, "seed": 5, "n": 2},
    "gemini": {"max_tokens": 9, "reasoning_effort": "low", "n": 2},
    "anthropic": {"max_tokens": 9},
    "mistral": {"max_tokens": 9, "random_seed": 5, "reasoning_effort": "low", "n": 2},
}


def run(**settings):
    defaults = {"model_name": "m", "freeze_agent": True, "chat_format": "alternating"}
    values = {
        "run_name": "a",
        "dataset": "x",
        "interaction_protocol": "solo_verifier",
        "agents": {"verifier": {**defaults, **settings}},
    }
    return load_parameters(values)


def agent(**settings):
    return run(**settings).model_agents["verifier"]


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
        (
            {"train_reasoning": "keep", "freeze_agent": False},
            "train_reasoning: fine-tuning at OpenAI takes no thoughts",
        ),
        ({"api_dialect": "claude"}, "api_dialect"),
    ],
)
def test_what_an_api_would_refuse_or_drop_is_refused_first(settings, said):
    with pytest.raises(SettingsError, match=said):
        agent(**settings)


def test_aliases_reach_whoever_asks():
    endpoints = find_group_endpoints(
        run(served_as=["vendor/m"]), "verifier", {"OPENAI_API_KEY": "key"}
    )
    assert endpoints is not None and endpoints.play.served_as == ("vendor/m",)


@pytest.mark.parametrize("model", ["gpt-4o-mini-2024-07-18", "ft:gpt-4o-mini-2024-07-18:me::a1"])
def test_a_model_that_ends_is_warned_of(model):
    day = SHUTDOWNS["gpt-4o-mini-2024-07-18"]
    (before,) = list_shutdown_warnings(run(model_name=model), date(2026, 11, 24))
    ends = "agents.verifier: OpenAI shuts gpt-4o-mini-2024-07-18 and all fine-tunes of it down"
    assert before == f"{ends} in 51 days, on 2027-01-14"
    (after,) = list_shutdown_warnings(run(model_name=model), day)
    assert after.endswith("of it down on 2027-01-14") and "has shut" in after


def test_training_at_openai_is_warned_of_and_others_are_not():
    trains = {"freeze_agent": False, "chat_format": "named"}
    (line,) = list_shutdown_warnings(run(**trains), date(2026, 11, 24))
    assert line.startswith("OpenAI takes no new fine-tune jobs from 2027-01-06 on")
    (line,) = list_shutdown_warnings(run(**trains), LAST_JOBS)
    assert line.startswith("OpenAI has taken no new")
    for other in ({"model_provider": "SelfHosted"}, {"base_url": "http://localhost:1/v1"}):
        ending = run(model_name="gpt-4o", **trains, **other)
        assert list_shutdown_warnings(ending, LAST_JOBS) == []
