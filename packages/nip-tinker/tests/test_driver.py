"""Jobs at a service of Tinker's API: trained as planned, and gone on with after a death."""

from pathlib import Path

import pytest
from driven_jobs import Place, make_spec, read_record

from nip_lm_server.testing import ServerDouble


@pytest.fixture
def place(service: ServerDouble, tmp_path: Path) -> Place:
    return Place(service.url, service.api_key, tmp_path)


@pytest.mark.parametrize("method", ["supervised", "dpo", "trajectories"])
async def test_a_job_trains_all_its_steps_and_leaves_a_state_and_a_sampler(
    place: Place, state: Path, method: str
) -> None:
    view = await place.train(make_spec(method))
    assert (view.status, view.error) == ("succeeded", None)
    job, blocks = place.read(view.id)
    assert (job.level, job.steps, job.steps_again, job.deletions) == (2, 8, 0, [])
    assert [(block.first, block.end) for block in blocks] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    record = read_record(state, job)
    assert record.counts["optim_step"] == record.counts["forward_backward"] == 8
    assert record.paths == sorted([job.state, view.fine_tuned_model])
    # The files of its data are gone, and the session is over.
    assert job.sessions == [] and place.open()._place.list("files") == []
    losses = place.losses(view.id)
    assert method == "trajectories" or losses[-1] < losses[0]
