"""What is shown while a run plays, from its counters."""

import pytest

from nip_core.rollouts.progress import Progress
from nip_prefect.flows.live import _Clock


def test_time_left_counts_only_what_ended_since_the_stage_was_taken_up() -> None:
    progress, clock = Progress(), _Clock()
    progress.start_stage("playing", 100, done=60)
    assert clock.left_s(progress, 5.0) is None
    progress.episodes_done += 10
    assert clock.left_s(progress, 25.0) == pytest.approx(20.0 / 10 * 30)
    progress.start_stage("testing", 40)
    assert clock.left_s(progress, 30.0) is None
    progress.episodes_done += 20
    assert clock.left_s(progress, 40.0) == pytest.approx(10.0)
    progress.episodes_done += 20
    assert clock.left_s(progress, 50.0) == 0.0
