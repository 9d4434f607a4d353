"""The index of a run's episodes, which grows while one looks.

RunIndex       reads each committed shard once, and names those that it can't read
Episodes       all that were read by a moment
read_episodes  some of them, as rows

A shard counts from when its own manifest is there, so a split that is still being played grows
while one looks. `KeptCalls` keeps the texts of models.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import RLock

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nip_core.errors import NipError
from nip_core.rollouts.storage.shard_manifests import committed_shards, shards_of
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.run_store.manifest import MANIFEST, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.showing.episodes.episode_index import (
    COLUMNS,
    IndexedEpisode,
    make_empty_index,
    read_part,
)
from nip_view.parts.kept_calls import OF_GENERATIONS, KeptCalls, Shard, read_calls

_PLACE = re.compile(r"/iterations/([0-9]+)/rollouts(?:/([^/]+))?")
_WHOLE_LOOK_S = 30.0
_AT_ONCE = 2  # shards, each of which is in memory while it is read


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
            part = read_part(rollouts, OF_GENERATIONS if self._with_calls else ())
            calls = read_calls(part.episodes, part.generations) if self._with_calls else None
        except (NipError, OSError, pa.ArrowException, KeyError, ValueError) as error:
            self._damage[shard.name] = str(error)
            return None
        self._agents |= dict.fromkeys(part.agents)
        if calls is not None:
            self.calls.keep(shard, calls)
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
