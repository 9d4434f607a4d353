"""Played rows as Arrow tables, in memory.

RolloutTables    episodes and generations, of a shard or of a whole split
Tables           these and the timings of a shard (see `nip_core.rollouts.storage.schema`)
build_tables     rows -> Tables, in an order that does not depend on timing
canonical_digest the digest on which two runs of the same game agree; RowHashes: grown by parts
agent_order      a sort key for the agents of a round

`tables` writes them to files, and reads them.
"""

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from nip_core.errors import StageError
from nip_core.game.answer_rows import place_of
from nip_core.rollouts.storage.schema import (
    CHOICES,
    EPISODES,
    GENERATIONS,
    NOT_DIGESTED,
    TIMINGS,
    VALUES_BEFORE,
)
from nip_core.rollouts.storage.table_rows import (
    Episode,
    Generation,
    MessageChoice,
    Timing,
    stored_row,
)

_Row = Episode | Generation | Timing | MessageChoice

SCHEMAS = {"episodes": EPISODES, "generations": GENERATIONS, "timings": TIMINGS}
ALL_SCHEMAS = {**SCHEMAS, "choices": CHOICES}
_DIGEST_VERSION = 2
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True)
class RolloutTables:
    """Rollouts in memory."""

    episodes: pa.Table
    generations: pa.Table


@dataclass(frozen=True)
class Tables(RolloutTables):
    """The tables of a played shard."""

    timings: pa.Table
    choices: pa.Table | None = None  # of an attack


def build_tables(
    episodes: Sequence[Episode],
    generations: Iterable[Generation],
    timings: Iterable[Timing] = (),
    choices: Sequence[MessageChoice] = (),
) -> Tables:
    """Build the tables of a shard. Without `choices` it has no table of these.

    Episodes keep their order. Generations are put in the order of play, episode by episode: by
    round, then by the number of messages before, by the agents' order in the episode's rewards,
    by exchange and by attempt; timings follow them.

    Raises StageError for a row that breaks the schema, a key that stands twice, or a generation
    or timing without an owner.
    """
    generations, timings = list(generations), list(timings)
    # 1. Find the places of rows in the order of play. The time of an answer has no part in it, so
    #    that two runs of the same game have their rows in the same order.
    position = _index_by_key(episodes, "episodes")
    by_key = {row.key: row for row in generations}
    agents = {row.key: agent_order(row.rewards) for row in episodes}
    depths: dict[str, int] = {}

    def order(row: Generation) -> tuple[Any, ...]:
        if row.episode not in position:
            raise StageError(f"generation {row.key}: its episode {row.episode} is not here")
        return (
            position[row.episode],
            row.round,
            _measure_depth(row, by_key, depths),
            row.branch_path,
            *place_of(row).order(agents[row.episode]),
        )

    # 2. Sort generations by it, timings by generations.
    generations.sort(key=order)
    generation_position = _index_by_key(generations, "generations")
    for row in timings:
        if row.key not in generation_position:
            raise StageError(f"timing {row.key}: its generation is not here")
    timings.sort(key=lambda row: generation_position[row.key])
    return Tables(
        _make_table(episodes, "episodes"),
        _make_table(generations, "generations"),
        _make_table(timings, "timings"),
        _make_table(choices, "choices") if choices else None,
    )


def agent_order(rewards: Mapping[str, float]) -> Callable[[str], tuple[int, str]]:
    """Make a sort key for the agents of a round: as the rewards list them, others last by name."""
    places = {agent: place for place, agent in enumerate(rewards)}
    return lambda agent: (places.get(agent, len(places)), agent)


def canonical_digest(episodes: pa.Table, generations: pa.Table) -> str:
    """Compute a SHA-256 over all columns of both tables with the rows in the order of their keys.

    Shards, row order, Parquet encodings, timings, columns drawn by seed and P(accept) have no part
    in it.
    """
    hashes = RowHashes()
    hashes.add(RolloutTables(episodes, generations))
    return hashes.digest()


class RowHashes:
    """A canonical digest, grown shard by shard; it holds 48 bytes per row."""

    def __init__(self) -> None:
        # By table and number of bytes, which is that of the key and a SHA-256. Not as objects of
        # Python, each of which would take twice as much again: a split may have millions.
        self._rows: dict[str, dict[int, bytearray]] = {"episodes": {}, "generations": {}}

    def add(self, rollouts: RolloutTables) -> None:
        """Add the rows of a shard, or of all."""
        for name, table in (
            ("episodes", rollouts.episodes),
            ("generations", rollouts.generations),
        ):
            for batch in table.to_batches(max_chunksize=10_000):
                for row in batch.to_pylist():
                    data = row["key"].encode() + hashlib.sha256(_encode_row(row)).digest()
                    self._rows[name].setdefault(len(data), bytearray()).extend(data)

    def digest(self) -> str:
        """Compute the digest of all rows that were added."""
        total = hashlib.sha256(f"nip rollouts {_DIGEST_VERSION}".encode())
        for name, rows in self._rows.items():
            count = sum(len(data) // size for size, data in rows.items())
            total.update(f"\n{name} {count}\n".encode())
            for row in heapq.merge(*(_sort_rows(data, size) for size, data in rows.items())):
                total.update(row)
        return total.hexdigest()


def _sort_rows(data: bytearray, size: int) -> Iterator[bytes]:
    """Sort rows of `size` bytes in their place, and yield them."""
    np.frombuffer(data, f"S{size}").sort()
    return (bytes(data[k : k + size]) for k in range(0, len(data), size))


def _encode_row(row: Mapping[str, Any]) -> bytes:
    # A later column is left out where it has its earlier value, so older runs keep their digests.
    row = {
        name: value
        for name, value in row.items()
        if name not in NOT_DIGESTED and (name not in VALUES_BEFORE or value != VALUES_BEFORE[name])
    }
    # NaN, which the schema allows in rewards and log-probabilities, is written as such.
    return _ENCODER.encode(row).encode()


def _make_table(rows: Sequence[_Row], kind: str) -> pa.Table:
    schema = ALL_SCHEMAS[kind]
    stored_rows = [stored_row(row) for row in rows]
    arrays = []
    for column in schema:
        values = [row[column.name] for row in stored_rows]
        try:
            array = pa.array(values, type=column.type)
        except (pa.ArrowException, OverflowError) as error:
            raise StageError(f"{kind}, column {column.name}: {error}") from error
        if array.null_count and not column.nullable:
            key = rows[values.index(None)].key
            raise StageError(f"{kind} {key}: column {column.name} has no value and needs one")
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema)


def _index_by_key(rows: Sequence[_Row], kind: str) -> dict[str, int]:
    position = {row.key: index for index, row in enumerate(rows)}
    if len(position) != len(rows):
        seen_keys: set[str] = set()
        twice = next(row.key for row in rows if row.key in seen_keys or seen_keys.add(row.key))  # type: ignore[func-returns-value]
        raise StageError(f"{kind}: key {twice} stands twice")
    return position


def _measure_depth(
    row: Generation, by_key: Mapping[str, Generation], depths: dict[str, int]
) -> int:
    """Tell how many messages come before `row` in its episode."""
    chain = []
    key: str | None = row.key
    while key is not None and key in by_key and key not in depths:
        depths[key] = 0  # also ends a circle
        chain.append(key)
        key = by_key[key].parent_key
    depth = depths.get(key, -1) if key is not None else -1
    for link in reversed(chain):
        depth += 1
        depths[link] = depth
    return depths[row.key]
