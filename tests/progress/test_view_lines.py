"""Lines of a run: never two alike, never 15 s of silence, and no more than there is to tell."""

import itertools
import json

import pytest
from ticking import MIDNIGHT, Ticking, small_parameters

from nip_core.progress.board import Stage
from nip_core.progress.view_lines import JsonLines, PlainLines

PLAN = (Stage(0, "test", 400), Stage(0, "play", 400), Stage(0, "train"), Stage(1, "test", 400))
PARAMETERS = small_parameters()
LOOKS_S = 0.25


def a_run(time, progress):
    """What goes on in a run: yields after each quarter of a second of an hour or so."""

    def passes(seconds):
        for _ in range(int(seconds / LOOKS_S)):
            time.passes(LOOKS_S)
            yield

    with progress.starting("the model server (embedded with tiny)"):
        yield from passes(42)
    yield from passes(21)  # nothing is told of what goes on here
    progress.expect(PLAN, {}, {})
    with progress.during(0, "test"):
        progress.tell("play", "iteration 0: playing test problems, 400 episodes")
        progress.start_episodes("test", 400)
        for _ in range(400):
            progress.episodes_done += 1
            yield from passes(0.25)
        yield from passes(30)  # it is measured
    with progress.during(0, "play"):
        progress.start_episodes("train", 400)
        yield from passes(60)  # the server does not answer
        progress.count_retry("HTTP 503")
        progress.episodes_done += 400
    with progress.during(0, "train"):
        with (
            progress.doing("training a", job="ftjob-1", unit="steps") as first,
            progress.doing("training b", job="ftjob-2", unit="steps") as second,
        ):
            second.tell(time.s, status="queued")
            for step in range(1, 601):
                first.tell(
                    time.s, status="running", done=step, total=600, loss=1 / step,
                    tokens=step * 50, left_s=(600 - step) * 1.0,
                )  # fmt: skip
                yield from passes(1)
        yield from passes(25)


@pytest.fixture(scope="module")
def told():
    """The lines of such a run, with the second at which each was written."""
    time = Ticking()
    progress, lines = time.progress(), []
    view, began_s = PlainLines(progress, PARAMETERS), time.s
    for _ in a_run(time, progress):
        lines += [(time.s - began_s, line) for line in view.lines_due()]
    return lines


def test_there_is_never_silence_of_fifteen_seconds(told):
    moments = [0.0, *(at for at, _ in told)]
    assert max(b - a for a, b in itertools.pairwise(moments)) < 15


def test_no_two_lines_are_alike_even_without_their_times(told):
    texts = [line.partition("] ")[2] for _, line in told]
    twice = {text for text in texts if texts.count(text) > 1}
    assert not twice


def test_there_is_at_most_one_line_in_ten_seconds_on_the_same_thing(told):
    for what in ("testing: ", "training a", "training b"):
        moments = [at for at, line in told if what in line]
        assert min(b - a for a, b in itertools.pairwise(moments)) >= 10
    assert len(told) < 200  # of 15 minutes with two jobs at once


def test_a_job_is_told_of_by_name_with_step_loss_pace_and_time_left(told):
    line = next(line for _, line in told if "training a (ftjob-1): step 120/600" in line)
    assert line.startswith("[0:0")
    assert "(20 %), loss 0.00833, 50 tokens/s, about 8 min left" in line
    assert any("training b (ftjob-2): queued" in line for _, line in told)
    assert any("1 retries, the last after HTTP 503" in line for _, line in told)


def test_short_things_one_after_the_other_are_no_silence_either():
    time = Ticking()
    progress, moments = time.progress(), []
    view = PlainLines(progress, PARAMETERS)
    for i in range(20):
        with progress.doing(f"training {i}", job=str(i)):
            for _ in range(36):
                time.passes(LOOKS_S)
                moments += [time.s] * len(view.lines_due())
    assert max(b - a for a, b in itertools.pairwise(moments)) < 15


def test_a_line_stands_at_the_time_of_what_it_tells():
    time = Ticking()
    progress = time.progress()
    view = PlainLines(progress, PARAMETERS, only_events=True)
    time.passes(61)
    progress.tell("test", "iteration 0: tested")
    time.passes(5)
    assert view.lines_due() == ["[0:01:01] iteration 0: tested"]
    assert view.lines_due() == []


def test_json_lines_carry_events_with_their_facts_and_the_state_every_few_seconds():
    time = Ticking()
    progress, lines = time.progress(), []
    view = JsonLines(progress, PARAMETERS)
    for _ in a_run(time, progress):
        lines += view.lines_due()
    documents = [json.loads(line) for line in lines]
    assert all({"at", "event"} <= set(document) for document in documents)
    [ready] = [document for document in documents if document["event"] == "ready"]
    assert ready["facts"] == {"what": "the model server (embedded with tiny)", "seconds": 42.0}
    states = [document for document in documents if document["event"] == "progress"]
    steps = [s for s in states if s["stage"] == "train" and s["doing"]][5]
    assert steps["doing"][0]["job"] == "ftjob-1"
    assert {"done", "total", "loss", "tokens_per_s", "left_s"} <= set(steps["doing"][0])
    assert steps["counts"]["retries"] == 1
    seconds = [document["elapsed_s"] for document in states]
    assert max(b - a for a, b in itertools.pairwise(seconds)) <= 5.25


def test_a_number_that_json_does_not_have_is_none():
    progress = Ticking().progress()
    progress.tell("job", "lost", loss=float("nan"))
    [line, _] = JsonLines(progress, PARAMETERS).lines_due()
    assert json.loads(line)["facts"] == {"loss": None}
    assert json.loads(line)["at"].startswith("2027") and MIDNIGHT
