"""Numbered requests and a real trainer in this process: gaps, states on disk, more models than fit."""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker_wire as wire
from tinker_wire import learn, write_request
from tiny_model import make_model

from nip_base.spec import ServerSpec
from nip_lm_server.placement import make_slots
from nip_lm_server.serving.pool import EnginePool
from nip_lm_server.state.database import Database
from nip_lm_server.state.models import ModelStore
from nip_lm_server.tinker import executor as execution
from nip_lm_server.tinker.executor import Executor
from nip_lm_server.tinker.service import TinkerService
from nip_lm_server.tinker.steps import Steps
from nip_lm_server.tinker.storage.folders import Folders
from nip_lm_server.tinker.storage.records import LoraShape
from nip_lm_server.tinker.storage.store import TinkerStore
from nip_lm_server.tinker.tinker_messages import MOST_TARGETS, decode_forward_backward
from nip_lm_server.training.resident.resident_client import ResidentDied
from nip_lm_server.training.resident.trainer import ResidentTrainer

TEXTS = [[10 + (7 * n + 3 * i) % 200 for i in range(12)] for n in range(4)]
DATA = [learn(text) for text in TEXTS]


class Here:
    """The trainer's methods, awaited; it ends when it is told to."""

    def __init__(self, base: Path):
        self._base = base
        self.trainer = ResidentTrainer(base, device="cpu", dtype="float32", threads=1)
        self.dies_before: str | None = None
        self.before: dict[str, Callable[[], Any]] = {}

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            self.before.pop(name, lambda: None)()
            if name == self.dies_before:
                self.dies_before = None
                self.trainer = ResidentTrainer(self._base, device="cpu", dtype="float32", threads=1)
                raise ResidentDied("it was killed")
            return getattr(self.trainer, name)(*arguments, **options)

        return call


class Served:
    """A store and what executes its requests; `restart` is what a new server does."""

    def __init__(self, state: Path, base: Path):
        self.state, self.base = state, base
        state.mkdir(exist_ok=True)
        self.now = 0.0
        self.open()

    def open(self) -> None:
        self.store = TinkerStore(self.state / "tinker.sqlite3")
        self.folders = Folders(self.state / "tinker")
        self.trainer = Here(self.base)

        async def publish(_name: str, _base: str, _path: Path) -> None:
            return  # the engine is tested over HTTP

        trainer: Any = self.trainer
        steps = Steps("base", trainer, self.store, self.folders, publish, 64)
        self.executor = Executor(self.store, steps, lambda *_: None, lambda: self.now)
        for model in self.store.list_open_models():
            self.executor.take_up(model)
        self.executor.start()

    async def restart(self) -> None:
        await self.executor.stop()
        self.store.close()
        self.open()

    def make(self, id: str, seed: int = 1, rank: int = 4) -> str:
        if self.store.find_session("s") is None:
            self.store.add_session("s", {}, "")
        self.store.add_model(id, "s", "base", LoraShape(rank, seed), {})
        model = self.store.find_model(id)
        assert model is not None
        self.executor.take_up(model)
        self.submit(id, 0, "create_model", b"{}")
        return id

    def submit(self, id: str, seq: int, kind: str, payload: bytes) -> None:
        self.store.add_request(id, seq, kind, "", payload)
        self.executor.submit(id, seq)

    def train(self, id: str, seq: int, data: list[bytes]) -> None:
        self.submit(id, seq, "forward_backward", write_request(id, seq, data))

    def step(self, id: str, seq: int) -> None:
        adam = {"learning_rate": 1e-2}
        body = {"model_id": id, "seq_id": seq, "adam_params": adam}
        self.submit(id, seq, "optim_step", json.dumps(body).encode())

    def steps(self, id: str, first: int, last: int) -> None:
        for number in range(first, last):
            self.train(id, 3 * number + 1, DATA[:2])
            self.train(id, 3 * number + 2, DATA[2:])
            self.step(id, 3 * number + 3)

    def save(self, id: str, seq: int, path: str) -> None:
        body = {"model_id": id, "seq_id": seq, "path": path}
        self.submit(id, seq, "save_weights", json.dumps(body).encode())

    def load(self, id: str, seq: int, path: str) -> None:
        body = {"model_id": id, "seq_id": seq, "path": path, "optimizer": True}
        self.submit(id, seq, "load_weights", json.dumps(body).encode())

    async def logprobs(self, id: str, seq: int) -> list[float]:
        body = write_request(id, seq, DATA[:1], forward_only=True)
        self.submit(id, seq, "forward", body)
        row = await self.ended(id, seq)
        assert row.result is not None, row.error
        return list(wire.read_output(row.result)[0][0])

    async def ended(self, id: str, seq: int) -> Any:
        while True:
            row = self.store.find_request(id, seq)
            assert row is not None
            if row.status != "pending":
                return row
            await asyncio.sleep(0.001)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base") / "tiny", context=64)


