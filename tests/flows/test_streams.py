"""Standard streams that are closed, that nobody reads any longer, or whose disk is full."""

import json
import os
import subprocess
import sys

import pytest
from recording_proxy import recording_proxy, variables
from small_game import FEW, write_config

NIP = [sys.executable, "-m", "nip_cli"]


def finished(folder) -> bool:
    """Whether the run of one iteration is finished."""
    done = subprocess.run(
        [*NIP, "show", "small", "--run-store", str(folder / "runs"), "--json"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)["status"] == "finished"


@pytest.mark.long
def test_a_training_without_standard_streams_is_done_and_asks_no_proxy(own_prefect, tmp_path):
    """With a Prefect server of its own: what starts it and all that it starts have the proxies."""
    few = {"max_test_size": 2, "max_train_size": 40}
    config = write_config(tmp_path, rl=FEW, dataset_options=few)
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    with recording_proxy() as proxy:
        # As a desktop sets them: httpx can't even be told of the last one.
        proxies = {**variables(proxy), "all_proxy": f"socks5://127.0.0.1:{proxy.port}"}
        done = subprocess.run(
            [*shell, *NIP, "train", str(config)],
            env={**own_prefect, **proxies},
            capture_output=True,
            timeout=180,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert finished(tmp_path)
    assert proxy.connections == 0, proxy.asked


@pytest.mark.long
def test_a_training_goes_on_when_its_reader_has_gone(command_environment, tmp_path):
    config = write_config(tmp_path, rl=FEW)
    with subprocess.Popen(
        [*NIP, "train", str(config), "--progress", "json"],
        env=command_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as training:
        assert training.stdout is not None and training.stderr is not None
        assert json.loads(training.stdout.readline())["event"] == "begin"
        training.stdout.close()
        said = training.stderr.read()
        assert (training.wait(120), said) == (0, b"")
    assert finished(tmp_path)


def test_what_is_printed_for_nobody_is_no_error_and_what_finds_no_room_is_one_line():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run([*NIP, "doctor"], stdout=pipe, stderr=subprocess.PIPE, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    with open("/dev/full", "w") as full:
        done = subprocess.run([*NIP, "--help"], stdout=full, stderr=subprocess.PIPE, timeout=120)
    assert done.returncode == 1
    assert done.stderr == b"nip: can't write to standard output: No space left on device\n"
