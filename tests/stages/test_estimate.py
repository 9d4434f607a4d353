"""What the plan says that a run can cost at most."""

import pytest
from small_game import write_config

from nip_cli.printing.plans_and_runs import show_plan
from nip_core.costs.estimate import estimate_run
from nip_core.evaluation.statistics.power import detectable_change
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.parameters.derived.tested_iterations import is_tested
from nip_core.session.problems_of_run import load_all_problems


@pytest.mark.parametrize("paid", ["prover0", "prover1"])
def test_where_the_seed_decides_who_speaks_the_dearest_one_is_paid(tmp_path, paid):
    free = {"model_provider": "SelfHosted", "model_name": "deterministic"}
    agents = {
        "_default": {**free, "freeze_agent": True},
        paid: {"model_provider": "OpenAI", "model_name": "m"},
    }
    prices = {"m": {"completion_usd": 1_000_000}}
    parameters = load_parameters(
        write_config(tmp_path, interaction_protocol="merlin_arthur", agents=agents, prices=prices)
    )
    estimate = estimate_run(Game(parameters), load_all_problems(parameters))
    episodes = estimate.train_episodes + estimate.test_episodes
    assert estimate.calls == episodes * 2
    assert estimate.usd == episodes * parameters.max_tokens(paid)


def estimated(folder, **changes):
    parameters = load_parameters(write_config(folder, **changes))
    key = str((parameters.dataset_options, parameters.promotion))
    if key not in _problems:
        _problems[key] = load_all_problems(parameters)
    return estimate_run(Game(parameters), _problems[key])


_problems: dict[str, dict[str, list]] = {}


ONE_ITERATION = {"num_iterations": 1, "rollouts_per_iteration": 10, "num_epochs": 1}
NO_TESTS = {"test_scheme": "none"}
MOST = 32  # tokens of a message in the small game; there are three rounds


def by_hand(folder):
    """Tokens of a problem with its instructions: what a plain run of one agent's turn reads."""
    plain = estimated(folder, rl=ONE_ITERATION, text_rl=NO_TESTS)
    # The verifier reads p and p + 2m, the prover p + m.
    assert (plain.calls, plain.completion_tokens) == (30, 30 * MOST)
    start = (plain.prompt_tokens - 10 * 3 * MOST) // 30
    assert plain.prompt_tokens == 10 * (3 * start + 3 * MOST)
    assert plain.training_tokens == 10 * 2 * (start + 3 * MOST)
    return start


def test_a_prompt_with_several_answers_is_read_once_and_each_node_gives_a_pair(tmp_path):
    """Trees of 2, 4 and 8 nodes: the verifier, the prover, the verifier."""
    start = by_hand(tmp_path)
    found = estimated(tmp_path, trainer="pure_text_malt", rl=ONE_ITERATION, text_rl=NO_TESTS)
    assert found.train_episodes == 10
    assert found.calls == 10 * (1 + 2 + 4)
    assert found.completion_tokens == 10 * (2 + 4 + 8) * MOST
    read = start + 2 * (start + MOST) + 4 * (start + 2 * MOST)
    assert found.prompt_tokens == 10 * read
    assert found.training_tokens == 10 * 2 * (read + 7 * MOST)


def test_frozen_agents_and_the_limit_on_nodes_make_trees_smaller(tmp_path):
    frozen = {"prover": {"freeze_agent": True}}
    agents = {"_default": {"model_provider": "SelfHosted", "model_name": "deterministic",
                           "max_tokens_per_message": MOST}}  # fmt: skip
    malt = {"trainer": "pure_text_malt", "rl": ONE_ITERATION, "text_rl": NO_TESTS}
    half = estimated(tmp_path, agents=agents | frozen, **malt)
    assert half.calls == 10 * (1 + 2 + 2) and half.completion_tokens == 10 * (2 + 2 + 4) * MOST
    few = estimated(tmp_path, pure_text_malt={"max_nodes": 5}, **malt)
    assert few.completion_tokens <= 10 * 5 * MOST
    assert few.calls == 10 * (1 + 1 + 2)  # branches once: at the latest turn, or before
    plain = estimated(tmp_path, **malt | {"pure_text_malt": {"num_initial_ei_iterations": 1}})
    assert plain.calls == 30


