"""Where an agent's model is served, and what there is room for, as the settings alone say it.

uses_own_server       whether by the server that the run starts
has_own_model         whether that server has a model with weights
is_deterministic      whether it is answered by the deterministic engine
serves_several_bases  whether there is room for several base models at once
takes_turns           whether its base model and the one made of it can't answer at once
"""

from typing import TYPE_CHECKING

from nip_core.parameters.blocks.agents import PureTextAgentParameters

if TYPE_CHECKING:
    from nip_core.parameters.hyper_parameters import HyperParameters


def uses_own_server(parameters: "HyperParameters", agent: PureTextAgentParameters) -> bool:
    """Tell whether the run's own server serves the agent's model."""
    addresses = (agent.base_url, agent.control_url, parameters.lm_server.url)
    is_elsewhere = agent.model_provider != "SelfHosted" or any(addresses)
    return agent.use_dummy_api or not is_elsewhere


def has_own_model(parameters: "HyperParameters") -> bool:
    """Tell whether the run's own server serves a model that computes."""
    agents = parameters.model_agents.values()
    return any(
        uses_own_server(parameters, agent) and not is_deterministic(parameters, agent)
        for agent in agents
    )


def is_deterministic(parameters: "HyperParameters", agent: PureTextAgentParameters) -> bool:
    """Return whether the run's own server answers for the agent without a model."""
    return uses_own_server(parameters, agent) and (
        agent.use_dummy_api or parameters.lm_server.engine == "deterministic"
    )


def serves_several_bases(parameters: "HyperParameters", agent: PureTextAgentParameters) -> bool:
    """Return whether the agent's server has room for several base models at once.

    The run's own does, except for vLLM, whose engine takes the device for itself. Of another one
    nobody knows here.
    """
    return uses_own_server(parameters, agent) and parameters.lm_server.engine != "vllm"


def takes_turns(parameters: "HyperParameters", agent: PureTextAgentParameters) -> bool:
    """Return whether the agent's base model and the one made of it can't answer at once."""
    hosted = agent.model_provider == "SelfHosted" and not agent.use_dummy_api
    return hosted and not agent.use_lora and not serves_several_bases(parameters, agent)
