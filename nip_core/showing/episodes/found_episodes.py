"""The episodes of a run that filters ask for, read from its committed splits."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nip_core.game.render import Game
from nip_core.rollouts.storage.schema import EPISODES
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.rollouts.trees import TREE_COLUMNS, for_each_episode
from nip_core.run_store.store import Store
from nip_core.showing.episodes.episode_filters import EpisodeFilters, find_in_calls, find_rows
from nip_core.showing.episodes.episode_index import COLUMNS, make_empty_index, read_part
from nip_core.showing.episodes.episode_rows import ReadableEpisode, read_episode_rows
from nip_core.showing.episodes.notes import RunNotes


class FoundEpisodes:
    """The episodes that filters find in committed splits. Damage raises CorruptionError."""

    def __init__(
        self,
        store: Store,
        directories: Sequence[str],
        filters: EpisodeFilters,
        notes: RunNotes,
    ) -> None:
        """Reads nothing yet. Equal episodes stay in the order of `directories`."""
        self._parts = [
            part for place in directories for part in StoredRollouts(store, [place]).parts()
        ]
        self._filters, self._notes = filters, notes

    @cached_property
    def _index(self) -> pa.Table:
        tables = []
        for number, part in enumerate(self._parts):
            table = read_part(part).columns
            shard = pa.array(np.full(table.num_rows, number, np.int32))
            tables.append(table.append_column("shard", shard).select(COLUMNS))
        return pa.concat_tables(tables).combine_chunks() if tables else make_empty_index()

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        noted, speaking = self._notes.find_keys(self._filters), None
        if self._filters.asks_for_calls:
            speaking = pa.concat_arrays(
                [pa.array([], pa.string()), *(find_in_calls(p, self._filters) for p in self._parts)]
            )
        return find_rows(self._index, self._filters, noted, speaking)

    @cached_property
    def keys(self) -> pa.Array:
        """The keys of the episodes."""
        return self._index["key"].take(pa.array(self._rows)).combine_chunks()

    @cached_property
    def generation_keys(self) -> pa.Array:
        """The keys of all their generations."""
        keys = [pa.array([], pa.string())]
        for part in self._parts:
            episodes = part.episodes(("key", "branch_path", *TREE_COLUMNS))
            generations = part.generations(("key", "episode", "branch_path"))
            of_each = for_each_episode(episodes, generations)
            mine = of_each.filter(pc.is_in(of_each["episode"], value_set=self.keys))
            keys.append(mine["key"].combine_chunks())
        return pc.unique(pa.concat_arrays(keys))

    def episodes(self) -> pa.Table:
        """Read their rows of the table of episodes."""
        tables = [EPISODES.empty_table()]
        numbers: list[NDArray[np.int64]] = []
        for number, part in enumerate(self._parts):
            positions, places = self._in_shard(number)
            if len(positions):
                tables.append(part.episodes(EPISODES.names).take(pa.array(places)))
                numbers.append(positions)
        whole = pa.concat_tables(tables)
        return whole.take(pa.array(np.argsort(_join(numbers))))

    def readable(self, game: Game | None) -> list[ReadableEpisode]:
        """Read them with all of their texts; with the run's game, with their chats."""
        notes, rows = self._notes.read(), dict[int, ReadableEpisode]()
        for number, part in enumerate(self._parts):
            positions, places = self._in_shard(number)
            if len(positions):
                texts = read_episode_rows(part, places.tolist(), notes, game)
                rows.update(zip(positions.tolist(), texts, strict=True))
        return [rows[number] for number in sorted(rows)]

    def _in_shard(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find those that are in a shard: their numbers, and their places there."""
        shards = np.asarray(self._index["shard"].to_numpy())[self._rows]
        positions = np.flatnonzero(shards == number)
        return positions, np.asarray(self._index["place"].to_numpy())[self._rows[positions]].astype(
            np.int64
        )


def _join(numbers: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(numbers) if numbers else np.zeros(0, np.int64)
