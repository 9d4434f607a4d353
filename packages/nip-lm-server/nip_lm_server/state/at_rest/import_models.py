"""Taking over models of another server, from its state directory into a new one.

A model's manifest has all facts about it, so only the model's directory is read, and nothing is
written in the other state directory. A model is copied aside and checked against its digests
first; then one rename makes the directory the server's own, and one transaction enters it. A model
that is there already stays as it is, so an interrupted import can be repeated.

No server may run in the new state directory. A server that is started there later proves each
model before it answers, as it does with its own.
"""

import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from nip_base.disk import publish
from nip_base.manifest import ModelManifest, read_manifest
from nip_base.proof import Proof
from nip_lm_server.state.database import Database, dump
from nip_lm_server.state.directory import DATABASE, MODELS, StateError, check_state_dir
from nip_lm_server.state.models import AdapterError, ModelStore

_ASIDE = "adopted.part"


def find_model(state_dir: Path, name: str) -> Path | None:
    """Return the folder of a fine-tuned model in a state directory, or None if it has none."""
    path = state_dir / MODELS / name.rpartition(":")[2]
    try:
        return path if read_manifest(path).name == name else None
    except (OSError, ValueError):
        return None


def import_models(source: Path, target: Path, expected: Mapping[str, str | None]) -> None:
    """Copy models from the state directory `source` into `target`.

    `expected` has by name the content digest that the model must have (None: any). A base model
    that was made there comes with the adapters over it.
    Raises AdapterError for a model that is missing or damaged, or if `target` is no state
    directory, OSError if the disk refuses.
    """
    try:
        check_state_dir(target)
    except StateError as error:
        raise AdapterError(str(error)) from None
    aside = target / _ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    target.mkdir(parents=True, exist_ok=True)
    target.chmod(0o700)  # as the start of a server does
    try:
        with closing(Database(target / DATABASE)) as database:
            models, copies = ModelStore(target / MODELS, database), ModelStore(aside, database)
            for name, digest in _add_bases(source, expected).items():
                if models.get_row(name) is None:
                    manifest = _copy(source, name, digest, models, copies)
                    # Job and model are entered together: neither may stand without the other.
                    with database.transaction():
                        _enter(database, models, manifest, source)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _add_bases(source: Path, expected: Mapping[str, str | None]) -> dict[str, str | None]:
    """Add the base models under the `expected` adapters that were made there; they come first."""
    ordered: dict[str, str | None] = {}
    for name, digest in expected.items():
        chain: list[tuple[str, str | None]] = [(name, digest)]
        while (path := find_model(source, chain[-1][0])) is not None:
            base = read_manifest(path).base_model
            if find_model(source, base) is None:
                break
            chain.append((base, None))
        # A base model comes before its adapters, so that no kill leaves an adapter without its
        # base.
        for model, content_digest in reversed(chain):
            ordered[model] = content_digest or ordered.get(model)
    return ordered


def _copy(
    source: Path, name: str, digest: str | None, models: ModelStore, copies: ModelStore
) -> ModelManifest:
    """Put the model's directory among those of the new state; returns its manifest."""
    path = find_model(source, name)
    if path is None:
        raise AdapterError(f"{source} has no model {name}")
    is_there = models.is_committed(path.name)
    if not is_there:
        try:
            shutil.copytree(path, copies.path(path.name))
        except shutil.Error as error:
            raise AdapterError(f"{path} can't be copied: {error}") from error
    # The copy is checked aside, so that no damaged one gets a place among the models.
    manifest = (models if is_there else copies).verify(path.name)
    if digest is not None and manifest.content_digest != digest:
        raise AdapterError(
            f"model {name} has other weights than those on record (content digest "
            f"{manifest.content_digest}, on record {digest})"
        )
    if not is_there:
        publish(copies.path(path.name), models.path(path.name))
    return manifest


def _enter(database: Database, models: ModelStore, manifest: ModelManifest, source: Path) -> None:
    """Enter the model, and its job as an ended one."""
    proof = Proof(False, {"not proved here yet, copied from": str(source)})
    database.insert(
        "jobs",
        id=manifest.job,
        payload_digest="",  # without its key, no request finds this job again
        method=manifest.method,
        model=manifest.parent or manifest.base_model,
        base_model=manifest.base_model,
        parent=manifest.parent,
        training_file="",
        settings=dump(manifest.settings),
        seed=manifest.seed,
        adapter_name=manifest.name,
        adapter_digest=manifest.digest,
        status="succeeded",
        created_at=manifest.created_at,
        finished_at=manifest.created_at,
        result=dump(manifest.training),
    )
    models.record(manifest, manifest.parent, proof)
