"""What only object stores have: races between processes, fences that are logs, refused places."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import s3_server

from nip_core import how_to_install
from nip_core.errors import CorruptionError, SettingsError, StoreError
from nip_core.rollouts.storage.journal_segments import SegmentJournal, open_journal, remove_journal
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import Store, open_store
from nip_core.showing.episodes.episode_index import IndexedEpisode
from nip_core.showing.episodes.notes import RunNotes

FENCE = "run/fences/000001"


@pytest.fixture
def bucket(s3: str) -> str:
    return f"{s3}/{uuid.uuid4().hex}"


def run_many(script: str, *arguments: str, count: int) -> list[list[str]]:
    """The words that `count` processes print, let go at the same moment."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, *arguments, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=120)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * count
    return said


START = """
import sys
from nip_core.run_store.store import open_store
store, me = open_store(sys.argv[1]), sys.argv[-1]
print("ready", flush=True)
sys.stdin.readline()
"""


def test_of_many_processes_one_creates_a_file(location: str) -> None:
    script = START + "print(*[int(store.put_if_absent(f'{i}', me.encode())) for i in range(20)])"
    said = run_many(script, location, count=5)
    store = open_store(location)
    for i, column in enumerate(zip(*said, strict=True)):
        assert column.count("1") == 1
        assert store.get(str(i)) == str(column.index("1")).encode()


@pytest.mark.long
def test_of_many_processes_none_loses_a_replacement(location: str) -> None:
    store = open_store(location)
    store.put("count", b"0")
    script = (
        START
        + """
for _ in range(8):
    while True:
        data, etag = store.get_with_etag("count")
        if store.put_if_match("count", str(int(data) + 1).encode(), etag):
            break
"""
    )
    run_many(script, location, count=4)
    assert store.get("count") == b"32"


def test_processes_of_one_runner_share_a_fence(location: str) -> None:
    store = open_store(location)
    store.raise_fence(FENCE)
    script = (
        START
        + f"print(*[int(store.put_if_absent(f'd/{{me}}-{{i}}', me.encode(), fence={FENCE!r})) "
        + "for i in range(6)])"
    )
    said = run_many(script, location, count=3)
    assert said == [["1"] * 6] * 3
    assert len(store.list("d")) == 18


# A process that stops itself at the worst moment. It is continued after it was replaced.
STOPPED = """
import os, signal, sys
from nip_core.errors import LeaseError
from nip_core.run_store.store import open_store
store, moment, fence = open_store(sys.argv[1]), sys.argv[2], sys.argv[3]

def stopping(write):
    def stop_and_write(*arguments, **more):
        before_swap = moment == "before the swap" and arguments[0] == fence
        before_write = moment == "after the swap" and more.get("is_logged")
        if before_swap or before_write:
            print("stopped", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        return write(*arguments, **more)
    return stop_and_write

store._swap = stopping(store._swap)
try:
    print(store.put_if_absent("run/a", b"old", fence=fence), flush=True)
except LeaseError:
    print("lost", flush=True)
store._swap = type(store)._swap.__get__(store)
try:
    store.put_if_absent("run/b", b"old", fence=fence)
    print("again", flush=True)
except LeaseError:
    print("lost", flush=True)
"""


def stop(bucket: str, moment: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, bucket, moment, FENCE], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "stopped\n"
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    return process


def go_on(process: subprocess.Popen[str]) -> list[str]:
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(timeout=60)
    return said.split()


def test_stopped_before_its_swap_a_replaced_runner_writes_nothing(bucket: str) -> None:
    store = open_store(bucket)
    store.raise_fence(FENCE)
    process = stop(bucket, "before the swap")
    store.drop_fence(FENCE)
    assert go_on(process) == ["lost", "lost"]
    assert store.list("run") == []


def replaced(store: Store) -> bytes | None:
    assert store.put_if_match("run/a", b"new", store.get_with_etag("run/a")[1])
    return b"new"


