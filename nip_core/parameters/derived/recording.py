"""The probabilities of an answer that are recorded, by the settings alone."""

from typing import TYPE_CHECKING

from nip_core.parameters.blocks.agents import PureTextAgentParameters
from nip_core.parameters.derived.hosting import find_host
from nip_core.parameters.services.dialects import dialect_name, find_dialect

if TYPE_CHECKING:
    from nip_core.parameters.hyper_parameters import HyperParameters

_TWO_ANSWERS = "accept_reject"


def gives_logprobs(parameters: "HyperParameters", agent: PureTextAgentParameters) -> bool:
    """Tell whether the agent's API may give log-probabilities; of many servers it is not known."""
    return find_host(parameters, agent).gives_logprobs and find_dialect(agent).takes_logprobs


def records_p_accept(parameters: "HyperParameters", agent: PureTextAgentParameters) -> bool:
    """Tell whether the agent is asked for the probabilities that P(accept) is estimated by.

    By itself only where the run's own server answers: another one may refuse the request.
    """
    if not gives_logprobs(parameters, agent):
        return False
    setting = parameters.rollouts.record_p_accept
    return find_host(parameters, agent).takes_every_request if setting is None else setting


def check_recording(parameters: "HyperParameters") -> None:
    """Raise ValueError where the settings ask to record what there can't be."""
    rollouts, scale = parameters.rollouts, parameters.protocol_common.verifier_decision_scale
    if rollouts.record_p_accept and scale != _TWO_ANSWERS:
        raise ValueError(
            f"rollouts.record_p_accept: protocol_common.verifier_decision_scale is {scale}, and "
            f"only {_TWO_ANSWERS} has a P(accept); leave it out: decision_value says how sure a "
            "verdict is"
        )
    agents_by_setting = {
        "record_p_accept": ("verifier",) if rollouts.record_p_accept else (),
        "record_top_logprobs": (*parameters.model_agents,) if rollouts.record_top_logprobs else (),
    }
    for setting, names in agents_by_setting.items():
        for name in names:
            agent = parameters.model_agents.get(name)
            if agent is None or agent.use_dummy_api:
                continue
            if not find_dialect(agent).takes_logprobs:
                raise ValueError(
                    f"rollouts.{setting}: the API of agents.{name} gives no log-probabilities "
                    f"(api_dialect {dialect_name(agent)}); leave it out"
                )
            thinks = agent.reasoning_effort not in (None, "none")
            if thinks and dialect_name(agent) == "openai":
                raise ValueError(
                    f"rollouts.{setting}: OpenAI gives no log-probabilities with "
                    f"agents.{name}.reasoning_effort (got {agent.reasoning_effort}); leave one of "
                    "them out"
                )
