"""Training episodes in which an agent plays with a model of an earlier iteration or of another run.

Learning against the newest opponent alone may go in circles: a model forgets how to beat an earlier
one that is gone. OpenAI Five kept from it by a share of games against earlier selves (Berner et
al., "Dota 2 with Large Scale Deep Reinforcement Learning", 2019). Drawing them from all of the
history alike is fictitious self-play (Heinrich, Lanctot and Silver, "Fictitious Self-Play in
Extensive-Form Games", 2015).

The draw depends on the seed and on which problem is played when. It depends neither on the run's
name nor on any answer. Episodes that are compared with each other (trainer pure_text_grpo) are
drawn alike, so that they differ by their messages alone. Where other runs play, each has a share of
its own, and all agents that it offers play together, as they did there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nip_core.hashing import derive_seed
from nip_core.parameters import HyperParameters
from nip_core.parameters.blocks.opponents import RUNS, join_agents
from nip_core.rollouts.plan import EpisodeSpec, OpponentKey, group_size

_SEEDS = 2**31  # that `derive_seed` can give


def draw_opponents(
    specs: Sequence[EpisodeSpec],
    parameters: HyperParameters,
    earlier: Mapping[str, Sequence[OpponentKey]],
) -> list[EpisodeSpec]:
    """Draw the opponents of the episodes.

    `earlier` has by agent the iterations with a model to draw from, or the other runs. With none at
    all, as in the first iteration of a league and in tests, the episodes stay as they are. In a
    league the agent is drawn first, then a model, each with the same probability. The settings have
    the shares of other runs.
    """
    agents = sorted(agent for agent, keys in earlier.items() if keys)
    if not agents:
        return list(specs)
    if parameters.opponents.kind == RUNS:
        return [_draw_run(spec, parameters) for spec in specs]
    share = parameters.opponents.share

    def drawn(spec: EpisodeSpec) -> EpisodeSpec:
        place = _find_place(spec, parameters)
        if derive_seed("league", *place) >= share * _SEEDS:
            return spec
        agent = agents[derive_seed("opponent", *place) % len(agents)]
        iterations = sorted(key for key in earlier[agent] if isinstance(key, int))
        iteration = iterations[derive_seed("opponent's model", *place) % len(iterations)]
        return replace(spec, opponent=agent, opponent_iteration=iteration)

    return [drawn(spec) for spec in specs]


def _draw_run(spec: EpisodeSpec, parameters: HyperParameters) -> EpisodeSpec:
    """Draw the run whose agents play in an episode; mostly, as a rule, it is this one."""
    point = derive_seed("opponents' run", *_find_place(spec, parameters))
    reached = 0.0
    for entry in parameters.opponents.runs:
        reached += entry.share * _SEEDS
        if point < reached:
            if entry.found is None or not entry.is_met_on(spec.problem.y):
                return spec
            return replace(
                spec,
                opponent=join_agents(entry.agents),
                opponent_iteration=entry.found.iteration,
                opponent_run=entry.name,
            )
    return spec


def _find_place(spec: EpisodeSpec, parameters: HyperParameters) -> tuple[int | str, ...]:
    """Return the place from which an episode's draw follows; a group's episodes have one."""
    first = spec.sample - spec.sample % group_size(parameters, spec.split)
    return (parameters.seed, spec.split, spec.iteration, spec.problem.id, first)


def find_earlier_models(
    model_names: Sequence[str], present_name: str, count: int | None
) -> dict[OpponentKey, str]:
    """Find the newest `count` models of a group before its present one; None: all of them.

    `model_names` are the models that played the earlier iterations, in order. The keys are the
    first iterations that they have played.
    """
    first: dict[str, int] = {}
    for iteration, name in enumerate(model_names):
        first.setdefault(name, iteration)
    first.pop(present_name, None)
    iterations = sorted(first.values())
    newest = iterations if count is None else iterations[-count:]
    return {iteration: model_names[iteration] for iteration in newest}
