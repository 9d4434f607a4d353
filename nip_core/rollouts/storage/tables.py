"""From rows in memory to committed Parquet, and back.

RolloutTables    episodes and generations, of a shard or of a whole split
Tables           these and the timings of a shard (see `nip_core.rollouts.storage.schema`)
build_tables     rows -> Tables, in an order that does not depend on timing
commit_shard     Tables -> files with a manifest of their own
join_shards      all shards of a split -> the manifest that makes them readable
read_rollouts    the committed split as two tables
StoredRollouts   several committed splits, read by column or shard by shard
canonical_digest what two runs of the same game agree on
agent_order      who comes first in a round

A directory ``iterations/0003/rollouts/<split>/`` holds, per shard, ``episodes-<shard>``,
``generations-<shard>`` and ``timings-<shard>`` (of an attack ``choices-<shard>``, too) with
``manifest-<shard>.json``, and one ``manifest.json`` for the split, whose inputs are the digests of
the shards.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from nip_core.errors import CorruptionError, StageError
from nip_core.game.answer_rows import place_of
from nip_core.rollouts.storage.parquet import parquet_bytes, parquet_table
from nip_core.rollouts.storage.schema import (
    CHOICES,
    EPISODES,
    GENERATIONS,
    NOT_DIGESTED,
    TIMINGS,
    VALUES_BEFORE,
)
from nip_core.rollouts.storage.shard_manifests import (
    SHARD_INPUT,
    shard_is_committed,
    shard_manifest,
    shards_of,
)
from nip_core.rollouts.storage.table_rows import (
    Episode,
    Generation,
    MessageChoice,
    Timing,
    stored_row,
)
from nip_core.run_store.facts import SplitFacts
from nip_core.run_store.lease import Lease
from nip_core.run_store.manifest import (
    Manifest,
    commit,
    is_committed,
    read_committed_file,
    read_manifest,
)
from nip_core.run_store.store import Store

_Row = Episode | Generation | Timing | MessageChoice

_SCHEMAS = {"episodes": EPISODES, "generations": GENERATIONS, "timings": TIMINGS}
_OF_CHOICES = {"choices": CHOICES}
_KNOWN = {**_SCHEMAS, **_OF_CHOICES}
SHARED_PROMPTS = "shared_prompts"
"""In a shard's manifest: by agent, tokens of prompts that stand in several rows and were read once
(see `nip_core.records.spending`)."""
_DIGEST_VERSION = 2


@dataclass(frozen=True)
class RolloutTables:
    """Committed rollouts in memory."""

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
    or timing that belongs to nothing.
    """
    generations, timings = list(generations), list(timings)
    # 1. What the order of play follows from: never when an answer came, so that two runs of the
    #    same game have their rows in the same order.
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

    # 2. Generations by it, timings by them.
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
    """Make a sort key for the agents of a round: as the rewards list them; strangers last, by
    name."""
    places = {agent: place for place, agent in enumerate(rewards)}
    return lambda agent: (places.get(agent, len(places)), agent)


def commit_shard(
    store: Store,
    directory: str,
    shard: str,
    tables: Tables,
    *,
    inputs: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
    lease: Lease | None = None,
) -> Manifest:
    """Commit one shard. The manifest's `extra` has its canonical digest.

    Raises as `nip_core.run_store.manifest.commit` does.
    """
    named = {name: getattr(tables, name) for name in _SCHEMAS}
    if tables.choices is not None:
        named["choices"] = tables.choices
    return commit(
        store,
        directory,
        {f"{name}-{shard}.parquet": parquet_bytes(table) for name, table in named.items()},
        inputs=inputs,
        rows={name: table.num_rows for name, table in named.items()},
        extra={
            **(extra or {}),
            "canonical_digest": canonical_digest(tables.episodes, tables.generations),
        },
        lease=lease,
        name=shard_manifest(shard),
    )


def join_shards(
    store: Store, directory: str, shards: Sequence[str], *, lease: Lease | None = None
) -> Manifest:
    """Make the shards readable as one split. Its `extra` has the canonical digest of all of them.

    Raises StageError if one of them is not committed, CorruptionError if one is damaged.
    """
    # 1. Every shard must be there.
    is_new = not is_committed(store, directory)
    needed = shards if is_new else ()
    missing = [shard for shard in needed if not shard_is_committed(store, directory, shard)]
    if missing:
        raise StageError(f"{directory}: shards {missing} are not committed; play them first")
    manifests = {shard: read_manifest(store, directory, shard_manifest(shard)) for shard in shards}
    # 2. Read them all, for the digest; of a split that is committed already it is known. Digests of
    #    shards can't be added up: the split's must not depend on how it was cut.
    hashes = _RowHashes()
    for manifest in manifests.values() if is_new else ():
        hashes.add(_read_shard(store, manifest))
    # 3. Name them in one manifest, by digest: a shard put in another's place is noticed.
    names = sorted({name for manifest in manifests.values() for name in manifest.rows})
    return commit(
        store,
        directory,
        {},
        inputs={SHARD_INPUT + shard: manifest.digest for shard, manifest in manifests.items()},
        rows={name: sum(m.rows.get(name, 0) for m in manifests.values()) for name in names},
        extra=SplitFacts(canonical_digest=hashes.digest()).to_extra(),
        lease=lease,
    )


