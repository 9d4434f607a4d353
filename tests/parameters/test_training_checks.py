"""Trainers are refused what they can't train, with the setting, the value and what to do."""

import pytest

from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters

MINIMAL = {"run_name": "a", "dataset": "families"}
HOSTED = {"model_provider": "SelfHosted", "fine_tune_from_scratch": False}
REPLACED = {"text_rl": {"verifier_guess_replacement_proportion": 0.5}}
MALT = {**MINIMAL, "trainer": "pure_text_malt"}


def grpo(agents=None, **changes):
    agents = {"_default": HOSTED} if agents is None else agents
    return {**MINIMAL, "trainer": "pure_text_grpo", "agents": agents, **changes}


def one(**settings):
    return grpo({"_default": HOSTED, "verifier": settings})


def groups_of(size, count=200, **more):
    rl = {"rollouts_per_iteration": count}
    return grpo(pure_text_grpo={"group_size": size, **more}, rl=rl)


@pytest.mark.parametrize(
    ("settings", "setting", "got", "remedy"),
    [
        (
            {**MINIMAL, **REPLACED, "agents": {"verifier": {"freeze_agent": True}}},
            "verifier_guess_replacement_proportion",
            "got 0.5",
            "agents.verifier.freeze_agent: false",
        ),
        (
            MALT | REPLACED,
            "text_rl.verifier_guess_replacement_proportion",
            "'pure_text_malt'",
            "set it to 0",
        ),
        (
            grpo(**REPLACED),
            "text_rl.verifier_guess_replacement_proportion",
            "'pure_text_grpo'",
            "set it to 0",
        ),
        (
            grpo(text_rl={"fine_tune_on_all_previous_rollouts": True}),
            "text_rl.fine_tune_on_all_previous_rollouts",
            "'pure_text_grpo'",
            "set it to false",
        ),
        (groups_of(1), "pure_text_grpo.group_size", "is 1", "2 or more, or baseline: role"),
        (groups_of(7), "pure_text_grpo.group_size", "(7)", "(200, see rl.rollouts_per_iteration)"),
        (
            grpo(rl={"frames_per_batch": 90}, pure_text_grpo={"group_size": 3}),
            "pure_text_grpo.group_size (3) must divide",
            "(10,",
            "see rl.rollouts_per_iteration",
        ),
        (
            grpo({"verifier": HOSTED}),
            "agents.prover.model_provider",
            "got OpenAI",
            "set SelfHosted, or freeze_agent: true",
        ),
        (
            one(fine_tune_from_scratch=True),
            "agents.verifier.fine_tune_from_scratch",
            "'pure_text_grpo'",
            "set it to false",
        ),
        (one(temperature=0.5), "agents.verifier.temperature", "got 0.5", "leave it out"),
        (one(top_p=0.9), "agents.verifier.top_p", "got 0.9", "leave it out"),
        (
            one(repetition_penalty=1.2),
            "agents.verifier.repetition_penalty",
            "got 1.2",
            "leave it out",
        ),
        (
            {**MINIMAL, "promotion": {"enabled": True}, "test_dataset_split": "validation"},
            "promotion.enabled",
            "tested on",
            "set test_dataset_split: test",
        ),
        (
            {**MALT, "agents": {"verifier": {"temperature": 0}}},
            "agents.verifier.temperature",
            "got 0",
            "raise it, or leave it out",
        ),
        (
            grpo(fine_tuning={"wandb_project": "p"}),
            "fine_tuning.wandb_project",
            "no agent has model_provider: OpenAI",
            "leave it out",
        ),
    ],
)
def test_what_a_trainer_can_not_do_is_refused(settings, setting, got, remedy):
    with pytest.raises(SettingsError) as caught:
        load_parameters(settings)
    for part in (setting, got, remedy):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        grpo(),
        MALT,
        {**MALT, "agents": {"prover": {"freeze_agent": True, "temperature": 0}}},
        # The first iterations imitate.
        MALT | REPLACED | {"pure_text_malt": {"num_initial_ei_iterations": 1}},
        groups_of(1, baseline="role"),
        groups_of(8, count=None),
        grpo(rl={"frames_per_batch": 90}, pure_text_grpo={"group_size": 5}),
        # What is not trained may be sampled as one likes, anywhere.
        grpo({"verifier": HOSTED, "prover": {"freeze_agent": True, "temperature": 0.5}}),
        one(temperature=1.0),
        one(top_p=1),
        grpo({"_default": {"use_dummy_api": True, "fine_tune_from_scratch": False}}),
        grpo({"verifier": HOSTED, "prover": {"is_random": True}}),
        {**MINIMAL, "promotion": {"enabled": True}},
        {**MINIMAL, "fine_tuning": {"wandb_project": "p"}},
        {**MINIMAL, "curriculum": {"enabled": True}},
    ],
)
def test_what_it_can_do_is_taken(settings):
    load_parameters(settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pure_text_malt": {"num_responses_per_timestep": 1}}, "num_responses_per_timestep"),
        ({"pure_text_malt": {"interval_threshold_proportion": 0}}, "interval_threshold_proportion"),
        ({"pure_text_malt": {"interval_threshold_proportion": 1}}, "interval_threshold_proportion"),
        ({"pure_text_malt": {"pair_selection_method": "best"}}, "pair_selection_method"),
        ({"pure_text_malt": {"max_nodes": 0}}, "max_nodes"),
        (MALT | {"agents": {"verifier": {"dpo_sft_weight": 1}}}, "agents.verifier.dpo_sft_weight"),
        (
            MALT | {"agents": {"prover": {"dpo_label_smoothing": 0.1}}},
            "agents.prover.dpo_label_smoothing: OpenAI has no such setting",
        ),
        ({"agents": {"prover": {"dpo_label_smoothing": 0.5}}}, "dpo_label_smoothing"),
        ({"pure_text_grpo": {"group_size": 257}}, "group_size"),
        ({"pure_text_grpo": {"baseline": "critic"}}, "baseline"),
        ({"pure_text_grpo": {"clip_low": 1}}, "clip_low"),
        ({"pure_text_grpo": {"kl_penalty": -0.1}}, "kl_penalty"),
        ({"pure_text_grpo": {"advantage_shift": -0.1}}, "advantage_shift"),
        ({"curriculum": {"initial_percentile": 0}}, "initial_percentile"),
        ({"curriculum": {"increment_percentile": 1.1}}, "increment_percentile"),
        ({"curriculum": {"expansion_interval": 0}}, "expansion_interval"),
        ({"curriculum": {"random_subsample": 7}}, "random_subsample"),
        ({"promotion": {"margin": -0.1}}, "margin"),
        ({"promotion": {"episodes": 0}}, "episodes"),
        ({"fine_tuning": {"validation_fraction": 1}}, "validation_fraction"),
        ({"text_rl": {"test_interval": 0}}, "test_interval"),
    ],
)
def test_values_out_of_range_are_refused_by_name(settings, said):
    with pytest.raises(SettingsError, match=said):
        load_parameters({**MINIMAL, **settings})


@pytest.mark.parametrize(
    ("settings", "methods"),
    [
        (MINIMAL, ["supervised"] * 3),
        (MALT, ["dpo"] * 3),
        (
            MALT | {"pure_text_malt": {"num_initial_ei_iterations": 2}},
            ["supervised", "supervised", "dpo"],
        ),
        (grpo(), ["trajectories"] * 3),
    ],
)
def test_the_trainer_and_the_iteration_decide_the_method(settings, methods):
    parameters = load_parameters(settings)
    assert [parameters.method(i) for i in range(3)] == methods
