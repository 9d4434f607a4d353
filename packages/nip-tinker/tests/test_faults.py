"""Jobs at a service behind a proxy that loses, doubles, refuses and forgets."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from driven_jobs import OPTIONS, Deaths, Killed, Place, make_data, make_spec, read_record
from faulty_service import Faults, FaultyService

from nip_core.errors import LeaseError, ParkedError, SettingsError
from nip_core.jobs.job import NoAnswer
from nip_lm_server.testing import ServerDouble
from nip_tinker.record.notes import Notes
from nip_tinker.wire import TinkerClient

STEPS, BLOCK = 8, 2
LONGER = ("supervised", "dpo")


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
async def place(service: ServerDouble, tmp_path: Path, faults: Faults) -> AsyncIterator[Place]:
    async with FaultyService(service.url, faults) as proxy:
        yield Place(proxy.url, service.api_key, tmp_path)


def count_steps(place: Place, state: Path, job_id: str) -> int:
    record = read_record(state, place.read(job_id)[0])
    assert record.counts["optim_step"] == record.counts["forward_backward"]
    return record.counts["optim_step"]


@pytest.mark.parametrize(
    "method", ["trajectories", *(pytest.param(m, marks=pytest.mark.long) for m in LONGER)]
)
async def test_lost_answers_and_doubled_requests_count_once(
    place: Place, state: Path, faults: Faults, method: str
) -> None:
    faults.loses = faults.doubles = faults.loses_samples = True
    spec = make_spec(method, run=f"lost-{method}")
    steps = STEPS // 2 if method == "trajectories" else STEPS  # of one pass
    if steps < STEPS:
        spec = replace(spec, hyper_parameters={**spec.hyper_parameters, "n_epochs": 1})
    view = await place.train(spec)
    assert (view.status, view.error) == ("succeeded", None)
    assert count_steps(place, state, view.id) == steps
    # The account is that of the bodies.
    assert view.trained_tokens == faults.tokens["trained"] > 0
    assert view.effective["scored_tokens"] == faults.tokens["scored"]
    backend = place.open()
    facts = await backend.describe_model(str(view.fine_tuned_model))
    assert facts.is_proved
    await backend.aclose()
    assert faults.met["lost"] > steps and faults.met["doubled"] > steps and faults.met["410"] == 2


async def test_a_forgotten_session_costs_a_block_at_most(
    place: Place, state: Path, faults: Faults
) -> None:
    faults.forgets_after = 4
    view = await place.train(make_spec("supervised", run="forgotten"))
    assert (view.status, view.error) == ("succeeded", None)
    job, _ = place.read(view.id)
    assert job.level == 1 and "session was gone" in job.level_reason
    assert STEPS <= count_steps(place, state, view.id) <= STEPS + BLOCK
    assert view.trained_tokens == pytest.approx(faults.tokens["trained"], rel=0.2)
    assert faults.met["forgotten"]


async def test_a_state_that_lists_show_late_is_found_and_adopted(
    place: Place, state: Path, faults: Faults
) -> None:
    """The process ends after the saving of a state, before it has noted that."""
    faults.lag_s = 1.0
    place = replace(place, options=replace(OPTIONS, takes_level_2=False, settle_s=4.0))
    for name, has_lists in (("late", True), ("by-run", False)):
        faults.has_no_lists = not has_lists
        deaths = Deaths()
        spec = make_spec("supervised", run=name)
        job_id = await place.submit(spec, make_data("supervised"))
        deaths.stop_after = "after save_weights"
        with pytest.raises(Killed):
            await place.drive(job_id, deaths)
        view = await place.drive(job_id)
        assert view.status == "succeeded"
        assert count_steps(place, state, job_id) == STEPS  # the block was not paid again
    assert faults.met["hidden"]


async def test_a_service_without_numbers_is_level_1_and_says_so(
    place: Place, state: Path, faults: Faults
) -> None:
    faults.is_unnumbered = True
    view = await place.train(make_spec("supervised", run="unnumbered"))
    job, _ = place.read(view.id)
    assert (view.status, job.level) == ("succeeded", 1)
    assert job.level_reason == "a request that came twice was two"


@pytest.mark.parametrize(
    ("route", "status"), [("create_session", 404), ("optim_step", 200), ("save_weights", 302)]
)
async def test_a_page_of_a_network_leaves_the_job_standing(
    place: Place, state: Path, faults: Faults, route: str, status: int
) -> None:
    """As of a tunnel that is not up yet: what was paid is kept, and goes on."""
    run = f"page-{route}"
    if route == "create_session":
        place = replace(place, options=replace(OPTIONS, takes_level_2=False))
    job_id = await place.submit(make_spec("supervised", run=run), make_data("supervised"))
    deaths = Deaths(stop_after="after optim_step")
    with pytest.raises(Killed):
        await place.drive(job_id, deaths)
    faults.pages = [(route, status)]
    with pytest.raises(ParkedError, match="run again"):
        await place.drive(job_id)
    assert faults.met["page"] == 1 and not faults.pages
    view = await place.drive(job_id)
    assert (view.status, place.read(job_id)[0].waits) == ("succeeded", None)
    steps = count_steps(place, state, job_id)
    again = steps - STEPS
    assert again == (1 if route == "create_session" else 0)
    assert again == place.read(job_id)[0].steps_again


async def test_models_that_are_lost_one_after_the_other_leave_it_standing(
    place: Place, state: Path, faults: Faults
) -> None:
    place = replace(place, options=replace(OPTIONS, first_steps=4, most_steps=4))
    job_id = await place.submit(make_spec("supervised", run="three"), make_data("supervised"))
    faults.forgets_each = 3
    with pytest.raises(ParkedError, match="3 models for one block were lost"):
        await place.drive(job_id)
    view = await place.drive(job_id)
    assert view.status == "succeeded"
    again = count_steps(place, state, job_id) - STEPS
    # One that was sent to a model that is not there any more may never have been done.
    assert 3 <= again <= place.read(job_id)[0].steps_again <= again + 3


async def test_a_sampler_with_another_path_is_kept(
    place: Place, state: Path, faults: Faults
) -> None:
    """SkyRL saves it as tinker://RUN/NAME, and lists it with its kind."""
    faults.has_short_paths, faults.forgets_after = True, 3
    view = await place.train(make_spec("supervised", run="short"))
    job, _ = place.read(view.id)
    record = read_record(state, job)
    assert faults.met["short"] and "/sampler_weights/" not in str(job.model)
    assert [path.split("/")[3] for path in record.paths] == ["sampler_weights", "weights"]


