"""What Tinker's API keeps: by number, once, and no longer than it is needed."""

import sqlite3
from pathlib import Path

import pytest

from nip_lm_server.state.directory import StateError
from nip_lm_server.tinker.storage import upkeep
from nip_lm_server.tinker.storage.records import LoraShape
from nip_lm_server.tinker.storage.store import KEPT_S, UNFETCHED_S, TinkerStore


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def open_with_a_model(path: Path, clock: Clock) -> TinkerStore:
    store = TinkerStore(path, clock)
    store.add_session("s", {"key": "value"}, "0.38.0")
    store.add_model("m", "s", "base", LoraShape(8, train_mlp=False), {"name": "x"})
    return store


def test_a_database_of_a_newer_server_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "tinker.sqlite3"
    TinkerStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(StateError, match="format 99"):
        TinkerStore(path)
    assert path.read_bytes() == before


def test_rows_come_back_as_they_were_entered(tmp_path: Path) -> None:
    store = open_with_a_model(tmp_path / "tinker.sqlite3", Clock())
    model = store.find_model("m")
    assert model is not None and model.lora == LoraShape(8, train_mlp=False)
    assert model.user_metadata == {"name": "x"} and model.durable_seq == -1
    session = store.find_session("s")
    assert session is not None and session.user_metadata == {"key": "value"}
    store.close()


def test_a_number_has_one_request_and_one_end(tmp_path: Path) -> None:
    store = open_with_a_model(tmp_path / "tinker.sqlite3", Clock())
    store.add_request("m", 1, "forward", "digest", b"payload")
    with pytest.raises(sqlite3.IntegrityError):
        store.add_request("m", 1, "forward", "other", b"payload")
    store.end_request("m", 1, b"first", is_protobuf=True)
    store.end_request("m", 1, b"second", is_protobuf=True)
    store.fail_request("m", 1, "late", "server")
    row = store.find_request("m", 1)
    assert row is not None and (row.status, row.result, row.error) == ("done", b"first", None)
    assert store.find_digest("m", 1) == "digest" and store.next_seq("m") == 2
    store.close()


def test_results_go_after_they_were_fetched_or_nobody_came(tmp_path: Path) -> None:
    clock = Clock()
    store = open_with_a_model(tmp_path / "tinker.sqlite3", clock)
    for seq in (1, 2):
        store.add_request("m", seq, "forward", "", b"")
        store.end_request("m", seq, b"result", is_protobuf=False)
    store.note_fetched("m", 1)
    clock.now += KEPT_S - 1
    assert store.drop_old_results() == 0
    clock.now += 2
    assert store.drop_old_results() == 1
    clock.now += UNFETCHED_S
    assert store.drop_old_results() == 1
    store.close()


async def test_rows_of_ended_sessions_go_in_batches_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "BATCH_ROWS", 7)
    clock = Clock()
    store = open_with_a_model(tmp_path / "tinker.sqlite3", clock)
    store.add_session("open", {}, "")
    store.add_model("m2", "open", "base", LoraShape(8), {})
    for sampler, session in (("s:sample:0", "s"), ("s:sample:1", "s"), ("open:sample:0", "open")):
        store.add_sampler(sampler, session, "base", None, "base")
    for owner in ("m", "m2", "s:sample:0", "open:sample:0"):
        for seq in range(20):
            store.add_request(owner, seq, "sample", "", b"")
            store.end_request(owner, seq, b"result", is_protobuf=False)
    store.finish_session("s", "{}")
    assert await upkeep.drop_rows(store) == 0  # a client may still ask for its results
    clock.now += UNFETCHED_S + 1
    assert [store.drop_requests(7), store.drop_requests(7)] == [7, 7]
    assert await upkeep.drop_rows(store) == 19 + 20 - 14 + 2
    # What was asked of the model last says when; the open session has all that it had.
    assert store.count("requests") == 1 + 40 and store.count("samplers") == 1
    assert store.find_last_time("m") == 1000.0 and store.find_model("m") is not None
    assert await upkeep.drop_rows(store) == 0
    store.close()


def test_a_part_of_a_gradient_counts_until_its_step(tmp_path: Path) -> None:
    store = open_with_a_model(tmp_path / "tinker.sqlite3", Clock())
    for seq, kind in enumerate(("forward_backward", "forward_backward", "optim_step"), 1):
        store.add_request("m", seq, kind, "", b"")
    store.end_request("m", 1, b"", is_protobuf=True)
    store.fail_request("m", 2, "too long", "user")
    assert store.has_gradient("m") and "request 2 failed (too long)" in str(store.find_broken("m"))
    store.void_since_step("m", 3)
    store.fail_request("m", 3, "a part failed", "user")
    assert not store.has_gradient("m") and store.find_broken("m") is None
    assert store.list_replayed("m", 0, 4) == []
    store.close()
