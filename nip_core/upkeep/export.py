"""Copying the Parquet files of a split out of the run store."""

import contextlib
from pathlib import Path

from nip_core.errors import SettingsError
from nip_core.rollouts.storage.shard_manifests import shard_manifest, shards_of
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.run_store.manifest import read_committed_file, read_manifest
from nip_core.run_store.run import RunStore


def export_rollouts(run: RunStore, iteration: int, split: str, target: Path) -> list[Path]:
    """Copy the committed tables and their manifests to `target`, checked on the way.

    Raises SettingsError if `target` holds other rollouts.
    """
    directory = run.rollouts(iteration, split)
    for _ in StoredRollouts(run.store, [directory]).shards():
        pass  # raises for a damaged file
    split_manifest = read_manifest(run.store, directory)
    manifest_bytes = run.store.get(f"{directory}/manifest.json")
    with contextlib.suppress(FileNotFoundError):
        if (target / "manifest.json").read_bytes() != manifest_bytes:
            raise SettingsError(
                f"--out {target}: it holds other rollouts, with which these would be mixed up; "
                "choose another directory"
            )
    target.mkdir(parents=True, exist_ok=True)
    written_paths = []
    for shard in shards_of(split_manifest):
        manifest = read_manifest(run.store, directory, shard_manifest(shard))
        contents = {manifest.name: run.store.get(f"{directory}/{manifest.name}")}
        for file, entry in manifest.files.items():
            contents[entry.file] = read_committed_file(
                run.store, manifest, file
            )  # as the manifest names it
        for name, content in contents.items():
            (target / name).write_bytes(content)
            written_paths.append(target / name)
    # Last: a copy that was cut short has no manifest, and can be made again.
    path = target / "manifest.json"
    path.write_bytes(manifest_bytes)
    return [*sorted(written_paths), path]