def done_again(store: Store) -> bytes | None:
    store.delete("run/a", fence="run/fences/000002")
    assert store.put_if_absent("run/a", b"newer", fence="run/fences/000002")
    return b"newer"


def set_aside(store: Store) -> bytes | None:
    store.delete("run/a", fence="run/fences/000002")
    return None


@pytest.mark.parametrize("then", [replaced, done_again, set_aside])
def test_stopped_after_its_swap_a_replaced_runner_changes_nothing_later(
    bucket: str, then: Callable[[Store], bytes | None]
) -> None:
    store = open_store(bucket)
    store.raise_fence(FENCE)
    process = stop(bucket, "after the swap")
    assert not store.exists("run/a")
    store.drop_fence(FENCE)
    assert store.get("run/a") == b"old"  # it was committed before the fence fell
    store.raise_fence("run/fences/000002")
    expected = then(store)
    assert go_on(process)[-1] == "lost"
    assert (store.get("run/a") if store.exists("run/a") else None) == expected
    assert not store.exists("run/b")


def test_a_write_whose_answer_is_lost_counts_once(bucket: str) -> None:
    store = open_store(bucket)
    assert store.put_if_absent("created-lost-answer", b"1")
    assert not store.put_if_absent("created-lost-answer", b"1")
    store.put_if_absent("replaced", b"1")
    store.raise_fence("fence-lost-answer")
    assert store.put_if_absent("behind-lost-answer", b"1", fence="fence-lost-answer")
    assert not store.put_if_absent("behind-lost-answer", b"1", fence="fence-lost-answer")


def test_an_answer_that_breaks_off_is_asked_for_again(bucket: str, tmp_path: Path) -> None:
    store, content = open_store(bucket), os.urandom(300_000)
    for name in ("looked-at", "downloaded", "cut-answer-folder/a"):
        store.put(f"cut-answer-{name}", content)
    assert store.get("cut-answer-looked-at") == content
    store.download("cut-answer-downloaded", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == content
    assert store.list("cut-answer-cut-answer-folder") == ["a"]
    (tmp_path / "large").write_bytes(content * 40)
    store.put("cut-answer-written-in-parts", tmp_path / "large")
    assert store.size("cut-answer-written-in-parts") == len(content) * 40


# Places that are refused --------------------------------------------------------------------------


def test_a_store_that_heeds_no_conditions_is_refused(s3: str) -> None:
    url = s3_server.make_bucket(dict(os.environ), "careless")
    with pytest.raises(StoreError, match="does not heed conditions"):
        open_store(url)


def test_a_bucket_that_is_not_there_is_named(s3: str) -> None:
    with pytest.raises(StoreError, match="s3://none/x: there is no such bucket"):
        open_store("s3://none/x")


@pytest.mark.parametrize(
    "url", ["s3://key:hunter2@bucket/runs", "gs://bucket/runs?token=hunter2", "s3://bucket#hunter2"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError, match="from the environment only") as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "url"), [("AWS_ENDPOINT_URL", "s3://bucket/x"), ("GOOGLE_BASE_URL", "gs://bucket")]
)
def test_the_address_of_a_server_is_checked_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, variable: str, url: str
) -> None:
    monkeypatch.setenv(variable, "http://ada:hunter2/x@localhost:9")
    with pytest.raises(SettingsError, match=f"environment variable {variable}: ") as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)


def test_an_unencrypted_server_elsewhere_is_refused_with_the_way_to_allow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://10.77.0.2:9000")
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    with pytest.raises(SettingsError, match=r"AWS_ENDPOINT_URL: http://10\.77\.0\.2:9000 is unenc.*"
                       "set AWS_ALLOW_HTTP=true"):  # fmt: skip
        open_store("s3://bucket/x")


