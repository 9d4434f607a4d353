"""What a sweep and a hardening show of their runs, in each of the ways that `--progress` names."""

import io
import json
import re

import pytest
from rich.console import Console

from nip_cli.printing.options import Shown
from nip_study.commands.runs_view import RunsView


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True


class Gone(io.StringIO):
    """A pipe whose reader has closed it."""

    def write(self, text):
        raise BrokenPipeError


def played(to, shown, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    seconds = iter(range(100))
    with RunsView(3, to, shown, clock=lambda: float(next(seconds))) as view:
        view.ended("old", "was finished before")
        view.started("new")
        view.started("bad")
        drawn = Console(file=io.StringIO(), width=80)
        drawn.print(view.frame())
        view.ended("bad", "failed with exit code 3: no answer", is_failed=True)
    return to.getvalue(), drawn.file.getvalue()


@pytest.mark.parametrize("shown", [Shown.auto, Shown.lines])
def test_where_nothing_moves_there_is_a_line_for_each_run_that_begins_and_ends(shown, monkeypatch):
    said, _ = played(io.StringIO(), shown, monkeypatch)
    assert re.sub(r"\[ +[\d.]+ s\] ", "", said).splitlines() == [
        "old: was finished before (1 of 3)",
        "new: started",
        "bad: started",
        "bad: failed with exit code 3: no answer (2 of 3)",
    ]


def test_a_program_reads_which_run_began_and_how_it_ended(monkeypatch):
    said, _ = played(io.StringIO(), Shown.json, monkeypatch)
    events = [json.loads(line) for line in said.splitlines()]
    assert [(e["event"], e["facts"]["run"]) for e in events] == [
        ("ended", "old"), ("started", "new"), ("started", "bad"), ("ended", "bad"),
    ]  # fmt: skip
    assert events[-1]["text"] == "failed with exit code 3: no answer"
    facts = {"run": "bad", "is_failed": True, "ended": 2, "runs": 3}
    assert events[-1]["facts"] == facts and events[-1]["at"].endswith("+00:00")


def test_none_says_nothing(monkeypatch):
    assert played(io.StringIO(), Shown.none, monkeypatch)[0] == ""


@pytest.mark.parametrize("shown", [Shown.auto, Shown.live])
def test_a_terminal_shows_the_runs_that_go_on_and_how_many_have_ended(shown, monkeypatch):
    said, drawn = played(Screen(), shown, monkeypatch)
    assert "bad: failed with exit code 3: no answer (2 of 3)" in said
    assert said.rfind("\x1b[?25h") > said.rfind("\x1b[?25l") >= 0  # the cursor is shown again
    going, last = drawn.splitlines()[:-1], drawn.splitlines()[-1]
    assert [line.split()[0] for line in going] == ["new", "bad"]
    assert "1 of 3 ended" in last and max(map(len, drawn.splitlines())) <= 80


def test_runs_go_on_where_their_lines_have_no_reader_any_more():
    with RunsView(1, Gone(), Shown.lines) as view:
        view.started("a")
        view.ended("a", "finished")
