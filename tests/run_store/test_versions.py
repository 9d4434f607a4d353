"""What a newer version of nip has written is refused by name, and left as it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nip_core.errors import CorruptionError, StoreError
from nip_core.jobs.document import JobDocument, read_job
from nip_core.jobs.job import Clock, JobRecord
from nip_core.rollouts.storage.parquet import parquet_bytes, parquet_table
from nip_core.rollouts.storage.schema import (
    CHOICES,
    EPISODES,
    GENERATIONS,
    TIMINGS,
)
from nip_core.run_store.documents import decode, encode
from nip_core.run_store.lease import acquire, refuse_if_held
from nip_core.run_store.manifest import commit, read_manifest
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.store import open_store
from nip_core.trainers.dataset import SCHEMAS, WITH_REASONING, WITH_WEIGHTS, Dataset

READERS: dict[str, tuple[str, Callable[[RunStore], Any]]] = {
    "run": ("run/run.json", lambda run: run.open()),
    "manifest": ("run/files/manifest.json", lambda run: read_manifest(run.store, "run/files")),
    "job": ("run/iterations/0000/jobs/a.json", lambda run: read_job(run, run.job(0, "a"))),
    "lease": ("run/lease.json", lambda run: refuse_if_held(run.store, "run")),
}


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    run = RunStore(open_store(str(tmp_path / "runs")), "run")
    run.create_or_open(Identity({"a": 1}, "1", 1))
    with acquire(run.store, "run", renew=False) as lease:
        commit(run.store, "run/files", {"a.txt": b"a"}, lease=lease)
    record = JobRecord(
        state="intent",
        key="k",
        run="run",
        iteration=0,
        group="a",
        attempt=0,
        method="supervised",
        parent_model="m",
        parent_model_digest="d",
        dataset_digest="d",
        examples=10,
        seed=1,
        settings={"n_epochs": 1},
        created_at=1.5,
    )
    JobDocument(run.store, run.job(0, "a"), lease=None, clock=Clock()).save(record, "intent")
    return run


@pytest.mark.parametrize("kind", READERS)
def test_a_document_of_a_newer_version_is_refused_and_left_as_it_is(run: RunStore, kind: str):
    path, read = READERS[kind]
    read(run)
    document = decode(run.store.get(path), path)
    assert document["format_version"] == 1
    newer = encode({**document, "format_version": 2, "something": "new"})
    run.store.put(path, newer)
    with pytest.raises(StoreError, match=rf"{path}.* version 2") as refused:
        read(run)
    # What is only newer is not called damaged; of a lease nip says that it may be either.
    assert isinstance(refused.value, CorruptionError) is (kind == "lease")
    assert run.store.get(path) == newer


@pytest.mark.parametrize("schema", [EPISODES, GENERATIONS, TIMINGS, CHOICES])
def test_tables_of_a_newer_schema_are_refused_with_both_versions(schema):
    current = int(schema.metadata[b"nip.schema_version"])
    metadata = {"nip.schema_version": str(current + 1)}
    data = parquet_bytes(schema.empty_table().replace_schema_metadata(metadata))
    with pytest.raises(StoreError, match=f"{current + 1}, .* reads {current};"):
        parquet_table(data, schema, "table")


@pytest.mark.parametrize("method", SCHEMAS)
def test_examples_of_a_newer_schema_are_refused_with_both_versions(method):
    schemas = {**SCHEMAS, **WITH_REASONING, "supervised": WITH_WEIGHTS}
    newest = int(schemas[method].metadata[b"nip.schema_version"])
    metadata = {"nip.schema_version": str(newest + 1)}
    table: pa.Table = SCHEMAS[method].empty_table().replace_schema_metadata(metadata)
    with pytest.raises(StoreError, match=rf"{newest + 1}, .* reads .*\b{newest};"):
        Dataset(parquet_bytes(table), method, "examples")
