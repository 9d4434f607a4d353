"""How far a job is, read alike from a server of ours and from OpenAI's events."""

import pytest

from nip_core.jobs.job import JobView
from nip_core.jobs.steps import JobSteps, find_newest_step, read_progress, read_step_figures

OURS = {
    "step": 3,
    "total_steps": 12,
    "train_loss": 0.5,
    "tokens": 900,
    "time_left_s": 4.5,
    "at": 1.0,
}


def test_a_server_of_ours_says_step_loss_tokens_and_time_left():
    view = JobView("ftjob-1", "running", effective={"nip": {"progress": OURS}})
    assert read_progress(view) == JobSteps(3, 12, loss=0.5, tokens=900, left_s=4.5)
    assert read_progress(view).percent == 25.0
    assert (
        read_progress(JobView("ftjob-1", "queued", effective={"nip": {"progress": None}})) is None
    )
    assert read_progress(JobView("ftjob-1", "running")) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_figure_that_is_no_number_is_not_known(value):
    progress = {**OURS, "train_loss": value, "tokens": value, "time_left_s": value}
    view = JobView("ftjob-1", "running", effective={"nip": {"progress": progress}})
    assert read_progress(view) == JobSteps(3, 12)
    assert find_newest_step([{"message": "x", "data": {**OURS, "step": value}}]) is None


def test_openais_events_say_it_in_their_data_or_in_words():
    words = {"type": "metrics", "message": "Step 8/90: training loss=0.21",
             "data": {"step": 8, "train_loss": 0.21}}  # fmt: skip
    assert find_newest_step([words, {"type": "message", "message": "Fine-tuning job started"}]) == (
        JobSteps(8, 90, loss=0.21)
    )
    assert find_newest_step([{"message": "Step 8/90"}, {"message": "x", "data": OURS}]).step == 3
    assert find_newest_step([{"message": "queued"}, {"message": "Step 0/0"}]) is None


def test_of_a_step_of_several_attempts_the_last_counts():
    events = [
        {"type": "metrics", "data": {"step": 2, "train_loss": 0.9}},
        {"type": "metrics", "data": {"step": 1, "train_loss": 1.0}},
        {"type": "metrics", "data": {"step": 2, "train_loss": 0.8}},
        {"type": "message", "data": {"step": 3}},
        {"type": "metrics", "data": None},
    ]
    told = read_step_figures(events)
    assert [(step, of_step.loss) for step, of_step in told.items()] == [
        (1, 1.0),
        (2, 0.8),
    ]
