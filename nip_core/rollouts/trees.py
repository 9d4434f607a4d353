"""Trees of responses: several answers to one prompt, and the game after each.

parse_path, list_ancestors        a branch path as numbers, and the paths above it
tree_of                 which tree an episode is in
group_children          which nodes follow which
generations_by_episode  every episode with its generations, those that it shares included
generation_numbers      the same by the numbers of rows; for_each_episode: as a table
leaf_weights            how much each leaf counts, where every answer counts the same
expected_rewards        the mean reward of an agent after each answer

A tree is an episode in which a turn is taken several times. A node is a state between two rounds;
the root is the state before the first one and its path is "". A child is one joint move of all
agents that move in the round; its path is its parent's, a dot and its number: "0", "1", "0.1". So
a path has one number per round, also where there is only one child. A leaf is an episode that
ended, with a row in `episodes`. A generation is in the tables once, see
`nip_core.rollouts.storage.schema`. `branching` says where a tree branches.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.rollouts.storage.table_rows import read_rows, row_columns

Path = tuple[int, ...]
"""A branch path as numbers."""


def parse_path(branch_path: str) -> Path:
    """Read the numbers in a path: "0.10" is (0, 10); they sort as the tree does."""
    return tuple(int(number) for number in branch_path.split(".")) if branch_path else ()


def list_ancestors(branch_path: str) -> list[str]:
    """List the paths of all nodes on the way to this one, itself last; not the root's."""
    numbers = branch_path.split(".") if branch_path else []
    return [".".join(numbers[:length]) for length in range(1, len(numbers) + 1)]


class Tree(NamedTuple):
    """The identity of a tree: all its leaves agree in this, and no others."""

    run: str
    split: str
    iteration: int
    problem: str
    sample: int


TREE_COLUMNS = Tree._fields
"""Columns of `episodes` that are equal for all leaves of a tree, and only for them."""


class InTree(Protocol):
    """A row of an episode with the columns of its tree."""

    @property
    def run(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def iteration(self) -> int: ...
    @property
    def problem(self) -> str: ...
    @property
    def sample(self) -> int: ...


class IsLeaf(InTree, Protocol):
    """A row of an episode with its place in its tree."""

    @property
    def key(self) -> str: ...
    @property
    def branch_path(self) -> str: ...


class Leaf(NamedTuple):
    """The columns of an episode needed to find its generations."""

    key: str
    branch_path: str
    run: str
    split: str
    iteration: int
    problem: str
    sample: int


class AtNode(Protocol):
    """A row of a generation with its node and its episode."""

    @property
    def episode(self) -> str: ...
    @property
    def branch_path(self) -> str: ...


R = TypeVar("R", bound=AtNode)


def tree_of(episode: InTree) -> Tree:
    """Name the tree of an episode; one without branches is alone in its own."""
    return Tree(episode.run, episode.split, episode.iteration, episode.problem, episode.sample)


def generations_by_episode(
    episodes: Iterable[IsLeaf], generations: Iterable[R]
) -> dict[str, list[R]]:
    """Group generations by the key of each episode, shared ones with every leaf below them.

    Shared generations are found only if all leaves of their tree are among the episodes.
    Generations of other episodes are left out. An episode's rows have the order of `generations`;
    in a tree they go by round first.
    """
    rows: dict[str, list[R]] = {}
    # 1. Which tree each leaf is in.
    trees: dict[str, Tree] = {}
    leaves: dict[str, str] = {}
    for episode in episodes:
        rows[episode.key] = []
        if episode.branch_path:
            trees[episode.key] = tree_of(episode)
            leaves[episode.key] = episode.branch_path
    # 2. Generations of plain episodes go to these, generations of trees to their node. There
    #    `episode` names only the first leaf below, and the path tells the others.
    at_node: dict[tuple[Tree, str], list[R]] = defaultdict(list)
    for row in generations:
        key = row.episode
        if key in trees:
            at_node[trees[key], row.branch_path].append(row)
        elif key in rows:
            rows[key].append(row)
    # 3. A leaf has the generations at the nodes on its way.
    for key, path in leaves.items():
        for node in list_ancestors(path):
            rows[key] += at_node.get((trees[key], node), ())
    return rows


class _Numbered(NamedTuple):
    episode: str
    branch_path: str
    number: int  # of the row


def generation_numbers(
    leaves: Iterable[IsLeaf], generations: pa.Table
) -> Iterator[tuple[str, int]]:
    """Yield each episode's key with the numbers of its rows in `generations`.

    The same as `generations_by_episode`, for a caller that takes rows out of the table.
    """
    columns = (generations[name].to_pylist() for name in ("episode", "branch_path"))
    numbered = map(_Numbered, *columns, range(generations.num_rows))
    for key, rows in generations_by_episode(leaves, numbered).items():
        for row in rows:
            yield key, row.number


def for_each_episode(episodes: pa.Table, generations: pa.Table) -> pa.Table:
    """Repeat shared rows of `generations` for each of their episodes, named in `episode`.

    `episodes` need the columns of `Leaf`, `generations` episode and branch_path, and all leaves of
    their trees must be there. Without trees it is `generations` itself.
    """
    if not pc.any(pc.not_equal(episodes["branch_path"], "")).as_py():
        return generations
    leaves = read_rows(episodes.select(row_columns(Leaf)), Leaf)
    pairs = list(generation_numbers(leaves, generations))
    index = generations.schema.get_field_index("episode")
    keys = pa.array([key for key, _ in pairs], generations.schema.field(index).type)
    table = generations.take(pa.array([number for _, number in pairs], pa.int64()))
    return table.set_column(index, generations.schema.field(index), keys)


def group_children(leaves: Iterable[Path]) -> dict[Path, list[Path]]:
    """Group the children of each inner node, in order; the root is ()."""
    by_node: dict[Path, set[Path]] = defaultdict(set)
    for leaf in leaves:
        for length in range(1, len(leaf) + 1):
            by_node[leaf[: length - 1]].add(leaf[:length])
    return {node: sorted(children) for node, children in by_node.items()}


def leaf_weights(leaves: Iterable[Path]) -> dict[Path, float]:
    """Weigh each leaf as a share of its tree: the children of a node share alike; the sum is 1.

    So a mean over leaves is the mean over answers: one counts the same however many leaves follow.
    """
    leaves = list(leaves)
    children = group_children(leaves)
    weights: dict[Path, float] = {(): 1.0}
    for node in sorted(children, key=len):
        for child in children[node]:
            weights[child] = weights[node] / len(children[node])
    return {leaf: weights[leaf] for leaf in leaves}


def expected_rewards(
    leaves: Mapping[Path, Mapping[str, float] | None],
) -> dict[Path, dict[str, float] | None]:
    """Compute by node the expected reward of each agent: the mean over the node's children.

    `leaves` have the rewards of whole episodes, by agent; None for one that failed. Such leaves,
    and nodes above nothing else, are None and in no mean.
    """
    values = {leaf: None if paid is None else dict(paid) for leaf, paid in leaves.items()}
    children = group_children(leaves)
    # From the leaves up. A mean of children, not of leaves: else an answer with a long game after
    # it would weigh more, for its many leaves.
    for node in sorted(children, key=len, reverse=True):
        child_values = [
            value for value in map(values.__getitem__, children[node]) if value is not None
        ]
        values[node] = (
            {
                agent: sum(value[agent] for value in child_values) / len(child_values)
                for agent in child_values[0]
            }
            if child_values
            else None
        )
    return values
