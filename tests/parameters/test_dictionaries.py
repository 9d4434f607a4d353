"""Settings become dictionaries and come back equal; other runs' dictionaries are taken over."""

import copy

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nip_core.parameters import (
    BaseRunParameters,
    ConstantUpdateSchedule,
    HyperParameters,
    LrFactors,
    PureTextAgentParameters,
    RandomAgentParameters,
    RlTrainerParameters,
    load_parameters,
)
from nip_core.parameters.stored import complete_settings, read_settings

MINIMAL = {"run_name": "a", "dataset": "families"}
EVERYTHING = load_parameters(
    {
        **MINIMAL,
        "interaction_protocol": "debate",
        "agents": {
            "prover0": {"lora_alpha": 12, "top_p": 0.5},
            "prover1": {"is_random": True},
            "verifier": {
                "update_schedule": {
                    "_type": "ContiguousPeriodicUpdateSchedule",
                    "period": 3,
                    "start": 0,
                    "stop": 1,
                }
            },
        },
        "rl": {"frames_per_batch": 90},
        "base_run": {"base_run_type": "parameters", "run_id": "other"},
        "prices": {"m": {"prompt_usd": 1}},
    }
)


def test_a_dictionary_names_its_classes_and_is_read_back_equal():
    written = EVERYTHING.to_dict()
    assert HyperParameters.from_dict(written) == EVERYTHING
    assert load_parameters(yaml.safe_load(yaml.safe_dump(written))) == EVERYTHING
    assert written["_type"] == "HyperParameters"
    assert written["rl"]["_type"] == "RlTrainerParameters"
    agents = written["agents"]
    assert agents["prover1"] == {"_type": "RandomAgentParameters", "is_random": True}
    assert agents["prover0"]["_type"] == "PureTextAgentParameters"
    assert agents["prover0"]["is_random"] is False
    assert written["prices"]["m"]["_type"] == "Price"


alphas = st.one_of(
    st.fixed_dictionaries({"lora_alpha": st.integers(1, 4096)}),
    st.fixed_dictionaries({"lora_alpha_scale": st.floats(0.01, 16)}),
)
samplings = st.one_of(
    st.fixed_dictionaries({"temperature": st.floats(0, 2)}),
    st.fixed_dictionaries({"top_p": st.floats(0.01, 1)}),
    st.just({}),
)


@settings(max_examples=50)
@given(alphas, samplings, st.integers(1, 256), st.floats(0, 0.99))
def test_any_agent_is_read_back_equal(alpha, sampling, rank, dropout):
    agent = PureTextAgentParameters(**alpha, **sampling, lora_rank=rank, lora_dropout=dropout)
    written = agent.to_dict()
    before = copy.deepcopy(written)
    assert PureTextAgentParameters.from_dict(written) == agent
    assert written == before
    loaded = PureTextAgentParameters()
    loaded.load_from_wandb_config(written)
    assert loaded == agent


def test_extra_keys_are_refused_or_left_out_at_any_depth_and_nothing_is_changed():
    written = EVERYTHING.to_dict()
    for place in (
        written,
        written["rl"],
        written["agents"]["prover0"],
        written["agents"]["prover1"],
        written["prices"]["m"],
    ):
        place["unheard_of"] = {"a": 1}
        before = copy.deepcopy(written)
        with pytest.raises(ValidationError, match="unheard_of"):
            HyperParameters.from_dict(written)
        assert HyperParameters.from_dict(written, ignore_extra_keys=True) == EVERYTHING
        assert written == before


def test_the_class_of_a_dictionary_is_found_by_its_name():
    find = PureTextAgentParameters._get_param_class_from_dict
    assert find({"_type": "CodeValidationAgentParameters"}) is PureTextAgentParameters
    assert find({"_type": "RandomAgentParameters"}) is RandomAgentParameters
    assert find({"_type": "BaseRunParameters"}) is BaseRunParameters
    assert find({"_type": "ConstantUpdateSchedule"}) is ConstantUpdateSchedule
    assert find({}) is None
    for name in ("Path", "str", 3, None, ["RandomAgentParameters"]):
        with pytest.raises(ValueError, match="is no class of settings"):
            find({"_type": name})


