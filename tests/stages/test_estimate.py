"""What the plan says that a run can cost at most."""

import pytest
from small_game import write_config

from nip_core.agents.render import Game
from nip_core.parameters import load_parameters
from nip_core.stages.estimate import estimate_run
from nip_core.stages.session import load_all_problems


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
