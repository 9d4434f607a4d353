"""Ten runs at once on a Prefect server with PostgreSQL: all of them finish, nothing is lost."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prefect_stack import ROOT, until
from small_game import write_config
from up_stack import Up, left_of, open_folder

from nip_core.run_store.manifest import MANIFEST, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import list_files, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

RUNS = [f"at-once-{number}" for number in range(10)]
GROUPS = ("prover", "verifier")
SHARDS = {("test", 0): 1, ("train", 0): 2, ("test", 1): 1}
PUBLISHED = ("play-0", "train-0", "test-1")
TROUBLE = re.compile(
    "ERROR|FATAL|PANIC|CRITICAL|Traceback|deadlock|locked|lock timeout|Error flushing"
    "|Dropping event|Duplicate task_run"
)
RACE = 'ERROR:  duplicate key value violates unique constraint "pk_task_run"'
"""In PostgreSQL's log: Prefect's server notes two events of a task run at once, sees that, and notes
the second again. Had that been in vain, its own log would have `Error flushing`."""


def trouble_in(log: Path) -> list[str]:
    """Lines of a log that tell of errors or locks."""
    lines = log.read_text(errors="replace").splitlines()
    return [line for line in lines if TROUBLE.search(line) and not line.endswith(RACE)]


def expected_tasks() -> Counter[str]:
    """Names of the task runs of one run."""
    played = [
        name
        for (split, iteration), shards in SHARDS.items()
        for name in (
            *(f"{what}-{split}-{iteration}" for what in ("plan", "commit", "measure")),
            *(f"play-{split}-{iteration}-{shard:04d}" for shard in range(shards)),
        )
    ]
    trained = [f"{what}-{g}-0" for what in ("dataset", "submit", "await") for g in GROUPS]
    published = [f"publish-{after}" for after in PUBLISHED]
    return Counter([*played, *trained, *published, "prove-serving-0", "swap-0"])


@pytest.fixture
def up():
    """All parts, with PostgreSQL."""
    with open_folder() as folder:
        up = Up(folder)
        try:
            yield up.wait_until_up()
            processes = up.descendants()
        finally:
            up.process.send_signal(signal.SIGINT)
            up.process.wait(timeout=180)
        assert left_of(processes) == []


def start(up: Up, folder: Path, name: str) -> subprocess.Popen[bytes]:
    """`nip train` of a small run, on the API and the lm_server of `up`."""
    folder.mkdir()
    config = write_config(
        folder,
        run_name=name,
        rl={"num_iterations": 1, "rollouts_per_iteration": 40, "num_epochs": 1},
        lm_server={"url": f"http://127.0.0.1:{up.lm_port}"},
    )
    environment = {
        **os.environ,
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{up.port}/api",
        "PREFECT_API_AUTH_STRING": (up.state / "prefect_auth").read_text(),
        "NIP_API_KEY": (up.state / "lm_server_key").read_text(),
    }
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "nip_cli.cli", "train", str(config), "--verbose"]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)


def flow_runs_of(up: Up, names: list[str]) -> list[dict[str, Any]]:
    return up.api("/flow_runs/filter", {"flow_runs": {"name": {"any_": names}}})


def task_runs_of(up: Up, name: str) -> list[dict[str, Any]]:
    """Task runs of a run; those that stand for a subflow in its parent left out."""
    names = {"name": {"any_": [f"train-{name}", f"iteration-{name}-0"]}}
    found = up.api("/task_runs/filter", {"flow_runs": names})
    return [task for task in found if not task["name"].startswith("iteration")]


def check_tasks(up: Up, name: str) -> None:
    """Each ran once and is on record as completed. The server writes them down somewhat later."""
    wanted = expected_tasks()

    def all_there() -> bool:
        tasks = task_runs_of(up, name)
        return len(tasks) >= wanted.total() and all(t["end_time"] for t in tasks)

    until(all_there, f"all task runs of {name} are on record")
    tasks = task_runs_of(up, name)
    assert Counter(task["name"] for task in tasks) == wanted
    assert {task["state_type"] for task in tasks} == {"COMPLETED"}
    assert {task["run_count"] for task in tasks} == {1}


def check_state(up: Up, folder: Path, name: str) -> None:
    """The state artifact tells what lies in the store, and has all its versions."""
    run = RunStore(open_store(folder / "runs", read_only=True), name)
    wanted = {"artifacts": {"key": {"any_": [f"nip-{name}-state"]}}}
    latest = up.api("/artifacts/latest/filter", wanted)[0]["data"]
    state = json.loads(latest.partition("```json\n")[2].rpartition("\n```")[0])
    committed = {
        path.removeprefix(f"{run.root}/"): read_manifest(
            run.store, path.rpartition("/")[0], path.rpartition("/")[2]
        ).digest
        for path in list_files(run.store, f"{run.root}/iterations")
        if path.endswith(f"/{MANIFEST}")
    }
    assert len(committed) == len(SHARDS) + len(GROUPS)
    assert state["manifests"] == committed
    assert (state["run"], state["stage"]) == (name, "testing iteration 1")
    assert (state["store"], state["finished_iterations"]) == (run.store.url, 1)
    versions = up.api("/artifacts/filter", wanted)
    assert len(versions) == len(PUBLISHED)


def test_ten_runs_at_once_lose_no_state_and_meet_no_lock(up, tmp_path):
    processes = {name: start(up, tmp_path / name, name) for name in RUNS}
    try:
        for name, process in processes.items():
            assert process.wait(timeout=1200) == 0, (tmp_path / name / "log").read_text()
    finally:
        for process in processes.values():
            process.kill()
            process.wait(timeout=60)
    for name in RUNS:
        flow_runs = flow_runs_of(up, [f"train-{name}", f"iteration-{name}-0"])
        states = sorted((f["name"], f["state_type"], f["run_count"]) for f in flow_runs)
        names = [f"iteration-{name}-0", f"train-{name}"]
        assert states == [(flow_run, "COMPLETED", 1) for flow_run in names]
        check_tasks(up, name)
        check_state(up, tmp_path / name, name)
        assert trouble_in(tmp_path / name / "log") == []
    for part in ("prefect-server", "postgresql"):
        assert trouble_in(up.state / "logs" / f"{part}.log") == [], part
