"""A run's own engines are as large as its agents need, and what they can't serve is refused."""

import pytest

from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_core.servers.own_server import check_server, make_server_spec

HOSTED = {"model_provider": "SelfHosted", "model_name": "tiny"}
STACKED = {"stack_lora_adapters": True, "fine_tune_from_scratch": False}


def parameters(*, options=None, engine="vllm", agents=None, **settings):
    agents = agents or {}
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "families",
            "rl": {"num_iterations": 3},
            "lm_server": {"engine": engine, "options": options or {}},
            "agents": {**agents, "_default": {**HOSTED, **agents.get("_default", {})}},
            **settings,
        }
    )


@pytest.mark.parametrize(
    ("agents", "settings", "rank", "adapters"),
    [
        ({}, {}, 64, 2),
        ({"_default": {"lora_rank": 32}}, {}, 32, 2),
        ({"_default": {"lora_rank": 8}, "prover": {"lora_rank": 16}}, {}, 16, 2),
        ({"_default": {"lora_rank": 8, "shared_model_group": "g"}}, {}, 8, 1),
        ({"prover": {"lora_rank": 128, "freeze_agent": True}}, {}, 64, 1),
        ({"_default": {"lora_rank": 8, **STACKED}}, {}, 24, 2),
        ({"_default": {"lora_rank": 8}}, {"opponents": "league"}, 8, 5),
        (
            {"_default": {"lora_rank": 8}},
            {"opponents": "league", "rl": {"num_iterations": 40}},
            8,
            8,
        ),
    ],
)
def test_ranks_adapters_and_requests_are_those_of_the_run(agents, settings, rank, adapters):
    spec = make_server_spec(parameters(agents=agents, rollouts={"concurrency": 200}, **settings))
    assert spec.options == {"max_lora_rank": rank, "max_loras": adapters, "max_num_seqs": 200}


def test_what_the_options_say_stays():
    chosen = {"max_lora_rank": 256, "max_loras": 1, "max_num_seqs": 16}
    assert make_server_spec(parameters(options=chosen)).options == chosen
    spec = make_server_spec(parameters(options={"max_cpu_loras": 1}))
    assert spec.options["max_loras"] == 1
    assert make_server_spec(parameters(engine="embedded")).options == {}


@pytest.mark.parametrize("engine", ["vllm", "embedded"])
def test_a_rank_that_the_engine_does_not_take_is_refused(engine):
    refused = parameters(
        options={"max_lora_rank": 32}, engine=engine, agents={"prover": {"lora_rank": 64}}
    )
    with pytest.raises(SettingsError, match=r"agents\.\w+\.lora_rank is 64.* 32 at most"):
        check_server(refused, {})
    check_server(parameters(agents={"prover": {"lora_rank": 256}}, engine=engine), {})


def test_stacks_that_would_become_two_base_models_are_refused():
    high = {"lora_rank": 200, **STACKED}
    with pytest.raises(SettingsError, match=r"3 adapters of rank 200 add up to 600.* 512 at most"):
        check_server(parameters(agents={"_default": high}), {})
    # Of one group alone, the new base model takes the place of the one before.
    check_server(parameters(agents={"_default": {**high, "shared_model_group": "g"}}), {})
