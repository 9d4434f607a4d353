"""What is shown while a run goes on, and the table at its end, as terminals of several widths."""

import io
import itertools
import os

import pytest
from rich.console import Console
from ticking import Ticking, small_parameters

from nip_cli.printing.live import frame, watch
from nip_cli.printing.options import Shown
from nip_cli.printing.plans_and_runs import show_run
from nip_core.parameters import HyperParameters
from nip_core.progress.board import Stage
from nip_core.progress.outlook import observe_run
from nip_core.protocols import list_agent_names, protocol_names

PLAN = (Stage(0, "test", 400), Stage(0, "play", 400), Stage(0, "train"), Stage(1, "test", 400))
JOBS = ("ftjob-94a1474f3f2add8058522546", "ftjob-d49b08e8a998a739c61f5205")


@pytest.fixture
def training():
    """A run whose two jobs are trained."""
    time = Ticking()
    progress, parameters = time.progress(), small_parameters()
    progress.expect(PLAN, {}, {"test": [0.1], "play": [0.1]})
    progress.count_retry("ftjob: no answer")
    progress.invalid_answers = 12
    with (
        progress.during(0, "train"),
        progress.doing("training verifier", group="verifier", job=JOBS[0]) as first,
        progress.doing("training prover", group="prover", job=JOBS[1], tokens_total=900) as second,
    ):
        second.tell(time.s, status="queued")
        first.tell(time.s, status="running", done=1, total=416, tokens=100, left_s=100.0)
        time.passes(30)
        first.tell(
            time.s, status="running", done=104, total=416, loss=0.1234, tokens=9_100, left_s=90.0
        )
        progress.training_tokens_per_s = first.tokens_per_s
        yield observe_run(progress, parameters)


def drawn(state, width):
    plain = Console(file=io.StringIO(), width=width)
    plain.print(frame(state, width))
    return plain.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_view_names_every_job_with_its_figures_and_the_whole_run(training, width):
    lines = drawn(training, width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width and len(lines) < 24
    assert lines[0].startswith("iteration 0/1: training  0:00:30")
    for job in JOBS:
        assert job in text
    assert "step 104/416" in text
    assert "loss 0.123, 300 tokens/s" in text
    assert "about 2 min left" in text or "about 90 s left" in text
    assert "queued, about 3 s left" in text
    assert "1 retries, the last after ftjob: no answer, 12 invalid answers" in text
    assert "whole run" in lines[-1] and "45 %, about 2 min left" in lines[-1]


def test_a_narrow_terminal_is_shown_less_and_nothing_breaks(training):
    lines = drawn(training, 40)
    assert max(map(len, lines)) <= 40
    assert any(line.startswith("verifier     25 %, about 2 min left") for line in lines)


def test_a_terminal_that_cannot_draw_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console = Console(file=io.StringIO(), force_terminal=True)
    with watch(small_parameters(), Ticking().progress(), console):
        pass
    assert console.file.getvalue() == ("[0:00:00] getting ready for run small\n")


def test_nothing_is_shown_where_nothing_is_to_be_shown():
    console = Console(file=io.StringIO(), force_terminal=True)
    with watch(small_parameters(), Ticking().progress(), console, Shown.none):
        pass
    assert console.file.getvalue() == ""


def test_who_closes_the_pipe_does_not_stop_the_run():
    reading, writing = os.pipe()
    os.close(reading)
    progress = Ticking().progress()
    with os.fdopen(writing, "w") as pipe:
        with watch(small_parameters(), progress, Console(file=pipe)):
            progress.tell("test", "tested")
        with pytest.raises(BrokenPipeError):
            print("x", file=pipe, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)


def test_a_model_is_shown_at_its_price_and_not_at_that_of_a_name_it_begins_with():
    parameters = HyperParameters.model_validate(
        {
            "run_name": "x",
            "dataset": "families",
            "interaction_protocol": "nip",
            # In the order in which a prefix would be tried first.
            "prices": {
                "gpt-4o": {"prompt_usd": 2.5, "completion_usd": 10.0},
                "gpt-4o-mini": {"prompt_usd": 0.15, "completion_usd": 0.6},
            },
            "agents": {
                "_default": {"model_provider": "OpenAI"},
                "prover": {"model_name": "gpt-4o"},
                "verifier": {"model_name": "gpt-4o-mini"},
            },
        }
    )
    progress = Ticking().progress()
    progress.count_answer("verifier", 1_000_000, 1_000_000)
    assert observe_run(progress, parameters).counts.usd == pytest.approx(0.75)
    progress.count_answer("prover", 1_000_000, 0)
    assert observe_run(progress, parameters).counts.usd == pytest.approx(0.75 + 2.5)


ENDS = ("succeeded", "failed", "not scheduled", "skipped")
TEST = {
    "accuracy": 1.0, "accuracy_ci95": [0.999, 1.0], "completeness": 1.0, "soundness": 1.0,
    "episodes": 100_000, "distinct_problems": 100_000, "questions": 10_000,
}  # fmt: skip
LEAGUE = {
    "opponent": "a_prover_with_a_name_that_nobody_would_choose", "opponent_iteration": 9998,
    "episodes": 100_000, "accuracy": 1.0, "accuracy_ci95": [0.0, 1.0], "completeness": 1.0,
    "soundness": 1.0,
}  # fmt: skip
BIG = {"spent": 9e10, "expected": 9e10, "at_most": 9e10, "budget": 9e10}


@pytest.mark.parametrize("protocol", [*protocol_names(), "long names"])
@pytest.mark.parametrize("differ", [False, True])
def test_the_last_tables_fit_eighty_columns(protocol, differ, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = ["a_group_whose_name_is_longer_than_any_column", "another_such_group_of_provers"]
    if protocol != "long names":
        names = [*list_agent_names(protocol, zero_knowledge=differ)]
    ends = itertools.cycle(ENDS if differ else ENDS[:1])
    jobs = {name: {"status": next(ends), "reason": None} for name in names}
    entries = [{"iteration": i, "test": TEST, "jobs": jobs, "league": [LEAGUE]} for i in (0, 9999)]
    show_run(
        {
            "run": "x",
            "status": "finished",
            "iterations": entries,
            "costs": {"prompt_tokens": BIG, "tokens": BIG, "usd": dict.fromkeys(BIG, 9e7)},
        }
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80, lines
    shown = [line for line in lines if " 9999 " in line or " 0 " in line]
    assert all("100.0 % 99.9 to 100.0" in line for line in shown[:2])
    assert not any("…" in line for line in lines)


def test_a_narrow_terminal_gets_fewer_figures(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    jobs = {name: {"status": "succeeded", "reason": None} for name in ("prover", "verifier")}
    entry = {"iteration": 0, "test": {**TEST, "questions": None}, "jobs": jobs}
    show_run({"run": "x", "status": "finished", "iterations": [entry], "costs": {}})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 50
    assert "100.0 %" in lines[4] and "2 succeeded" in lines[4]
