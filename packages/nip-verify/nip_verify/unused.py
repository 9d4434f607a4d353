"""Finding and deleting the files of a run that nothing refers to.

A file that a manifest, a job document, models.json or run.json names is never on the list. Files
that were set aside for a rerun are not on it either, nor are files of another program. A file or a
model is on it only if this program has made it and a record says why it is not needed. Where that
record is lost, the file stays. Both functions are only for a run that no process runs: a file that
is being written looks like a leftover.
"""

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nip_base.disk import MANIFEST as MODEL_MANIFEST
from nip_core.errors import CorruptionError, StoreError
from nip_core.jobs.document import read_job
from nip_core.jobs.job import KEY_METADATA
from nip_core.rollouts.storage.journal_segments import remove_journal
from nip_core.rollouts.storage.shard_manifests import shard_is_committed, shards_of
from nip_core.run_store.manifest import MANIFEST_NAME, is_committed, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import list_files
from nip_core.servers.kept_models import ADAPTERS
from nip_lm_server.client import State, StateDirectory, StateError

Kind = Literal["leftover", "data", "journal", "kept model", "model", "upload"]

_OF_A_COMMIT = re.compile(r"(.+)\.[0-9a-f]{8}(\.\w+)")
_UPLOAD = re.compile(r"nip-[0-9a-f]{40}\.jsonl")
_JOURNAL = re.compile(r"([0-9]+)/([^/]+)/([^/]+)\.journal")
_DIGEST = re.compile(r"[0-9a-f]{12}")
_NAMES = re.compile(r"\"(ft:[^\"]+|file-[^\"]+|ftjob-[^\"]+)\"")


@dataclass(frozen=True)
class Unused:
    """Something that nothing refers to."""

    kind: Kind
    name: str
    """A path in the store, the name of a model, or the id of an upload."""
    where: str
    """For people."""
    bytes: int
    why: str


def find_unused(run: RunStore, state_dir: Path) -> list[Unused]:
    """List everything `remove_unused` would delete; `state_dir` is the directory of the run's own
    server.

    Raises CorruptionError where a file that names needed files is damaged.
    """
    run.open()
    return [
        *_leftovers(run),
        *_uncommitted_data(run),
        *_journals(run),
        *_of_the_server(run, state_dir),
    ]


def remove_unused(run: RunStore, state_dir: Path, unused: Sequence[Unused]) -> None:
    """Delete the files and models on the list. Hold the run's lease. Raises StoreError."""
    for thing in unused:
        if thing.kind == "leftover":
            run.store.delete_leftover(thing.name)
        elif thing.kind == "data":
            run.store.delete(thing.name)
        elif thing.kind == "journal":
            remove_journal(run.store, thing.name)
        elif thing.kind == "kept model":
            # The manifest first: without it the rest is no model.
            run.store.delete(f"{thing.name}/{MODEL_MANIFEST}")
            for path in list(list_files(run.store, thing.name)):
                run.store.delete(path)
    models = [thing.name for thing in unused if thing.kind == "model"]
    files = [thing.name for thing in unused if thing.kind == "upload"]
    if models or files:
        try:
            StateDirectory(state_dir).remove(models, files)
        except (StateError, OSError) as error:
            raise StoreError(f"the state of the run's own server: {error}") from error


def _leftovers(run: RunStore) -> Iterator[Unused]:
    for path, size in run.store.leftovers(run.root):
        if not path.startswith(f"{run.root}/lm_server/"):  # a server looks after its own
            yield _in_store(run, "leftover", path, size, "left by a killed writer")


def _uncommitted_data(run: RunStore) -> Iterator[Unused]:
    """List versions of a committed file beside it, unknown to its manifest."""
    folders: dict[str, list[str]] = {}
    for path in list_files(run.store, f"{run.root}/iterations"):
        folder, _, name = path.rpartition("/")
        folders.setdefault(folder, []).append(name)
    for folder, names in folders.items():
        if "/rollouts/" not in folder and "/datasets/" not in folder:
            continue
        manifests = [
            read_manifest(run.store, folder, name)
            for name in names
            if MANIFEST_NAME.fullmatch(name)
        ]
        named_files = {entry.file for manifest in manifests for entry in manifest.files.values()}
        committed_names = {name for manifest in manifests for name in manifest.files}
        for name in names:
            match = _OF_A_COMMIT.fullmatch(name)
            if match and match[1] + match[2] in committed_names and name not in named_files:
                path = f"{folder}/{name}"
                size = run.store.size(path)
                yield _in_store(run, "data", path, size, "another version is committed")


