"""Which shards of a split there are, by their manifests: what is known without reading a table.

shard_manifest      the name of a shard's manifest
shard_is_committed  whether it has one
committed_shards    what is committed of a split that may still be played
shards_of           the shards of a committed split
"""

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