def test_a_dictionary_of_another_class_is_refused():
    with pytest.raises(ValidationError, match="_type is RlTrainerParameters, but TextRlParam"):
        HyperParameters.from_dict({**MINIMAL, "text_rl": {"_type": "RlTrainerParameters"}})
    with pytest.raises(ValidationError, match="is_random must be True here"):
        RandomAgentParameters.from_dict({"is_random": False})


def test_values_are_found_by_address():
    agent = PureTextAgentParameters(lora_rank=8)
    assert agent.get("lora_rank") == EVERYTHING.get("agents.prover0.lora_rank") - 56 == 8
    for address in ("lora", "lora_rank.x", "", "is_random", "get"):
        with pytest.raises(KeyError):
            agent.get(address)


def test_what_another_run_says_is_taken_over_but_for_where_it_is():
    agent = PureTextAgentParameters(
        load_checkpoint_and_parameters=True, checkpoint_run_id="other", top_p=0.5, lora_alpha=7
    )
    config = PureTextAgentParameters(
        temperature=0.25, model_name="m", checkpoint_run_id="third", checkpoint_version=3
    ).to_dict() | {"of_another_version": 1}
    expected = agent.loaded_from(config)
    agent.load_from_wandb_config(config)
    assert agent == expected
    assert (agent.temperature, agent.top_p, agent.model_name) == (0.25, None, "m")
    assert (agent.lora_alpha, agent.lora_alpha_scale) == (None, 1.0)
    assert agent.load_checkpoint_and_parameters
    assert (agent.checkpoint_run_id, agent.checkpoint_version) == ("other", "latest")


@pytest.mark.parametrize("factors", [None, {"actor": 1.0, "critic": 1.0}, {"actor": 1}, {}])
@pytest.mark.parametrize("name", ["agent_lr_factor", "body_lr_factor"])
def test_factors_that_change_nothing_are_taken(name, factors):
    tagged = factors if factors is None else {"_type": "LrFactors", **factors}
    for value in (factors, tagged, factors if factors is None else LrFactors(**factors)):
        agent = PureTextAgentParameters(top_p=0.5)
        agent.load_from_wandb_config({"lora_rank": 8, name: value})
        assert agent == PureTextAgentParameters(top_p=0.5, lora_rank=8)
        assert PureTextAgentParameters(**{name: value}) == PureTextAgentParameters()
        assert RlTrainerParameters.from_dict({"body_lr_factor": value}) == RlTrainerParameters()
    for wrong in ({"actor": 1.0, "critic": 2.0}, {"actor": True}, {"else": 1.0}, 1.0):
        with pytest.raises(ValidationError, match=f"{name} can't be set"):
            PureTextAgentParameters(**{name: wrong})


def test_what_can_not_be_taken_over_changes_nothing():
    agent = PureTextAgentParameters(top_p=0.5)
    before = agent.to_dict()
    with pytest.raises(ValidationError):
        agent.load_from_wandb_config({"lora_rank": 8, "lora_dropout": 2})
    assert agent.to_dict() == before


def test_a_part_of_an_agents_settings_leaves_the_rest():
    agent = PureTextAgentParameters(lora_rank=8, model_name="m", top_p=0.5)
    agent.load_from_wandb_config({"temperature": 1, "lora_alpha": 3})
    assert agent == PureTextAgentParameters(
        lora_rank=8, model_name="m", temperature=1, lora_alpha=3
    )


def test_settings_of_an_earlier_version_are_read_with_todays_defaults():
    earlier = {
        **MINIMAL,
        "agents": {
            "prover": {"model_name": "m"},
            "verifier": {"lora_alpha": 8, "lora_alpha_scale": None},
        },
        "rl": {"lr": 0.01, "gone": 1},
    }
    before = copy.deepcopy(earlier)
    today = read_settings(earlier)
    assert earlier == before
    assert today == load_parameters(
        {
            **MINIMAL,
            "agents": {
                "prover": {"model_name": "m"},
                "verifier": {"lora_alpha": 8},
            },
            "rl": {"lr": 0.01},
        }
    )
    assert complete_settings(earlier)["rl"]["gone"] == 1


def test_test_settings_can_be_made():
    assert all(a.use_dummy_api for a in HyperParameters.construct_test_params().agents.values())
    assert LrFactors.construct_test_params() == LrFactors(actor=1.0, critic=1.0)
