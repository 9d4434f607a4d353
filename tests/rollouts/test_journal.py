"""What was acknowledged is there after any crash; damage is named; nobody else writes along."""

import asyncio
import errno
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nip_core.errors import CorruptionError, StoreError
from nip_core.rollouts.storage.journal import FILE_HEADER, Journal

HYPOTHESIS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
batches = st.lists(
    st.lists(st.dictionaries(st.text(), json_values, max_size=3), min_size=1, max_size=4),
    min_size=1,
    max_size=5,
)


async def write(path: Path, groups: list[list[dict[str, Any]]]) -> list[int]:
    """Append each group as one commit; the file's size after each."""
    sizes = []
    async with Journal(path, sync_interval_s=0) as journal:
        for group in groups:
            await asyncio.gather(*(journal.append(record) for record in group))
            sizes.append(path.stat().st_size)
    return sizes


def replay(path: Path) -> list[dict[str, Any]]:
    journal = Journal(path)
    try:
        return journal.replay()
    finally:
        journal.close()


@HYPOTHESIS
@given(groups=batches, cut=st.floats(0, 1))
async def test_a_journal_cut_anywhere_gives_the_commits_before_the_cut_and_goes_on(
    tmp_path: Path, groups: list[list[dict[str, Any]]], cut: float
) -> None:
    path = tmp_path / f"{uuid.uuid4().hex}.journal"
    sizes = await write(path, groups)
    whole = path.read_bytes()
    offset = round(cut * len(whole))
    path.write_bytes(whole[:offset])
    kept = [record for group, size in zip(groups, sizes) if size <= offset for record in group]
    async with Journal(path) as journal:
        assert journal.replay() == kept
        await journal.append({"after": True})
    assert replay(path) == [*kept, {"after": True}]


@HYPOTHESIS
@given(groups=batches, place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
async def test_a_flipped_bit_is_named_or_in_the_last_commit_dropped(
    tmp_path: Path,
    groups: list[list[dict[str, Any]]],
    place: float,
    bit: int,
) -> None:
    path = tmp_path / f"{uuid.uuid4().hex}.journal"
    sizes = await write(path, groups)
    data = bytearray(path.read_bytes())
    offset = int(place * len(data))
    data[offset] ^= 1 << bit
    path.write_bytes(data)
    last_begins = sizes[-2] if len(sizes) > 1 else len(FILE_HEADER)
    if offset >= last_begins:
        assert replay(path) == [record for group in groups[:-1] for record in group]
    else:
        with pytest.raises(CorruptionError, match=r"\.journal: damaged at byte \d+"):
            replay(path)
        assert path.read_bytes() == data  # nothing is repaired


async def test_a_damaged_length_in_the_middle_does_not_pass_for_a_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    await write(path, [[{"n": 1}], [{"n": 2}], [{"n": 3}]])
    data = bytearray(path.read_bytes())
    data[len(FILE_HEADER) + 4 : len(FILE_HEADER) + 8] = (10**6).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=f"damaged at byte {len(FILE_HEADER)}"):
        replay(path)


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"something else entirely")
    with pytest.raises(CorruptionError, match="not a journal"):
        replay(tmp_path / "a")


def test_a_new_journal_is_empty(tmp_path: Path) -> None:
    assert replay(tmp_path / "new" / "a.journal") == []
    assert replay(tmp_path / "new" / "a.journal") == []


async def test_a_cancelled_append_is_written_all_the_same(tmp_path: Path) -> None:
    async with Journal(tmp_path / "a") as journal:
        task = asyncio.create_task(journal.append({"n": 1}))
        await asyncio.sleep(0)
        task.cancel()
        await journal.append({"n": 2})
    assert replay(tmp_path / "a") == [{"n": 1}, {"n": 2}]


async def test_waiting_writers_share_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = []
    real = os.fsync
    journal = Journal(tmp_path / "a")
    journal.replay()

    def fsync(file: int) -> None:
        syncs.append(time.monotonic())
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    limit = asyncio.Semaphore(64)

    async def append(number: int) -> None:
        async with limit:
            await journal.append({"key": f"{number:016d}", "text": "x" * 400})

    cpu, began = time.process_time(), time.monotonic()
    await asyncio.gather(*(append(number) for number in range(2000)))
    cpu, wall = time.process_time() - cpu, time.monotonic() - began
    await journal.aclose()
    monkeypatch.undo()
    assert len(replay(tmp_path / "a")) == 2000
    assert 2000 // 64 <= len(syncs) <= wall / 0.009 + 1
    assert cpu < 1.0


async def test_a_record_that_is_not_json_harms_no_other(tmp_path: Path) -> None:
    async with Journal(tmp_path / "a") as journal:
        with pytest.raises((ValueError, TypeError)):
            await journal.append({"n": float("nan")})
        await journal.append({"n": 1})
    assert replay(tmp_path / "a") == [{"n": 1}]


async def test_a_full_disk_fails_every_later_append_and_keeps_what_was_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    journal = Journal(path)
    await journal.append({"n": 1})
    size = path.stat().st_size
    real = os.pwrite

    def half(file: int, data: Any, offset: int) -> int:
        real(file, bytes(data)[:5], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", half)
    waiting = await asyncio.gather(
        *(journal.append({"n": n}) for n in (2, 3)), return_exceptions=True
    )
    assert [type(error) for error in waiting] == [StoreError, StoreError]
    assert "disk full" in str(waiting[0])
    monkeypatch.undo()
    assert path.stat().st_size == size
    with pytest.raises(StoreError, match="disk full"):
        await journal.append({"n": 4})
    await journal.aclose()
    assert replay(path) == [{"n": 1}]


def test_a_journal_is_open_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a")
    with pytest.raises(StoreError, match="another process"):
        Journal(tmp_path / "a")
    journal.close()
    replay(tmp_path / "a")


def test_what_a_killed_process_was_told_is_durable_is_there(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from nip_core.rollouts.storage.journal import Journal
async def main():
    journal = Journal(Path(sys.argv[1]))
    async def one(number):
        await journal.append({"n": number, "text": "x" * 1000})
        print(number, flush=True)
    for start in range(0, 1000000, 16):
        await asyncio.gather(*(one(start + n) for n in range(16)))
asyncio.run(main())
"""
    path = tmp_path / "a.journal"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(150)]
    process.kill()
    told += [int(line) for line in process.stdout.read().split()]
    process.wait()
    process.stdout.close()
    found = [record["n"] for record in replay(path)]
    assert set(told) <= set(found)
    assert found == list(range(len(found)))
    assert len(found) - len(told) <= 16


async def test_a_finished_journal_can_be_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a")
    await journal.append({"n": 1})
    await journal.aclose()
    journal.remove()
    journal.remove()
    assert not (tmp_path / "a").exists()


async def test_a_journal_whose_closing_is_cancelled_is_not_left_locked(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, sync_interval_s=5.0)
    journal.replay()
    await journal.append({"first": 1})
    waiting = asyncio.create_task(journal.append({"second": 2}))
    await asyncio.sleep(0)
    closing = asyncio.create_task(journal.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(StoreError, match="closed before it was written"):
        await asyncio.wait_for(waiting, 10)
    again = Journal(path)
    assert {"first": 1} in again.replay()
    again.close()
