"""A sweep as its user meets it: killed, interrupted, with a run that fails, and shown."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import yaml

ROOT = Path(__file__).parents[4]
ENVIRONMENT = {**os.environ, "DO_NOT_TRACK": "1", "NIP_API_KEY": "a-key"}


def small(tmp_path, **axes):
    path = tmp_path / "sweep.yaml"
    settings = {
        "name": "small",
        "config": "deterministic",
        "run_store": str(tmp_path / "runs"),
        "set": {
            "rl": {"num_iterations": 1, "rollouts_per_iteration": 200},
            "dataset_options.max_test_size": 8,
        },
        "axes": axes,
        "attacks": {"chosen": {"by": "best-of-n", "n": [1, 2], "problems": 2}},
    }
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    return path


def nip(*arguments, **options):
    command = [sys.executable, "-m", "nip_cli.cli", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, **options,
    )  # fmt: skip


def processes_of(tmp_path):
    """Command lines that are about this test's files, of whoever still runs."""
    lines = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if any(str(tmp_path) in part for part in line)]


def wait_until_gone(tmp_path):
    until = time.monotonic() + 20
    while (left := processes_of(tmp_path)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left


def begun(path):
    """A sweep one of whose runs is playing, leader of a group as in a terminal."""
    before = time.time()
    # A script's background jobs ignore Ctrl-C, and so would what they start; a terminal does not.
    process = nip(
        *("sweep", path, "--jobs", 2),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    played = path.parent / "runs" / "small-own"
    while not any(file.stat().st_mtime > before for file in played.glob("journals/**/*.journal")):
        assert process.poll() is None
        time.sleep(0.05)
    return process


def test_a_sweep_is_stopped_killed_and_finished_but_for_a_run_that_fails(tmp_path):
    path = small(tmp_path, server={"own": {}, "away": {"lm_server.url": "http://127.0.0.1:9/v1"}})

    # 1. A terminal tells the whole group: all stop and put away what they have.
    process = begun(path)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "nip: stopping, what is finished is kept" in said and "Traceback" not in said
    wait_until_gone(tmp_path)

    # 2. Killed, its runs end as well.
    process = begun(path)
    process.kill()
    process.communicate()
    wait_until_gone(tmp_path)

    # 3. To the end: what can't be finished is shown, the rest is finished.
    process = nip("sweep", path, "--jobs", 2)
    out, said = process.communicate(timeout=300)
    assert process.returncode == 3, out + said
    logs = (tmp_path / "runs" / "sweeps" / "small" / "logs").glob("*.log")
    assert "Traceback" not in "".join([out, said, *(log.read_text() for log in logs)])
    assert "small-away: failed with exit code 3: " in out and "127.0.0.1:9" in out
    page = (tmp_path / "runs" / "sweeps" / "small" / "README.md").read_text()
    assert "1 of 2 runs and 1 of 2 attacks finished" in page and "`small-away`: exit code 3" in page
    assert "| own | 1 | " in page and "| away | 0 of 1 | – |" in page
    assert "small-own-chosen: finished" in out and "chosen: soundness" in page
    assert "small-away-chosen: not begun, as the run failed" in out


def test_each_run_of_a_declared_sweep_and_each_attack_says_under_which_it_began(tmp_path):
    path = small(tmp_path, interaction_protocol=["adp", "nip"], seed=[1, 2])
    hypothesis = {
        "says": "asking keeps soundness",
        "figure": "soundness",
        "arm": {"interaction_protocol": "nip"},
        "against": {"interaction_protocol": "adp"},
        "expected": "higher",
        "primary": True,
    }
    plan = {"sweep": path.name, "stopping": "all runs", "hypotheses": [hypothesis]}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    settings = yaml.safe_load(path.read_text())
    settings["set"]["rl"] = {"num_iterations": 0}
    settings["attacks"]["chosen"] |= {"iteration": 0, "leave_out": [{"seed": 2}]}
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    declared = nip("declare", tmp_path / "plan.yaml", "--json")
    printed, said = declared.communicate(timeout=300)
    assert declared.returncode == 0, said
    sha256 = json.loads(printed)["sha256"]
    played = nip("sweep", path)
    _, said = played.communicate(timeout=900)
    assert played.returncode == 0, said
    runs = [file.parent.name for file in (tmp_path / "runs").glob("*/run.json")]
    assert len(runs) == 6
    for run in runs:
        record = json.loads((tmp_path / "runs" / run / "run.json").read_text())
        assert record["declaration"] == {"sha256": sha256, "files": {}}
    page = (tmp_path / "runs" / "sweeps" / "small" / "README.md").read_text()
    assert "### Departures\n\nNone.\n" in page
