"""Ctrl-C in a terminal, and SIGTERM: to the whole process group, twice, in whatever phase."""

import json
import os
import signal
import subprocess
import sys
import types

import psutil
import pytest
from slow_game import is_playing, slow_config
from terminal import Terminal

from nip_cli.launching.launch import is_unreachable
from nip_cli.launching.stopping import Stopped
from nip_lm_server.state.directory import read_card


@pytest.mark.long
def test_ctrl_c_in_a_terminal_ends_all_of_it_with_two_lines(tmp_path, own_prefect):
    config = slow_config(tmp_path / "run", "small")
    with Terminal(["train", str(config)], own_prefect) as terminal:
        terminal.wait_for(lambda: is_playing(tmp_path / "run", "small"))
        groups = {os.getpgid(child.pid) for child in terminal.note_children()}
        terminal.signal_group(signal.SIGINT)
        terminal.signal_group(signal.SIGINT)
        status = terminal.wait()
        said = terminal.text.partition("stopping")[2]
        assert terminal.text.rfind("\x1b[?25h") > terminal.text.rfind("\x1b[?25l")  # the cursor
        assert terminal.process.pid not in groups
        assert status == 130
        assert said.startswith(", what is finished is kept")
        assert said.endswith("nip: interrupted; running again continues\n")
        assert len(said.splitlines()) == 2, said
        assert terminal.left_behind() == []
    run = tmp_path / "run" / "runs" / "small"
    assert json.loads((run / "lease.json").read_text())["state"] == "released"
    assert read_card(run / "lm_server") is None


def test_a_termination_of_the_group_is_heard_while_it_plays(tmp_path):
    config = slow_config(tmp_path / "run", "small")
    arguments = ["play", str(config), "--out", str(tmp_path / "out")]
    with Terminal(arguments, os.environ) as terminal:
        terminal.wait_for(lambda: is_playing(tmp_path / "run", "small"))
        terminal.signal_group(signal.SIGTERM)
        assert terminal.wait() == 143
        assert terminal.text.endswith(
            "nip: stopping, what is finished is kept\nnip: terminated; running again continues\n"
        )
        assert terminal.left_behind() == []
    run = tmp_path / "run" / "runs" / "small"
    assert json.loads((run / "lease.json").read_text())["state"] == "released"
    assert read_card(run / "lm_server") is None


def test_a_start_can_be_stopped_before_anything_has_come_up(tmp_path):
    config = slow_config(tmp_path / "run", "small")
    with Terminal(
        ["train", str(config)], {**os.environ, "PREFECT_HOME": str(tmp_path)}
    ) as terminal:
        terminal.wait_for(lambda: "starting Prefect" in terminal.text)
        terminal.signal_group(signal.SIGINT)
        assert terminal.wait() == 130, terminal.text
        assert terminal.text.endswith("nip: interrupted; running again continues\n")
        assert "Traceback" not in terminal.text
        assert terminal.left_behind() == []


def test_a_stop_is_no_error_of_a_client_that_is_being_imported(monkeypatch):
    # Between its first line and its last a module is there, and lacks its names.
    monkeypatch.setitem(sys.modules, "httpx", types.ModuleType("httpx"))
    assert not is_unreachable(Stopped(signal.SIGINT))


def test_a_signal_is_heard_while_the_command_is_imported(tmp_path):
    (tmp_path / "typer.py").write_text(
        "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
    )
    with Terminal(["--help"], {**os.environ, "PYTHONPATH": str(tmp_path)}) as terminal:
        assert terminal.wait() == 130
        assert terminal.text == "nip: interrupted; running again continues\n"


CLOSING = """
import os, signal, sys, time
from nip_cli import cli

def command():
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(1)
    print("went on")

cli.app.command("wait")(command)
sys.argv = ["nip", "wait"]
cli.main()
"""


@pytest.mark.parametrize("is_nohup", [False, True])
def test_a_closed_terminal_stops_a_command_with_a_word_unless_nohup_keeps_it(is_nohup):
    def before() -> None:  # whatever the tests themselves were started by
        signal.signal(signal.SIGHUP, signal.SIG_IGN if is_nohup else signal.SIG_DFL)

    ended = subprocess.run(
        [sys.executable, "-c", CLOSING], preexec_fn=before, capture_output=True, text=True
    )
    if is_nohup:
        assert (ended.returncode, ended.stdout) == (0, "went on\n")
    else:
        assert ended.returncode == 128 + signal.SIGHUP
        assert ended.stderr == "nip: the terminal was closed; running again continues\n"


def test_the_prefect_server_ends_with_a_command_that_is_killed(tmp_path):
    code = (
        "import time; from nip_cli.launching.temporary_prefect import TemporaryPrefect;"
        "TemporaryPrefect(); print('up', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        (server,) = psutil.Process(process.pid).children()
        assert os.getsid(server.pid) == server.pid
        process.kill()
    assert psutil.wait_procs([server], timeout=60)[1] == []
