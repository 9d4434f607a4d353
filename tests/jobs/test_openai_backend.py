"""Every failure is one of three kinds; our own server, for real, gives one job per key."""

import json
import logging
import pickle
import traceback
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from job_server import FakeTime, WireServer

from nip_base.spec import ServerSpec
from nip_base.wire import NipSettings
from nip_core.errors import JobError, NipError
from nip_core.jobs.job import Busy, JobSpec, NoAnswer, Refused
from nip_core.jobs.ledger import Ledger
from nip_core.jobs.openai_backend import NipBackend, OpenAIBackend
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.run import RunStore
from nip_lm_server import launch as owner
from nip_lm_server.launch import ServerHandle

KEY = "sk-very-secret-0123456789"
SPEC = JobSpec(
    run="quick",
    iteration=0,
    group="shared",
    dataset_digest="d" * 64,
    parent_model="sim",
    parent_model_digest="m" * 64,
    seed=7,
    examples=12,
    hyper_parameters={"n_epochs": 2, "batch_size": 4},
    nip=NipSettings(lora_rank=8, learning_rate=1.23e-5),
    suffix="quick-0000-shared",
)


def dataset(examples: int = 12, marker: str = "") -> bytes:
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"is {n} odd? {marker}"},
                {"role": "assistant", "content": "yes" if n % 2 else "no"},
            ]
        }
        for n in range(examples)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@pytest.fixture
async def backend(wire: WireServer) -> AsyncIterator[OpenAIBackend]:
    backend = NipBackend(wire.url, KEY, timeout_s=5)
    yield backend
    await backend.aclose()


@pytest.mark.parametrize("status", ["400", "401", "403", "404", "409", "413", "422"])
async def test_a_refusal_carries_the_status_and_the_servers_words(
    backend: OpenAIBackend, wire: WireServer, status: str
) -> None:
    wire.on_create = [status]
    with pytest.raises(Refused, match=f"HTTP {status}: told to answer {status}") as caught:
        await backend.create_job(SPEC, "file-0")
    assert caught.value.status == int(status)
    assert len(wire.creates) == 1


async def test_a_refusal_names_the_parameter_that_the_server_blames(
    backend: OpenAIBackend, wire: WireServer
) -> None:
    for param, said in (("method", "HTTP 400: method: told to"), ("told", "HTTP 400: told to")):
        wire.on_create, wire.error_param = ["400"], param
        with pytest.raises(Refused, match=said):
            await backend.create_job(SPEC, "file-0")


@pytest.mark.parametrize("fault", ["500", "502", "503_retry_4", "408", "drop", "cut", "garbage"])
async def test_what_leaves_the_outcome_open_is_no_answer_and_is_not_repeated(
    backend: OpenAIBackend, wire: WireServer, fault: str
) -> None:
    wire.on_create = [fault]
    with pytest.raises(NoAnswer) as caught:
        await backend.create_job(SPEC, "file-0")
    assert caught.value.retry_after_s == (4.0 if "retry" in fault else None)
    assert len(wire.creates) == 1


async def test_a_server_that_is_not_there_is_no_answer() -> None:
    backend = OpenAIBackend("http://127.0.0.1:9/v1", KEY, timeout_s=2)
    with pytest.raises(NoAnswer, match=r"127\.0\.0\.1:9"):
        await backend.find_jobs("key")
    await backend.aclose()


async def test_too_many_requests_is_busy_with_the_wait_asked_for(
    backend: OpenAIBackend, wire: WireServer
) -> None:
    wire.on_create = ["429_retry_12", "429"]
    with pytest.raises(Busy) as caught:
        await backend.create_job(SPEC, "file-0")
    assert caught.value.retry_after_s == 12.0
    with pytest.raises(Busy) as caught:
        await backend.create_job(SPEC, "file-0")
    assert caught.value.retry_after_s is None


async def test_settings_without_words_at_openai_are_refused_before_anything_is_sent(
    wire: WireServer,
) -> None:
    backend = OpenAIBackend(wire.url, KEY, timeout_s=5)
    with pytest.raises(Refused, match="learning_rate"):
        await backend.create_job(SPEC, "file-0")
    assert wire.creates == []
    await backend.create_job(replace(SPEC, nip=NipSettings()), "file-0")
    assert "nip" not in wire.creates[0][1]
    await backend.aclose()


async def test_a_file_is_found_by_name_and_size(backend: OpenAIBackend, wire: WireServer) -> None:
    data = dataset()
    file_id = await backend.upload("nip-abc.jsonl", data)
    assert await backend.find_file("nip-abc.jsonl", len(data)) == file_id
    assert await backend.find_file("nip-abc.jsonl", len(data) + 1) is None
    assert await backend.find_file("other.jsonl", len(data)) is None
    wire.files[0]["status"] = "error"
    assert await backend.find_file("nip-abc.jsonl", len(data)) is None


def test_the_three_kinds_of_failure_can_be_pickled() -> None:
    for error in (Refused("no", 403), Busy("wait", 3.0), NoAnswer("?", None)):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


