"""Jobs at a service behind a proxy that loses, doubles, refuses and forgets."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from driven_jobs import OPTIONS, Deaths, Killed, Place, make_data, make_spec, read_record
from faulty_service import Faults, FaultyService

from nip_core.errors import LeaseError, ParkedError, SettingsError
from nip_lm_server.testing import ServerDouble

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
