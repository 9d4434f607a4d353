"""Prefect's UI in a real browser: start a run from the form, kill its worker, press Retry.

NIP_SHOTS names a directory for screenshots. NIP_CHROMIUM names the browser, default
/usr/bin/chromium (Debian: apt-get install chromium).
"""

import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, expect, sync_playwright
from prefect_stack import Stack, kill_tree, until
from slow_game import digests, is_playing, runner_of, slow_config

from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
CHROMIUM = os.environ.get("NIP_CHROMIUM", "/usr/bin/chromium")
SHOTS = os.environ.get("NIP_SHOTS")
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def page():
    if not Path(CHROMIUM).exists():
        pytest.fail(f"{CHROMIUM}: not there; apt-get install chromium, or set NIP_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1500})
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        yield page
        browser.close()


def shot(page: Page, name: str) -> None:
    if SHOTS:
        page.wait_for_load_state("networkidle")
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def start_from_the_form(stack: Stack, page: Page, config: Path) -> str:
    """Fill in the form of the deployment `quickstart` and submit it; the flow run's id."""
    deployment = stack.api("/deployments/name/train/quickstart")
    page.goto(f"{stack.url}/deployments/deployment/{deployment['id']}/run")
    form = page.locator("form")
    for field in (
        "config",
        "config_file",
        "overrides",
        "run_name",
        "num_iterations",
        "rerun_from_stage",
    ):
        expect(form.get_by_text(field, exact=False).first).to_be_visible()
    expect(form.get_by_text("each written as a.b=c")).to_be_visible()
    expect(form.get_by_text("quickstart")).to_be_visible()  # chosen among those that are bundled
    form.get_by_text("str", exact=True).last.click()
    form.locator("textarea").last.fill(str(config))
    shot(page, "form")
    form.get_by_role("button", name="Submit").click()

    def started():
        # Of this deployment alone: there are many scheduled ones of the others.
        runs = stack.api("/flow_runs/filter", {"deployments": {"id": {"any_": [deployment["id"]]}}})
        return [r["id"] for r in runs if r["parameters"].get("config_file") == str(config)]

    return str(until(started, "the flow run of the form")[0])


def state_of(stack: Stack, identifier: str) -> str:
    return stack.api(f"/flow_runs/{identifier}")["state"]["type"]


def test_a_run_is_started_killed_and_retried_in_the_browser(stack, page, tmp_path):
    name, folder = "from-the-form", tmp_path / "killed"
    config = slow_config(folder, name)
    worker = stack.start_worker()
    identifier = start_from_the_form(stack, page, config)
    until(lambda: is_playing(folder, name), "it plays")
    runner = psutil.Process(runner_of(folder, name))
    # As a machine's end does: Prefect is told nothing.
    kill_tree(worker.pid, signal.SIGKILL)
    worker.wait(timeout=30)
    psutil.wait_procs([runner], timeout=30)
    assert state_of(stack, identifier) == "RUNNING"
    stack.start_worker()
    stack.reconcile_once()  # as its schedule does
    assert state_of(stack, identifier) == "CRASHED"

    page.goto(f"{stack.url}/runs/flow-run/{identifier}")
    expect(page.get_by_text("Crashed").first).to_be_visible()
    shot(page, "crashed")
    page.get_by_role("button", name="Retry").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    until(lambda: state_of(stack, identifier) == "COMPLETED", "it is completed", 300)
    page.reload()
    expect(page.get_by_text("Completed").first).to_be_visible()
    shot(page, "completed")

    straight = slow_config(tmp_path / "straight", name)
    again = start_from_the_form(stack, page, straight)
    until(lambda: state_of(stack, again) == "COMPLETED", "the straight run is completed", 300)
    assert digests(folder, name) == digests(tmp_path / "straight", name)
    assert stack.api(f"/flow_runs/{identifier}")["run_count"] == 2


def test_its_artifacts_can_be_read(stack, page):
    name = "from-the-form"
    shown = {
        "state": "finished_iterations",
        "metrics": "95 % interval",
        "progress": "100%",
        "learning-curve": "Accuracy on test problems",
        "samples": "verifier",
        "cost": "generated tokens",
    }
    for what, text in shown.items():
        key = f"nip-{name}-{what}"
        found = stack.api("/artifacts/latest/filter", {"artifacts": {"key": {"any_": [key]}}})
        page.goto(f"{stack.url}/artifacts/artifact/{found[0]['latest_id']}")
        expect(page.get_by_text(key).first).to_be_visible()
        expect(page.get_by_text(text).first).to_be_visible()
        shot(page, f"artifact-{what}")


def test_cancelled_in_the_browser_it_stops_and_lets_go_of_its_run(stack, page, tmp_path):
    name, folder = "cancelled", tmp_path / "cancelled"
    config = slow_config(folder, name)
    stack.start_worker()
    identifier = start_from_the_form(stack, page, config)
    until(lambda: is_playing(folder, name), "it plays")
    runner = psutil.Process(runner_of(folder, name))
    page.goto(f"{stack.url}/runs/flow-run/{identifier}")
    page.get_by_role("button", name=re.compile("^Cancel")).first.click()
    page.get_by_role("dialog").get_by_role("button", name="Confirm").click()
    until(lambda: state_of(stack, identifier) == "CANCELLED", "it is cancelled")
    _, alive = psutil.wait_procs([runner], timeout=60)
    assert alive == []
    run = RunStore(open_store(folder / "runs"), name)
    assert run.read_json(f"{run.root}/lease.json")["state"] == "released"
    assert run.finished_iterations() == 0
