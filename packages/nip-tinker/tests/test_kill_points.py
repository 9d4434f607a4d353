"""A job that is killed at a point goes on to the model of a job that was not.

Points are before and after every write of a note and every request that changes something. `make
test` has some, the long tests twenty at each level, `make test-tinker-service` all of them.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from driven_jobs import OPTIONS, Deaths, Killed, Place, make_data, make_spec, read_record

from nip_lm_server.testing import ServerDouble

ALL = os.environ.get("NIP_TINKER_POINTS") == "all"
STEPS, BLOCK = 8, 2


async def train_killed(
    place: Place, run: str, method: str, point: int | None
) -> tuple[str, Deaths]:
    """Train a job that is killed at a point, if there is one, and gone on with."""
    deaths = Deaths(point)
    job_id = await place.submit(make_spec(method, run=run), make_data(method))
    if point is None:
        await place.drive(job_id, deaths)
        return job_id, deaths
    with pytest.raises(Killed):
        await place.drive(job_id, deaths)
    view = await place.drive(job_id)
    assert (view.status, view.error) == ("succeeded", None)
    return job_id, deaths


def choose_points(total: int, count: int) -> list[int]:
    """Choose points evenly; all of them where that is asked for."""
    return (
        list(range(total))
        if ALL
        else sorted({round(i * (total - 1) / count) for i in range(count)})
    )


async def check_points(
    service: ServerDouble, state: Path, folder: Path, level: int, method: str, count: int
) -> None:
    """Kill a job at points, and compare each with the job that nobody killed."""
    options = replace(OPTIONS, takes_level_2=level == 2)
    place = Place(service.url, service.api_key, folder / "whole", options)
    whole_id, whole = await train_killed(place, f"whole-{level}-{count}", method, None)
    job, _ = place.read(whole_id)
    assert job.level == level
    expected = read_record(state, job)
    faults = []
    for point in choose_points(len(whole.seen), count):
        place = Place(service.url, service.api_key, folder / f"point-{point}", options)
        # Tests share the server, whose record is read by the key that comes from this name.
        run = f"run-{level}-{point}-of-{count}"
        job_id, deaths = await train_killed(place, run, method, point)
        job, _ = place.read(job_id)
        record = read_record(state, job)
        paid_again = record.counts["optim_step"] - STEPS
        gradients_again = record.counts["forward_backward"] - STEPS
        most = 0 if level == 2 else BLOCK
        facts = {
            "steps paid again": paid_again <= most and gradients_again <= most,
            "losses": place.losses(job_id)
            == pytest.approx(place_losses(place, job_id, whole_id, folder)),
            "weights": record.digest == expected.digest,
            "states": record.paths == sorted(filter(None, [job.state, job.model])),
            "sessions": job.sessions == [],
        }
        wrong = [name for name, holds in facts.items() if not holds]
        if wrong:
            faults.append((point, deaths.seen[-1], wrong, paid_again))
    assert faults == []


def place_losses(place: Place, _job: str, whole_id: str, folder: Path) -> list[float | None]:
    return replace(place, folder=folder / "whole").losses(whole_id)


@pytest.mark.parametrize("level", [2, 1])
async def test_a_killed_job_goes_on(
    service: ServerDouble, state: Path, tmp_path: Path, level: int
) -> None:
    await check_points(service, state, tmp_path, level, "supervised", 3)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", ["supervised", "dpo", "trajectories"])
@pytest.mark.parametrize("level", [2, 1])
async def test_a_job_killed_anywhere_goes_on(
    service: ServerDouble, state: Path, tmp_path: Path, level: int, method: str
) -> None:
    await check_points(service, state, tmp_path, level, method, 20)
