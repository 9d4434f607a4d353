"""Exactly one job, whatever goes wrong around its submission; every ending is told apart."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from job_server import FakeTime, WireServer

from nip_base.wire import NipSettings
from nip_core.errors import (
    CorruptionError,
    DeadlineError,
    JobError,
    LeaseError,
    ParkedError,
    RunConflictError,
)
from nip_core.jobs.job import Backend, JobRecord, JobSpec, JobView, job_key
from nip_core.jobs.ledger import Ledger
from nip_core.jobs.openai_backend import NipBackend, OpenAIBackend
from nip_core.run_store.lease import acquire
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.run import RunStore

SETTLE_S = 8.0
DATASET = b"".join(
    json.dumps({"messages": [{"role": "user", "content": str(i)}]}).encode() + b"\n"
    for i in range(12)
)
SPEC = JobSpec(
    run="quick",
    iteration=0,
    group="shared",
    dataset_digest="d" * 64,
    parent_model="tiny",
    parent_model_digest="m" * 64,
    seed=7,
    examples=12,
    hyper_parameters={"n_epochs": 3},
    nip=NipSettings(lora_rank=8),
    suffix="quick-0000-shared",
)


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


@pytest.fixture
async def backend(wire: WireServer) -> AsyncIterator[OpenAIBackend]:
    backend = NipBackend(wire.url, "sk-secret", timeout_s=5)
    yield backend
    await backend.aclose()


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    return RunStore(LocalStore(tmp_path), "quick")


def make_ledger(run: RunStore, backend: Backend, time: FakeTime, **more: Any) -> Ledger:
    return Ledger(run, backend, settle_s=SETTLE_S, patience_s=60, clock=time.clock, **more)


@pytest.fixture
def ledger(run: RunStore, backend: OpenAIBackend, fake_time: FakeTime) -> Ledger:
    return make_ledger(run, backend, fake_time)


async def test_a_job_is_submitted_with_key_metadata_settings_and_seed(
    ledger: Ledger, wire: WireServer
) -> None:
    record = await ledger.ensure_job(SPEC, DATASET)
    assert (record.state, record.id, record.creates_open) == ("submitted", "ftjob-0", 1)
    ((header, body),) = wire.creates
    assert header == SPEC.key == body["metadata"]["nip_key"]
    assert body["method"] == {
        "type": "supervised",
        "supervised": {"hyperparameters": {"n_epochs": 3}},
    }
    assert (body["nip"], body["seed"], body["model"]) == ({"lora_rank": 8}, 7, "tiny")
    assert body["suffix"] == "quick-0000-shared"
    assert wire.contents[body["training_file"]] == DATASET
    assert wire.files[0]["filename"].startswith("nip-")
    assert wire.log == ["files", "upload", "create"]


async def test_asking_again_gives_the_recorded_job_without_any_call(
    run: RunStore, backend: OpenAIBackend, fake_time: FakeTime, wire: WireServer
) -> None:
    first = await make_ledger(run, backend, fake_time).ensure_job(SPEC, DATASET)
    wire.log.clear()
    assert await make_ledger(run, backend, fake_time).ensure_job(SPEC, DATASET) == first
    assert wire.log == []


VALIDATION = DATASET.splitlines(keepends=True)[0] * 2
WITH_VALIDATION = replace(SPEC, validation_examples=2, validation_digest="v" * 64)


async def test_a_validation_file_is_uploaded_by_its_content_and_named_in_the_job(
    ledger: Ledger, wire: WireServer, tmp_path: Path
) -> None:
    training, validation = tmp_path / "training", tmp_path / "validation"
    training.write_bytes(DATASET)
    validation.write_bytes(VALIDATION)
    record = await ledger.ensure_job(WITH_VALIDATION, training, validation, note="12 examples")
    ((_, body),) = wire.creates
    assert wire.contents[body["training_file"]] == DATASET
    assert wire.contents[body["validation_file"]] == VALIDATION
    assert record.validation_file_id == body["validation_file"] != record.file_id
    assert (record.validation_examples, record.validation_digest) == (2, "v" * 64)
    assert record.events[0].what == "intent: 12 examples"
    # The same from memory has the same names: nothing is uploaded again.
    other = replace(WITH_VALIDATION, group="verifier")
    assert (await ledger.ensure_job(other, DATASET, VALIDATION)).file_id == record.file_id
    assert len(wire.files) == 2


async def test_a_refused_job_looks_for_both_files_again(ledger: Ledger, wire: WireServer) -> None:
    wire.on_create = ["400"]
    with pytest.raises(JobError):
        await ledger.ensure_job(WITH_VALIDATION, DATASET, VALIDATION)
    record = ledger.record(0, "shared")
    assert record is not None
    assert (record.file_id, record.validation_file_id) == (None, None)
    record = await ledger.ensure_job(WITH_VALIDATION, DATASET, VALIDATION)
    assert record.validation_file_id is not None and len(wire.jobs) == 1


def test_what_is_held_out_is_part_of_the_key_and_who_else_is_told_is_not() -> None:
    assert WITH_VALIDATION.key != SPEC.key
    told = replace(SPEC, integrations=[{"type": "wandb", "wandb": {"project": "p"}}])
    assert told.key == SPEC.key


async def test_integrations_are_sent_as_openai_has_them(ledger: Ledger, wire: WireServer) -> None:
    wandb = {"type": "wandb", "wandb": {"project": "p"}}
    await ledger.ensure_job(replace(SPEC, integrations=[wandb]), DATASET)
    assert wire.creates[0][1]["integrations"] == [wandb]


async def test_a_record_without_the_fields_of_validation_is_read(
    run: RunStore, backend: OpenAIBackend, fake_time: FakeTime
) -> None:
    await make_ledger(run, backend, fake_time).ensure_job(SPEC, DATASET)
    path = run.job(0, "shared")
    document = run.read_json(path)
    for name in ("validation_examples", "validation_digest", "validation_file_id"):
        del document[name]
    run.store.put(path, json.dumps(document).encode())
    record = await make_ledger(run, backend, fake_time).ensure_job(SPEC, DATASET)
    assert (record.id, record.validation_examples) == ("ftjob-0", 0)


@pytest.mark.parametrize("lag_s", [0.0, 7.9])
@pytest.mark.parametrize(
    "fault", ["drop", "drop_after", "500", "500_after", "503_after", "408", "cut", "garbage"]
)
async def test_an_unknown_outcome_never_makes_a_second_job(
    ledger: Ledger, wire: WireServer, fault: str, lag_s: float
) -> None:
    wire.on_create, wire.lag_s = [fault], lag_s
    record = await ledger.ensure_job(SPEC, DATASET)
    assert len(wire.jobs) == 1
    assert record.id == wire.jobs[0]["id"]
    had_effect = fault not in {"drop", "500", "408"}
    assert len(wire.creates) == (1 if had_effect else 2)
    assert len({key for key, _ in wire.creates}) == 1
    assert ("adopted" in record.events[-1].what) is had_effect


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    creates=st.lists(
        st.sampled_from(
            ["drop", "drop_after", "500", "500_after", "429_retry_3", "cut", "garbage", "ok"]
        ),
        max_size=8,
    ),
    lists=st.lists(st.sampled_from(["drop", "500", "429_retry_2", "cut", "ok"]), max_size=8),
    uploads=st.lists(st.sampled_from(["drop", "drop_after", "500_after", "ok"]), max_size=4),
    lag_s=st.floats(0, SETTLE_S - 0.1),
)
async def test_no_order_of_faults_makes_two_jobs(
    tmp_path_factory: pytest.TempPathFactory,
    creates: list[str],
    lists: list[str],
    uploads: list[str],
    lag_s: float,
) -> None:
    time = FakeTime()
    wire = WireServer(time, lag_s, on_create=creates, on_list=lists, on_upload=uploads)
    server = TestServer(wire.app())
    await server.start_server()
    backend = NipBackend(str(server.make_url("/v1")), "k", timeout_s=5)
    run = RunStore(LocalStore(tmp_path_factory.mktemp("run")), "quick")
    try:
        for _ in range(10):
            try:
                record = await make_ledger(run, backend, time).ensure_job(SPEC, DATASET)
            except JobError:
                assert len(wire.jobs) <= 1
                continue
            assert [job["id"] for job in wire.jobs] == [record.id]
            return
        pytest.fail("the faults are over, but there is no job")
    finally:
        await backend.aclose()
        await server.close()


async def test_a_list_that_can_not_be_read_stops_before_another_create(
    ledger: Ledger, run: RunStore, wire: WireServer
) -> None:
    wire.on_create, wire.on_list = ["drop"], ["500"] * 500
    with pytest.raises(JobError, match="can't be learned"):
        await ledger.ensure_job(SPEC, DATASET)
    assert len(wire.creates) == 1
    stored = ledger.record(0, "shared")
    assert stored is not None and (stored.state, stored.creates_open) == ("intent", 1)
    wire.on_list = []
    assert (await ledger.ensure_job(SPEC, DATASET)).state == "submitted"
    assert len(wire.jobs) == 1


async def test_a_list_that_fails_for_a_while_delays_but_decides_nothing(
    ledger: Ledger, wire: WireServer
) -> None:
    wire.on_create, wire.on_list, wire.lag_s = ["drop_after"], ["500", "drop", "cut", "429"], 5.0
    assert (await ledger.ensure_job(SPEC, DATASET)).id == "ftjob-0"
    assert len(wire.jobs) == 1


async def test_three_submissions_without_an_answer_or_a_job_are_the_end(
    ledger: Ledger, wire: WireServer
) -> None:
    wire.on_create = ["drop"] * 10
    with pytest.raises(JobError, match="3 submissions got no answer"):
        await ledger.ensure_job(SPEC, DATASET)
    assert (len(wire.creates), len(wire.jobs)) == (3, 0)


@pytest.mark.parametrize("status", ["400", "401", "403", "404", "409", "422"])
async def test_a_refusal_is_recorded_raised_and_not_repeated(
    ledger: Ledger, wire: WireServer, status: str
) -> None:
    wire.on_create = [status]
    with pytest.raises(JobError, match=rf"HTTP {status}"):
        await ledger.ensure_job(SPEC, DATASET)
    assert wire.log == ["files", "upload", "create"]
    stored = ledger.record(0, "shared")
    assert stored is not None
    assert (stored.state, stored.outcome) == ("terminal", "refused")
    assert f"told to answer {status}" in (stored.reason or "")
    # Nothing happened there, so running again, with the right key say, does submit.
    assert (await ledger.ensure_job(SPEC, DATASET)).state == "submitted"
    assert len(wire.jobs) == 1


async def test_retry_after_is_honoured_up_to_a_deadline(
    ledger: Ledger, wire: WireServer, fake_time: FakeTime
) -> None:
    wire.on_create = ["429_retry_17"]
    await ledger.ensure_job(SPEC, DATASET)
    assert fake_time.slept == [17.0]
    assert len(wire.jobs) == 1
    wire.on_create = ["429_retry_100"]
    with pytest.raises(JobError, match="too busy"):
        await ledger.ensure_job(replace(SPEC, group="verifier"), DATASET)
    assert len(wire.jobs) == 1


async def test_a_server_that_ignores_the_filter_and_pages_is_searched_to_the_end(
    ledger: Ledger, wire: WireServer
) -> None:
    wire.filters, wire.page = False, 2
    for iteration in range(1, 6):
        await ledger.ensure_job(replace(SPEC, iteration=iteration), DATASET)
    wire.jobs.reverse()  # so that the one to find is on the last page
    wire.on_create = ["500_after"]
    record = await ledger.ensure_job(SPEC, DATASET)
    assert record.id == "ftjob-5"
    assert len(wire.jobs) == 6
    assert wire.log[-3:] == ["list"] * 3


@pytest.mark.parametrize("fault", ["drop_after", "500_after", "cut"])
async def test_an_upload_without_an_answer_is_found_and_used(
    ledger: Ledger, wire: WireServer, fault: str
) -> None:
    wire.on_upload = [fault]
    record = await ledger.ensure_job(SPEC, DATASET)
    assert (len(wire.files), record.file_id) == (1, "file-0")


async def test_equal_datasets_are_uploaded_once(ledger: Ledger, wire: WireServer) -> None:
    await ledger.ensure_job(SPEC, DATASET)
    await ledger.ensure_job(replace(SPEC, group="verifier"), DATASET)
    assert (len(wire.files), len(wire.jobs)) == (1, 2)


class Mortal:
    """Passes calls on until the number `kill_at`, then dies before or after having its effect."""

    def __init__(self, inner: Any, names: set[str], count: list[int], kill_at: int, after: bool):
        self._inner, self._names, self._count = inner, names, count
        self._kill_at, self._after = kill_at, after

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name not in self._names:
            return value
        is_async = name in {"find_file", "upload", "create_job", "find_jobs"}

        def due() -> bool:
            self._count[0] += 1
            return self._count[0] == self._kill_at + 1

        def call(*args: Any, **kwargs: Any) -> Any:
            dies = due()
            if dies and not self._after:
                raise Killed
            result = value(*args, **kwargs)
            if dies:
                raise Killed
            return result

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            dies = due()
            if dies and not self._after:
                raise Killed
            result = await value(*args, **kwargs)
            if dies:
                raise Killed
            return result

        return call_async if is_async else call


@pytest.mark.parametrize("after", [False, True])
async def test_a_kill_at_any_write_or_call_leaves_one_job(
    tmp_path: Path, backend: OpenAIBackend, wire: WireServer, fake_time: FakeTime, after: bool
) -> None:
    wire.lag_s = 5.0
    kill_at, killed = 0, True
    while killed:
        store = LocalStore(tmp_path / str(kill_at))
        wire.jobs.clear()
        wire.files.clear()
        count = [0]
        mortal_store = Mortal(store, {"put_if_absent", "put_if_match"}, count, kill_at, after)
        mortal = Mortal(
            backend, {"find_file", "upload", "create_job", "find_jobs"}, count, kill_at, after
        )
        try:
            await make_ledger(RunStore(mortal_store, "quick"), mortal, fake_time).ensure_job(
                SPEC, DATASET
            )
            killed = False
        except Killed:
            pass
        record = await make_ledger(RunStore(store, "quick"), backend, fake_time).ensure_job(
            SPEC, DATASET
        )
        assert [job["id"] for job in wire.jobs] == [record.id], f"killed at {kill_at}"
        assert len(wire.files) == 1
        kill_at += 1
    assert kill_at == 8  # intent, look, upload, file, open, create, submitted; and one unharmed


async def test_too_few_examples_are_recorded_without_any_call(
    ledger: Ledger, wire: WireServer
) -> None:
    record = await ledger.ensure_job(replace(SPEC, examples=7), DATASET)
    assert (record.state, record.outcome) == ("terminal", "skipped")
    assert record.events[-1].what == "skipped: 7 examples, 10 needed"
    assert wire.log == []


async def test_another_dataset_for_the_same_attempt_is_refused(
    ledger: Ledger, wire: WireServer
) -> None:
    await ledger.ensure_job(SPEC, DATASET)
    with pytest.raises(RunConflictError, match=r"dataset_digest: d+ -> e+"):
        await ledger.ensure_job(replace(SPEC, dataset_digest="e" * 64), DATASET)
    assert len(wire.jobs) == 1


async def test_a_new_attempt_after_a_failed_job_is_a_new_job_with_the_old_one_on_record(
    ledger: Ledger, wire: WireServer
) -> None:
    wire.on_poll = ["failed"]
    record = await ledger.poll(await ledger.ensure_job(SPEC, DATASET), interval_s=1, deadline_s=100)
    assert record.outcome == "failed"
    second = await ledger.ensure_job(replace(SPEC, attempt=1), DATASET)
    assert (second.id, second.attempt, second.key) != (record.id, record.attempt, record.key)
    assert [attempt.id for attempt in second.previous] == ["ftjob-0"]
    assert len(wire.jobs) == 2


async def test_a_replaced_runner_submits_nothing(
    run: RunStore, backend: OpenAIBackend, fake_time: FakeTime, wire: WireServer
) -> None:
    first = acquire(run.store, run.root, renew=False, ttl_s=0.2)
    second = acquire(run.store, run.root, renew=False, ttl_s=0.2)
    with pytest.raises(LeaseError):
        await make_ledger(run, backend, fake_time, lease=first).ensure_job(SPEC, DATASET)
    assert wire.creates == []
    record = await make_ledger(run, backend, fake_time, lease=second).ensure_job(SPEC, DATASET)
    assert record.state == "submitted"


async def test_a_damaged_document_is_named(ledger: Ledger, run: RunStore) -> None:
    run.store.put(run.job(0, "shared"), b'{"state": "submitted"}')
    with pytest.raises(CorruptionError, match=r"jobs/shared\.json"):
        await ledger.ensure_job(SPEC, DATASET)


# Polling ----------------------------------------------------------------------------------------


async def submitted(ledger: Ledger) -> JobRecord:
    return await ledger.ensure_job(SPEC, DATASET)


async def test_a_succeeded_job_is_recorded_with_model_tokens_and_events(
    run: RunStore, backend: OpenAIBackend, fake_time: FakeTime, wire: WireServer
) -> None:
    ledger = make_ledger(run, backend, fake_time)
    wire.on_poll = ["validating_files", "queued", "running", "running", "succeeded"]
    record = await submitted(ledger)
    record = await ledger.poll(record, interval_s=1, deadline_s=1000)
    assert (record.outcome, record.model, record.trained_tokens) == (
        "succeeded",
        "ft:tiny:quick:1",
        1234,
    )
    assert [event["data"]["step"] for event in record.backend_events] == [0, 1, 2]
    assert record.effective is not None and record.effective["n_epochs"] == 3
    assert [event.what for event in record.events] == [
        "intent",
        "training file is there",
        "submitted as ftjob-0",
        "validating_files",
        "queued",
        "running",
        "succeeded: ft:tiny:quick:1",
    ]
    wire.log.clear()
    assert await ledger.poll(record, interval_s=1, deadline_s=1000) == record
    assert wire.log == []


async def test_a_loss_that_is_no_number_is_recorded_as_unknown(
    run: RunStore, backend: OpenAIBackend, fake_time: FakeTime, wire: WireServer
) -> None:
    ledger = make_ledger(run, backend, fake_time)
    wire.on_poll = ["succeeded"]
    wire.losses = {1: float("nan"), 2: float("inf")}
    record = await ledger.poll(await submitted(ledger), interval_s=1, deadline_s=1000)
    assert record.outcome == "succeeded"
    assert [event["data"]["train_loss"] for event in record.backend_events] == [1, None, None]


@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_failed_and_cancelled_are_ends(ledger: Ledger, wire: WireServer, status: str) -> None:
    wire.on_poll = ["running", status]
    wire.job_fields = {"error": {"code": "bad_line", "param": "training_file", "message": "line 3"}}
    record = await ledger.poll(await submitted(ledger), interval_s=1, deadline_s=1000)
    assert (record.outcome, record.model) == (status, None)
    assert record.reason == "bad_line: training_file: line 3"


async def test_an_unknown_status_and_a_pause_are_no_ends(
    ledger: Ledger, wire: WireServer, caplog: pytest.LogCaptureFixture
) -> None:
    wire.on_poll = ["paused", "polishing", "polishing", "running", "succeeded"]
    record = await ledger.poll(await submitted(ledger), interval_s=1, deadline_s=1000)
    assert record.outcome == "succeeded"
    assert [r.message for r in caplog.records if "polishing" in r.message] == [
        "job ftjob-0: status 'polishing' is not known; waiting on"
    ]


async def test_failed_looks_are_not_a_failed_job(ledger: Ledger, wire: WireServer) -> None:
    wire.on_poll = ["500", "drop", "cut", "garbage", "429_retry_9", "503"] * 5 + ["succeeded"]
    record = await ledger.poll(await submitted(ledger), interval_s=1, deadline_s=10_000)
    assert record.outcome == "succeeded"


async def test_looks_grow_rarer_and_retry_after_is_honoured(
    ledger: Ledger, wire: WireServer, fake_time: FakeTime
) -> None:
    wire.on_poll = ["queued"] * 9 + ["429_retry_77", "succeeded"]
    record = await submitted(ledger)
    await ledger.poll(record, interval_s=1, deadline_s=10_000)
    assert fake_time.slept[:3] == [1.0, 1.5, 2.25]
    assert fake_time.slept[8] == 10.0
    assert fake_time.slept[-1] == 77.0


async def test_the_deadline_counts_from_the_submission_across_restarts(
    ledger: Ledger, wire: WireServer, fake_time: FakeTime
) -> None:
    wire.on_poll = ["running"] * 1000
    record = await submitted(ledger)
    start = fake_time.seconds
    with pytest.raises(JobError, match=r"not finished 100 s after its submission.*'running'"):
        await ledger.poll(record, interval_s=1, deadline_s=100)
    assert fake_time.seconds - start == pytest.approx(100)
    stored = ledger.record(0, "shared")
    assert stored is not None and stored.state == "submitted"
    fake_time.seconds += 20
    looks = wire.log.count("poll")
    with pytest.raises(JobError, match="not finished"):
        await ledger.poll(record, interval_s=1, deadline_s=100)
    assert wire.log.count("poll") == looks + 1
    wire.on_poll = ["succeeded"]  # waiting longer finds the end
    assert (await ledger.poll(record, interval_s=1, deadline_s=500)).outcome == "succeeded"


async def test_a_clock_jump_while_waiting_moves_no_deadline(
    run: RunStore,
    backend: OpenAIBackend,
    wire: WireServer,
    fake_time: FakeTime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look = backend.retrieve_job

    async def jump(job_id: str) -> JobView:
        fake_time.jump_s = 10**7
        return await look(job_id)

    ledger = make_ledger(run, backend, fake_time)
    wire.on_poll = ["running"] * 5 + ["succeeded"]
    record = await submitted(ledger)
    monkeypatch.setattr(backend, "retrieve_job", jump)
    assert (await ledger.poll(record, interval_s=1, deadline_s=100)).outcome == "succeeded"


async def test_an_estimated_finish_spares_looks(
    ledger: Ledger, wire: WireServer, fake_time: FakeTime
) -> None:
    record = await submitted(ledger)
    wire.job_fields = {"estimated_finish": 1_800_000_000 + 40}
    wire.on_poll = ["running"] * 1000
    with pytest.raises(JobError):
        await ledger.poll(record, interval_s=2, deadline_s=30)
    assert fake_time.slept == [20.0, 10.0]
    assert wire.log.count("poll") == 3


async def test_a_job_that_is_gone_is_told_apart_from_one_that_is_not_listed_yet(
    ledger: Ledger, wire: WireServer
) -> None:
    record = await submitted(ledger)
    wire.on_poll = ["404", "404", "running", "succeeded"]
    assert (await ledger.poll(record, interval_s=1, deadline_s=1000)).outcome == "succeeded"
    other = await ledger.ensure_job(replace(SPEC, group="verifier"), DATASET)
    wire.jobs.clear()
    ended = await ledger.poll(other, interval_s=1, deadline_s=1000)
    assert (ended.outcome, ended.state) == ("not_found", "terminal")


async def test_a_job_that_names_no_model_has_failed_once_the_back_end_can_not_lag_any_more(
    ledger: Ledger, wire: WireServer, fake_time: FakeTime
) -> None:
    record = await submitted(ledger)
    wire.on_poll = ["nameless", "nameless", "succeeded"]
    ended = await ledger.poll(record, interval_s=1, deadline_s=1000)
    assert (ended.outcome, ended.model) == ("succeeded", "ft:tiny:quick:1")
    other = await ledger.ensure_job(replace(SPEC, group="verifier"), DATASET)
    wire.on_poll = ["nameless"] * 1000
    wire.jobs[-1]["fine_tuned_model"] = None
    started_s = fake_time.seconds
    ended = await ledger.poll(other, interval_s=1, deadline_s=1000)
    assert (ended.outcome, ended.reason) == ("failed", "it has succeeded, but names no model")
    assert fake_time.seconds - started_s < 100


async def test_a_denied_look_stops_without_ending_the_job(ledger: Ledger, wire: WireServer) -> None:
    record = await submitted(ledger)
    wire.on_poll = ["401"]
    with pytest.raises(JobError, match="HTTP 401"):
        await ledger.poll(record, interval_s=1, deadline_s=1000)
    assert (await ledger.poll(record, interval_s=1, deadline_s=1000)).outcome == "succeeded"


async def test_cancel_asks_once_and_leaves_the_end_to_poll(
    ledger: Ledger, wire: WireServer
) -> None:
    record = await submitted(ledger)
    await ledger.cancel(record)
    assert wire.log[-1] == "cancel"
    wire.on_poll = ["cancelled"]
    assert (await ledger.poll(record, interval_s=1, deadline_s=10)).outcome == "cancelled"


async def test_a_job_that_is_given_up_is_cancelled_and_its_end_says_why(
    ledger: Ledger, wire: WireServer
) -> None:
    record = await submitted(ledger)
    wire.on_poll = ["running", "running", "cancelled"]
    ended = await ledger.give_up(record, "too slow")
    assert wire.log.count("cancel") == 1
    assert (ended.outcome, ended.status, ended.reason) == ("deadline", "cancelled", "too slow")
    told = [event.what for event in ended.events]
    assert told[-3:] == ["given up: too slow", "running", "deadline: too slow"]


async def test_a_kill_between_giving_up_and_the_end_keeps_the_reason(
    ledger: Ledger, wire: WireServer
) -> None:
    record = await submitted(ledger)
    wire.on_poll = ["running"] * 100_000
    with pytest.raises(JobError, match="was to be cancelled, because it is too slow"):
        await ledger.give_up(record, "too slow")
    wire.on_poll = ["cancelled"]
    ended = await ledger.poll(record, interval_s=1, deadline_s=1)
    assert (ended.outcome, ended.reason) == ("deadline", "too slow")


async def test_a_job_that_ends_before_it_is_cancelled_has_made_its_model(
    ledger: Ledger, wire: WireServer
) -> None:
    record = await submitted(ledger)
    ended = await ledger.give_up(record, "too slow")
    assert (ended.outcome, ended.model, ended.reason) == ("succeeded", "ft:tiny:quick:1", None)


async def test_a_job_that_goes_on_is_let_go_and_found_again(
    ledger: Ledger, wire: WireServer, fake_time: FakeTime
) -> None:
    wire.on_poll = ["running"] * 1000
    record = await submitted(ledger)
    start = fake_time.seconds
    with pytest.raises(ParkedError, match="goes on, running"):
        await ledger.poll(record, interval_s=1, deadline_s=1000, park_after_s=30)
    assert fake_time.seconds - start == pytest.approx(30)
    with pytest.raises(DeadlineError):  # which is nearer
        await ledger.poll(record, interval_s=1, deadline_s=40, park_after_s=30)
    wire.on_poll = ["succeeded"]
    assert (await ledger.poll(record, interval_s=1, deadline_s=1000)).outcome == "succeeded"


def test_a_job_key_depends_on_every_part() -> None:
    parts = ("quick", 0, "g", 0, "d", "m", "supervised", {"n_epochs": 3}, 7)
    others = ("other", 1, "h", 1, "e", "n", "dpo", {"n_epochs": 4}, 8)
    keys = {job_key(*parts)}
    for index, other in enumerate(others):
        keys.add(job_key(*parts[:index], other, *parts[index + 1 :]))
    assert len(keys) == 1 + len(parts)
    assert job_key(*parts) == "iv5_HABgdSjL4dUU"  # equal in every process and version
