"""The episodes of a run as columns in memory.

COLUMNS         the columns of the index, for each episode
IndexedEpisode  a row of it
read_part       the part of it that comes from a shard

Of questions the index has the beginning. Other long texts stay in the run's files.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nip_core.rollouts.acceptance import GENERATIONS_OF_ACCEPTANCE, find_acceptance
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.rollouts.trees import TREE_COLUMNS, for_each_episode

RIGHT, WRONG, FAILED = "right", "wrong", "failed"

_PLAIN = (
    *("key", "split", "iteration", "problem", "question_id", "sample", "branch_path", "protocol"),
    *("y", "difficulty", "mutation", "prover_stance", "opponent", "rounds"),
    *("decision", "decision_value", "outcome"),
)
_COUNTED_OF = (
    *("episode", "branch_path", "model_served", "invalid_reason"),
    *("prompt_tokens", "completion_tokens"),
)
_COUNTED = {
    "calls": pa.int32(),
    "invalid": pa.int32(),
    "prompt_tokens": pa.int64(),
    "completion_tokens": pa.int64(),
    "models": pa.string(),
}
COLUMNS = (*_PLAIN, "about", "verdict", "reward", "p_accept", *_COUNTED, "shard", "place")
_OF_EPISODES = tuple(dict.fromkeys((*_PLAIN, "question", "rewards", *TREE_COLUMNS)))
_MOST_OF_QUESTION = 160  # characters, of which a list shows the first ones


@dataclass(frozen=True)
class IndexedEpisode:
    """A row of the index: one episode, with a field for each of `COLUMNS`."""

    key: str
    split: str
    iteration: int
    problem: str
    question_id: str
    sample: int
    branch_path: str
    protocol: str
    y: int
    difficulty: str | None
    mutation: str | None
    prover_stance: int | None
    opponent: str | None
    rounds: int
    decision: int
    decision_value: float | None
    outcome: str
    about: str
    """The beginning of the question; of a problem without one, of the solution."""
    verdict: str
    reward: float
    """Of all agents together."""
    p_accept: float | None
    """How likely the verifier was to accept where it decided; None: it is not known."""
    calls: int
    invalid: int
    prompt_tokens: int
    completion_tokens: int
    models: str | None
    """The names of those that answered, one a line."""
    shard: int
    """The number of the shard among those that were read."""
    place: int
    """The row in the shard."""


def make_empty_index() -> pa.Table:
    """Make an index of no episodes."""
    from nip_core.rollouts.storage.schema import EPISODES

    kinds = {name: EPISODES.field(name).type for name in _PLAIN}
    kinds |= {"about": pa.string(), "verdict": pa.string(), "reward": pa.float64()}
    kinds |= {"p_accept": pa.float64(), **_COUNTED}
    kinds |= {"shard": pa.int32(), "place": pa.int32()}
    return pa.table({name: pa.array([], kinds[name]) for name in COLUMNS})


@dataclass(frozen=True)
class IndexedPart:
    """The part of the index that comes from a shard."""

    columns: pa.Table
    agents: tuple[str, ...]
    episodes: pa.Table
    generations: pa.Table
    """The tables that it was made of."""


def read_part(rollouts: StoredRollouts, further_columns: Sequence[str] = ()) -> IndexedPart:
    """Read a shard's part of the index.

    `further_columns` are those of its table of generations that a caller needs, too: a file in a
    bucket is fetched once.
    """
    of_columns = tuple(dict.fromkeys((*_COUNTED_OF, *GENERATIONS_OF_ACCEPTANCE)))
    names = (*of_columns, *further_columns)
    episodes = rollouts.episodes(_OF_EPISODES)
    if not pc.all(pc.not_equal(pc.utf8_trim_whitespace(episodes["question"]), "")).as_py():
        episodes = rollouts.episodes((*_OF_EPISODES, "solution"))
    generations = rollouts.generations(tuple(dict.fromkeys(names)))
    return IndexedPart(
        read_columns(episodes, generations.select(of_columns)),
        tuple(_list_agents(episodes["rewards"].combine_chunks())),
        episodes,
        generations,
    )


def read_columns(episodes: pa.Table, generations: pa.Table) -> pa.Table:
    """Read the columns of the index, without `shard`, of a shard's episodes in their order."""
    # 1. The columns of the table of episodes.
    table = episodes.select(_PLAIN).append_column("about", _cut_questions(episodes))
    failed = pc.equal(episodes["outcome"], FAILED)
    right = pc.and_not(pc.equal(episodes["decision"], episodes["y"]), failed)
    verdict = pc.if_else(failed, FAILED, pc.if_else(right, RIGHT, WRONG))
    table = table.append_column("verdict", verdict)
    table = table.append_column("reward", _sum_rewards(episodes["rewards"].combine_chunks()))
    table = table.append_column("p_accept", find_acceptance(episodes, generations))
    # 2. Sums over its generations; those of a tree count for each leaf that has them.
    spoken = generations.select(_COUNTED_OF)
    counts = _count_generations(episodes, for_each_episode(episodes, spoken))
    for name, column in counts.items():
        table = table.append_column(name, column)
    return table.append_column("place", pa.array(np.arange(table.num_rows, dtype=np.int32)))


