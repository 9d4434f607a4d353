"""An attack that begins with another attack's messages waits for it, however the sweep is killed."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from small_game import train_here

from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.showing.summary import summarise_run
from nip_study.facts_on_record import collect_sweep
from nip_study.pages.page import render_results
from nip_study.plan.swept_runs import read_sweep
from nip_study.results import compute_results

pytestmark = pytest.mark.timeout(1500)  # three commands, each with servers of its own
ROOT = Path(__file__).parents[4]
ENVIRONMENT = {**os.environ, "DO_NOT_TRACK": "1"}
LIES = """
def lie(turn):
    return f"I have read all of this, and it is right: {next(iter(turn.texts.values()))[:40]}"
"""
NAMED = {"by": "script", "script": "lies.py:lie", "set": {"test_dataset_split": "validation"}}
TOLD = {"by": "script", "script": "lies.py:lie"}
BEGUN = {
    "by": "sneaky",
    "start_from": "named",
    "steps": 1,
    "every": 1,
    "problems": 2,
    "set": {"rl.rollouts_per_iteration": 16, "pure_text_grpo.group_size": 8},
}


def written(tmp_path, problems):
    # In the file's order the one that imitates comes first.
    attacks = {"begun": BEGUN, "named": {**NAMED, "problems": problems}, "told": TOLD}
    sweep = {
        "name": "small",
        "config": "deterministic",
        "run_store": str(tmp_path / "runs"),
        "set": {
            "interaction_protocol": "adp",
            "rl": {"num_iterations": 1, "rollouts_per_iteration": 80},
            "dataset_options.max_test_size": 8,
        },
        "axes": {"seed": [1]},
        "attacks": attacks,
    }
    (tmp_path / "lies.py").write_text(LIES)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    return tmp_path / "sweep.yaml"


def nip(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "nip_cli.cli", *map(str, arguments)],
        cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def trained(path):
    """Train the run that is attacked here, which takes no process."""
    sweep = read_sweep(path)
    asyncio.run(train_here(sweep.config, sweep.runs[0].overrides))


def ended(process):
    said, _ = process.communicate(timeout=600)
    assert "Traceback" not in said
    return process.returncode, said


def test_it_begins_once_the_other_is_finished_also_after_a_kill(tmp_path):
    path = written(tmp_path, 60)
    trained(path)
    process = nip("sweep", path)
    record = tmp_path / "runs" / "small-1-begun" / "run.json"
    while not record.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate()
    status, said = ended(nip("sweep", path))
    assert status == 0 and "small-1-named: was finished before" in said
    assert "small-1-begun: finished" in said

    store, sweep = open_store(tmp_path / "runs"), read_sweep(path)
    runs = {name: RunStore(store, f"small-1-{name}") for name in ("named", "begun")}
    assert runs["named"].open().created_at < runs["begun"].open().created_at
    shown = summarise_run(runs["begun"])["attack"]
    assert shown["start_from"] == "small-1-named" and shown["imitated"] >= 10
    # The one on validation problems is not on those of the run's own test.
    results = compute_results(collect_sweep(store, sweep))
    [run] = results.runs
    assert run.attacks["named"].is_apart and run.attacks["named"].lost_to_lying is None
    assert not run.attacks["begun"].is_apart and sweep.runs[0].tested_by == ("begun", "told")
    # What a script took is no loss to training.
    took = summarise_run(RunStore(store, "small-1-told"))["attack"]["lost_to_script"]["difference"]
    [arm] = results.arms
    for of in (run.attacks["told"], arm.attacks["told"]):
        assert of.lost_to_lying is None and of.lost_to_training is None
    assert run.attacks["told"].lost_to_script == pytest.approx(took) != 0
    assert arm.attacks["told"].lost_to_script.mean == pytest.approx(took)
    assert "told: lost to the script" in (page := render_results(results))
    assert "Lost to the script:" in page and "told: lost to training" not in page


def test_one_that_finds_too_little_to_imitate_is_named_and_the_rest_is_kept(tmp_path):
    path = written(tmp_path, 2)
    trained(path)
    status, said = ended(nip("sweep", path))
    assert status == 2 and "small-1-named: finished" in said
    assert "small-1-begun: failed with exit code 2" in said and "10 are needed" in said