def test_trajectories_are_trained_with_the_prompt_of_every_turn(tmp_path):
    start = by_hand(tmp_path)
    rl = ONE_ITERATION | {"rollouts_per_iteration": 16}
    agents = {"_default": {"model_provider": "SelfHosted", "model_name": "deterministic",
                           "max_tokens_per_message": MOST, "fine_tune_from_scratch": False}}  # fmt: skip
    grpo = {"trainer": "pure_text_grpo", "text_rl": NO_TESTS, "agents": agents}
    found = estimated(tmp_path, rl=rl, **grpo)
    assert (found.train_episodes, found.calls) == (16, 48)
    assert found.training_tokens == 16 * (3 * start + 3 * MOST + 3 * MOST)
    every = estimated(
        tmp_path,
        rl=rl | {"rollouts_per_iteration": None},
        dataset_options={"max_train_size": 10},
        **grpo,
    )
    assert every.train_episodes == 80  # groups of 8


def test_the_gate_is_counted_for_every_iteration_that_trains(tmp_path):
    gate = {"promotion": {"enabled": True, "episodes": 6}, "text_rl": NO_TESTS}
    found = estimated(tmp_path, **gate)
    assert found.gate_episodes == 2 * 2 * 6
    assert found.calls == 3 * (found.train_episodes + found.gate_episodes)
    assert estimated(tmp_path, text_rl=NO_TESTS).gate_episodes == 0
    agents = {"_default": {"model_provider": "SelfHosted", "model_name": "deterministic",
                           "freeze_agent": True}}  # fmt: skip
    assert estimated(tmp_path, agents=agents, **gate).gate_episodes == 0


@pytest.mark.parametrize(
    ("scheme", "interval", "last", "tested"),
    [
        ("all", 1, 3, [0, 1, 2, 3]),
        ("all", 2, 5, [0, 2, 4, 5]),
        ("all", 3, 6, [0, 3, 6]),
        ("all", 9, 4, [0, 4]),
        ("all", 5, 0, [0]),
        ("last", 2, 4, [4]),
        ("first_and_last", 2, 3, [0, 3]),
        ("none", 1, 3, []),
    ],
)
def test_tests_come_before_the_first_every_so_manieth_and_after_the_last(
    tmp_path, scheme, interval, last, tested
):
    changes = {
        "rl": {"num_iterations": last, "rollouts_per_iteration": 10},
        "text_rl": {"test_scheme": scheme, "test_interval": interval},
    }
    parameters = load_parameters(write_config(tmp_path, **changes))
    assert [i for i in range(last + 1) if is_tested(parameters, i)] == tested
    assert estimated(tmp_path, **changes).test_episodes == 20 * len(tested)


def test_the_smallest_change_counts_questions(tmp_path, capsys):
    single = estimated(tmp_path)  # 20 test problems, each of a question of its own
    assert (single.test_problems, single.test_questions) == (20, 20)
    assert single.smallest_change == pytest.approx(detectable_change([1] * 20))
    variants = load_parameters(write_config(tmp_path, dataset="problems", dataset_options={}))
    several = estimate_run(Game(variants), load_all_problems(variants))
    assert (several.test_problems, several.test_questions) == (264, 33)
    assert several.smallest_change == pytest.approx(detectable_change([8] * 33))
    assert estimated(tmp_path, text_rl={"test_scheme": "last"}).smallest_change is None
    show_plan(variants, as_json=False)
    assert "tests of 264 problems of 33 questions: two iterations must differ by 11.9 points" in (
        capsys.readouterr().out
    )


def warned(capsys, *settings):
    show_plan(load_parameters("ei-paper-openai", settings), as_json=True)
    said = capsys.readouterr().err
    return [line for line in said.splitlines() if "can hardly show" in line]


def test_tests_that_can_only_show_a_large_change_are_warned_of(capsys):
    few = ("dataset=problems",)
    [line] = warned(capsys, *few)
    assert line.startswith("nip: warning: tests of 80 problems of 10 questions can hardly show")
    assert "less than 22.9 points" in line and "dataset_options.max_test_size" in line
    many = ("dataset=families", "code_validation.apps_difficulty=null")
    assert warned(capsys, *many) == []
    # Nobody learns anything from scripted answers, and one test shows no change.
    assert warned(capsys, *few, "agents._default.use_dummy_api=true") == []
    assert warned(capsys, *few, "text_rl.test_scheme=last") == []
