"""The episodes of a run as columns in memory.

RunIndex  reads each committed shard once, and names those that it can't read
COLUMNS   the columns of the index, for each episode

A shard counts from when its own manifest is there, so a split that is still being played grows
while one looks. Of questions the index has the beginning. `KeptCalls` keeps the texts of models;
other long texts stay in the run's files.
"""

import itertools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nip_core.errors import NipError
from nip_core.rollouts.acceptance import GENERATIONS_OF_ACCEPTANCE, find_acceptance
from nip_core.rollouts.storage.shard_manifests import committed_shards, shards_of
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.rollouts.trees import for_each_episode
from nip_core.run_store.manifest import MANIFEST, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.showing.episodes.kept_calls import (
    OF_EPISODES,
    OF_GENERATIONS,
    KeptCalls,
    Shard,
    read_calls,
)

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
_OF_EPISODES = tuple(dict.fromkeys((*_PLAIN, "question", "rewards", *OF_EPISODES)))
_MOST_OF_QUESTION = 160  # characters, of which a list shows the first ones
_PLACE = re.compile(r"/iterations/([0-9]+)/rollouts(?:/([^/]+))?")
_WHOLE_LOOK_S = 30.0
_AT_ONCE = 2  # shards, each of which is in memory while it is read


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


@dataclass(frozen=True)
class Episodes:
    """All episodes read so far. Never changed: a page sees one state."""

    table: pa.Table
    shards: tuple[Shard, ...]
    version: int
    damaged: Mapping[str, str]
    """By place, in words, the parts of the run that can't be read."""
    unfinished: frozenset[tuple[int, str]]
    """Iterations and splits of which more is to come."""
    agents: tuple[str, ...] = ()
    """All that play, in the order of the first shard."""

    @property
    def damage(self) -> tuple[str, ...]:
        """List in words the files that can't be read."""
        return tuple(self.damaged.values())

    def find_damage(self, iteration: int | None, split: str | None) -> tuple[str, ...]:
        """List in words the unreadable files of an iteration and a split; None: of all of them."""
        return tuple(
            words for place, words in self.damaged.items() if _is_of(place, iteration, split)
        )

    def is_unfinished(self, iteration: int | None, split: str | None) -> bool:
        """Say whether more of an iteration and a split is to come; None: of any of them."""
        return any(
            _are_same(number, iteration) and _are_same(name, split)
            for number, name in self.unfinished
        )

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> list[IndexedEpisode]:
        """Read some rows, in this order."""
        return read_episodes(self.table.take(pa.array(rows, pa.int64())))


def _are_same(first: int | str | None, second: int | str | None) -> bool:
    """Compare two iterations or splits, of which None is any."""
    return first is None or second is None or first == second


def _is_of(place: str, iteration: int | None, split: str | None) -> bool:
    """Tell whether a place has a part in an iteration and a split, as folders above them have."""
    match = _PLACE.search(place)
    return not match or (_are_same(int(match[1]), iteration) and _are_same(match[2], split))


