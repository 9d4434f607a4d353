"""How large the engines of a run's own server have to be, by the run's settings.

vLLM computes every adapter at its largest rank, and records its graphs for so many adapters and
requests as it may have to run at once: with too small sizes requests are refused or wait, too large
ones cost time in each step.
"""

from collections.abc import Sequence
from typing import Any

from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters
from nip_core.parameters.blocks.opponents import list_opponents, list_played_by_models
from nip_core.parameters.derived.hosting import find_host
from nip_core.parameters.derived.model_names import base_name
from nip_lm_server.client import DEFAULT_LORA_RANK, LARGEST_LORA_RANK, served_lora_rank

MOST_LORAS = 8
"""Adapters in one batch, at most: the rest of a league waits for a turn, as each further one costs
time in every step."""


def choose_vllm_sizes(parameters: HyperParameters, base: str) -> dict[str, Any]:
    """Choose the options of a base model's vLLM engine left open by `lm_server.options`."""
    options = parameters.lm_server.options
    groups = _groups_over(parameters, base)
    sizes: dict[str, Any] = {}
    # 1. The highest rank that an adapter of the run comes to have.
    ranks = [_final_rank(parameters, group) for group in groups]
    if _takes_models_over(parameters):
        ranks.append(DEFAULT_LORA_RANK)  # they may be of any, which their settings don't say
    if any(ranks):
        sizes["max_lora_rank"] = min(max(ranks), LARGEST_LORA_RANK)
    # 2. The adapters that play at the same time: one of each group, and adapters of earlier
    #    iterations or of other runs.
    adapters = len([rank for rank in ranks if rank])
    names = {name for group in groups for name in parameters.groups[group]}
    opponents = parameters.opponents.runs
    players = list_played_by_models(parameters) if opponents else list_opponents(parameters)
    league = [name for name in players if name in names]
    runs = sum(entry.run is not None for entry in opponents)
    earlier_models = runs or parameters.opponents.last or parameters.rl.num_iterations
    sizes["max_loras"] = max(1, min(adapters + earlier_models * len(league), MOST_LORAS))
    if isinstance(in_memory := options.get("max_cpu_loras"), int):
        sizes["max_loras"] = min(sizes["max_loras"], max(1, in_memory))
    # 3. The calls in flight. On a cluster every process has that many, and the number of
    #    processes is not known.
    if parameters.rollouts.task_runner == "local":
        sizes["max_num_seqs"] = parameters.rollouts.concurrency
    return {name: value for name, value in sizes.items() if name not in options}


def check_ranks(parameters: HyperParameters) -> None:
    """Raise SettingsError for adapters of a rank that the run's own engines don't take."""
    server = parameters.lm_server
    largest = server.options.get("max_lora_rank", LARGEST_LORA_RANK)
    if not isinstance(largest, int) or not 1 <= largest <= LARGEST_LORA_RANK:
        return  # the server says what is wrong with it
    limit = served_lora_rank(largest) if server.engine == "vllm" else largest
    for group, names in parameters.groups.items():
        agent = parameters.group_parameters(group)
        is_loaded = find_host(parameters, agent).loads_weights
        final = _final_rank(parameters, group) if is_loaded else 0
        if final and agent.lora_rank > limit:
            raise SettingsError(
                f"agents.{names[0]}.lora_rank is {agent.lora_rank}, but the engine takes {limit} "
                f"at most (lm_server.options.max_lora_rank: {largest}); lower it, or leave "
                "max_lora_rank out, which is then what the agents need"
            )
        # An adapter of a higher rank is merged into a base model: the engine serves one at a time.
        playing = _groups_over(parameters, base_name(parameters, agent))
        peers = [peer for peer in playing if peer != group]
        if final > limit and peers:
            raise SettingsError(
                f"agents.{names[0]}.stack_lora_adapters: {final // agent.lora_rank} adapters of "
                f"rank {agent.lora_rank} add up to {final}, the engine takes {limit} at most. They "
                f"would be merged into a new base model, and group {peers[0]!r} plays with the "
                f"same {agent.model_name!r}; lower lora_rank or rl.num_iterations, or set "
                "stack_lora_adapters: false"
            )


def _groups_over(parameters: HyperParameters, base: str) -> Sequence[str]:
    """List the groups with a base model of the run's own server."""
    return [
        group
        for group in parameters.groups
        if find_host(parameters, parameters.group_parameters(group)).loads_weights
        and base_name(parameters, parameters.group_parameters(group)) == base
    ]


def _final_rank(parameters: HyperParameters, group: str) -> int:
    """Return the highest rank of the group's adapter over the whole run; 0: it has none."""
    agent = parameters.group_parameters(group)
    trainings = sum(
        bool(parameters.training_agents(group, iteration))
        for iteration in range(parameters.rl.num_iterations)
    )
    if not agent.use_lora or not trainings:
        return 0
    return agent.lora_rank * (trainings if agent.stack_lora_adapters else 1)


def _takes_models_over(parameters: HyperParameters) -> bool:
    """Return whether groups begin with models of other runs, or of the Hub."""
    agents = parameters.model_agents.values()
    return parameters.names_run or any(agent.published_adapter is not None for agent in agents)
