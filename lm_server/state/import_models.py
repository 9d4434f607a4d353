"""Taking over models that another server has trained, from its state directory into a new one.

A model's directory has a manifest that says all about it, so nothing but that is read, and
nothing is written on the other side. Everything is copied aside and checked against the digests
first; then one rename makes the directory the server's own, and one transaction enters it. A model
that is there already is left as it is, so what was interrupted is repeated.

No server may run in the directory that takes over. The one that is started there proves each
model before it answers, as it does with its own.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nip_lm_server.engines.base import Proof
from nip_lm_server.state.database import Database, dump
from nip_lm_server.state.directory import DATABASE, MODELS, StateError, check_state_dir
from nip_lm_server.state.disk import MANIFEST, publish
from nip_lm_server.state.models import AdapterError, ModelStore

_ASIDE = "adopted.part"


def find_model(state_dir: Path, name: str) -> Path | None:
    """Where a server with this state keeps the fine-tuned model, or None if it has none."""
    path = state_dir / MODELS / name.rpartition(":")[2]
    try:
        found = json.loads((path / MANIFEST).read_text())["name"] == name
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return path if found else None


def adopt_models(source: Path, target: Path, wanted: Mapping[str, str | None]) -> None:
    """Copy models from the state directory `source` into `target`.

    `wanted` has by name the content digest that the model must have (None: whatever its manifest
    says). Base models that these are adapters over, and that were made there, come with them.
    Raises AdapterError for a model that is missing or damaged, or if `target` is no server's,
    OSError if the disk refuses.
    """
    try:
        check_state_dir(target)
    except StateError as error:
        raise AdapterError(str(error)) from None
    aside = target / _ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    target.mkdir(parents=True, exist_ok=True)
    target.chmod(0o700)  # as whoever starts a server there would
    database = Database(target / DATABASE)
    try:
        there, copies = ModelStore(target / MODELS, database), ModelStore(aside, database)
        for name, digest in _with_bases(source, wanted).items():
            if there.row(name) is None:
                manifest = _copy(source, name, digest, there, copies)
                with database.transaction():
                    _enter(database, there, manifest, source)
    finally:
        database.close()
        shutil.rmtree(aside, ignore_errors=True)


def _with_bases(source: Path, wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    """`wanted` with the base models of this server's making that they stand on, those first."""
    found: dict[str, str | None] = {}
    for name, digest in wanted.items():
        chain: list[tuple[str, str | None]] = [(name, digest)]
        while (path := find_model(source, chain[-1][0])) is not None:
            base = json.loads((path / MANIFEST).read_text())["base_model"]
            if find_model(source, base) is None:
                break
            chain.append((base, None))
        for one, its_digest in reversed(chain):
            found[one] = its_digest or found.get(one)
    return found


def _copy(
    source: Path, name: str, digest: str | None, there: ModelStore, copies: ModelStore
) -> dict[str, Any]:
    """Put the model's directory among those of the new state; returns its manifest."""
    path = find_model(source, name)
    if path is None:
        raise AdapterError(f"{source} has no model {name}")
    if not there.is_committed(path.name):
        copied = copies.path(path.name)
        shutil.rmtree(copied, ignore_errors=True)
        try:
            shutil.copytree(path, copied)
        except shutil.Error as error:
            raise AdapterError(f"{path} can't be copied: {error}") from error
        _check(copies.verify(path.name), name, digest)
        publish(copied, there.path(path.name))
    manifest = there.verify(path.name)
    _check(manifest, name, digest)
    return manifest


def _check(manifest: Mapping[str, Any], name: str, digest: str | None) -> None:
    if digest is not None and manifest["content_digest"] != digest:
        raise AdapterError(
            f"model {name} has other weights than those on record (content digest "
            f"{manifest['content_digest']}, on record {digest})"
        )


def _enter(
    database: Database, there: ModelStore, manifest: Mapping[str, Any], source: Path
) -> None:
    """Enter the model, and the job that made it as one that is over."""
    proof = Proof(False, {"not proved here yet, copied from": str(source)})
    database.insert(
        "jobs",
        id=manifest["job"],
        payload_digest="",  # its key, which would find it again, was left behind
        method=manifest["method"],
        model=manifest["parent"] or manifest["base_model"],
        base_model=manifest["base_model"],
        parent=manifest["parent"],
        training_file="",
        settings=dump(manifest["settings"]),
        seed=manifest["seed"],
        adapter_name=manifest["name"],
        adapter_digest=manifest["digest"],
        status="succeeded",
        created_at=manifest["created_at"],
        finished_at=manifest["created_at"],
        result=dump(manifest["training"]),
    )
    there.record(manifest, manifest["parent"], proof)