@pytest.mark.parametrize(("url", "has_advice"), [("s3://", True), ("gs://", False)])
def test_what_names_no_bucket_gets_the_advice_of_its_kind(url: str, has_advice: bool) -> None:
    with pytest.raises(SettingsError, match=f"give {url}bucket/prefix") as caught:
        open_store(url)
    assert ("AWS_ENDPOINT_URL" in str(caught.value)) is has_advice


def test_a_store_that_does_not_answer_is_named_without_the_key(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("nip_core.run_store.object_requests._PAUSES_S", (0.0,))
    with pytest.raises(StoreError, match=r"s3://bucket/x.* can't") as caught:
        open_store("s3://bucket/x")
    assert "a-test-secret" not in str(caught.value)


def test_a_missing_library_is_named_with_the_way_to_get_it(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(SettingsError, match=re.escape(how_to_install("object-stores"))):
        open_store(s3)


# The journal --------------------------------------------------------------------------------------


def play(store: Store, epoch: int, *records: int) -> list[Any]:
    """Replay the journal as the runner with this epoch, and add records one by one."""

    async def append() -> list[Any]:
        async with SegmentJournal(store, "j.journal", epoch, sync_interval_s=0) as journal:
            found = journal.replay()
            for record in records:
                await journal.append({"n": record})
            return [record["n"] for record in found]

    return asyncio.run(append())


def test_a_journal_without_a_disk_survives_its_machine(bucket: str) -> None:
    store = open_store(bucket)
    assert play(store, 1, 1, 2) == []
    assert play(store, 1, 3) == [1, 2]  # a stage that was repeated
    assert play(store, 3, 4) == [1, 2, 3]
    assert play(store, 4) == [1, 2, 3, 4]
    assert store.list("j.journal") == ["000004-000001"]
    remove_journal(store, "j.journal")
    assert store.list("") == []


def test_what_a_replaced_runner_still_writes_is_read_by_nobody(bucket: str) -> None:
    store = open_store(bucket)
    play(store, 1, 1)
    old = SegmentJournal(store, "j.journal", 1, sync_interval_s=0)
    old.replay()
    play(store, 2, 2)
    old._write([b'{"n":9}'])
    assert play(store, 3) == [1, 2]
    with pytest.raises(StoreError, match="written by a later runner"):
        old.replay()


def test_two_that_play_one_shard_are_told(bucket: str) -> None:
    store = open_store(bucket)
    first = open_journal(store, "j.journal", 1)
    second = open_journal(store, "j.journal", 1)
    assert (first.replay(), second.replay()) == ([], [])
    first._write([b'{"n":1}'])
    with pytest.raises(StoreError, match="another process is playing this shard"):
        second._write([b'{"n":2}'])


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "gone"])
def test_a_damaged_segment_is_named(bucket: str, damage: str) -> None:
    store = open_store(bucket)
    play(store, 1, 1, 2, 3)
    path = "j.journal/000001-000002"
    data = bytearray(store.get(path))
    if damage == "gone":
        store.delete(path)
    elif damage == "cut":
        store.put(path, bytes(data[:-1]))
    elif damage == "emptied":
        store.put(path, b"")
    else:
        data[-1] ^= 1
        store.put(path, bytes(data))
    with pytest.raises(CorruptionError, match=path):
        play(store, 2)


def test_notes_of_two_viewers_of_a_place_are_all_kept(location: str) -> None:
    place = open_store(location)
    place.put("small/run.json", b"{}")
    trees = [RunStore(open_store(location, read_only=True), "small") for _ in range(2)]
    plain: dict[Any, Any] = {str: "", int: 1, float: 0.0}
    values = {field.name: plain.get(field.type) for field in fields(IndexedEpisode)}
    for number in range(4):
        episode = IndexedEpisode(**{**values, "key": f"key-{number}"})
        RunNotes(trees[number % 2]).write(episode, star=True, note=f"=note\n{number}")
    for tree in trees:
        notes = RunNotes(tree).read()
        assert [of.note for of in notes.values()] == [f"=note\n{number}" for number in range(4)]
    assert place.list("small") == ["notes.jsonl", "run.json"]