class StoredRollouts:
    """Committed splits together; every file is checked when it is read.

    Reading raises MissingFileError if a split is not committed, CorruptionError naming the first
    damaged file. These are `Rollouts` of `nip_core.trainers.base`, from which examples are chosen.
    """

    def __init__(self, store: Store, directories: Sequence[str]) -> None:
        """Name the splits, and read nothing yet."""
        self._store, self._directories = store, tuple(directories)
        self._manifests: list[Manifest] | None = None

    @classmethod
    def of_shard(cls, store: Store, manifest: Manifest) -> "StoredRollouts":
        """Give the rollouts of one committed shard, whether its split is committed or not."""
        rollouts = cls(store, [manifest.directory])
        rollouts._manifests = [manifest]
        return rollouts

    def episodes(self, columns: Sequence[str]) -> pa.Table:
        """Read these columns of all episodes."""
        return self._columns("episodes", columns)

    def generations(self, columns: Sequence[str]) -> pa.Table:
        """Read these columns of all generations."""
        return self._columns("generations", columns)

    def timings(self) -> pa.Table:
        """Read when each call was made, and how long it took."""
        return self._columns("timings", TIMINGS.names)

    @property
    def has_choices(self) -> bool:
        """Tell whether messages were chosen here; the tests of an attack by training have none."""
        return any("choices" in manifest.rows for manifest in self._shards())

    def choices(self) -> pa.Table:
        """Read the choices of an attack; damaged files, and none, raise CorruptionError."""
        return self._columns("choices", CHOICES.names)

    def shards(self) -> Iterator[RolloutTables]:
        """Yield everything, one shard in memory at a time."""
        for manifest in self._shards():
            yield _read_shard(self._store, manifest)

    def parts(self) -> "list[StoredRollouts]":
        """Give each shard as rollouts of its own, to be sent to other processes."""
        return [StoredRollouts.of_shard(self._store, manifest) for manifest in self._shards()]

    def _shards(self) -> list[Manifest]:
        if self._manifests is None:
            self._manifests = [
                manifest
                for directory in self._directories
                for manifest in _shard_manifests(self._store, directory)
            ]
        return self._manifests

    def _columns(self, kind: str, columns: Sequence[str]) -> pa.Table:
        tables = [_read_table(self._store, manifest, kind, columns) for manifest in self._shards()]
        return pa.concat_tables([_KNOWN[kind].empty_table().select(columns), *tables])


def _shard_manifests(store: Store, directory: str) -> Iterator[Manifest]:
    """Read the manifests of a split's shards, and check them against the split's own."""
    split = read_manifest(store, directory)
    for shard, digest in zip(shards_of(split), split.inputs.values(), strict=True):
        manifest = read_manifest(store, directory, shard_manifest(shard))
        if manifest.digest != digest:
            raise CorruptionError(
                f"{directory}/{manifest.name}: not the shard that {directory}/{split.name} names"
            )
        yield manifest


def read_rollouts(store: Store, directory: str) -> RolloutTables:
    """Read all committed rollouts of a split, checked as `StoredRollouts` are."""
    stored = StoredRollouts(store, [directory])
    return RolloutTables(stored.episodes(EPISODES.names), stored.generations(GENERATIONS.names))


def canonical_digest(episodes: pa.Table, generations: pa.Table) -> str:
    """Compute a SHA-256 over all columns of both tables with the rows in the order of their keys.

    Shards, row order, Parquet encodings, timings, what is drawn by seed and P(accept) have no part
    in it.
    """
    hashes = _RowHashes()
    hashes.add(RolloutTables(episodes, generations))
    return hashes.digest()


class _RowHashes:
    """A canonical digest, grown shard by shard; it holds 48 bytes per row."""

    def __init__(self) -> None:
        self._rows: dict[str, list[bytes]] = {"episodes": [], "generations": []}

    def add(self, rollouts: RolloutTables) -> None:
        for name, table in (
            ("episodes", rollouts.episodes),
            ("generations", rollouts.generations),
        ):
            for batch in table.to_batches(max_chunksize=10_000):
                self._rows[name].extend(
                    row["key"].encode() + hashlib.sha256(_encode_row(row)).digest()
                    for row in batch.to_pylist()
                )

    def digest(self) -> str:
        total = hashlib.sha256(f"nip rollouts {_DIGEST_VERSION}".encode())
        for name, rows in self._rows.items():
            total.update(f"\n{name} {len(rows)}\n".encode())
            total.update(b"".join(sorted(rows)))
        return total.hexdigest()


def _encode_row(row: Mapping[str, Any]) -> bytes:
    # A later column is left out where it says nothing, so runs from before it keep their digests.
    row = {
        name: value
        for name, value in row.items()
        if name not in NOT_DIGESTED and (name not in VALUES_BEFORE or value != VALUES_BEFORE[name])
    }
    # NaN, which the schema allows in rewards and log-probabilities, is written as such.
    return json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _read_table(
    store: Store, manifest: Manifest, kind: str, columns: Sequence[str] | None = None
) -> pa.Table:
    (name,) = [name for name in manifest.files if name.startswith(f"{kind}-")] or [f"{kind}-?"]
    data = read_committed_file(store, manifest, name)
    table = parquet_table(data, _KNOWN[kind], manifest.path(name), columns)
    if table.num_rows != manifest.rows.get(kind):
        raise CorruptionError(
            f"{manifest.path(name)}: {table.num_rows} rows instead of {manifest.rows.get(kind)}"
        )
    return table


def _read_shard(store: Store, manifest: Manifest) -> RolloutTables:
    return RolloutTables(
        _read_table(store, manifest, "episodes"), _read_table(store, manifest, "generations")
    )


def _make_table(rows: Sequence[_Row], kind: str) -> pa.Table:
    schema = _KNOWN[kind]
    stored = [stored_row(row) for row in rows]
    arrays = []
    for column in schema:
        values = [row[column.name] for row in stored]
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
        seen: set[str] = set()
        twice = next(row.key for row in rows if row.key in seen or seen.add(row.key))  # type: ignore[func-returns-value]
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
