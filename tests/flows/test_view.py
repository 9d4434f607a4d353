"""The command `nip view`: an address that works, from this machine alone."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

NIP = str(Path(sys.executable).with_name("nip"))


@pytest.fixture
def store(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def test_the_printed_address_opens_the_runs_and_ctrl_c_ends_it(store):
    command = [NIP, "view", "--run-store", str(store), "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        lines = [process.stdout.readline() for _ in range(2)]
        url = re.fullmatch(r"nip view: (http://127\.0\.0\.1:(\d+)/\?token=(\S{20,}))\n", lines[0])
        assert url, lines
        assert f"ssh -N -L {url[2]}:127.0.0.1:{url[2]} " in lines[1]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{url[2]}/", timeout=60)
        request = urllib.request.Request(
            f"http://127.0.0.1:{url[2]}/", headers={"Authorization": f"Bearer {url[3]}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert b"There is no run yet" in answer.read()
    finally:
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) in (0, 130)


@pytest.mark.parametrize(
    "by", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_browser_is_opened_without_telling_other_users_the_token(store, tmp_path, by):
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(
        f'#!/bin/sh\n(echo "$1"; f="${{1#file://}}"; stat -c %a "$f"; cat "$f") > {seen}.part\n'
        f"mv {seen}.part {seen}\n"
    )
    browser.chmod(0o755)
    process = subprocess.Popen(
        [NIP, "view", "--run-store", str(store), "--open"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": f"{browser} %s"},
    )
    try:
        url = process.stdout.readline().split()[-1]
        deadline = time.monotonic() + 60
        while not seen.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        address, mode, page = seen.read_text().split("\n", 2)
    finally:
        os.kill(process.pid, by)
        assert process.wait(60) in (0, 128 + by)
    assert url.partition("token=")[2] not in address
    assert f'content="0;url={url}"' in page
    assert mode == "600"
    assert not Path(address.removeprefix("file://")).parent.exists()


def test_without_a_token_it_listens_for_this_machine_alone(nip, store):
    ended = nip("view", "--run-store", str(store), "--no-token", "--host", "0.0.0.0")
    assert ended.returncode == 2
    assert "leave the token" in ended.stderr


def test_a_store_or_a_run_that_is_not_there_is_named(nip, store):
    ended = nip("view", "--run-store", str(store / "nowhere"))
    assert ended.returncode == 2
    assert "there is no such directory" in ended.stderr
    ended = nip("view", "absent", "--run-store", str(store))
    assert ended.returncode == 2
    assert "'absent' is not in" in ended.stderr
