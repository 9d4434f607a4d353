"""`inspect view` in a browser shows the transcript of an exported run.

NIP_SHOTS names a directory for screenshots. NIP_CHROMIUM names the browser, default
/usr/bin/chromium (Debian: apt-get install chromium).
"""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from both_ways import play_here, write_config
from playwright.sync_api import expect, sync_playwright

from nip_core.rollouts.plan import TEST
from nip_core.rollouts.storage.tables import read_rollouts
from nip_inspect.export import export_run

pytestmark = pytest.mark.timeout(3600)
CHROMIUM = os.environ.get("NIP_CHROMIUM", "/usr/bin/chromium")
SHOTS = os.environ.get("NIP_SHOTS")
PATIENCE_S = 600


@pytest.fixture(scope="module")
def run(server, tmp_path_factory):
    few = {"max_test_size": 6, "max_train_size": 40}
    return play_here(write_config(tmp_path_factory.mktemp("run"), server, dataset_options=few))


@pytest.fixture(scope="module")
def view(run, tmp_path_factory) -> Iterator[str]:
    """The address of `inspect view` on the exported run."""
    logs = tmp_path_factory.mktemp("logs")
    export_run(run, logs)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    inspect = str(Path(sys.executable).parent / "inspect")
    command = [inspect, "view", "start", "--log-dir", str(logs), "--port", str(port)]
    url, process = f"http://127.0.0.1:{port}/", subprocess.Popen(command)
    try:
        _wait_for(url)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait_for(url: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            urllib.request.urlopen(url).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def test_a_transcript_is_shown(run, view):
    if not Path(CHROMIUM).exists():
        pytest.fail(f"{CHROMIUM}: not there; apt-get install chromium, or set NIP_CHROMIUM")
    tables = read_rollouts(run.store, run.rollouts(0, TEST))
    episode = tables.episodes.to_pylist()[0]
    rows = [r for r in tables.generations.to_pylist() if r["episode"] == episode["key"]]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_S * 1000
        )
        page = browser.new_page(viewport={"width": 1400, "height": 1400})
        page.set_default_timeout(PATIENCE_S * 1000)
        expect.set_options(timeout=PATIENCE_S * 1000)
        # 1. The log, which opens by itself as there is one, with its figures.
        page.goto(view)
        expect(page.get_by_text("both-test-0000").first).to_be_visible()
        expect(page.get_by_text("completeness").first).to_be_visible()
        # 2. A sample: its transcript has a lane and a card for each agent, and the verdict.
        page.get_by_text(episode["problem"]).first.click()
        expect(page.get_by_text("Sub-agent: verifier").first).to_be_visible()
        expect(page.get_by_text("prover").first).to_be_visible()
        if SHOTS:
            page.screenshot(path=f"{SHOTS}/inspect-transcript.png")
        # 3. The dialogue, word for word.
        page.get_by_text("Messages", exact=True).first.click()
        expect(page.get_by_text(rows[0]["text"].strip()).first).to_be_visible()
        if SHOTS:
            page.screenshot(path=f"{SHOTS}/inspect-messages.png")
        browser.close()
