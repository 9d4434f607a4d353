"""The costs of calls and training, by the prices in the settings.

An agent's price stands under its `model_name`, even if its server answers with another: a fine-tune
of it, or a dated version, costs what its settings say. Own hardware costs nothing, unless the
settings price its model.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nip_core.parameters.blocks.agents import PureTextAgentParameters
from nip_core.parameters.blocks.loop_settings import Price

if TYPE_CHECKING:
    from nip_core.parameters.hyper_parameters import HyperParameters

_FREE = Price()


def is_paid(agent: PureTextAgentParameters) -> bool:
    """Return whether a provider sends a bill for the agent's calls."""
    return agent.provider.sends_bills


def find_missing_prices(parameters: "HyperParameters") -> tuple[str, ...]:
    """List the paid models without a price in the settings, sorted; of a trained one its training
    has to have one, too, if only 0."""
    paid = [agent for agent in parameters.model_agents.values() if is_paid(agent)]
    return tuple(sorted({agent.model_name for agent in paid if _lacks_price(parameters, agent)}))


def _lacks_price(parameters: "HyperParameters", agent: PureTextAgentParameters) -> bool:
    price = parameters.prices.get(agent.model_name)
    if price is None:
        return True
    return not agent.freeze_agent and "training_usd" not in price.model_fields_set


def write_price_lines(parameters: "HyperParameters") -> list[str]:
    """Return what is to be written below ``prices:``, a line for each model without a price.

    P, C and T stand for the US dollars, which nip does not know; as they are, they are refused.
    """
    import yaml

    models, lines = find_missing_prices(parameters), []
    for model in models:
        agents = [a for a in parameters.model_agents.values() if a.model_name == model]
        price = parameters.prices.get(model)
        given = {} if price is None else price.model_dump(include=price.model_fields_set)
        wanted = {"prompt_usd": "P", "completion_usd": "C"}
        wanted |= {"training_usd": "T"} if any(not agent.freeze_agent for agent in agents) else {}
        listed = ", ".join(f"{name}: {value}" for name, value in {**wanted, **given}.items())
        lines.append(f"  {yaml.safe_dump(model).splitlines()[0]}: {{{listed}}}")
    return lines


def price_calls(
    parameters: "HyperParameters",
    tokens: Mapping[str, tuple[float, float]],
    cached: Mapping[str, int] | None = None,
) -> float | None:
    """US dollars for the calls of agents, from their prompt and generated tokens by agent's name.

    `cached` are those of the prompt tokens with a price of their own. None where a price is missing
    of an agent that plays, even if it has used nothing so far.
    """
    usd = 0.0
    for name, agent in parameters.model_agents.items():
        price = _price(parameters, agent)
        if price is None:
            return None
        prompt, completion = tokens.get(name, (0, 0))
        usd += (prompt * price.prompt_usd + completion * price.completion_usd) / 1e6
        if cached and price.cached_prompt_usd is not None:
            usd -= cached.get(name, 0) * (price.prompt_usd - price.cached_prompt_usd) / 1e6
    return usd


def price_training(parameters: "HyperParameters", group: str, tokens: float) -> float | None:
    """US dollars for training a model group on so many tokens; None without a price."""
    price = _price(parameters, parameters.group_parameters(group))
    return None if price is None else tokens * price.training_usd / 1e6


def _price(parameters: "HyperParameters", agent: PureTextAgentParameters) -> Price | None:
    if agent.use_dummy_api:  # stands for a model and is sent no bill
        return _FREE
    return parameters.prices.get(agent.model_name, None if is_paid(agent) else _FREE)