async def test_the_key_is_in_no_log_no_error_and_no_file(
    backend: OpenAIBackend,
    wire: WireServer,
    fake_time: FakeTime,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    run = RunStore(LocalStore(tmp_path), "quick")
    ledger = Ledger(run, backend, settle_s=1, patience_s=5, clock=fake_time.clock)
    wire.on_create = ["500", "401"]
    with pytest.raises(JobError) as caught:
        await ledger.ensure_job(SPEC, dataset())
    record = await ledger.ensure_job(SPEC, dataset())
    wire.on_poll = ["500", "drop", "succeeded"]
    await ledger.poll(record, interval_s=1, deadline_s=100)
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for text in (caplog.text, str(caught.value), repr(backend), files.decode()):
        assert KEY not in text


# Against our own server ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHandle]:
    spec = ServerSpec("deterministic", "sim")
    handle = owner.start_or_attach(spec, tmp_path_factory.mktemp("server"), timeout_s=30)
    yield handle
    owner.stop(handle)


@pytest.fixture
async def own(server: ServerHandle) -> AsyncIterator[OpenAIBackend]:
    backend = NipBackend(f"{server.url}/v1", server.api_key, timeout_s=20)
    yield backend
    await backend.aclose()


async def test_our_server_trains_what_was_asked_for_and_the_model_can_be_looked_up(
    own: OpenAIBackend, tmp_path: Path
) -> None:
    run = RunStore(LocalStore(tmp_path), "quick")
    ledger = Ledger(run, own, settle_s=0)
    record = await ledger.poll(
        await ledger.ensure_job(SPEC, dataset()), interval_s=0.05, deadline_s=30
    )
    assert record.outcome == "succeeded", record.reason
    assert record.effective is not None
    assert record.effective["n_epochs"] == 2
    assert record.effective["nip"]["learning_rate"] == 1.23e-5
    assert record.effective["nip"]["lora_rank"] == 8
    facts = await own.describe_model(str(record.model))
    assert facts.is_lm_servers and facts.kind == "adapter"
    assert record.backend_events
    assert len(await own.find_jobs(SPEC.key)) == 1


async def test_a_run_directory_that_was_lost_finds_its_job_at_our_server(
    own: OpenAIBackend, tmp_path: Path
) -> None:
    spec = replace(SPEC, run="lost")
    first = Ledger(RunStore(LocalStore(tmp_path / "a"), "lost"), own, settle_s=0)
    second = Ledger(RunStore(LocalStore(tmp_path / "b"), "lost"), own, settle_s=0)
    record = await first.ensure_job(spec, dataset())
    again = await second.ensure_job(spec, dataset())
    assert (again.id, again.file_id) == (record.id, record.file_id)
    assert [job.id for job in await own.find_jobs(spec.key)] == [record.id]


async def test_the_same_key_with_another_payload_is_refused_by_our_server(
    own: OpenAIBackend, tmp_path: Path
) -> None:
    spec = replace(SPEC, run="payload")
    first = Ledger(RunStore(LocalStore(tmp_path / "a"), "payload"), own, settle_s=0)
    await first.ensure_job(spec, dataset())
    second = Ledger(RunStore(LocalStore(tmp_path / "b"), "payload"), own, settle_s=0)
    with pytest.raises(JobError, match="HTTP 409"):
        await second.ensure_job(spec, dataset(marker="another"))
    record = second.record(0, "shared")
    assert record is not None and record.outcome == "refused"


async def test_bad_lines_end_the_job_as_failed_with_the_line(
    own: OpenAIBackend, tmp_path: Path
) -> None:
    spec = replace(SPEC, run="bad")
    ledger = Ledger(RunStore(LocalStore(tmp_path), "bad"), own, settle_s=0)
    data = dataset(11) + b'{"messages": [{"role": "judge", "content": "x"}]}\n'
    record = await ledger.poll(await ledger.ensure_job(spec, data), interval_s=0.05, deadline_s=30)
    assert record.outcome == "failed"
    assert "line 12" in (record.reason or "")


@pytest.mark.parametrize("status", [400, 401, 429, 500, 200])
@pytest.mark.parametrize("form", ["json", "page"])
async def test_a_server_that_sends_the_key_back_can_not_make_us_print_it(
    status: int, form: str
) -> None:
    async def echo(request: web.Request) -> web.Response:
        said = f"{'x' * 980} got {request.headers['Authorization']} and {KEY}"
        if form == "page":
            return web.Response(status=status, text=said)
        return web.json_response({"error": {"message": said}, "id": said}, status=status)

    app = web.Application()
    app.router.add_post("/v1/fine_tuning/jobs", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    backend = NipBackend(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", KEY, timeout_s=5)
    try:
        with pytest.raises(NipError) as caught:
            await backend.create_job(SPEC, "file-0")
    finally:
        await backend.aclose()
        await runner.cleanup()
    shown = str(caught.value) + "".join(traceback.format_exception(caught.value))
    assert KEY[:10] not in shown
    assert caught.value.__cause__ is None and caught.value.__context__ is None


async def test_the_key_stays_out_of_what_a_job_leaves_on_record(
    backend: OpenAIBackend, wire: WireServer
) -> None:
    wire.job_fields = {"error": {"code": "x", "message": f"bad key {KEY}, Bearer abc"}}
    wire.on_poll = ["failed"]
    job = await backend.retrieve_job((await backend.create_job(SPEC, "file-0")).id)
    assert job.error == "x: bad key ***, Bearer ***"
