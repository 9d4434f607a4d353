"""Removing unneeded models and uploads from the state of a stopped server.

State         the fine-tuned models and uploaded files
read_state    read them, and write nothing
remove        remove some of them, under the server's own lock

The same rules hold as for DELETE over HTTP: a model or file stays while another model or an
unfinished job needs it.
"""

import os
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from nip_lm_server.state.at_rest.examine import files_under, open_to_read
from nip_lm_server.state.database import UNFINISHED, Database, load
from nip_lm_server.state.directory import DATABASE, FILES, LOCK, MODELS, StateError, try_lock
from nip_lm_server.state.files import FileStore
from nip_lm_server.state.models import ModelStore


@dataclass(frozen=True)
class StoredModel:
    """A fine-tuned model: its directory, and the models it needs."""

    name: str
    path: Path
    bytes: int
    needs: tuple[str, ...]
    metadata: Mapping[str, str]
    """The metadata of its job."""


@dataclass(frozen=True)
class StoredFile:
    """An uploaded file."""

    id: str
    path: Path
    bytes: int
    filename: str
    """As its client called it."""


@dataclass(frozen=True)
class State:
    """Everything removable, and the needs of unfinished jobs."""

    models: tuple[StoredModel, ...] = ()
    files: tuple[StoredFile, ...] = ()
    needed_by_jobs: frozenset[str] = frozenset()
    made_by: Mapping[str, str] = field(default_factory=dict)
    """The model that a job makes, by the job's id."""


def read_state(state_dir: Path) -> State:
    """Return the models and files in a state directory; an empty state where there is none."""
    database = state_dir / DATABASE
    if not database.exists():
        return State()
    with closing(open_to_read(database)) as connection:
        models = connection.execute(
            "SELECT models.name, models.digest, models.parent, models.base_model, jobs.metadata "
            "FROM models JOIN jobs ON jobs.id = models.job_id WHERE models.deleted_at IS NULL"
        ).fetchall()
        files = connection.execute(
            "SELECT id, bytes, filename FROM files "
            "WHERE deleted_at IS NULL AND purpose = 'fine-tune'"
        ).fetchall()
        jobs = connection.execute(
            "SELECT model, base_model, training_file, validation_file FROM jobs "  # noqa: S608
            f"WHERE {UNFINISHED}"
        ).fetchall()
        made_by = dict(connection.execute("SELECT id, adapter_name FROM jobs").fetchall())
    return State(
        tuple(
            StoredModel(
                name,
                state_dir / MODELS / digest,
                sum(file.stat().st_size for file in files_under(state_dir / MODELS / digest)),
                tuple(n for n in (parent, base) if n),
                load(metadata) or {},
            )
            for name, digest, parent, base, metadata in models
        ),
        tuple(StoredFile(id, state_dir / FILES / id, *rest) for id, *rest in files),
        frozenset(value for row in jobs for value in row if value),
        made_by,
    )


def remove(state_dir: Path, models: Collection[str], files: Collection[str]) -> None:
    """Remove models by name and files by id.

    Raises StateError if its database is lost or damaged, and while a server runs there.
    """
    lock = try_lock(state_dir / LOCK)
    if lock is None:
        raise StateError(f"{state_dir}: a server runs there; stop it and try again")
    try:
        with closing(Database(state_dir / DATABASE)) as database:
            store = ModelStore(state_dir / MODELS, database)
            # The content goes first: on a full disk the mark needs the room.
            for name in models:
                row = store.get_row(name)
                if row is not None:
                    store.remove(row.digest)
                    store.mark_deleted(name)
            uploads = FileStore(state_dir / FILES, database, max_bytes=0)
            for id in files:
                uploads.delete(id)
    finally:
        os.close(lock)