class RunIndex:
    """The episodes of a run. `refresh` reads new shards; `now` has those read so far."""

    def __init__(self, run: RunStore, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads nothing yet."""
        self._run, self._clock, self._lock = run, clock, RLock()
        self._with_calls = False
        self.calls = KeptCalls(run.store)
        self._forget()

    def _forget(self) -> None:
        self.calls.forget()
        self._rewinds: int | None = None
        self._shards: dict[str, Shard] = {}  # by place
        self._tables: list[pa.Table] = []
        self._damage: dict[str, str] = {}
        self._joined: set[str] = set()  # directories of whole splits
        self._agents: dict[str, None] = {}
        self._looked_s = float("-inf")
        self.now = Episodes(make_empty_index(), (), 0, {}, frozenset())
        self.calls = KeptCalls(self._run.store)

    def refresh(self, with_calls: bool = True) -> Episodes:
        """Read new shards. Damage is named in the result, and never raised.

        Without calls their texts are read when they are asked for, else soon. From a bucket they
        come with the rest, so that no file is fetched twice.
        """
        with self._lock:
            is_here = self._run.store.local_path(self._run.root) is not None
            self._with_calls = with_calls and not is_here
            try:
                self._start_again_if_rewound()
                directories = self._directories()
            except (NipError, OSError) as error:
                self._damage[self._run.root] = str(error)
                directories = {}
            unfinished = {
                place for place, directory in directories.items() if self._look(directory)
            }
            fresh = [s for s in self._shards.values() if s.name not in self._read]
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                tables = [*threads.map(self._columns_of, fresh)]
            self._take(fresh, tables, frozenset(unfinished))
            if with_calls:
                self.calls.keep_soon(self.now.shards)
            return self.now

    # Looking

    def _start_again_if_rewound(self) -> None:
        """Forget all episodes if a part of the run was set aside, to be done again."""
        rewinds = len(self._run.store.list(f"{self._run.root}/superseded"))
        if self._rewinds is not None and self._rewinds != rewinds:
            version = self.now.version
            self._forget()
            self.now = Episodes(make_empty_index(), (), version + 1, {}, frozenset())
        self._rewinds = rewinds

    @property
    def _read(self) -> set[str]:
        return {shard.name for shard in self.now.shards} | self._damage.keys()

    def _directories(self) -> dict[tuple[int, str], str]:
        """List by iteration and split where shards lie: of the last two iterations, and at times of
        all, as an earlier one may be tested later."""
        store, root = self._run.store, f"{self._run.root}/iterations"
        names = sorted(n[:-1] for n in store.list(root) if n[:-1].isdigit() and n.endswith("/"))
        if self._clock() - self._looked_s < _WHOLE_LOOK_S:
            names = names[-2:]
        else:
            self._looked_s = self._clock()
            self._damage.clear()
        directories: dict[tuple[int, str], str] = {}
        for name in names:
            place = f"{root}/{name}/rollouts"
            try:
                splits = [split[:-1] for split in store.list(place) if split.endswith("/")]
            except (NipError, OSError) as error:
                self._damage[place] = str(error)
                continue
            directories |= {(int(name), split): f"{place}/{split}" for split in splits}
        return directories

    def _look(self, directory: str) -> bool:
        """Take the committed shards of a split; return whether more are to come."""
        if directory in self._joined:
            return False
        try:
            manifests = committed_shards(self._run.store, directory)
            for name, manifest in manifests.items():
                self._shards.setdefault(
                    f"{directory}/{name}", Shard(directory, f"{directory}/{name}", manifest)
                )
            if MANIFEST not in self._run.store.list(directory):
                return True
            split = read_manifest(self._run.store, directory)
            lacking = sorted({*shards_of(split)} - manifests.keys())
            if lacking:
                self._damage[directory] = f"{directory}: shards {', '.join(lacking)} are missing"
            else:
                self._joined.add(directory)
        except (NipError, OSError) as error:
            self._damage[directory] = str(error)
        return False

    # Reading

    def _columns_of(self, shard: Shard) -> pa.Table | None:
        rollouts = StoredRollouts.of_shard(self._run.store, shard.manifest)
        try:
            part = read_part(rollouts, self._with_calls)
        except (NipError, OSError, pa.ArrowException, KeyError, ValueError) as error:
            self._damage[shard.name] = str(error)
            return None
        self._agents |= dict.fromkeys(part.agents)
        if part.calls is not None:
            self.calls.keep(shard, part.calls)
        return part.columns

    def _take(
        self,
        fresh: list[Shard],
        tables: list[pa.Table | None],
        unfinished: frozenset[tuple[int, str]],
    ) -> None:
        shards, last_state = [*self.now.shards], self.now
        for shard, table in zip(fresh, tables, strict=True):
            if table is not None:
                number = pa.array(np.full(table.num_rows, len(shards), np.int32))
                self._tables.append(table.append_column("shard", number).select(COLUMNS))
                shards.append(shard)
        damaged = {place: self._damage[place] for place in sorted(self._damage)}
        if len(shards) == len(last_state.shards):
            if (damaged, unfinished) != (last_state.damaged, last_state.unfinished):
                version = last_state.version + 1
                self.now = replace(
                    last_state, version=version, damaged=damaged, unfinished=unfinished
                )
            return
        whole = pa.concat_tables(self._tables).combine_chunks()
        self._tables = [whole]
        agents = tuple(self._agents)
        self.now = Episodes(
            whole, tuple(shards), last_state.version + 1, damaged, unfinished, agents
        )


def read_episodes(table: pa.Table) -> list[IndexedEpisode]:
    """Read all rows of a part of the index. Only for few: the whole stays as columns."""
    return [IndexedEpisode(**row) for row in table.to_pylist()]


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
    calls: pa.Table | None


def read_part(rollouts: StoredRollouts, with_calls: bool = False) -> IndexedPart:
    """Read a shard's part of the index, and where asked for the texts of its calls."""
    of_columns = tuple(dict.fromkeys((*_COUNTED_OF, *GENERATIONS_OF_ACCEPTANCE)))
    names = (*of_columns, *(OF_GENERATIONS if with_calls else ()))
    episodes = rollouts.episodes(_OF_EPISODES)
    if not pc.all(pc.not_equal(pc.utf8_trim_whitespace(episodes["question"]), "")).as_py():
        episodes = rollouts.episodes((*_OF_EPISODES, "solution"))
    generations = rollouts.generations(tuple(dict.fromkeys(names)))
    return IndexedPart(
        read_columns(episodes, generations.select(of_columns)),
        tuple(_list_agents(episodes["rewards"].combine_chunks())),
        read_calls(episodes, generations) if with_calls else None,
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
