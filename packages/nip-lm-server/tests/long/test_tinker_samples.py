"""Samples by a real engine in this process: none is forgotten, whatever can't be written."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tinker_wire import read_samples
from tiny_model import make_model

from nip_base.spec import ServerSpec
from nip_lm_server.placement import make_slots
from nip_lm_server.serving.pool import EnginePool
from nip_lm_server.state.database import Database
from nip_lm_server.state.models import ModelStore
from nip_lm_server.tinker import samples
from nip_lm_server.tinker.samples import Sampler
from nip_lm_server.tinker.storage.store import TinkerStore

PAYLOAD = (
    b'{"prompt": {"chunks": [{"tokens": [5, 6]}]}, "num_samples": 16,'
    b' "sampling_params": {"max_tokens": 50, "seed": 1, "stop": []}}'
)


class Served:
    """A sampler over one engine, and what it told."""

    def __init__(self, state: Path, pool: EnginePool):
        self.store = TinkerStore(state / "tinker.sqlite3")
        self.store.add_session("s", {}, "")
        self.store.add_sampler("s:sample:0", "s", "base", None, "base")
        self.sampler = Sampler(self.store, pool, lambda _owner, seq: self.told.append(seq))
        self.told: list[int] = []

    def submit(self, seq: int) -> None:
        self.store.add_request("s:sample:0", seq, "sample", "", PAYLOAD)
        self.sampler.submit("s:sample:0", seq)

    async def ended(self, seq: int) -> Any:
        while seq not in self.told:
            await asyncio.sleep(0.005)
        return self.store.find_request("s:sample:0", seq)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    model = make_model(tmp_path / "tiny", context=64)
    spec = ServerSpec("embedded", str(model), served_model_name="base")
    database = Database(tmp_path / "jobs.sqlite3")
    models = ModelStore(tmp_path / "models", database)
    pool = EnginePool(make_slots(spec, {}, tmp_path), database, models)
    await pool.start()
    here = Served(tmp_path, pool)
    yield here
    await here.sampler.stop()
    await pool.stop()
    here.store.close()
    database.close()


async def test_a_sample_whose_result_cant_be_written_is_told(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(samples, "WAITS", (0.01,))
    served.submit(0)
    row = await served.ended(0)
    assert row.status == "done" and len(row.result) > 5_000
    # 1. Larger than the database takes: it fails, and says why.
    before = served.store._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2_000)
    served.submit(1)
    failed = await served.ended(1)
    assert failed.category == "server" and "result can't be written" in failed.error
    served.store._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)
    # 2. No room on the disk: it waits, and is what it would have been.
    served.submit(2)
    (pages,) = served.store._connection.execute("PRAGMA page_count").fetchone()
    served.store._connection.execute(f"PRAGMA max_page_count = {pages}")
    caplog.clear()
    while not any("not on record yet" in line for line in caplog.messages):
        await asyncio.sleep(0.005)
    pending = served.store.find_request("s:sample:0", 2)
    assert pending is not None and pending.status == "pending" and not served.told[2:]
    served.store._connection.execute("PRAGMA max_page_count = 1000000")
    tokens = [
        [sequence["tokens"] for sequence in read_samples(one.result)[0]]
        for one in (row, await served.ended(2))
    ]
    assert tokens[0] == tokens[1]
