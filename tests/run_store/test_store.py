"""A file is there whole or not at all; of many writers one wins; a dropped fence lets nobody by."""

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from unprivileged import as_users_are

from nip_core.errors import LeaseError, SettingsError, StoreError
from nip_core.records.named_run import open_runs
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.store import MissingFileError, Store, check_location, list_files, open_store


@pytest.fixture
def disk(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "runs")


def hidden(store: Store) -> list[str]:
    """What is left of writes that are over."""
    if not isinstance(store, LocalStore):
        return [p["path"] for p in store._patient.list().collect() if "/." in "/" + p["path"]]
    return [p.name for p in store.root.rglob(".*") if p.name != ".lock"]


def test_a_directory_and_a_file_url_open_the_same_store(tmp_path: Path) -> None:
    open_store(str(tmp_path / "new runs")).put("a/b.json", b"1")
    url = (tmp_path / "new runs").as_uri()
    assert open_store(url).get("a/b.json") == b"1"


@pytest.mark.parametrize("url", ["az://bucket/runs", "https://bucket", "file://elsewhere/runs"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="is not supported"):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:hunter2@bucket/runs?token=hunter3",
        "s3://user:hunter/2@bucket/runs",
        "http://user:hunter/2@host/runs",
        "gs://bucket:hunter/x",
    ],
)
def test_a_refused_url_shows_no_secret(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_store(url)
    assert "hunter" not in str(caught.value)


def test_a_place_that_can_not_be_a_directory_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file"):
        LocalStore(tmp_path / "file")
    with pytest.raises(StoreError, match=r"file/runs"):
        LocalStore(tmp_path / "file" / "runs")


PLACES = [
    ("/dev/null/x", "/dev/null is no directory"),
    ("a" * 300, "File name too long"),
    ("b/" + "a" * 300 + "/c", "File name too long"),
    ("~nouser/x", "no user 'nouser' here"),
    ("/proc/x", "No such file or directory"),
    ("a\0b", "has a NUL"),
    ("loop/x", "loop is no directory"),
    ("file:///tmp/" + "a" * 300, "File name too long"),
    ("file:///a%00b", "has a NUL"),
    ("file://[::1", "is an address that can't be read"),
    ("s3://u:hunter2@[::1", "is an address that can't be read"),
]


@pytest.mark.parametrize(("place", "said"), PLACES)
def test_what_can_be_no_store_is_refused_before_and_when_it_is_opened(
    place: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for refuse in (check_location, open_store):
        with pytest.raises(SettingsError) as refused:
            refuse(place)
        assert str(refused.value).startswith("run_store: ") and said in str(refused.value)
        assert "hunter2" not in str(refused.value)
    with pytest.raises(SettingsError, match=r"^--run-store"):
        open_runs(place)
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


def test_what_can_be_made_is_tried_out_and_leaves_nothing(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "a" / "b", tmp_path / "c" / ".." / "d"):
        check_location(str(place))
    assert not [*tmp_path.iterdir()]
    tmp_path.chmod(0o500)
    with as_users_are():
        for place in (tmp_path, tmp_path / "a"):
            with pytest.raises(SettingsError, match=r"^run_store: .*no permission"):
                check_location(str(place))


def test_a_place_without_write_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with as_users_are(), pytest.raises(StoreError, match="permission"):
        LocalStore(tmp_path)


def test_no_permission_and_no_hard_links_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(code: int) -> None:
        def link(*_: object, **__: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "link", link)

    refuse(errno.EOPNOTSUPP)
    with pytest.raises(StoreError, match="no hard links"):
        LocalStore(tmp_path)
    refuse(errno.EACCES)
    with pytest.raises(StoreError, match="no permission"):
        LocalStore(tmp_path)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../../b", "a//b", "."])
def test_paths_stay_inside(store: Store, path: str) -> None:
    for use in (lambda: store.put(path, b""), lambda: store.get(path), lambda: store.delete(path)):
        with pytest.raises(StoreError, match="not a path inside"):
            use()


def test_missing_files_and_directories(store: Store) -> None:
    with pytest.raises(MissingFileError):
        store.get("none")
    with pytest.raises(FileNotFoundError):
        store.get_with_etag("none")
    assert not store.exists("none")
    assert store.list("none") == []
    store.delete("none")
    assert store.put_if_match("none", b"", "tag") is None


def test_listing_shows_names_directories_and_nothing_temporary(store: Store) -> None:
    store.put("a/x/1", b"")
    store.put("a/y", b"")
    store.put("a/.tmp-left", b"half")
    assert store.list("a") == ["x/", "y"]
    assert store.list("") == ["a/"]
    assert list(list_files(store, "")) == ["a/x/1", "a/y"]


def test_a_file_can_come_from_the_disk(store: Store, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 6_000_000)
    store.put("a", tmp_path / "big")
    assert store.get("a") == b"x" * 6_000_000
    store.put("b", tmp_path / "big")
    store.download("b", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == b"x" * 6_000_000
    with pytest.raises(MissingFileError):
        store.download("none", tmp_path / "none")


def test_a_disk_says_where_files_lie(disk: LocalStore) -> None:
    assert disk.local_path("a") == disk.root / "a"


def test_of_many_first_writers_one_wins(store: Store) -> None:
    barrier = threading.Barrier(16)

    def write(number: int) -> bool:
        barrier.wait()
        return store.put_if_absent("one", str(number).encode())

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(write, range(16)))
    assert won.count(True) == 1
    assert store.get("one") == str(won.index(True)).encode()
    assert hidden(store) == []


def test_of_many_replacements_none_is_lost(store: Store) -> None:
    store.put("count", b"0")

    def add(_: int) -> None:
        while True:
            data, etag = store.get_with_etag("count")
            if store.put_if_match("count", str(int(data) + 1).encode(), etag) is not None:
                return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    assert store.get("count") == b"40"
    assert hidden(store) == []


def test_the_tag_of_a_replacement_is_that_of_the_file(store: Store) -> None:
    store.put("a", b"1")
    tag = store.put_if_match("a", b"2", store.get_with_etag("a")[1])
    assert store.get_with_etag("a") == (b"2", tag)
    assert store.put_if_match("a", b"3", "old") is None
    assert store.get("a") == b"2"


def test_a_lock_that_is_never_freed_is_reported(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, lock_timeout_s=0.05)
    store.put("a", b"1")
    with store._locked():
        with pytest.raises(StoreError, match="held for more than"):
            store.put_if_match("a", b"2", store.get_with_etag("a")[1])


def test_a_full_disk_says_what_to_do_and_leaves_nothing(
    disk: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"disk full.*free space and run again: what is finished"):
        disk.put_if_absent("a", b"x" * 1000)
    monkeypatch.undo()
    assert not disk.exists("a")
    assert hidden(disk) == []


def test_a_disk_that_is_full_when_a_store_is_opened_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, syncs = os.fsync, iter(range(1000))
    monkeypatch.setattr(os, "fsync", lambda file: (next(syncs), fsync(file)))
    LocalStore(tmp_path)
    for number in range(next(syncs)):
        left = iter(range(number))

        def full(file: int, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(file)

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="disk full"):
            LocalStore(tmp_path)


def test_puts_pass_only_while_their_fence_stands(store: Store) -> None:
    store.raise_fence("run/fences/000001")
    assert store.put_if_absent("run/a", b"1", fence="run/fences/000001")
    etag = store.get_with_etag("run/a")[1]
    store.drop_fence("run/fences/000001")
    store.raise_fence("run/fences/000002")
    for put in (
        lambda: store.put("run/a", b"2", fence="run/fences/000001"),
        lambda: store.put_if_absent("run/b", b"2", fence="run/fences/000001"),
        lambda: store.put_if_match("run/a", b"2", etag, fence="run/fences/000001"),
    ):
        with pytest.raises(LeaseError, match="000001 was released or taken over"):
            put()
    with pytest.raises(LeaseError):
        store.delete("run/a", fence="run/fences/000001")
    assert store.get("run/a") == b"1"
    assert not store.exists("run/b")
    assert store.put_if_match("run/a", b"3", etag, fence="run/fences/000002")
    assert [name.rstrip("/") for name in store.list("run/fences")] == ["000002"]


def test_what_is_deleted_behind_a_fence_can_be_written_anew(store: Store) -> None:
    store.raise_fence("fences/1")
    assert store.put_if_absent("d/a", b"1", fence="fences/1")
    etag = store.get_with_etag("d/a")[1]
    store.delete("d/a", fence="fences/1")
    store.delete("d/a", fence="fences/1")
    assert not store.exists("d/a")
    assert store.list("d") == []
    with pytest.raises(MissingFileError):
        store.get("d/a")
    assert store.put_if_match("d/a", b"2", etag, fence="fences/1") is None
    assert store.put_if_absent("d/a", b"3", fence="fences/1")
    store.delete("d/a", fence="fences/1")
    assert store.put_if_absent("d/a", b"4")
    assert (store.get("d/a"), store.list("d")) == (b"4", ["a"])


def test_a_fence_dropped_between_staging_and_publishing_stops_the_put(
    disk: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.raise_fence("f/1")
    real = os.link

    def link(source: Path, target: Path) -> None:
        disk.drop_fence("f/1")  # the runner was stopped just here, and replaced
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(LeaseError):
        disk.put_if_absent("a", b"1", fence="f/1")
    assert not disk.exists("a")


def refuses_writing(store: Store) -> None:
    assert (store.get("a.json"), store.list("")) == (b"1", ["a.json"])
    for write in (
        lambda: store.put("b", b"2"),
        lambda: store.put_if_absent("b/c", b"2"),
        lambda: store.put_if_match("a.json", b"2", store.get_with_etag("a.json")[1]),
        lambda: store.delete("a.json"),
        lambda: store.raise_fence("f"),
        lambda: store.drop_fence("f"),
    ):
        with pytest.raises(StoreError, match="opened for reading only"):
            write()


def test_a_bucket_for_reading_only_is_not_written(s3: str) -> None:
    url = f"{s3}/read-only"
    open_store(url).put("a.json", b"1")
    refuses_writing(open_store(url, read_only=True))
    assert open_store(url).list("") == ["a.json"]


def test_a_disk_for_reading_only_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"1")
    before = tmp_path.stat().st_mtime_ns
    refuses_writing(open_store(tmp_path, read_only=True))
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert tmp_path.stat().st_mtime_ns == before
    with pytest.raises(StoreError, match="no such directory"):
        open_store(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()