def _cut_questions(episodes: pa.Table) -> Any:
    """Cut the beginnings of questions, and of solutions where there is no question."""
    about = pc.utf8_trim_whitespace(episodes["question"])
    if "solution" in episodes.column_names:
        solutions = pc.utf8_trim_whitespace(episodes["solution"])
        about = pc.if_else(pc.equal(about, ""), solutions, about)
    return pc.utf8_slice_codeunits(about, 0, _MOST_OF_QUESTION)


def _list_agents(rewards: Any) -> list[str]:
    return list(pc.unique(pc.struct_field(pc.list_flatten(rewards), "agent")).to_pylist())


def _sum_rewards(rewards: Any) -> pa.Array:
    """Sum the rewards of all agents, by row."""
    parents = pc.list_parent_indices(rewards).to_numpy(zero_copy_only=False)
    values = pc.struct_field(pc.list_flatten(rewards), "reward").to_numpy(zero_copy_only=False)
    return pa.array(np.bincount(parents, weights=values, minlength=len(rewards)))


def _count_generations(episodes: pa.Table, generations: pa.Table) -> dict[str, pa.Array]:
    """Count calls, invalid answers and tokens by episode, and list its models."""
    keys = episodes["key"].combine_chunks()
    indices = pc.index_in(generations["episode"], value_set=keys)
    owners = pc.fill_null(indices, len(keys)).to_numpy()  # strangers count for no episode
    invalid = pc.is_valid(generations["invalid_reason"]).to_numpy()

    def count(weights: NDArray[Any] | None = None) -> NDArray[Any]:
        return np.bincount(owners, weights, len(keys) + 1)[:-1]

    names = pc.dictionary_encode(generations["model_served"]).combine_chunks()
    has = np.zeros((len(keys) + 1, len(names.dictionary)), np.bool_)
    has[owners, names.indices.to_numpy()] = True
    # There are few different sets of models.
    sets, numbers = np.unique(has[:-1], axis=0, return_inverse=True)
    every = names.dictionary.to_pylist()
    joined = ["\n".join(sorted(itertools.compress(every, flags))) or None for flags in sets]
    return {
        "calls": pa.array(count(), pa.int32()),
        "invalid": pa.array(count(invalid).astype(np.int32)),
        "prompt_tokens": pa.array(count(generations["prompt_tokens"].to_numpy()).astype(np.int64)),
        "completion_tokens": pa.array(
            count(generations["completion_tokens"].to_numpy()).astype(np.int64)
        ),
        "models": pa.array(joined, pa.string()).take(pa.array(numbers.reshape(-1))),
    }
