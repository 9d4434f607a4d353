"""Settings that an earlier version of nip wrote down, as this version reads them."""

from typing import Any

from nip_core.attacks.course import TEST
from nip_core.errors import SettingsError
from nip_core.parameters.basis.base import Parameters, change_groups
from nip_core.parameters.basis.plain import PlainDict, PlainMapping
from nip_core.parameters.blocks.agents import PureTextAgentParameters
from nip_core.parameters.blocks.budget import BudgetParameters
from nip_core.parameters.blocks.loop_settings import Price
from nip_core.parameters.hyper_parameters import HyperParameters
from nip_core.scenarios import choose_own_version
from nip_core.scenarios.prompt_versions import FIRST, OF_OWN_SCENARIOS

_VERSION = "system_prompt_version"


def complete_settings(stored: PlainMapping) -> dict[str, Any]:
    """Complete a run's settings on record with defaults, for settings of later versions.

    Nothing is checked, and what is not known any more stays as it is.
    """
    completed = change_groups(HyperParameters, stored, _complete)
    name, of_scenario = str(completed["scenario"]), completed["scenario_settings"]
    if ":" in name and isinstance(of_scenario, dict) and _VERSION not in of_scenario:
        # Of before there was another default for scenarios of one's own.
        version = choose_own_version(name, FIRST)
        if version is not None:
            completed["scenario_settings"] = {**of_scenario, _VERSION: version}
    return completed


def keep_prompts(parameters: HyperParameters, stored: PlainMapping) -> HyperParameters:
    """Give the settings of a run that goes on, with the prompts and hints that it began with.

    A run of before these had another default has it not on record.
    """
    return _keep_hints(_keep_version(parameters, stored), stored)


def keep_course(parameters: HyperParameters, stored: PlainMapping) -> HyperParameters:
    """Give the settings of an attack that goes on, with its tests on the problems it began with.

    An earlier version had no validation problems in it. Raises SettingsError where it can't go on
    as it is asked to.
    """
    begun = stored.get("attack")
    attack = parameters.attack
    is_earlier = isinstance(begun, dict) and begun.get("run") and "course_on" not in begun
    if not (is_earlier and attack.tests_worst):
        return parameters
    if attack.may_end_early:
        raise SettingsError(
            f"attack.until: run {parameters.run_name!r} was begun by an earlier version, with its "
            "tests on test problems, on which no plateau is looked for; leave it out, or give the "
            "attack another --name"
        )
    values = parameters.to_dict()
    values["attack"]["course_on"] = TEST
    return HyperParameters.from_dict(values)


def _keep_hints(parameters: HyperParameters, stored: PlainMapping) -> HyperParameters:
    # Who is to be trained behind hints means to have them: that such a run began without is told
    # where its settings are compared.
    agents = complete_settings(stored)["agents"]
    begun_with = {
        name: agents[name].get("retry_hint")
        for name, agent in parameters.model_agents.items()
        if agent.retry_hint is None
        and agent.train_hints == "drop"
        and isinstance(agents.get(name), dict)
    }
    if all(hint is None for hint in begun_with.values()):
        return parameters
    values = parameters.to_dict()
    for name, hint in begun_with.items():
        values["agents"][name]["retry_hint"] = hint
    return HyperParameters.from_dict(values)


def _keep_version(parameters: HyperParameters, stored: PlainMapping) -> HyperParameters:
    of_run = stored.get("scenario_settings")
    is_default = parameters.scenario_settings.get(_VERSION) == OF_OWN_SCENARIOS
    if not is_default or not isinstance(of_run, dict) or _VERSION in of_run:
        return parameters
    begun_with = complete_settings(stored)["scenario_settings"]
    values = parameters.to_dict()
    values["scenario_settings"] |= {_VERSION: begun_with.get(_VERSION, OF_OWN_SCENARIOS)}
    return HyperParameters.from_dict(values)


def read_settings(stored: PlainMapping) -> HyperParameters:
    """A run's settings on record as settings of today. Raises ValueError if they can't be."""
    return HyperParameters.from_dict(complete_settings(stored), ignore_extra_keys=True)


def read_costing_settings(stored: PlainMapping) -> HyperParameters:
    """Of a run's settings on record what its cost goes by: agents, prices and budget.

    The rest is missing, so that a run is shown whatever version wrote it, without its scenario.
    A provider's file is not run either, which may be another one here, or none.
    """
    settings = complete_settings(stored)
    parts: dict[str, Any] = {
        "agents": {
            name: PureTextAgentParameters.model_construct(**{**agent, **_bill(agent)})
            for name, agent in settings["agents"].items()
            if not agent.get("is_random")
        },
        "prices": {name: Price.model_construct(**of) for name, of in settings["prices"].items()},
        "budget": BudgetParameters.model_construct(**settings["budget"]),
    }
    return HyperParameters.model_construct(**parts)


def _bill(agent: PlainMapping) -> PlainDict:
    """Put a provider that sends bills in the place of one from a file: only prices say its cost."""
    return {"model_provider": "OpenAI"} if ":" in str(agent["model_provider"]) else {}


def _complete(kind: type[Parameters], values: PlainMapping) -> PlainDict:
    as_now = kind._modernised(values)
    if kind is PureTextAgentParameters:
        as_now = {"retry_hint": False, **as_now}  # before there was the setting, nobody was told
    return {**kind.model_construct().to_dict(), **as_now, "_type": kind.__name__}
