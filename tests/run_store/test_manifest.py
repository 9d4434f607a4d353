"""A commit is there as a whole or not at all; damage is named; the first publisher wins."""

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nip_core.errors import CorruptionError, LeaseError, RunConflictError, StoreError
from nip_core.run_store.lease import acquire
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.manifest import (
    commit,
    is_committed,
    read_committed_file,
    read_manifest,
    verify,
)
from nip_core.run_store.store import MissingFileError, Store


class Killed(BaseException):
    """Stands for SIGKILL."""


class DyingStore(LocalStore):
    """A store whose process dies at its nth write, before it, after it, or half way through."""

    def __init__(self, root: Path, kill_at: int, when: str) -> None:
        self.kill_at, self.when, self.writes = -1, when, -1
        super().__init__(root)
        self.kill_at, self.writes = kill_at, -1

    def _dying(self, path: str, data: Any, write: Callable[[], Any]) -> Any:
        self.writes += 1
        if self.writes != self.kill_at:
            return write()
        if self.when == "after":
            write()
        elif self.when == "half":
            target = self._file(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            half = bytes(data)[: len(data) // 2]
            (target.parent / ".tmp-half").write_bytes(half)
        raise Killed

    def put(self, path: str, data: Any, *, fence: str | None = None) -> None:
        self._dying(path, data, lambda: LocalStore.put(self, path, data, fence=fence))

    def put_if_absent(self, path: str, data: Any, *, fence: str | None = None) -> bool:
        return bool(
            self._dying(path, data, lambda: LocalStore.put_if_absent(self, path, data, fence=fence))
        )


FILES: dict[str, bytes | Path] = {"episodes.parquet": b"one" * 100, "notes.json": b"{}"}


def test_what_is_committed_is_read_back_with_its_lineage(store: Store, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"from disk")
    written = commit(
        store,
        "run/d",
        {**FILES, "big.bin": tmp_path / "local"},
        inputs={"problems": "abc"},
        rows={"episodes": 3},
        extra={"note": 1.5},
    )
    manifest = verify(store, "run/d")
    assert manifest == written == read_manifest(store, "run/d")
    assert read_committed_file(store, manifest, "big.bin") == b"from disk"
    assert read_committed_file(store, manifest, "episodes.parquet") == b"one" * 100
    assert (manifest.inputs, manifest.rows) == ({"problems": "abc"}, {"episodes": 3})
    assert manifest.extra == {"note": 1.5}
    assert manifest.files["notes.json"].file == "notes.44136fa3.json"
    with pytest.raises(StoreError, match="has no file 'other'"):
        manifest.path("other")


def test_nothing_is_read_without_a_manifest(store: Store) -> None:
    store.put("run/d/episodes.9f86d081.parquet", b"whole and well")
    with pytest.raises(MissingFileError):
        verify(store, "run/d")
    assert not is_committed(store, "run/d")


def test_a_second_publisher_gets_the_first_manifest_and_changes_nothing(store: Store) -> None:
    first = commit(store, "d", {"a.bin": b"first"}, inputs={"x": "1"})
    before = sorted(store.list("d"))
    assert commit(store, "d", {"a.bin": b"other"}, inputs={"x": "1"}) == first
    assert sorted(store.list("d")) == before


def test_publishing_with_other_inputs_is_refused_with_the_difference(store: Store) -> None:
    commit(store, "d", {"a.bin": b"1"}, inputs={"x": "1"})
    with pytest.raises(RunConflictError, match="'x': '1 -> 2'"):
        commit(store, "d", {"a.bin": b"1"}, inputs={"x": "2"})


def test_publishers_at_once_agree_and_the_files_are_those_of_the_winner(store: Store) -> None:
    barrier = threading.Barrier(8)

    def publish(number: int) -> Any:
        barrier.wait()
        return commit(store, "d", {"a.bin": b"%d" % number}, inputs={"x": "1"})

    with ThreadPoolExecutor(8) as pool:
        manifests = list(pool.map(publish, range(8)))
    assert all(manifest == manifests[0] for manifest in manifests)
    verify(store, "d")
    assert len(store.list("d")) == 2


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    contents=st.dictionaries(
        st.sampled_from(["a.parquet", "b.parquet", "c.json"]), st.binary(max_size=200), min_size=1
    ),
    second=st.binary(max_size=200),
    kill_at=st.integers(0, 4),
    when=st.sampled_from(["before", "half", "after"]),
)
def test_a_killed_commit_leaves_all_or_nothing_and_the_next_cleans_up(
    tmp_path: Path,
    contents: dict[str, bytes],
    second: bytes,
    kill_at: int,
    when: str,
) -> None:
    root = tmp_path / uuid.uuid4().hex
    with suppress(Killed):
        commit(DyingStore(root, kill_at, when), "d", contents, inputs={"x": "1"})
    store = LocalStore(root)
    if is_committed(store, "d"):
        manifest = verify(store, "d")
        assert {name: read_committed_file(store, manifest, name) for name in contents} == contents
    # Played again after the kill, a shard of a model that does not repeat itself is another one.
    again = {name: data + second for name, data in contents.items()}
    commit(store, "d", again, inputs={"x": "1"})
    manifest = verify(store, "d")
    found = {name: read_committed_file(store, manifest, name) for name in contents}
    assert found in (contents, again)
    assert sorted(store.list("d")) == sorted(
        [*(entry.file for entry in manifest.files.values()), "manifest.json"]
    )


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: b"X" + data[1:], lambda _: b"", None],
    ids=["cut", "changed", "emptied", "gone"],
)
def test_a_damaged_file_is_named_and_refused(
    store: Store, damage: Callable[[bytes], bytes] | None
) -> None:
    manifest = commit(store, "d", FILES)
    path = manifest.path("episodes.parquet")
    if damage is None:
        store.delete(path)
    else:
        store.put(path, damage(store.get(path)))
    with pytest.raises(CorruptionError, match=r"d/episodes\.\w{8}\.parquet"):
        verify(store, "d")
    with pytest.raises(CorruptionError, match=r"d/episodes\.\w{8}\.parquet"):
        read_committed_file(store, manifest, "episodes.parquet")


