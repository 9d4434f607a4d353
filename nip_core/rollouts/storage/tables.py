"""From tables in memory (`row_tables`) to committed Parquet, and back.

A directory ``iterations/0003/rollouts/<split>/`` holds, per shard, ``episodes-<shard>``,
``generations-<shard>`` and ``timings-<shard>`` (of an attack ``choices-<shard>``, too) with
``manifest-<shard>.json``, and one ``manifest.json`` for the split, whose inputs are the digests of
the shards.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from nip_core.errors import CorruptionError, StageError
from nip_core.rollouts.storage.parquet import parquet_bytes, parquet_table
from nip_core.rollouts.storage.row_tables import (
    ALL_SCHEMAS,
    SCHEMAS,
    RolloutTables,
    RowHashes,
    Tables,
    canonical_digest,
)
from nip_core.rollouts.storage.schema import (
    CHOICES,
    EARLIER,
    EPISODES,
    GENERATIONS,
    TIMINGS,
)
from nip_core.rollouts.storage.shard_manifests import (
    SHARD_INPUT,
    shard_is_committed,
    shard_manifest,
    shards_of,
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

SHARED_PROMPTS = "shared_prompts"
"""In a shard's manifest: by agent, tokens of prompts that stand in several rows and were read once
(see `nip_core.records.spending`)."""
CACHED_TOKENS = "cached_tokens"
"""Likewise, by agent, those of the prompt tokens that their provider had read before; of a split
their sums."""


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
    tables_by_name = {name: getattr(tables, name) for name in SCHEMAS}
    if tables.choices is not None:
        tables_by_name["choices"] = tables.choices
    return commit(
        store,
        directory,
        {f"{name}-{shard}.parquet": parquet_bytes(table) for name, table in tables_by_name.items()},
        inputs=inputs,
        rows={name: table.num_rows for name, table in tables_by_name.items()},
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
    missing_shards = [shard for shard in needed if not shard_is_committed(store, directory, shard)]
    if missing_shards:
        raise StageError(f"{directory}: shards {missing_shards} are not committed; play them first")
    manifests = {shard: read_manifest(store, directory, shard_manifest(shard)) for shard in shards}
    # 2. Read them all, for the digest; a committed split has it already. Digests of shards can't be
    #    added up: the split's must not depend on how it was cut.
    hashes = RowHashes()
    for manifest in manifests.values() if is_new else ():
        hashes.add(_read_shard(store, manifest))
    # 3. Name them in one manifest, by digest: a shard put in another's place is noticed.
    names = sorted({name for manifest in manifests.values() for name in manifest.rows})
    cached = Counter[str]()
    for manifest in manifests.values():
        cached.update(manifest.extra.get(CACHED_TOKENS, {}))
    return commit(
        store,
        directory,
        {},
        inputs={SHARD_INPUT + shard: manifest.digest for shard, manifest in manifests.items()},
        rows={name: sum(m.rows.get(name, 0) for m in manifests.values()) for name in names},
        extra={
            **SplitFacts(canonical_digest=hashes.digest()).to_extra(),
            **({CACHED_TOKENS: dict(cached)} if cached else {}),
        },
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

    def timings(self, columns: Sequence[str] = TIMINGS.names) -> pa.Table:
        """Read when each call was made, and how long it took."""
        return self._columns("timings", columns)

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
        return pa.concat_tables([ALL_SCHEMAS[kind].empty_table().select(columns), *tables])


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
    rollouts = StoredRollouts(store, [directory])
    return RolloutTables(rollouts.episodes(EPISODES.names), rollouts.generations(GENERATIONS.names))


def _read_table(
    store: Store, manifest: Manifest, kind: str, columns: Sequence[str] | None = None
) -> pa.Table:
    (name,) = [name for name in manifest.files if name.startswith(f"{kind}-")] or [f"{kind}-?"]
    data = read_committed_file(store, manifest, name)
    schema = ALL_SCHEMAS[kind]
    table = parquet_table(data, schema, manifest.path(name), columns, EARLIER.get(kind))
    if table.num_rows != manifest.rows.get(kind):
        raise CorruptionError(
            f"{manifest.path(name)}: {table.num_rows} rows instead of {manifest.rows.get(kind)}"
        )
    return table


def _read_shard(store: Store, manifest: Manifest) -> RolloutTables:
    return RolloutTables(
        _read_table(store, manifest, "episodes"), _read_table(store, manifest, "generations")
    )