def _journals(run: RunStore) -> Iterator[Unused]:
    sizes: dict[str, int] = {}
    for path in list_files(run.store, f"{run.root}/journals"):
        journal = path[: path.index(".journal") + len(".journal")] if ".journal" in path else None
        if journal is not None:
            sizes[journal] = sizes.get(journal, 0) + run.store.size(path)
    finished = run.finished_iterations()
    for path, size in sizes.items():
        match = _JOURNAL.fullmatch(path.removeprefix(f"{run.root}/journals/"))
        if match is None:
            continue
        iteration, split, shard = int(match[1]), match[2], match[3]
        rollouts = run.rollouts(iteration, split)
        if shard_is_committed(run.store, rollouts, shard):
            yield _in_store(run, "journal", path, size, "its shard is committed")
        elif (
            iteration < finished
            and is_committed(run.store, rollouts)
            # Else the shard's manifest is lost, and this may be its only copy.
            and shard not in shards_of(read_manifest(run.store, rollouts))
        ):
            yield _in_store(run, "journal", path, size, "its split is committed without it")


def _of_the_server(run: RunStore, state_dir: Path) -> Iterator[Unused]:
    """List models and uploads of the run's jobs without a mention in its documents."""
    # 1. Needed: models and files that documents name, the models of their jobs, and their bases.
    named_in_run = _named_in_documents(run)
    server = StateDirectory(state_dir)
    try:
        state = server.read()
    except (sqlite3.Error, ValueError) as error:
        raise CorruptionError(
            f"{server.database}: the database of the run's own server can't be read: {error}"
        ) from error
    # A job that has ended since its record was written has a model that the record lacks.
    models_of_jobs = {state.made_by[name] for name in named_in_run if name in state.made_by}
    needed = _with_what_they_need(state, named_in_run | models_of_jobs | state.needed_by_jobs)
    # 2. Of the rest only this program's own: its models have its key, its uploads its name.
    reason = "no job or models.json of the run names it"
    for model in state.models:
        if model.name not in needed and KEY_METADATA in model.metadata:
            yield Unused("model", model.name, str(model.path), model.bytes, reason)
    for file in state.files:
        if file.id not in needed and _UPLOAD.fullmatch(file.filename):
            yield Unused("upload", file.id, str(file.path), file.bytes, reason)
    models_kept = _kept_models(run)
    # 3. The same for models that are kept in a bucket.
    bases = {base for _, name, base in models_kept if name in needed}
    digests = {name.rpartition(":")[2] for name in needed | bases}
    for path, name, _ in models_kept:
        if path.rpartition("/")[2] not in digests:
            size = sum(run.store.size(inner) for inner in list_files(run.store, path))
            yield _in_store(
                run, "kept model", path, size, reason if name else "it was not completed"
            )


def _named_in_documents(run: RunStore) -> frozenset[str]:
    """Collect the models and files named in JSON documents of the run, those set aside included."""
    names: set[str] = set()
    for top in ("iterations", "superseded", "openings"):
        for path in list_files(run.store, f"{run.root}/{top}"):
            if path.split("/")[-2] == "jobs":
                read_job(run, path)  # a damaged one may no longer name its files
            if path.endswith(".json"):
                names |= _names_in(run, path)
    return frozenset(names | _names_in(run, f"{run.root}/run.json"))


def _names_in(run: RunStore, path: str) -> set[str]:
    # Written anew: a name with an escape in it would be missed in the file's own words.
    return set(_NAMES.findall(json.dumps(run.read_json(path), ensure_ascii=False)))


def _with_what_they_need(state: State, names: frozenset[str]) -> frozenset[str]:
    needed = set(names)
    waiting = list(names)
    by_name = {model.name: model for model in state.models}
    while waiting:
        model = by_name.get(waiting.pop())
        more = [] if model is None else [name for name in model.needs if name not in needed]
        needed.update(more)
        waiting += more
    return frozenset(needed)


def _kept_models(run: RunStore) -> list[tuple[str, str, str]]:
    """List directory, name and base model of the kept models; no name without a manifest."""
    models = []
    for entry in run.store.list(f"{run.root}/{ADAPTERS}"):
        path = f"{run.root}/{ADAPTERS}/{entry.rstrip('/')}"
        if not _DIGEST.fullmatch(entry.rstrip("/")):
            continue
        manifest = run.read_json_or_none(f"{path}/{MODEL_MANIFEST}")
        try:
            models.append(
                (path, manifest["name"], manifest["base_model"]) if manifest else (path, "", "")
            )
        except (KeyError, TypeError) as error:
            raise CorruptionError(
                f"{path}/{MODEL_MANIFEST}: damaged manifest of a model ({error!r})"
            ) from error
    return models


def _in_store(run: RunStore, kind: Kind, path: str, size: int, reason: str) -> Unused:
    local = run.store.local_path(path)
    return Unused(kind, path, str(local) if local else f"{run.store.url}/{path}", size, reason)
