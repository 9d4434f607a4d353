"""Settings of agents that don't fit together are refused with the place and the reason."""

import json
import re

import pytest

from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters, PureTextAgentParameters, load_parameters
from nip_core.parameters.checks import GROUP_SETTINGS
from nip_core.parameters.stored import read_settings
from nip_core.servers.endpoints import find_group_endpoints

MINIMAL = {"run_name": "a", "dataset": "families"}
HOSTED = {"model_provider": "SelfHosted", "model_name": "m"}
VLLM = {"lm_server": {"engine": "vllm"}}
URL = "http://host:9"


def prover(**settings):
    return {**MINIMAL, "agents": {"prover": settings}}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (prover(temperature=1, top_p=0.5), "temperature or top_p, not both"),
        (prover(lora_alpha=8, lora_alpha_scale=1.0), "exactly one of lora_alpha and"),
        (prover(lora_alpha_scale=None), "exactly one of lora_alpha and lora_alpha_scale"),
        (prover(lora_rank=256, lora_alpha_scale=17), "lora_rank * lora_alpha_scale must be at"),
        (
            prover(
                use_lora=False, stack_lora_adapters=True, fine_tune_from_scratch=False, **HOSTED
            ),
            "there is no adapter",
        ),
        (
            prover(use_lora=False, quantization="bitsandbytes", **HOSTED) | VLLM,
            "quantized ones can't be",
        ),
        (
            {**MINIMAL, **VLLM, "agents": {"_default": HOSTED, "prover": {"use_lora": False}}},
            "another group plays with 'm'; set use_lora: true, or use the run's own server",
        ),
        (prover(stack_lora_adapters=True, **HOSTED), "with fine_tune_from_scratch: true"),
        (
            prover(stack_lora_adapters=True, fine_tune_from_scratch=False),
            "stack_lora_adapters needs model_provider: SelfHosted (got OpenAI)",
        ),
        (prover(repetition_penalty=1.5), "repetition_penalty is not known to the OpenAI API"),
        (prover(language_model_server_port=1), "need model_provider: SelfHosted (got OpenAI)"),
        (prover(**HOSTED, vllm_server_port=1, base_url=URL), "base_url and language_model_server"),
        (
            prover(**HOSTED, vllm_server_port=1) | {"lm_server": {"url": URL}},
            "lm_server.url and language_model_server_* both name a server",
        ),
        (prover(use_dummy_api=True, base_url=URL), "use_dummy_api calls no API, so base_url"),
        (
            prover(use_dummy_api=True, language_model_server_port=1),
            "use_dummy_api calls no API, so language_model_server_*",
        ),
        (prover(base_url="http://me:hunter2@host"), "agents.prover.base_url: an address without"),
        (prover(language_model_server_scheme_host="http://h:1"), "without port and path"),
        (prover(language_model_server_scheme_host="http://h/p"), "without port and path"),
        (prover(language_model_server_scheme_host="h"), "an address like http://host:8000"),
        (prover(quantization="bitsandbytes"), "quantization is for the run's own server"),
        (prover(quantization="bitsandbytes", **HOSTED), "needs lm_server.engine: vllm (got emb"),
        (prover(quantization="bitsandbytes", base_url=URL, **HOSTED) | VLLM, "own server"),
        (
            {
                **MINIMAL,
                **VLLM,
                "agents": {"_default": HOSTED, "prover": {"quantization": "bitsandbytes"}},
            },
            "agents.verifier.quantization: another agent uses 'm' with 'bitsandbytes'",
        ),
        (
            prover(quantization="bitsandbytes", **HOSTED)
            | {"lm_server": {"engine": "vllm", "options": {"quantization": "awq"}}},
            "lm_server.options.quantization is 'awq'",
        ),
        (prover(load_checkpoint_and_parameters=True), "prover.checkpoint_run_id is missing"),
        (prover(checkpoint_run_id="b"), "no effect without load_checkpoint_and_parameters"),
        (prover(checkpoint_version=3), "no effect without load_checkpoint_and_parameters"),
        (
            prover(load_checkpoint_and_parameters=True, checkpoint_run_id="a"),
            "checkpoint_run_id is this run itself",
        ),
        (
            prover(
                load_checkpoint_and_parameters=True, checkpoint_run_id="b", checkpoint_version="v1"
            ),
            "checkpoint_version: String should match pattern",
        ),
        (
            prover(use_dummy_api=True, load_checkpoint_and_parameters=True, checkpoint_run_id="b"),
            "use_dummy_api plays without a model",
        ),
        (MINIMAL | {"base_run": {"base_run_type": "parameters"}}, "base_run: run_id is missing"),
        (MINIMAL | {"base_run": {"run_id": "b"}}, "no effect with base_run_type 'none'"),
        (
            MINIMAL | {"base_run": {"base_run_type": "rerun_tests", "run_id": "a"}},
            "base_run.run_id is this run itself",
        ),
        (MINIMAL | {"rl": {"frames_per_batch": 91}}, "must be a multiple of the protocol's 9"),
        (
            MINIMAL | {"rl": {"frames_per_batch": 90, "rollouts_per_iteration": 10}},
            "frames_per_batch or rollouts_per_iteration, not both",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, said):
    with pytest.raises(SettingsError) as caught:
        load_parameters(settings)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


