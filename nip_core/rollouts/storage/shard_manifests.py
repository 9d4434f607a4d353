"""The shards of a split by their manifests, without reading a table.

shard_manifest      the name of a shard's manifest
shard_is_committed  whether it has one
committed_shards    the committed shards of a split that may still be played
shards_of           the shards of a committed split
count_labels        the solutions of a shard that were labelled in play; add_counts: of several
"""

from collections.abc import Iterable
from functools import reduce

from nip_core.rollouts.storage.table_rows import LabelRow
from nip_core.run_store.facts import LabelCounts
from nip_core.run_store.manifest import Manifest, is_committed, read_manifest
from nip_core.run_store.store import Store

SHARD_INPUT = "shard/"
"""Before a shard's name among the inputs of its split."""


def shard_is_committed(store: Store, directory: str, shard: str) -> bool:
    """Tell whether the shard has its manifest."""
    return is_committed(store, directory, shard_manifest(shard))


def committed_shards(store: Store, directory: str) -> dict[str, Manifest]:
    """Read the manifests of a split's committed shards, by shard."""
    prefix, suffix = shard_manifest("").split(".")
    shards = [
        name.removeprefix(prefix).removesuffix(f".{suffix}")
        for name in store.list(directory)
        if name.startswith(prefix)
    ]
    return {shard: read_manifest(store, directory, shard_manifest(shard)) for shard in shards}


def shards_of(split: Manifest) -> tuple[str, ...]:
    """Name the shards of a committed split."""
    return tuple(name.removeprefix(SHARD_INPUT) for name in split.inputs)


def shard_manifest(shard: str) -> str:
    """Name a shard's own manifest."""
    return f"manifest-{shard}.json"


def count_labels(rows: Iterable[LabelRow]) -> LabelCounts:
    """Count the labelled solutions, in all and by kind, and the seconds of labelling."""
    # In the order of keys, so that the rounded sum does not depend on the order of labelling.
    ordered = sorted(rows, key=lambda row: str(row.key))
    counts = (
        LabelCounts(
            solutions=1,
            seconds=row.seconds,
            slowest_s=row.seconds,
            kinds={row.mutation or ("right" if row.y else "wrong"): 1},
        )
        for row in ordered
    )
    return reduce(add_counts, counts, LabelCounts())


def add_counts(a: LabelCounts, b: LabelCounts) -> LabelCounts:
    """Add up two counts."""
    kinds = {*a.kinds, *b.kinds}
    return LabelCounts(
        solutions=a.solutions + b.solutions,
        seconds=round(a.seconds + b.seconds, 3),
        slowest_s=round(max(a.slowest_s, b.slowest_s), 3),
        kinds={kind: a.kinds.get(kind, 0) + b.kinds.get(kind, 0) for kind in sorted(kinds)},
    )
