"""What means nothing for language models keeps its default, or is refused with the reason."""

import json

import pytest

from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_core.parameters.basis.not_for_text import NOT_FOR_TEXT, UNAVAILABLE

MINIMAL = {"run_name": "a", "dataset": "families"}
PLACES = {
    "HyperParameters": (),
    "RlTrainerParameters": ("rl",),
    "CodeValidationParameters": ("code_validation",),
    "DatasetParameters": ("dataset_options",),
    "BaseRunParameters": ("base_run",),
    "PureTextAgentParameters": ("agents", "prover"),
}
SETTINGS = [(kind, name) for kind, table in NOT_FOR_TEXT.items() for name in table]


def at(kind, name, value):
    for key in reversed((*PLACES[kind], name)):
        value = {key: value}
    return {**MINIMAL, **value}


def another_value(default):
    if isinstance(default, dict):
        return {**default, "enabled": True}
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int | float) else "another"


def test_it_is_known_where_each_of_them_belongs():
    assert set(PLACES) == set(NOT_FOR_TEXT)


@pytest.mark.parametrize(("kind", "name"), SETTINGS)
def test_the_default_changes_nothing(kind, name):
    default = NOT_FOR_TEXT[kind][name].default
    loaded = load_parameters(at(kind, name, default))
    assert loaded == load_parameters(MINIMAL)


@pytest.mark.parametrize(("kind", "name"), SETTINGS)
def test_another_value_is_refused_with_the_reason(kind, name):
    unused = NOT_FOR_TEXT[kind][name]
    with pytest.raises(SettingsError) as caught:
        load_parameters(at(kind, name, another_value(unused.default)))
    assert f"{name} can't be set: {unused.reason}; leave it out" in str(caught.value)


def test_a_block_of_another_kind_may_be_empty_or_in_part_at_its_defaults():
    for block in (None, {}, {"_type": "MessageRegressionParameters", "mlp_num_layers": 2}):
        load_parameters({**MINIMAL, "message_regression": block})
    for block in (3, "mlp", {"mlp_num_layers": 3}, {"unheard_of": None}):
        with pytest.raises(SettingsError, match="message_regression can't be set"):
            load_parameters({**MINIMAL, "message_regression": block})


def test_what_is_no_setting_here_is_not_written_out():
    written = json.dumps(load_parameters(MINIMAL).to_dict())
    for name in ("message_regression", "gamma", "ppo", "d_representation", "apps_solution_number"):
        assert f'"{name}"' not in written


@pytest.mark.parametrize(
    ("setting", "value"), [(s, v) for s, values in UNAVAILABLE.items() for v in values]
)
def test_a_trainer_or_scenario_that_is_not_here_is_refused_with_the_reason(setting, value):
    with pytest.raises(SettingsError) as caught:
        load_parameters({**MINIMAL, setting: value})
    assert f"{setting}: {value!r} can't be used: " in str(caught.value)
