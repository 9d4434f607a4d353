"""Training episodes in which an agent plays with the model of an earlier iteration, or of another
run.

draw_opponents   the episodes, each with whom another model plays in it, and which
find_earlier_models   the earlier models of a group, by the first iteration that each has played

Learning against the newest opponent alone may go in circles: what beat an earlier one is forgotten
when that one is gone. Playing a share of the games against earlier selves is how OpenAI Five kept
from it (Berner et al., "Dota 2 with Large Scale Deep Reinforcement Learning", 2019); drawing them
from all of the history alike is fictitious self-play (Heinrich, Lanctot and Silver, "Fictitious
Self-Play in Extensive-Form Games", 2015).

The draw depends on the seed and on which problem is played when, not on the run's name, nor on
anything that was answered. Episodes that are compared with each other (trainer pure_text_grpo) are
drawn alike, so that they differ by what was said alone. Where other runs play, each has a share of
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

    `earlier` has by agent the iterations whose models there are to draw from, or the other runs;
    with none at all, as in the first iteration of a league and in tests, the episodes stay as they
    are. In a league each is drawn with the same probability, after the agent is; the shares of
    other runs are those of the settings.
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
                opponent_run=entry.run,
            )
    return spec


def _find_place(spec: EpisodeSpec, parameters: HyperParameters) -> tuple[int | str, ...]:
    """Return what the draw of an episode follows from; it is the same in all of a group."""
    first = spec.sample - spec.sample % group_size(parameters, spec.split)
    return (parameters.seed, spec.split, spec.iteration, spec.problem.id, first)


def find_earlier_models(
    played: Sequence[str], now: str, last: int | None
) -> dict[OpponentKey, str]:
    """Find the models of a group before the one of `now`, the newest `last` of them.

    `played` are the names of those that played the iterations before, in order. The keys are the
    first iterations that they have played.
    """
    first: dict[str, int] = {}
    for iteration, name in enumerate(played):
        first.setdefault(name, iteration)
    first.pop(now, None)
    iterations = sorted(first.values())
    newest = iterations if last is None else iterations[-last:]
    return {iteration: played[iteration] for iteration in newest}