OTHER_VALUES = {
    "model_provider": "SelfHosted",
    "model_name": "another",
    "base_url": URL,
    "api_dialect": "gemini",
    "served_as": ["another"],
    "language_model_server_scheme_host": "http://host",
    "language_model_server_port": 1,
    "vllm_server_port": 1,
    "use_dummy_api": True,
    "load_checkpoint_and_parameters": True,
    "checkpoint_run_id": "b",
    "checkpoint_version": "1",
    "published_adapter": "hf://ada/verifier",
    "fine_tune_from_scratch": False,
    "freeze_agent": True,
    "quantization": "bitsandbytes",
    "num_epochs": 7,
    "dpo_beta": 0.5,
    "dpo_sft_weight": 0.5,
    "dpo_label_smoothing": 0.1,
    "use_lora": False,
    "lora_rank": 7,
    "lora_alpha": 7,
    "lora_alpha_scale": 7,
    "lora_dropout": 0.5,
    "stack_lora_adapters": True,
    "per_device_train_batch_size": 7,
}


@pytest.mark.parametrize("setting", OTHER_VALUES)
def test_agents_of_a_group_agree_on_what_concerns_their_model(setting):
    group = {"_default": {"shared_model_group": "g"}, "prover": {setting: OTHER_VALUES[setting]}}
    with pytest.raises(SettingsError, match="both share the model group 'g' and must agree"):
        load_parameters({**MINIMAL, "agents": group})


def test_that_is_all_that_they_must_agree_on():
    assert set(OTHER_VALUES) == set(GROUP_SETTINGS)
    different = {
        "temperature": 0.5,
        "repetition_penalty": 1.1,
        "max_response_words": 9,
        "max_tokens_per_message": 9,
        "use_supervisor_message": "all",
        "chat_format": "alternating",
        "num_invalid_generation_retries": 1,
        "update_schedule": {"_type": "ConstantUpdateSchedule"},
    }
    default = {"shared_model_group": "g", **HOSTED}
    load_parameters({**MINIMAL, "agents": {"_default": default, "prover": different}})


def test_ports_at_their_defaults_name_no_server():
    agent = PureTextAgentParameters()
    assert (agent.control_url, agent.engine_url) == (None, None)
    agent = PureTextAgentParameters(language_model_server_scheme_host="https://host/")
    assert (agent.control_url, agent.engine_url) == ("https://host:5000", "https://host:5000")
    agent = PureTextAgentParameters(vllm_server_port=8001)
    assert agent.control_url == "http://localhost:5000"
    assert agent.engine_url == "http://localhost:8001"


LOCAL = {
    "language_model_server_scheme_host": "http://localhost",
    "language_model_server_port": 5000,
    "vllm_server_port": 8000,
}


@pytest.mark.parametrize(
    ("names", "engine"),
    [
        (LOCAL, "http://localhost:8000/v1"),
        (("language_model_server_scheme_host",), "http://localhost:5000/v1"),
        (("language_model_server_port",), "http://localhost:5000/v1"),
        (("vllm_server_port",), "http://localhost:8000/v1"),
    ],
)
def test_an_address_that_is_set_is_used_though_it_is_the_default(names, engine):
    own = {name: LOCAL[name] for name in names}
    agents = {"_default": {**HOSTED, "shared_model_group": "g", **own}}
    for given in (agents, {"_default": PureTextAgentParameters(**agents["_default"])}):
        parameters = load_parameters({**MINIMAL, "agents": given})
        for read in (
            parameters,
            HyperParameters.from_dict(parameters.to_dict()),
            read_settings(json.loads(json.dumps(parameters.to_dict()))),
        ):
            endpoints = find_group_endpoints(read, "g", {"NIP_API_KEY": "k"})
            assert endpoints.control.base_url == "http://localhost:5000/v1"
            assert endpoints.play.base_url == engine
    for setting, value in (
        ("lm_server", {"url": URL}),
        ("agents", {"_default": {"base_url": URL}}),
    ):
        both = load_parameters_of(agents, setting, value)
        with pytest.raises(SettingsError, match="both name a server"):
            load_parameters(both)
    if "vllm_server_port" in names:
        with pytest.raises(SettingsError, match=r"set_addresses is .*'vllm_server_port'.* agree"):
            load_parameters({**MINIMAL, "agents": {"_default": HOSTED, **one_of_two(own)}})


