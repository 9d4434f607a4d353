"""The names of models by the settings alone."""

import re

from nip_base.spec import base_served_name
from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters, PureTextAgentParameters
from nip_core.parameters.derived.hosting import find_host


def check_named(parameters: HyperParameters) -> None:
    """Raise SettingsError if a run would play with the default model, since it costs money."""
    for name, agent in parameters.model_agents.items():
        comes_with_a_name = agent.use_dummy_api or agent.load_checkpoint_and_parameters
        if "model_name" not in agent.model_fields_set and not comes_with_a_name:
            raise SettingsError(
                f"agents.{name}.model_name: is missing; name the model that plays, for example "
                "tiny with model_provider SelfHosted, which is bundled and costs nothing"
            )


def base_name(parameters: HyperParameters, agent: PureTextAgentParameters) -> str:
    """Return the name the agent's base model answers by."""
    if agent.use_dummy_api:
        return dummy_name(agent.model_name)
    if find_host(parameters, agent).is_launched:
        return base_served_name(agent.model_name)
    return agent.model_name


def dummy_name(model_name: str) -> str:
    """Return the name of the deterministic engine, in the place of a model.

    Not the model's own, with which another group may play on the same server.
    """
    return "dummy-" + re.sub(r"[^A-Za-z0-9._-]", "-", base_served_name(model_name))
