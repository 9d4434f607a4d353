"""Rollouts that are tables in memory already, as trainers are given them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from nip_core.rollouts.storage.row_tables import RolloutTables


@dataclass(frozen=True)
class InMemory:
    """A `nip_core.trainers.base.Rollouts`."""

    tables: tuple[RolloutTables, ...]

    def episodes(self, columns: Sequence[str]) -> pa.Table:
        return pa.concat_tables([shard.episodes.select(columns) for shard in self.tables])

    def generations(self, columns: Sequence[str]) -> pa.Table:
        return pa.concat_tables([shard.generations.select(columns) for shard in self.tables])

    def shards(self) -> Iterator[RolloutTables]:
        return iter(self.tables)

    def parts(self) -> "list[InMemory]":
        return [InMemory((shard,)) for shard in self.tables]