def load_parameters_of(agents, setting, value):
    inner = {"_default": agents["_default"] | value["_default"]} if setting == "agents" else value
    return {**MINIMAL, "agents": agents, setting: inner}


def one_of_two(own):
    shared = {"shared_model_group": "g"}
    return {"prover": {**shared, **own}, "verifier": shared}


def test_defaults_that_were_written_out_name_no_server_and_are_no_contradiction():
    written = load_parameters({**MINIMAL, "agents": {"_default": HOSTED}}).to_dict()
    assert written["agents"]["prover"]["language_model_server_port"] == 5000
    again = HyperParameters.from_dict(written)
    assert find_group_endpoints(again, "prover", {}) is None and again.to_dict() == written
    agent = PureTextAgentParameters(**HOSTED, language_model_server_port=5000)
    agent.load_from_wandb_config(written["agents"]["prover"])
    assert agent.control_url is None
    agent.load_from_wandb_config({"language_model_server_port": 5000})
    assert agent.control_url == "http://localhost:5000"
    agent.load_from_wandb_config({"temperature": 1})
    assert agent.control_url == "http://localhost:5000"
    for harmless in ({}, {"use_dummy_api": True}):
        load_parameters({**MINIMAL, "agents": {"_default": {**LOCAL, **harmless}}})


def test_the_alpha_of_training_is_the_one_that_was_set_or_follows_the_rank():
    assert PureTextAgentParameters().effective_lora_alpha == 64
    assert PureTextAgentParameters(lora_rank=8, lora_alpha_scale=2.5).effective_lora_alpha == 20
    assert PureTextAgentParameters(lora_alpha=3).lora_alpha_scale is None
    assert PureTextAgentParameters(lora_alpha=3).effective_lora_alpha == 3


def test_an_agents_own_alternative_replaces_the_one_of_all_agents():
    agents = {
        "_default": {"temperature": 1, "lora_alpha_scale": 2},
        "prover": {"top_p": 0.5, "lora_alpha": 7},
    }
    loaded = load_parameters({**MINIMAL, "agents": agents}).agents
    assert (loaded["prover"].temperature, loaded["prover"].top_p) == (None, 0.5)
    assert (loaded["prover"].lora_alpha, loaded["prover"].lora_alpha_scale) == (7, None)
    assert (loaded["verifier"].temperature, loaded["verifier"].lora_alpha_scale) == (1, 2)


def test_frames_are_rounds_of_whole_episodes():
    assert load_parameters(MINIMAL).rollouts_per_iteration == 200
    assert load_parameters(MINIMAL, ["rl.frames_per_batch=90"]).rollouts_per_iteration == 10
    assert load_parameters(MINIMAL, ["rl.rollouts_per_iteration=null"]).rollouts_per_iteration is (
        None
    )


@pytest.mark.parametrize(
    ("setting", "least", "most"),
    [
        ("lora_rank", 1, 256),
        ("lora_dropout", 0, 0.99),
        ("dpo_beta", 0.001, 2),
        ("dpo_sft_weight", 0, 100),
        ("dpo_label_smoothing", 0, 0.49),
        ("temperature", 0, 2),
        ("num_epochs", 1, 50),
        ("per_device_train_batch_size", 1, 256),
        ("language_model_server_port", 1, 65535),
    ],
)
def test_ranges_hold_at_their_ends(setting, least, most):
    for value in (least, most):
        assert getattr(PureTextAgentParameters(**{setting: value}), setting) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ValueError, match=re.escape(setting)):
            PureTextAgentParameters(**{setting: value})


@pytest.mark.parametrize("yes", [True, "true", "yes", 1])
def test_a_zero_knowledge_game_has_its_agents_however_yes_is_written(yes):
    parameters = load_parameters({**MINIMAL, "protocol_common": {"zero_knowledge": yes}})
    assert list(parameters.agents)[-2:] == ["adversarial_verifier", "simulator"]
