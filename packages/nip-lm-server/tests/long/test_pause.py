"""A paused job keeps its place and its checkpoint, and runs again only once it is resumed."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from nip_base.machine.processes import process_identity

SLOW = "training: {seconds: 2}\n"  # 6 steps


def wait_until(is_so: Callable[[], Any], what: str, timeout_s: float = 20.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := is_so()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)
    return value


def step_of(server, job_id: str) -> int:
    progress = server.client.fine_tuning.jobs.retrieve(job_id).nip["progress"]
    return progress["step"] if progress else 0


def told(server, job_id: str) -> list[str]:
    events = list(server.client.fine_tuning.jobs.list_events(job_id, limit=100))
    return [event.message for event in events[::-1]]


def steps(server, job_id: str) -> list[int]:
    return [
        int(message.split("/")[0].removeprefix("Step "))
        for message in told(server, job_id)
        if message.startswith("Step ")
    ]


def continued_at(server, job_id: str) -> int:
    """The step of the checkpoint that the training says it went on from."""
    found = [re.fullmatch(r"[Cc]ontinu.* step (\d+)", text) for text in told(server, job_id)]
    (step,) = [int(match[1]) for match in found if match]
    return step


def kill(server) -> None:
    os.kill(server.handle.pid, signal.SIGKILL)
    wait_until(lambda: process_identity(server.handle.pid) is None, "the server's death")
    server.client.close()


def log_of(server, job_id: str) -> list[dict[str, Any]]:
    path = Path(server.state_dir) / "jobs" / job_id / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_paused_job_lets_others_go_first_and_continues_where_it_was(make_server) -> None:
    server = make_server(SLOW)
    jobs = server.client.fine_tuning.jobs
    job = server.create(server.upload())
    wait_until(lambda: step_of(server, job.id) >= 2, "step 2")
    paused = jobs.pause(job.id)
    assert (paused.status, paused.nip["paused"], paused.estimated_finish) == ("queued", True, None)
    assert jobs.pause(job.id).nip["paused"] is True
    other = server.train()
    assert other.status == "succeeded"
    still = jobs.retrieve(job.id)
    assert (still.status, still.nip["paused"], still.fine_tuned_model) == ("queued", True, None)
    reached = step_of(server, job.id)
    assert 2 <= reached < 6

    resumed = jobs.resume(job.id)
    assert resumed.nip["paused"] is False
    done = server.wait(job.id)
    assert (done.status, done.nip["attempts"]) == ("succeeded", 2)
    # Each step was done once, although the training was interrupted.
    assert steps(server, job.id) == [1, 2, 3, 4, 5, 6]
    messages = told(server, job.id)
    assert messages.index("The job was paused") < messages.index("The job was resumed")
    assert continued_at(server, job.id) >= reached
    assert "Fine-tuning job continues (attempt 2)" in messages
    happened = [line["event"] for line in log_of(server, job.id)]
    for name in ("created", "queued", "running", "paused", "resumed", "published", "succeeded"):
        assert name in happened, happened


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_paused_job_stays_paused_over_a_restart(make_server, end: str) -> None:
    server = make_server(SLOW, is_apart=end == "kill")
    job = server.create(server.upload())
    wait_until(lambda: step_of(server, job.id) >= 1, "step 1")
    server.client.fine_tuning.jobs.pause(job.id)
    wait_until(lambda: server.client.get("/../nip/status", cast_to=object)["running_jobs"] == {},
               "the end of the training")  # fmt: skip
    reached = step_of(server, job.id)
    server.stop() if end == "stop" else kill(server)
    server.start()
    time.sleep(0.5)
    job = server.client.fine_tuning.jobs.retrieve(job.id)
    assert (job.status, job.nip["paused"], job.nip["attempts"]) == ("queued", True, 1)
    server.client.fine_tuning.jobs.resume(job.id)
    assert server.wait(job.id).status == "succeeded"
    assert steps(server, job.id) == [1, 2, 3, 4, 5, 6]
    assert continued_at(server, job.id) >= reached


def test_a_queued_job_is_paused_and_a_paused_one_cancelled(make_server) -> None:
    server = make_server("training: {seconds: 30}\n")
    jobs = server.client.fine_tuning.jobs
    file_id = server.upload()
    running, first, second = (server.create(file_id) for _ in range(3))
    server.wait(running.id, "running")
    assert jobs.pause(first.id).nip["paused"] is True
    server.wait(first.id, "queued")  # it may have been validating until now
    jobs.cancel(running.id)
    server.wait(second.id, "running")
    assert jobs.retrieve(first.id).status == "queued"
    cancelled = jobs.cancel(first.id)
    assert (cancelled.status, cancelled.nip["paused"]) == ("cancelled", False)
    jobs.pause(second.id)
    assert jobs.cancel(second.id).status == "cancelled"
    for id in (first.id, second.id):
        with pytest.raises(openai.BadRequestError) as caught:
            jobs.resume(id)
        assert caught.value.code == "job_not_paused"
        with pytest.raises(openai.BadRequestError) as caught:
            jobs.pause(id)
        assert caught.value.code == "job_already_ended"
    assert list((server.state_dir / "models").iterdir()) == []


def test_only_a_paused_job_can_be_resumed(server) -> None:
    jobs = server.client.fine_tuning.jobs
    done = server.train()
    with pytest.raises(openai.BadRequestError, match="succeeded") as caught:
        jobs.pause(done.id)
    assert caught.value.param == "fine_tuning_job_id"
    with pytest.raises(openai.BadRequestError, match="not paused"):
        jobs.resume(done.id)
    for act in (jobs.pause, jobs.resume):
        with pytest.raises(openai.NotFoundError):
            act("ftjob-0")


def test_wrong_data_fails_a_paused_job_all_the_same(make_server) -> None:
    server = make_server()
    job = server.create(server.upload([{"messages": []}]))
    # Whichever is first, the pause or the validation: the job does not hide what is wrong.
    try:
        server.client.fine_tuning.jobs.pause(job.id)
    except openai.BadRequestError as error:
        assert error.code == "job_already_ended"
    failed = server.wait(job.id, "failed")
    assert failed.error.param == "training_file" and failed.nip["paused"] is False


def test_a_stopped_server_goes_on_with_the_step_it_had(make_server) -> None:
    server = make_server(SLOW)
    job = server.create(server.upload())
    wait_until(lambda: step_of(server, job.id) >= 2, "step 2")
    server.stop()
    server.start()
    shown = server.client.fine_tuning.jobs.retrieve(job.id)
    assert shown.nip["progress"]["step"] >= 2 and shown.nip["paused"] is False
    done = server.wait(job.id)
    assert (done.status, done.nip["attempts"]) == ("succeeded", 2)
    assert steps(server, job.id) == [1, 2, 3, 4, 5, 6]


def test_time_left_and_estimated_finish_follow_the_pace(make_server) -> None:
    server = make_server(SLOW)
    job = server.create(server.upload())
    running = wait_until(
        lambda: (j := server.client.fine_tuning.jobs.retrieve(job.id)).estimated_finish and j,
        "an estimate",
    )
    assert running.status == "running"
    progress = running.nip["progress"]
    # 2 s for 6 steps: a third of a second for each that is left.
    assert progress["time_left_s"] == pytest.approx((6 - progress["step"]) / 3, rel=0.5)
    assert abs(running.estimated_finish - (progress["at"] + progress["time_left_s"])) <= 1
    done = server.wait(job.id)
    assert done.estimated_finish is None
    events = list(server.client.fine_tuning.jobs.list_events(job.id, limit=100))[::-1]
    left = [event.data["time_left_s"] for event in events if event.type == "metrics"]
    assert left[0] is None and left[-1] == 0.0
    assert left[1:] == sorted(left[1:], reverse=True)
