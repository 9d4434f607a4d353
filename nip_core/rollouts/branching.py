"""Where trees of responses branch, decided before they are played (see `trees`).

Where a tree branches depends on settings and seeds alone, as if no episode ended early, so that
neither timing nor an answer has a part in it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from nip_core.hashing import derive_key, derive_seed
from nip_core.parameters import HyperParameters
from nip_core.parameters.blocks.opponents import split_agents
from nip_core.protocols import Protocol
from nip_core.rollouts.plan import EpisodeSpec

Branch = Callable[[EpisodeSpec, int, Sequence[str]], Sequence[EpisodeSpec]]
"""(a node, the round that is next, the agents that move in it) -> its children."""


def no_branching(node: EpisodeSpec, round_: int, agents: Sequence[str]) -> Sequence[EpisodeSpec]:
    """Return the node itself as its only child: a plain episode branches nowhere."""
    return (node,)


class Branching:
    """The plan of where the trees of a training iteration branch; a `Branch` of the engine."""

    def __init__(self, parameters: HyperParameters, protocol: Protocol, iteration: int):
        self._parameters, self._protocol = parameters, protocol
        self._trained = {
            agent
            for group in parameters.trainable_groups
            for agent in parameters.training_agents(group, iteration)
        }
        self._shapes: dict[tuple[str, int], tuple[int, ...]] = {}

    def __call__(
        self, node: EpisodeSpec, round_: int, agents: Sequence[str]
    ) -> Sequence[EpisodeSpec]:
        """Make the children of `node`, where `agents` move next."""
        tree = (node.problem.id, node.sample)
        if tree not in self._shapes:
            self._shapes[tree] = self.shape(node)
        count = self._shapes[tree][round_] if self._may_branch(agents, node) else 1
        return [make_child(node, number) for number in range(count)]

    def shape(self, spec: EpisodeSpec) -> tuple[int, ...]:
        """Say by round how many children each node of this tree has where nothing ends early.

        Rounds are taken in an order that is drawn for each tree, as long as the nodes stay within
        `max_nodes`. A tree that is longer than that has one child everywhere.
        """
        # 1. Draw the order in which rounds may branch, for each tree anew: where nodes are scarce,
        #    always the same rounds would be learned from.
        order = sorted(
            self._branching_rounds(spec),
            key=lambda r: derive_seed(
                "branch",
                self._parameters.seed,
                spec.split,
                spec.iteration,
                spec.problem.id,
                spec.sample,
                r,
            ),
        )
        # 2. Let each branch in turn, unless the tree gets too big by it. Counted as if no episode
        #    ended early: how far answers reach is not known before they are asked for.
        settings = self._parameters.pure_text_malt
        shape = [1] * self._protocol.max_message_rounds
        for round_ in order:
            shape[round_] = settings.num_responses_per_timestep
            if settings.max_nodes is not None and _count_nodes(shape) > settings.max_nodes:
                shape[round_] = 1
        return tuple(shape)

    def _branching_rounds(self, spec: EpisodeSpec) -> list[int]:
        rounds, active = range(self._protocol.max_message_rounds), self._protocol.active
        return [r for r in rounds if self._may_branch(active(r, spec.seed), spec)]

    def _may_branch(self, agents: Iterable[str], spec: EpisodeSpec) -> bool:
        if self._parameters.pure_text_malt.frozen_agents_generate_one_response:
            # Nothing is learned from two answers of an earlier model.
            return not self._trained.difference(split_agents(spec.opponent)).isdisjoint(agents)
        return any(True for _ in agents)


def nodes_by_round(shape: Sequence[int]) -> tuple[int, ...]:
    """Tell how many nodes each round makes, from how many children each node has by round."""
    nodes, counts = 1, []
    for children in shape:
        nodes *= children
        counts.append(nodes)
    return tuple(counts)


def _count_nodes(shape: Sequence[int]) -> int:
    return sum(nodes_by_round(shape))


def make_child(node: EpisodeSpec, number: int) -> EpisodeSpec:
    """Make the node below `node` with this number."""
    path = f"{node.branch_path}.{number}" if node.branch_path else str(number)
    place = (node.split, node.iteration, node.problem.id, node.sample, path)
    return replace(node, branch_path=path, key=derive_key("episode", node.run, *place))
