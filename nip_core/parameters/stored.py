"""Settings that an earlier version of nip wrote down, as this version reads them."""

from typing import Any

from nip_core.parameters.agents import PureTextAgentParameters
from nip_core.parameters.base import Parameters, change_groups
from nip_core.parameters.budget import BudgetParameters
from nip_core.parameters.hyper_parameters import HyperParameters
from nip_core.parameters.loop_settings import Price
from nip_core.parameters.plain import PlainDict, PlainMapping


def complete_settings(stored: PlainMapping) -> dict[str, Any]:
    """Complete a run's settings on record with defaults, for settings of later versions.

    Nothing is checked, and what is not known any more stays as it is.
    """
    return change_groups(HyperParameters, stored, _complete)


def read_settings(stored: PlainMapping) -> HyperParameters:
    """A run's settings on record as settings of today. Raises ValueError if they can't be."""
    return HyperParameters.from_dict(complete_settings(stored), ignore_extra_keys=True)


def read_costing_settings(stored: PlainMapping) -> HyperParameters:
    """Of a run's settings on record what its cost goes by: agents, prices and budget.

    The rest is missing, so that a run is shown whatever version wrote it, without its scenario.
    """
    settings = complete_settings(stored)
    parts: dict[str, Any] = {
        "agents": {
            name: PureTextAgentParameters.model_construct(**agent)
            for name, agent in settings["agents"].items()
            if not agent.get("is_random")
        },
        "prices": {name: Price.model_construct(**of) for name, of in settings["prices"].items()},
        "budget": BudgetParameters.model_construct(**settings["budget"]),
    }
    return HyperParameters.model_construct(**parts)


def _complete(kind: type[Parameters], values: PlainMapping) -> PlainDict:
    as_now = kind._modernised(values)
    return {**kind.model_construct().to_dict(), **as_now, "_type": kind.__name__}