async def test_a_copy_of_a_run_leaves_the_states_of_the_other_alone(
    place: Place, state: Path, tmp_path: Path
) -> None:
    """Both have the same names, at the same service."""
    options = replace(OPTIONS, takes_level_2=False, settle_s=0.1)
    first, copy = (replace(place, folder=tmp_path / name, options=options) for name in "ab")
    spec, data = make_spec("supervised", run="copied"), make_data("supervised")
    job_id = (await first.train(spec, data)).id
    before = read_record(state, first.read(job_id)[0]).paths
    await copy.submit(spec, data)
    with pytest.raises(Killed):
        await copy.drive(job_id, Deaths(stop_after="before save_weights", skips=3))
    assert (await copy.drive(job_id)).status == "succeeded"
    jobs = [each.read(job_id)[0] for each in (first, copy)]
    paths = sorted(str(path) for job in jobs for path in (job.state, job.model))
    assert read_record(state, jobs[0]).paths == paths and {*before} < {*paths}


async def test_a_group_leaves_the_notes_of_another_one_alone(place: Place) -> None:
    """It is driven beside it, by its own reader of notes, and perhaps at another service."""
    other = await place.submit(make_spec("supervised", group="other"), make_data("supervised"))
    backend = place.open()
    job = Notes(backend._place, other).read_job()
    assert job is not None
    job.deletions = ["tinker://elsewhere/weights/state"]
    Notes(backend._place, other).write_job(job)
    await place.train(make_spec("supervised", run="beside"))
    assert place.read(other)[0].deletions == job.deletions
    Notes(backend._place, other).write_job(job)  # and nobody else has written it
    await backend.aclose()


async def test_without_numbers_a_lost_answer_is_not_sent_again(
    place: Place, state: Path, faults: Faults
) -> None:
    faults.is_unnumbered, faults.loses_once = True, "optim_step"
    view = await place.train(make_spec("supervised", run="unheard"))
    job, _ = place.read(view.id)
    assert view.status == "succeeded" and job.level == 1 and not job.keeps_numbers
    again = count_steps(place, state, view.id) - STEPS
    assert 1 <= again <= job.steps_again <= BLOCK
    assert view.trained_tokens == pytest.approx(faults.tokens["trained"], rel=0.1)


async def test_a_cancelled_job_leaves_nothing(place: Place, state: Path) -> None:
    """Also of what it had saved unheard."""
    for name, skips in (("after save_weights", 3), ("after save_weights_for_sampler", 0)):
        job_id = await place.submit(make_spec("supervised", run=name), make_data("supervised"))
        with pytest.raises(Killed):
            await place.drive(job_id, Deaths(stop_after=name, skips=skips))
        backend = place.open()
        assert (await backend.cancel_job(job_id)).status == "cancelled"
        await backend.aclose()
        assert read_record(state, place.read(job_id)[0]).paths == []


