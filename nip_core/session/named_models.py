"""The models of runs' own servers, by the names that settings give them."""

import os
from collections.abc import Collection, Mapping

from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.hosting import list_loaded
from nip_core.session.named_model import SilentHubError, find_model


def check_models(
    parameters: HyperParameters, environment: Mapping[str, str], settled: Collection[str] = ()
) -> None:
    """Find every model that the run's own server is to load, which runs on this machine.

    The Hub is not asked for those that are `settled`: a run on record has played with them. Raises
    SettingsError for a name that means no model, SilentHubError for one that only the Hub could
    explain, which gives no answer.
    """
    for name, place in _list_names(parameters).items():
        try:
            find_model(name, environment, asks_hub=name not in settled)
        except (SettingsError, SilentHubError) as error:
            raise type(error)(f"{place}: {error}") from None


def list_unanswered(
    *runs: HyperParameters, environment: Mapping[str, str] = os.environ
) -> list[str]:
    """Say which names could not be explained, since runs may be meant for another machine.

    Raises SettingsError for a name that means no model.
    """
    unanswered: list[str] = []
    names = {n: place for parameters in runs for n, place in _list_names(parameters).items()}
    for name, place in names.items():
        try:
            find_model(name, environment)
        except SilentHubError as error:
            unanswered.append(f"{place}: {error}")
        except SettingsError as error:
            raise SettingsError(f"{place}: {error}") from None
    return unanswered


def _list_names(parameters: HyperParameters) -> dict[str, str]:
    """Return the names of the models to load, each with the setting of the first agent with it."""
    places: dict[str, str] = {}
    for agent_name, agent in list_loaded(parameters).items():
        places.setdefault(agent.model_name, f"agents.{agent_name}.model_name")
    return places
