"""A run id's submissions are numbered, each becomes one job, and any process can go on with them."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_server import WireServer

from nip_base.wire import NipSettings
from nip_by_hand.fine_tuning.submissions import LiveSubmission, Submissions, run_name
from nip_core.errors import JobError, SettingsError
from nip_core.jobs.job import JobRecord, JobSpec
from nip_core.jobs.openai_backend import OpenAIBackend
from nip_core.run_store.lease import read_lease
from nip_core.run_store.run import RUN_NAME


@pytest.fixture
async def backend(wire: WireServer) -> AsyncIterator[OpenAIBackend]:
    backend = OpenAIBackend(wire.url, "key", timeout_s=5)
    yield backend
    await backend.aclose()


class Sender:
    """Submissions in a directory, and how a collection becomes the spec of one."""

    def __init__(self, directory: Path, patience_s: float = 30.0) -> None:
        self.submissions = Submissions(str(directory), "group", settle_s=0, patience_s=patience_s)

    async def submit(
        self, backend: Any, word: str = "yes", run_id: str = "run"
    ) -> tuple[int, JobRecord]:
        data = b"".join(
            json.dumps({"messages": [{"role": "user", "content": f"{word} {n}"}]}).encode() + b"\n"
            for n in range(12)
        )

        def make(number: int) -> JobSpec:
            return self.submissions.spec(
                run_id,
                number,
                parent_model=self.submissions.last_model(run_id, number) or "sim",
                dataset_digest=hashlib.sha256(data).hexdigest(),
                examples=12,
                method="supervised",
                seed=3,
                hyper_parameters={"n_epochs": 1},
                nip=NipSettings(),
            )

        return await self.submissions.submit(run_id, make, data, backend)

    async def ended(self, backend: Any, number: int, run_id: str = "run") -> JobRecord:
        return await self.submissions.follow(
            run_id, number, backend, interval_s=0.01, deadline_s=20
        )


@given(st.text(min_size=1, max_size=200))
def test_every_run_id_has_a_name_that_can_be_used(run_id: str) -> None:
    assert RUN_NAME.fullmatch(run_name(run_id))
    assert RUN_NAME.fullmatch(run_id) is None or run_name(run_id) == run_id


@given(st.sets(st.text("aB- /", min_size=1, max_size=60), min_size=2))
def test_run_ids_that_differ_have_names_that_differ(run_ids: set[str]) -> None:
    assert len({run_name(run_id) for run_id in run_ids}) == len(run_ids)


async def test_a_run_id_that_would_take_the_place_of_another_is_refused(
    tmp_path: Path, backend: OpenAIBackend
) -> None:
    sender = Sender(tmp_path)
    await sender.submit(backend, run_id="Run/1")
    with pytest.raises(SettingsError, match=r"belongs to 'Run/1'"):
        await sender.submit(backend, run_id=run_name("Run/1"))
    assert sender.submissions.newest("Run/1") is not None


async def test_reading_makes_no_run(tmp_path: Path) -> None:
    submissions = Submissions(str(tmp_path), "group", settle_s=0)
    assert submissions.newest("run") is None
    assert submissions.record("run", 0) is None
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []


async def test_the_same_one_is_the_same_while_it_is_under_way_and_the_next_one_after_its_end(
    tmp_path: Path, backend: OpenAIBackend, wire: WireServer
) -> None:
    sender = Sender(tmp_path)
    wire.on_poll = ["queued"]
    first = await sender.submit(backend)
    again = await Sender(tmp_path).submit(backend)
    assert (first[0], again[0], again[1].id, len(wire.jobs)) == (0, 0, first[1].id, 1)
    wire.on_poll = ["running", "succeeded"]
    record = await sender.ended(backend, 0)
    number, second = await sender.submit(backend)
    assert (number, len(wire.jobs)) == (1, 2)
    assert second.parent_model == record.model is not None
    assert second.key != first[1].key
    assert sender.submissions.newest("run") == (1, second)
    assert sender.submissions.record("run", 0) == record


async def test_something_else_is_refused_while_one_is_under_way(
    tmp_path: Path, backend: OpenAIBackend, wire: WireServer
) -> None:
    sender = Sender(tmp_path)
    _, record = await sender.submit(backend)
    with pytest.raises(LiveSubmission, match=rf"another collection.*submission 0.*{record.id}"):
        await sender.submit(backend, "no")
    await sender.submit(backend, "no", run_id="other")
    assert len(wire.jobs) == 2


async def test_many_at_once_make_one_job(
    tmp_path: Path, backend: OpenAIBackend, wire: WireServer
) -> None:
    results = await asyncio.gather(*(Sender(tmp_path).submit(backend) for _ in range(5)))
    assert {(number, record.id) for number, record in results} == {(0, "ftjob-0")}
    assert len(wire.jobs) == 1


async def test_of_different_ones_at_once_one_gets_in(
    tmp_path: Path, backend: OpenAIBackend, wire: WireServer
) -> None:
    results = await asyncio.gather(
        *(Sender(tmp_path).submit(backend, word) for word in ("a", "b", "c")),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["LiveSubmission"] * 2 + ["tuple"]
    assert len(wire.jobs) == 1


async def cut_short(tmp_path: Path, backend: OpenAIBackend, wire: WireServer, fault: str) -> Sender:
    """A submission whose process ended in the middle: no list could be read after the create."""
    sender = Sender(tmp_path, patience_s=0.3)
    wire.on_create, wire.on_list = [fault], ["500"] * 50
    with pytest.raises(JobError, match="can't be learned"):
        await sender.submit(backend)
    wire.on_list = []
    found = sender.submissions.newest("run")
    assert found is not None and found[1].state == "intent"
    return sender


@pytest.mark.parametrize(("fault", "created"), [("drop", 0), ("drop_after", 1)])
async def test_what_was_cut_short_goes_on_when_it_is_submitted_again(
    tmp_path: Path, backend: OpenAIBackend, wire: WireServer, fault: str, created: int
) -> None:
    await cut_short(tmp_path, backend, wire, fault)
    assert len(wire.jobs) == created
    other = Sender(tmp_path)
    with pytest.raises(LiveSubmission, match=r"cut short.*submit the same collection.*or cancel"):
        await other.submit(backend, "no")
    number, record = await other.submit(backend)
    assert (number, record.id, len(wire.jobs)) == (0, "ftjob-0", 1)


@pytest.mark.parametrize(("fault", "created"), [("drop", 0), ("drop_after", 1)])
async def test_what_was_cut_short_can_be_cancelled_and_no_job_is_left_running(
    tmp_path: Path, backend: OpenAIBackend, wire: WireServer, fault: str, created: int
) -> None:
    await cut_short(tmp_path, backend, wire, fault)
    other = Sender(tmp_path)
    await other.submissions.cancel("run", 0, backend)
    assert wire.log.count("cancel") == created
    if created:
        wire.on_poll = ["cancelled"]
        record = await other.ended(backend, 0)
    else:
        found = other.submissions.record("run", 0)
        assert found is not None
        record = found
    assert (record.state, record.outcome) == ("terminal", "cancelled")
    number, _ = await other.submit(backend, "no")
    assert number == 1


async def test_a_refused_submission_does_not_count(
    tmp_path: Path, backend: OpenAIBackend, wire: WireServer
) -> None:
    sender = Sender(tmp_path)
    wire.on_create = ["400"]
    with pytest.raises(JobError, match="refused the job"):
        await sender.submit(backend)
    number, record = await sender.submit(backend, "no")
    assert (number, record.id) == (0, "ftjob-0")


async def test_several_may_follow_and_look_at_once(
    tmp_path: Path, backend: OpenAIBackend, wire: WireServer
) -> None:
    sender = Sender(tmp_path)
    await sender.submit(backend)
    wire.on_poll = ["queued", "running", *["succeeded"] * 20]
    found = await asyncio.gather(*(Sender(tmp_path).ended(backend, 0) for _ in range(4)))
    looks = [await Sender(tmp_path).submissions.look("run", 0, backend) for _ in range(2)]
    assert all(record == found[0] for record in found)
    assert looks == [(found[0], None)] * 2


async def test_a_submission_that_is_not_on_record_is_named(
    tmp_path: Path, backend: OpenAIBackend
) -> None:
    sender = Sender(tmp_path)
    with pytest.raises(LookupError, match="no submission 4 is on record"):
        await sender.submissions.look("run", 4, backend)


async def test_a_task_that_is_cancelled_while_it_gives_its_lease_back_keeps_nobody_out(
    tmp_path: Path,
) -> None:
    """With all threads busy, so that the cancellation comes before giving back has begun."""
    submissions, threads = Sender(tmp_path).submissions, ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    entered = asyncio.Event()

    async def hold() -> None:
        async with submissions._submitting("run"):
            threads.submit(time.sleep, 0.3)
            entered.set()

    task = asyncio.create_task(hold())
    await entered.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    run = submissions.run("run")
    lease, _ = read_lease(run.store, f"{run.root}/lease.json")
    assert lease.state == "released"


async def test_a_task_that_is_cancelled_while_it_waits_keeps_nobody_out(
    tmp_path: Path, backend: OpenAIBackend, wire: WireServer
) -> None:
    sender = Sender(tmp_path)
    for pause_s in (0.0, 0.001, 0.01, 0.03):
        task = asyncio.create_task(sender.submit(backend))
        await asyncio.sleep(pause_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    _, record = await sender.submit(backend)
    assert (record.id, len(wire.jobs)) == ("ftjob-0", 1)
