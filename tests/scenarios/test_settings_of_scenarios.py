"""`find_scenario(NAME).Settings()` are the settings that a run has that names none."""

from importlib.util import find_spec

import pytest

from nip_core.parameters import load_parameters
from nip_core.scenarios import find_scenario, make_scenario, scenario_names
from nip_core.scenarios.datasets import load_problems

AGENTS = {"_default": {"model_provider": "SelfHosted", "model_name": "m"}}
PROTOCOLS = {"solutions": "adp", "chain": "refereed"}


NAMES = [name for name in scenario_names() if name != "reasoning_gym" or find_spec(name)]
"""Without those whose package is an extra that is not here; `make test-judges` has it."""


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_with_its_settings_is_the_one_that_a_run_plays(name):
    kind = find_scenario(name)
    dataset = [*kind.generated, *kind.bundled][0]
    asked = {"run_name": "a", "scenario": name, "dataset": dataset, "agents": AGENTS}
    asked["interaction_protocol"] = PROTOCOLS.get(name, "nip")
    played, by_hand = make_scenario(load_parameters(asked)), kind(kind.Settings())
    for field in kind.Settings.model_fields:
        assert getattr(by_hand.settings, field) == getattr(played.settings, field)
    assert by_hand.filters() == played.filters()
    few = [load_problems(scenario, dataset, "test", max_size=4) for scenario in (played, by_hand)]
    assert few[0] == few[1] and len(few[0]) == 4


def test_settings_of_a_scenario_refuse_what_the_block_of_a_run_refuses():
    kind = find_scenario("code_validation")
    assert kind(kind.Settings(apps_difficulty="interview")).filters() == (
        " with difficulty 'interview'"
    )
    with pytest.raises(ValueError, match="apps_difficulty"):
        kind.Settings(apps_difficulty="hard")
