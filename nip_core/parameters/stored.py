"""The settings on record of a run, as settings of this version of nip."""

from typing import Any

from nip_core.parameters.basis.base import Parameters, change_groups
from nip_core.parameters.basis.plain import PlainDict, PlainMapping
from nip_core.parameters.blocks.agents import PureTextAgentParameters
from nip_core.parameters.blocks.budget import BudgetParameters
from nip_core.parameters.blocks.loop_settings import Price
from nip_core.parameters.hyper_parameters import HyperParameters


def complete_settings(settings: PlainMapping) -> dict[str, Any]:
    """Complete a run's settings on record with defaults, for settings of later versions.

    Nothing is checked, and settings that are not known any more stay as they are.
    """
    return change_groups(HyperParameters, settings, _complete)


def read_settings(settings: PlainMapping) -> HyperParameters:
    """A run's settings on record as settings of today. Raises ValueError if they can't be."""
    return HyperParameters.from_dict(complete_settings(settings), ignore_extra_keys=True)


def read_costing_settings(record: PlainMapping) -> HyperParameters:
    """Read the part of a run's settings on `record` that its cost goes by: agents, prices, budget.

    The rest is missing, so that a run of any version is shown, without its scenario.
    A provider's file is not run either, which may be another one here, or none.
    """
    settings = complete_settings(record)
    parts: dict[str, Any] = {
        "agents": {
            name: PureTextAgentParameters.model_construct(**{**agent, **_bill(agent)})
            for name, agent in settings["agents"].items()
            if not agent.get("is_random")
        },
        "prices": {
            name: Price.model_construct(**price) for name, price in settings["prices"].items()
        },
        "budget": BudgetParameters.model_construct(**settings["budget"]),
    }
    return HyperParameters.model_construct(**parts)


def _bill(agent: PlainMapping) -> PlainDict:
    """Put a provider that sends bills in the place of one from a file: only prices say its cost."""
    return {"model_provider": "OpenAI"} if ":" in str(agent["model_provider"]) else {}


def _complete(kind: type[Parameters], values: PlainMapping) -> PlainDict:
    return {**kind.model_construct().to_dict(), **values, "_type": kind.__name__}
