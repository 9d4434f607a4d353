"""Where an agent's model is served, and for which models there is room, by the settings alone.

Host           the abilities of an agent's server: one of three
find_host      the host of an agent
list_loaded    the agents with models that this run loads the weights of
has_own_model  whether there is one
takes_turns    whether an agent's base model and the one made of it can't answer at once
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nip_base.spec import ENGINES, Capabilities
from nip_core.parameters.blocks.agents import PureTextAgentParameters

if TYPE_CHECKING:
    from nip_core.parameters.hyper_parameters import HyperParameters


@dataclass(frozen=True, kw_only=True)
class Host:
    """The abilities of the server of an agent's model. Of another one than the run's own nothing
    is known here, so it is taken to do the least.
    """

    is_launched: bool = False
    """The run starts it, with an address and a key of its own, and stops it."""
    loads_weights: bool = False
    """The run has it load the model, so that one must be there, with the packages for it."""
    takes_adapters: bool = False
    """Adapters of other runs and of the Hub can be laid into it."""
    gives_logprobs: bool = True
    """It may give log-probabilities."""
    takes_every_request: bool = False
    """No request is refused for the figures that it asks beside the answer."""
    serves_several_bases: bool = False
    """It has room for several base models at once."""


_ELSEWHERE = Host()


def find_host(parameters: "HyperParameters", agent: PureTextAgentParameters) -> Host:
    """Return the host of the agent's model."""
    if agent.use_dummy_api:
        return _launch("deterministic", ENGINES["deterministic"])
    addresses = (agent.base_url, agent.control_url, parameters.lm_server.url)
    if not agent.provider.starts_server or any(addresses):
        return _ELSEWHERE
    return _launch(parameters.lm_server.engine, parameters.lm_server.capabilities)


def _launch(engine: str, can: Capabilities) -> Host:
    return Host(
        is_launched=True,
        loads_weights=can.has_weights,
        takes_adapters=can.trains,
        gives_logprobs=can.has_weights,
        takes_every_request=can.has_weights and engine in ENGINES,
        serves_several_bases=can.serves_several_bases,
    )


def list_loaded(parameters: "HyperParameters") -> dict[str, PureTextAgentParameters]:
    """List by name the agents with models that the run's own server loads."""
    return {
        name: agent
        for name, agent in parameters.model_agents.items()
        if find_host(parameters, agent).loads_weights
    }


def has_own_model(parameters: "HyperParameters") -> bool:
    """Tell whether the run's own server serves a model that computes."""
    return bool(list_loaded(parameters))


def takes_turns(parameters: "HyperParameters", agent: PureTextAgentParameters) -> bool:
    """Return whether the agent's base model and the one made of it can't answer at once."""
    is_replaced = agent.provider.names_weights and not agent.use_lora
    return is_replaced and not find_host(parameters, agent).serves_several_bases