@given(offset=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_flipped_bit_of_a_manifest_is_noticed(tmp_path: Path, offset: int, bit: int) -> None:
    store = LocalStore(tmp_path / uuid.uuid4().hex)
    manifest = commit(store, "d", FILES, inputs={"x": "1"}, rows={"a": 2})
    data = bytearray(store.get("d/manifest.json"))
    data[offset % len(data)] ^= 1 << bit
    store.put("d/manifest.json", bytes(data))
    try:
        assert read_manifest(store, "d") == manifest  # white space
    except StoreError as error:
        assert "d/manifest.json" in str(error)


def test_the_digest_leaves_out_the_epoch_only(store: Store) -> None:
    with acquire(store, "run", renew=False) as lease:
        with_lease = commit(store, "run/a", FILES, inputs={"x": "1"}, lease=lease)
    without = commit(store, "run/b", FILES, inputs={"x": "1"})
    assert (with_lease.epoch, without.epoch) == (1, 0)
    assert with_lease.digest == without.digest
    assert commit(store, "run/c", FILES, inputs={"x": "2"}).digest != without.digest


def test_a_runner_that_was_replaced_commits_nothing(store: Store) -> None:
    old = acquire(store, "run", renew=False, ttl_s=0.1)
    new = acquire(store, "run", renew=False, ttl_s=0.1)
    with pytest.raises(LeaseError):
        commit(store, "run/d", FILES, lease=old)
    assert store.list("run/d") == []
    assert commit(store, "run/d", FILES, lease=new).epoch == 2
    assert commit(store, "run/d", FILES, lease=old).epoch == 2  # reading what is there is harmless