async def test_a_clock_that_was_set_back_and_a_service_without_lifetimes_hold_nothing_up(
    place: Place, state: Path, faults: Faults
) -> None:
    faults.has_no_lifetimes = True
    place = replace(place, options=replace(OPTIONS, takes_level_2=False))
    job_id = await place.submit(make_spec("supervised", run="clock"), make_data("supervised"))
    with pytest.raises(Killed):
        await place.drive(job_id, Deaths(stop_after="before save_weights", skips=1))
    backend = place.open()
    notes = Notes(backend._place, job_id)
    job = notes.read_job()
    assert job is not None
    done, saving = notes.list_blocks(job)
    saving.saving_at, done.saved_at = time.time() + 3600, time.time() - 5e5
    notes.write_block(saving)
    notes.write_block(done)
    await backend.aclose()
    async with asyncio.timeout(60):
        view = await place.drive(job_id)
    assert view.status == "succeeded" and faults.met["ttl"]


async def test_a_state_that_has_expired_is_named_with_the_way_out(place: Place) -> None:
    place = replace(place, options=replace(OPTIONS, takes_level_2=False))
    job_id = await place.submit(make_spec("supervised", run="expired"), make_data("supervised"))
    with pytest.raises(Killed):
        await place.drive(job_id, Deaths(stop_after="before optim_step", skips=2))
    state = place.read(job_id)[0].state
    client = TinkerClient(place.url, place.key)
    await client.delete_state(str(state))
    await client.aclose()
    with pytest.raises(ParkedError, match=rf"{state} is not at the service.*--rerun-from"):
        await place.drive(job_id)
    assert place.read(job_id)[0].status == "running"  # and nothing was thrown away


async def test_an_outage_is_told_while_it_lasts(
    place: Place, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nip_tinker.wire._SILENCE_S", 0.5)
    job_id = await place.submit(make_spec("supervised", run="outage"), make_data("supervised"))
    backend, troubles = place.open(), list[str]()
    faults.refusals = [503] * 5
    status = "queued"
    while status not in ("succeeded", "failed"):
        try:
            status = (await backend.retrieve_job(job_id)).status
        except NoAnswer as error:
            troubles.append(str(error))
        await asyncio.sleep(0.05)
    await backend.aclose()
    assert status == "succeeded" and troubles
    assert "HTTP 503" in troubles[0] and troubles[0].endswith("s now")


async def test_without_money_the_run_is_parked_and_goes_on_when_there_is_some(
    place: Place, state: Path, faults: Faults
) -> None:
    job_id = await place.submit(make_spec("supervised", run="poor"), make_data("supervised"))
    faults.refusals = [429, 429, 402]
    with pytest.raises(ParkedError, match="no money"):
        await place.drive(job_id)
    assert "402" in (place.read(job_id)[0].waits or "")
    view = await place.drive(job_id)
    assert view.status == "succeeded" and place.read(job_id)[0].waits is None
    assert faults.met == {"429": 2, "402": 1}


async def test_of_two_runners_one_trains(place: Place, state: Path) -> None:
    job_id = await place.submit(make_spec("supervised", run="two"), make_data("supervised"))
    ends = await asyncio.gather(*(drive(place, job_id) for _ in range(2)))
    assert "succeeded" in ends and sorted(ends)[0] in ("another runner", "succeeded")
    job, _ = place.read(job_id)
    assert read_record(state, job).paths == sorted([str(job.state), str(job.model)])


async def drive(place: Place, job_id: str) -> str:
    try:
        return (await place.drive(job_id)).status
    except LeaseError:
        return "another runner"


async def test_a_wrong_key_and_an_older_wire_are_said_before_anything_is_sent(
    place: Place, faults: Faults, service: ServerDouble
) -> None:
    wrong = replace(place, key="tml-wrong").open()
    with pytest.raises(SettingsError, match=r"refuses the key \(HTTP 401\)"):
        await wrong.check_jobs()
    await wrong.aclose()
    backend = place.open()
    await backend.check_jobs()
    with pytest.raises(SettingsError, match="trains no base model 'tinny'; did you mean 'tiny'"):
        await backend.check_model("tinny")
    faults.refusals = []
    faults.is_old = True
    with pytest.raises(SettingsError, match="older wire"):
        await backend.check_jobs()
    await backend.aclose()