@pytest.fixture
async def served(tmp_path: Path, base: Path) -> Any:
    here = Served(tmp_path / "state", base)
    yield here
    await here.executor.stop()
    here.store.close()


async def test_what_a_kill_interrupts_is_done_again_to_the_bit(served: Served) -> None:
    plain = served.make("plain")
    served.steps(plain, 0, 3)
    expected = await served.logprobs(plain, 10)
    other = served.make("other")
    # In the middle of a gradient, before a step and behind one; the trainer in between.
    served.train(other, 1, DATA[:2])
    await served.ended(other, 1)
    await served.restart()
    served.train(other, 2, DATA[2:])
    served.trainer.dies_before = "optim_step"
    served.step(other, 3)
    await served.ended(other, 3)
    await served.restart()
    served.steps(other, 1, 3)
    assert await served.logprobs(other, 10) == expected


async def test_payloads_go_once_a_state_is_behind_them(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = served.make("plain")
    served.steps(plain, 0, 3)
    expected = await served.logprobs(plain, 10)
    monkeypatch.setattr(execution, "DURABLE_BYTES", 1)
    model = served.make("model")
    served.steps(model, 0, 2)
    await served.ended(model, 6)
    while (row := served.store.find_model(model)) is None or row.durable_seq != 6:
        await asyncio.sleep(0.001)
    kept = [served.store.find_request(model, seq) for seq in range(1, 7)]
    assert all(one is not None and one.payload is None for one in kept)
    assert [path.name for path in served.state.glob("tinker/*/state-*")] == ["state-6"]
    await served.restart()
    served.steps(model, 2, 3)
    assert await served.logprobs(model, 10) == expected


async def test_more_models_than_fit_take_turns_without_a_trace(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = served.make("plain")
    served.steps(plain, 0, 3)
    expected = await served.logprobs(plain, 10)
    monkeypatch.setattr(execution, "MOST_RESIDENT", 1)
    first, second = served.make("first"), served.make("second", seed=2)
    for number in range(3):
        served.steps(first, number, number + 1)
        served.steps(second, number, number + 1)
        await served.ended(second, 3 * number + 3)
    assert await served.logprobs(first, 10) == expected
    assert await served.logprobs(second, 10) != expected


async def test_a_number_that_never_comes_is_given_up_with_its_gradient(served: Served) -> None:
    model = served.make("model")
    served.train(model, 1, DATA[:1])
    await served.ended(model, 1)
    before = await served.logprobs(model, 2)
    served.step(model, 4)  # 3 is lost
    await asyncio.sleep(0.05)
    served.now += execution.GAP_S + 1
    served.executor.submit(model, 4)
    row = await served.ended(model, 4)
    assert row.category == "server" and "request 3" in row.error and "never came" in row.error
    # The gradient of request 1 went with it: a step of nothing.
    served.step(model, 5)
    await served.ended(model, 5)
    assert await served.logprobs(model, 6) == before


async def test_a_step_with_a_part_of_its_gradient_is_refused_once(served: Served) -> None:
    model = served.make("model")
    before = await served.logprobs(model, 1)
    served.train(model, 2, DATA[:1])
    served.train(model, 3, [learn([10, 1_000_000])])
    served.step(model, 4)
    assert (await served.ended(model, 3)).category == "user"
    assert "a part of its gradient" in (await served.ended(model, 4)).error
    assert await served.logprobs(model, 5) == before
    served.train(model, 6, DATA[:1])
    served.step(model, 7)
    assert (await served.ended(model, 7)).status == "done"
    assert await served.logprobs(model, 8) != before


async def test_weights_loaded_in_place_outlive_a_kill_while_their_state_is_written(
    served: Served,
) -> None:
    first, second = served.make("first"), served.make("second", seed=2)
    served.steps(first, 0, 1)
    served.save(first, 4, "saved")
    expected = await served.logprobs(first, 5)
    await served.ended(second, 0)
    served.trainer.dies_before = "save"
    served.load(second, 1, "tinker://first/weights/saved")
    assert (await served.ended(second, 1)).status == "done"
    assert await served.logprobs(second, 2) == expected
    await served.restart()
    assert await served.logprobs(second, 3) == expected


@pytest.mark.parametrize("kind", ["save_weights", "save_weights_for_sampler"])
async def test_weights_recorded_before_a_kill_are_the_result_after_it(
    served: Served, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = served.make("model")
    served.steps(model, 0, 1)
    await served.ended(model, 3)

    def killed(*_: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(served.store, "end_request", killed)
    body = {"model_id": model, "seq_id": 4, "path": "saved"}
    served.submit(model, 4, kind, json.dumps(body).encode())
    while served.store.count("checkpoints") == 0:
        await asyncio.sleep(0.001)
    await served.restart()
    row = await served.ended(model, 4)
    assert row.status == "done" and json.loads(row.result)["path"].endswith("/saved"), row.error
    # Another request under the same name is refused as ever.
    served.submit(model, 5, kind, json.dumps({**body, "seq_id": 5}).encode())
    assert (await served.ended(model, 5)).category == "user"


async def test_a_snapshot_never_gets_the_number_of_another_sampler(served: Served) -> None:
    model = served.make("s:train:0")
    served.steps(model, 0, 1)
    assert served.store.add_sampler("s:sample:5", "s", "base", None, "base")
    for seq, number in ((4, 5), (5, 6)):
        body = {"model_id": model, "seq_id": seq, "sampling_session_seq_id": number}
        served.submit(model, seq, "save_weights_for_sampler", json.dumps(body).encode())
    row = await served.ended(model, 4)
    assert row.category == "user" and "number 5 was used for another sampler" in row.error
    assert (await served.ended(model, 5)).status == "done"
    # Nor the other way round.
    assert not served.store.add_sampler("s:sample:6", "s", "base", None, "base")
    sampler = served.store.find_sampler("s:sample:6")
    assert sampler is not None and sampler.served_name == "s:sample:6"


async def test_weights_of_another_shape_are_not_loaded_into_a_model(served: Served) -> None:
    first, second = served.make("first"), served.make("second", rank=8)
    served.save(first, 1, "saved")
    await served.ended(first, 1)
    await served.ended(second, 0)
    served.load(second, 1, "tinker://first/weights/saved")
    row = await served.ended(second, 1)
    assert row.category == "user" and "rank=4" in row.error and "with 8" in row.error
    await served.restart()
    assert len(await served.logprobs(second, 2)) == len(TEXTS[0]) - 1


async def test_a_result_that_cant_be_written_fails_its_request_alone(served: Served) -> None:
    first, second = served.make("first"), served.make("second", seed=2)
    await served.ended(second, 0)
    # SQLite takes a gigabyte; the rest of what is written here is smaller than this.
    served.store._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 20_000)
    zeros = np.zeros((50, 1000), "<i8")
    wide = wire.datum(
        [list(range(10, 60))],
        target_tokens=wire.sparse_tensor(zeros, wire.INT64),
        weights=wire.sparse_tensor(zeros, wire.FLOAT32),
    )
    served.train(first, 1, [wide])
    row = await served.ended(first, 1)
    assert row.category == "server" and "begun 3 times" in row.error
    served.steps(second, 0, 1)
    assert (await served.ended(second, 3)).status == "done"


def test_a_few_bytes_that_say_millions_of_targets_are_refused() -> None:
    wide = wire.datum([[10]], target_tokens=wire.sparse_tensor(np.zeros((1, 1000)), wire.INT64))
    few = decode_forward_backward(write_request("m", 1, [wide] * 100))
    assert few.refusal is None and len(few.data) == 100
    many = decode_forward_backward(write_request("m", 1, [wide] * (MOST_TARGETS // 1000 + 1)))
    assert many.refusal is not None and "4001000 values" in many.refusal and not many.data


@pytest.mark.parametrize("restarted", [False, True])
async def test_after_a_gap_no_step_is_taken_with_the_rest_of_the_gradient(
    served: Served, restarted: bool
) -> None:
    model = served.make("model")
    served.train(model, 1, DATA[:1])
    await served.ended(model, 1)
    served.train(model, 3, DATA[1:2])  # 2 is lost
    await asyncio.sleep(0.05)
    served.now += execution.GAP_S + 1
    served.executor.submit(model, 3)
    await served.ended(model, 3)
    served.train(model, 4, DATA[2:3])
    await served.ended(model, 4)
    if restarted:
        await served.restart()
    served.step(model, 5)
    assert "a part of its gradient" in ((await served.ended(model, 5)).error or "")
    served.train(model, 6, DATA)
    served.step(model, 7)
    assert (await served.ended(model, 7)).status == "done"


async def test_a_step_refused_for_its_numbers_says_that_the_gradient_stays(served: Served) -> None:
    norms = []
    for model in ("plain", "other"):
        served.make(model)
        served.train(model, 1, DATA)
        if model == "other":
            body = {"model_id": model, "seq_id": 2, "adam_params": {"beta1": 1.0}}
            served.submit(model, 2, "optim_step", json.dumps(body).encode())
            row = await served.ended(model, 2)
            assert "beta1" in row.error and "gradient so far stays" in row.error
        served.step(model, 2 if model == "plain" else 3)
        row = await served.ended(model, 2 if model == "plain" else 3)
        norms.append(json.loads(row.result))
    assert norms[0] == norms[1]


async def test_models_that_were_only_made_take_no_more_room_than_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "MOST_RESIDENT", 2)
    for number in range(5):
        await served.ended(served.make(f"model-{number}", number), 0)
    assert len(served.trainer.trainer._models) == 2


async def test_a_gradient_that_cant_be_stepped_with_is_taken_back(served: Served) -> None:
    outcomes = []
    for model in ("plain", "other"):
        served.make(model)
        if model == "other":
            tokens = TEXTS[0]
            weights = wire.tensor(np.full(len(tokens) - 1, 1.8e19), wire.FLOAT32)
            targets = wire.tensor(tokens[1:], wire.INT64)
            large = wire.datum([tokens[:-1]], target_tokens=targets, weights=weights)
            for seq in (1, 2, 3):
                served.train(model, seq, [large])
            served.step(model, 4)
            row = await served.ended(model, 4)
            assert row.category == "user" and "this gradient is taken back" in row.error
        seq = 5 if model == "other" else 1
        served.train(model, seq, DATA)
        served.step(model, seq + 1)
        outcomes.append((await served.ended(model, seq + 1)).result)
    assert outcomes[0] == outcomes[1]


async def test_requests_that_no_step_is_behind_are_bounded(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(served.state / "jobs.sqlite3")
    spec = ServerSpec("embedded", str(served.base), served_model_name="base")
    models = ModelStore(served.state / "models", database)
    service = TinkerService(
        served.state, EnginePool(make_slots(spec, {}, served.state), database, models), {}
    )
    service._executors["base"] = served.executor
    payload = write_request("m", 1, DATA)
    monkeypatch.setattr(execution, "MOST_PAYLOADS", int(2.5 * len(payload)))
    model = served.make("m")
    for seq in (1, 2, 3):
        service.submit(model, seq, "forward_backward", str(seq), payload)
    refused = await served.ended(model, 3)
    assert refused.category == "user" and "with request 3" in refused.error
    assert "call optim_step" in refused.error and str(execution.MOST_PAYLOADS) in refused.error
    assert service.submit(model, 3, "forward_backward", "3", payload) == "m:3"
    served.step(model, 4)
    assert "a part of its gradient" in (await served.ended(model, 4)).error
    assert served.store.payload_bytes(model) < len(payload)
    service.submit(model, 5, "forward_backward", "5", payload)
    served.step(model, 6)
    assert (await served.ended(model, 6)).status == "done"
    service.store.close()
    database.close()


async def test_a_session_that_ends_while_a_state_is_written_leaves_none(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "DURABLE_BYTES", 1)
    model = served.make("model")
    served.trainer.before["save"] = lambda: served.executor.forget(model)
    served.steps(model, 0, 1)
    await served.ended(model, 3)
    while served.trainer.trainer._models or [*served.state.glob("tinker/*/*")]:
        await asyncio.sleep(0.001)
    row = served.store.find_model(model)
    assert row is not None and row.durable_seq == 3  # it was written, and gone with its session


async def test_a_model_whose_state_cant_be_written_makes_room_and_loses_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = served.make("plain")
    served.steps(plain, 0, 2)
    expected = await served.logprobs(plain, 7)
    monkeypatch.setattr(execution, "MOST_RESIDENT", 1)
    first = served.make("first")
    served.steps(first, 0, 1)
    await served.ended(first, 3)
    # What a directory is to be made of is a file: every write of this state breaks.
    served.folders.path(first, "state", 3).with_name(".state-3.part").write_text("")
    second = served.make("second", seed=2)
    assert (await served.ended(second, 0)).status == "done"
    row = served.store.find_model(first)
    assert row is not None and row.durable_seq == -1
    served.steps(first, 1, 2)
    assert await served.logprobs(first, 7) == expected


async def test_the_loop_goes_on_while_a_large_request_is_decoded(served: Served) -> None:
    model = served.make("model")
    await served.ended(model, 0)
    # Its first datum is refused by the trainer, so nearly all the work is to decode the others.
    data = [learn([10, 1_000_000]), *[learn(TEXTS[0])] * 8000]
    served.train(model, 1, data)
    turns = 0
    while served.store.is_pending(model, 1):
        turns += 1
        await asyncio.sleep(0)
    row = await served.ended(model, 1)
    assert row.category == "user" and "datum 0" in row.error
    assert turns > 20  # on the loop itself: 2
