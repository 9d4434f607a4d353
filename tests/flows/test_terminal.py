"""What models, data sets and other people wrote is shown by every command, and obeyed by none."""

import io
import json
import logging
import re
import sys

import pytest
from rich.table import Table
from rich.text import Text
from small_game import FEW, train_here, write_config

from nip_cli.printing import terminal
from nip_cli.printing.console import make_console
from nip_core.scenarios.rows import Row, write_split

CODES = (
    "\x1b[31mred\x1b]0;title\x07 \x1b]8;;https://elsewhere.example\x1b\\link\x1b]8;;\x1b\\ "
    "over\rwritten \x08\x0b\x0c\x7f \x9b31m\x9d0;title\x9c \u202eturned\u202c \u2066in\u2069 "
)
TEXT = CODES + "first line\n\tsecond line"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
async def folder(tmp_path_factory):
    """Two runs whose data and answers hold control codes, one that can't be read, and a source."""
    folder = tmp_path_factory.mktemp("strange")
    rows = [
        Row(
            f"{CODES}{i}",
            f"{CODES}{i // 2}",
            f"{i // 2} {TEXT}",
            f"x = {i} # {TEXT}",
            i % 2,
            CODES,
            CODES,
        )
        for i in range(80)
    ]
    (folder / "data").mkdir()
    for split, part in (("train", rows[:60]), ("validation", rows[60:64]), ("test", rows[64:])):
        write_split(part, folder / "data" / f"{split}.parquet")
    reply = {"text": TEXT + "\nMessage: " + TEXT + "\nDecision: accept"}
    (folder / "replies.yaml").write_text(json.dumps({"default": [reply]}))
    server = {"engine": "deterministic", "replies": str(folder / "replies.yaml")}
    for name, rl in (("small", FEW), ("other", {"num_iterations": 0})):
        config = write_config(
            folder, run_name=name, rl=rl, dataset=str(folder / "data"), lm_server=server
        )
        await train_here(config)
    (folder / "runs" / f"e{CODES.replace('/', '')}").mkdir()
    (folder / "runs" / f"e{CODES.replace('/', '')}" / "run.json").write_text("{")
    source = {"task_id": CODES, "text": TEXT, "code": "def f(x):\n    return x + 1\n"}
    source |= {"test_list": ["assert f(1) == 2", "assert f(0) == 1"], "split": CODES}
    lines = [source, {**source, "text": "", "task_id": "b" + CODES}, {**source, CODES: 1}]
    lines += [{**source, "task_id": f"{i} {CODES}", "text": f"{i}", "split": "test"} for i in "cde"]
    (folder / "source.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


COMMANDS = {
    "prompt of a run": ["prompt", "--run", "small", "--agent", "verifier", "--run-store", "runs"],
    "prompt to come": ["prompt", "config.yaml"],
    "show": ["show", "small", "--run-store", "runs"],
    "ls": ["ls", "--run-store", "runs"],
    "verify": ["verify", "small", "--run-store", "runs"],
    "diff": ["diff", "small", "other", "--run-store", "runs"],
    "compare": ["compare", "small", "other", "--run-store", "runs", "--out", "page"],
    "dry run": ["train", "config.yaml", "--dry-run", "--set", "run_name=new"],
    "problems": ["problems", "build", "source.jsonl", "--out", "built", "--variants", "1"],
    "a run that isn't": ["show", "small" + CODES.replace("/", ""), "--run-store", "runs"],
}

PATHS = ("runs", "config.yaml", "source.jsonl", "built", "page")


@pytest.mark.parametrize("as_json", [False, True], ids=["in words", "as JSON"])
@pytest.mark.parametrize("what", COMMANDS)
def test_no_command_prints_a_code_that_a_terminal_obeys(nip, folder, what, as_json):
    words = [str(folder / word) if word in PATHS else word for word in COMMANDS[what]]
    done = nip(*words, *(["--json"] if as_json else []))
    assert done.returncode in (0, 2), done.stderr
    for shown in (done.stdout, done.stderr):
        assert not OBEYED.findall(shown), shown
    if what.startswith("prompt") and not as_json:
        assert "\\u001b[31mred" in done.stdout and "over\\rwritten" in done.stdout
        assert "first line\n\tsecond line" in done.stdout
    if as_json and done.returncode == 0:
        json.loads(done.stdout)


def test_a_table_shows_markup_and_codes_and_makes_no_link():
    console = make_console(width=200)
    console.file = io.StringIO()
    table = Table("[link=https://elsewhere.example]name[/link]")
    table.add_row(f"[bold]{CODES}:boom:")
    console.print(table, Text(CODES))
    shown = console.file.getvalue()
    assert "[link=https://elsewhere.example]name[/link]" in shown and ":boom:" in shown
    assert shown.count("\\u001b[31mred") == 2 and not OBEYED.findall(shown)


def test_what_is_logged_or_raised_is_shown_in_the_same_way(capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    factory = logging.getLogRecordFactory()
    stream = io.StringIO()
    handler, log = logging.StreamHandler(stream), logging.getLogger("nip.of_a_test")
    log.addHandler(handler)
    try:
        terminal.guard()
        try:
            raise ValueError(TEXT)
        except ValueError as error:
            log.warning("a server said: %s", TEXT, exc_info=True)
            sys.excepthook(type(error), error, error.__traceback__)
    finally:
        logging.setLogRecordFactory(factory)
        log.removeHandler(handler)
    for shown in (stream.getvalue(), capsys.readouterr().err):
        assert "ValueError" in shown and "first line\n\tsecond line" in shown
        assert not OBEYED.findall(shown)


def test_text_in_other_scripts_is_shown_as_it_is():
    out = io.StringIO()
    terminal.say("déjà\u00a0vu, 全角\u3000空白, \U0001f600, e\u0301", file=out)
    assert out.getvalue() == "déjà\u00a0vu, 全角\u3000空白, \U0001f600, e\u0301\n"
