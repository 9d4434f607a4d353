"""Domains of problems as data, one module or package each.

base                the class of a scenario
datasets            its problems, from wherever they lie
checked             its functions as nip calls them: a fault is an error that names it
prompts             the prompts of agents; prompt_phrases: the sentences that settings decide
code_settings       settings that have a block of their own in a run's

`find_scenario` finds a scenario by an entry point of the group `nip.scenarios`, as nip_games has
one for each of nip's own, or anywhere by ``path/to/file.py:Class`` or ``package.module:Class``;
there is no list to keep. No module of nip imports one scenario. Scenarios import no settings
(the settings look up the scenario that they name).
"""

from nip_base.importing import import_object
from nip_core.importing import find_class, find_classes
from nip_core.nearest import did_you_mean, nearest_first
from nip_core.protocols.settings import GameSettings
from nip_core.scenarios.base import (
    NO_LABEL,
    PROVER,
    RULE_MODEL,
    VERIFIER,
    Column,
    Label,
    NoLabel,
    Problem,
    Role,
    Scenario,
    ScenarioSettings,
    Words,
)
from nip_core.scenarios.class_checks import check_scenario
from nip_core.scenarios.prompt_versions import FIRST, OF_OWN_SCENARIOS, fits_any_words
from nip_core.scenarios.words_checks import check_words

__all__ = [
    "NO_LABEL",
    "PROVER",
    "RULE_MODEL",
    "VERIFIER",
    "Column",
    "Label",
    "NoLabel",
    "Problem",
    "Role",
    "Scenario",
    "ScenarioSettings",
    "Words",
    "check_own_words",
    "choose_own_version",
    "find_scenario",
    "make_scenario",
    "scenario_names",
]

GROUP = "nip.scenarios"
"""Of entry points: a distribution names a module for each of its scenarios."""


def scenario_names() -> tuple[str, ...]:
    """List the names of the scenarios of all distributions."""
    return find_classes(__name__, Scenario, GROUP)


def find_scenario(name: str) -> type[Scenario]:
    """The scenario of this name, or at ``package.module:Class`` or ``path/to/file.py:Class``.

    Raises ValueError if there is none, or if it makes no game.
    """
    if ":" in name:
        kind = import_object(name)
        if not (isinstance(kind, type) and issubclass(kind, Scenario)):
            raise ValueError(f"{name!r} is not a subclass of nip_core.scenarios.Scenario")
        check_scenario(kind)
        return kind
    kind = find_class(__name__, name, Scenario, GROUP)
    if kind is None:
        names = scenario_names()
        raise ValueError(
            f"there is no scenario {name!r}{did_you_mean(name, names)}; there are "
            f"{', '.join(nearest_first(name, names))}, and one of your own is named like "
            '"package.module:Class" or "path/to/file.py:Class"'
        )
    return kind


def choose_own_version(name: str) -> str | None:
    """Choose the version of prompts for a scenario of one's own, where settings name none.

    The version of its class, where it sets one, else the one for such scenarios. None where the
    scenario can't be found, or has its settings in another block.
    """
    try:
        kind = find_scenario(name)
    except ValueError:  # is said with all else that is wrong
        return None
    if kind.settings_block != Scenario.settings_block:
        return None
    of_class: str = kind.Settings.model_fields["system_prompt_version"].default
    return OF_OWN_SCENARIOS if of_class == FIRST else of_class


def make_scenario(parameters: GameSettings) -> Scenario:
    """Make the scenario of the settings. Raises ValueError if its own settings are wrong."""
    kind = find_scenario(parameters.scenario)
    settings = getattr(parameters, kind.settings_block)
    if isinstance(settings, dict):
        settings = kind.Settings.model_validate(settings)
    if ":" not in parameters.scenario:
        return kind(settings)
    try:
        scenario = kind(settings)
    except ValueError:
        raise
    except Exception as error:  # any error of a user's class
        raise ValueError(
            f"scenario: {kind.__name__}.__init__ raised {type(error).__name__}: {error}; mend it"
        ) from error
    if not hasattr(scenario, "settings"):
        raise ValueError(f"scenario: {kind.__name__}.__init__ must call super().__init__(settings)")
    try:
        check_scenario(scenario)  # it may have set its own words and columns
    except ValueError as error:
        raise ValueError(f"scenario: {error}") from None
    return scenario


def check_own_words(scenario: Scenario, name: str) -> None:
    """Raise ValueError for words of one's own that would fit into no sentence of the prompts.

    `name` is as the settings name the scenario. Settings can be read without this check: a run that
    goes on has the version of prompts that it began with, which is known only then.
    """
    if ":" not in name or not fits_any_words(scenario.settings.system_prompt_version):
        return
    try:
        check_words(scenario.words, type(scenario).__name__)
    except ValueError as error:
        raise ValueError(f"scenario: {error}") from None
