"""Every kind of file in a run that is cut, changed or emptied is named, with what to do."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nip_core.errors import CorruptionError
from nip_core.jobs.document import JobDocument
from nip_core.jobs.job import Clock, JobRecord
from nip_core.rollouts.storage.journal import FILE_HEADER, Journal
from nip_core.run_store.documents import decode, encode
from nip_core.run_store.lease import acquire
from nip_core.run_store.manifest import commit, read_manifest, verify
from nip_core.run_store.run import Identity, RunStore, list_runs
from nip_core.run_store.store import Store, list_files
from nip_core.upkeep.verify import verify_run

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) * 2 // 3],
    "emptied": lambda _: b"",
    "flipped": lambda data: flip(data, len(data) // 2, 1),
}


def flip(data: bytes, offset: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[offset % len(data)] ^= 1 << bit
    return bytes(changed)


def job(store: Store) -> JobDocument:
    path = RunStore(store, "run").job(0, "a")
    return JobDocument(store, path, lease=None, clock=Clock())


@pytest.fixture
def run(store: Store) -> RunStore:
    """A run with one of every kind of file."""
    run = RunStore(store, "run")
    run.create_or_open(Identity({"a": {"b": 1}}, "1", 1))
    with acquire(store, "run", renew=False) as lease:
        files = {"examples.parquet": b"x" * 99}
        commit(store, run.dataset(0, "a"), files, extra={"digest": "d"}, lease=lease)
        run.write_json_once(run.models(0), {"groups": {"a": {"model": "m"}}}, lease=lease)
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
    job(store).save(record, "intent")
    return run


READERS: dict[str, tuple[str, Callable[[RunStore], Any]]] = {
    "run.json": ("run/run.json", lambda run: run.open()),
    "models.json": ("run/iterations/0000/models.json", lambda run: run.read_json(run.models(0))),
    "job": ("run/iterations/0000/jobs/a.json", lambda run: job(run.store).load()),
    "lease": ("run/lease.json", lambda run: acquire(run.store, "run", renew=False)),
    "manifest": (
        "run/iterations/0000/datasets/a/manifest.json",
        lambda run: read_manifest(run.store, run.dataset(0, "a")),
    ),
    "parquet": (
        "run/iterations/0000/datasets/a/examples.",
        lambda run: verify(run.store, run.dataset(0, "a")),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", READERS)
def test_a_damaged_file_is_named_with_what_to_do(run: RunStore, kind: str, damage: str) -> None:
    path, read = READERS[kind]
    if path.endswith("."):
        folder = path.rpartition("/")[0]
        (name,) = [n for n in run.store.list(folder) if n.startswith("examples.")]
        path = f"{folder}/{name}"
    read(run)
    run.store.put(path, DAMAGES[damage](run.store.get(path)))
    with pytest.raises(CorruptionError, match=path) as caught:
        read(run)
    assert any(advice in str(caught.value) for advice in ("restore the file", "delete it"))


def test_verify_names_each_damaged_file_in_every_store(run: RunStore) -> None:
    assert verify_run(run).problems == {}
    paths = [path for path in list_files(run.store, "run") if "/fences/" not in path]
    assert len(paths) == len(READERS)
    for path in paths:
        content = run.store.get(path)
        for damage in DAMAGES.values():
            run.store.put(path, damage(content))
            assert list(verify_run(run).problems) == [path]
        run.store.put(path, content)


@pytest.mark.parametrize("location", ["s3"], indirect=True)  # on a disk a fence is a directory
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_fence_is_named_and_lets_nobody_by(store: Store, damage: str) -> None:
    store.raise_fence("run/fences/000001")
    assert store.put_if_absent("run/a", b"1" * 50, fence="run/fences/000001")
    store.put("run/fences/000001", DAMAGES[damage](store.get("run/fences/000001")))
    for use in (
        lambda: store.put_if_absent("run/b", b"1", fence="run/fences/000001"),
        lambda: store.drop_fence("run/fences/000001"),
    ):
        with pytest.raises(CorruptionError, match=r"run/fences/000001: damaged.*delete it"):
            use()
    assert not store.exists("run/b")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    document=st.dictionaries(
        st.text(max_size=8),
        st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    ),
    offset=st.integers(0, 10_000),
    bit=st.integers(0, 7),
)
def test_any_flipped_bit_of_a_document_is_noticed(
    document: dict[str, Any], offset: int, bit: int
) -> None:
    data = encode(document)
    assert decode(data, "a.json") == document
    try:
        assert decode(flip(data, offset, bit), "a.json") == document  # white space
    except CorruptionError as error:
        assert "a.json: damaged" in str(error)


def test_a_number_that_damage_makes_infinite_is_noticed() -> None:
    data = encode({"a": -1e308})
    with pytest.raises(CorruptionError, match=r"a\.json: damaged"):
        decode(data.replace(b"e+308", b"e+318"), "a.json")


def test_a_document_of_an_earlier_version_is_read_as_it_is(store: Store) -> None:
    store.put("old/run.json", b'{"a": 1}')
    assert RunStore(store, "old").read_json("old/run.json") == {"a": 1}


async def test_a_damaged_journal_on_a_disk_is_named(tmp_path: Path) -> None:
    path = tmp_path / f"{uuid.uuid4().hex}.journal"
    async with Journal(path, sync_interval_s=0) as journal:
        for number in range(3):
            await journal.append({"n": number})
    whole = path.read_bytes()
    for damaged in (b"X" + whole[1:], flip(whole, len(FILE_HEADER) + 20, 1)):
        path.write_bytes(damaged)
        journal = Journal(path)
        with pytest.raises(CorruptionError, match=path.name) as caught:
            journal.replay()
        journal.close()
        assert "damaged at byte" in str(caught.value)
    # What a crash leaves: the last commit is cut, and nobody was told that it was there.
    path.write_bytes(whole[:-1])
    with_torn_end = Journal(path)
    assert [record["n"] for record in with_torn_end.replay()] == [0, 1]
    with_torn_end.close()


def test_a_damaged_run_hides_no_other(run: RunStore) -> None:
    other = RunStore(run.store, "other")
    other.create_or_open(Identity({}, "1", 1))
    run.store.put("run/run.json", b"{")
    assert list_runs(run.store) == ["other", "run"]
    assert other.open().seed == 1
