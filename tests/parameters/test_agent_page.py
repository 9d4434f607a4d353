"""Agents have the settings of the API page: names, order and defaults."""

import inspect
import re
from pathlib import Path

from nip_core.parameters import CodeValidationAgentParameters, PureTextAgentParameters

PAGES = Path(__file__).parents[3] / "shared" / "spec" / "seeds"
EXTRACT = Path(__file__).parent / "agent_page.txt"
"""``name = default`` as on the page, which is not beside every checkout."""
NAME = r"nip\.parameters\.agents\.PureTextAgentParameters"
METHODS = (
    *("__eq__", "__init__", "__repr__", "_get_param_class_from_dict", "construct_test_params"),
    *("from_dict", "get", "load_from_wandb_config", "to_dict"),
)


def defaults_in_extract() -> list[tuple[str, str]]:
    lines = EXTRACT.read_text(encoding="utf-8").splitlines()
    return [(name, default) for name, _, default in (line.partition(" = ") for line in lines)]


def defaults_on_page() -> list[tuple[str, str]]:
    """The same from the page itself; empty where it isn't there."""
    for path in sorted(PAGES.glob("*.txt")):
        page = path.read_text(encoding="utf-8")
        if signature := re.match(rf"{NAME}#\s+class {NAME}\((.*?)\)\[source\]#", page, re.S):
            found = re.findall(r"(\w+): [^=]*? = (.*?)(?=, \w+: |$)", signature[1])
            return [(name, default) for name, default in found]
    return []


def test_the_settings_of_the_page_come_first_in_its_order_with_its_defaults():
    parameters = inspect.signature(PureTextAgentParameters).parameters.values()
    extract = defaults_in_extract()
    assert defaults_on_page() == extract if PAGES.is_dir() else len(extract) == 40
    assert [(p.name, repr(p.default)) for p in parameters][: len(extract)] == extract
    agent = PureTextAgentParameters()
    assert all(hasattr(agent, name) for name, _ in extract)


def test_it_has_the_methods_of_the_page():
    for name in METHODS:
        assert callable(getattr(PureTextAgentParameters, name))
    arguments = inspect.signature(PureTextAgentParameters.from_dict).parameters
    assert [(p.name, p.default) for p in arguments.values()] == [
        ("params_dict", inspect.Parameter.empty),
        ("ignore_extra_keys", False),
    ]
    assert CodeValidationAgentParameters is PureTextAgentParameters


def test_it_is_for_models_and_its_test_settings_call_no_api():
    test = PureTextAgentParameters.construct_test_params()
    assert test.use_dummy_api and not test.is_random
    assert test == PureTextAgentParameters(use_dummy_api=True) != PureTextAgentParameters()
