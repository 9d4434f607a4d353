"""Training episodes in which an agent plays with the model of an earlier iteration.

draw_opponents   the episodes, each with whom an earlier model plays in it, and which
find_earlier_models   the earlier models of a group, by the first iteration that each has played

Learning against the newest opponent alone may go in circles: what beat an earlier one is forgotten
when that one is gone. Playing a share of the games against earlier selves is how OpenAI Five kept
from it (Berner et al., "Dota 2 with Large Scale Deep Reinforcement Learning", 2019); drawing them
from all of the history alike is fictitious self-play (Heinrich, Lanctot and Silver, "Fictitious
Self-Play in Extensive-Form Games", 2015).

The draw depends on the seed and on which problem is played when, not on the run's name, nor on
anything that was answered. Episodes that are compared with each other (trainer pure_text_grpo) are
drawn alike, so that they differ by what was said alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nip_core.hashing import derive_seed
from nip_core.parameters import HyperParameters
from nip_core.rollouts.plan import EpisodeSpec, group_size

_SEEDS = 2**31  # that `derive_seed` can give


def draw_opponents(
    specs: Sequence[EpisodeSpec],
    parameters: HyperParameters,
    earlier: Mapping[str, Sequence[int]],
) -> list[EpisodeSpec]:
    """Draw the opponents of the episodes.

    `earlier` has by agent the iterations whose models there are to draw from; with none at all, as
    in the first iteration, the episodes stay as they are. Each is drawn with the same probability,
    after the agent is.
    """
    agents = sorted(agent for agent, iterations in earlier.items() if iterations)
    if not agents:
        return list(specs)
    share = parameters.opponents.share

    def drawn(spec: EpisodeSpec) -> EpisodeSpec:
        first = spec.sample - spec.sample % group_size(parameters, spec.split)
        place = (parameters.seed, spec.split, spec.iteration, spec.problem.id, first)
        if derive_seed("league", *place) >= share * _SEEDS:
            return spec
        agent = agents[derive_seed("opponent", *place) % len(agents)]
        iterations = sorted(earlier[agent])
        iteration = iterations[derive_seed("opponent's model", *place) % len(iterations)]
        return replace(spec, opponent=agent, opponent_iteration=iteration)

    return [drawn(spec) for spec in specs]


def find_earlier_models(played: Sequence[str], now: str, last: int | None) -> dict[int, str]:
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
