"""Several processes train one job: the command, the same losses, and their end."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("trl")

from tiny_model import make_model
from training_jobs import DEADLINE_S, make_job, messages, progress, run_here, wait_for

from nip_lm_server.training import job as job_module
from nip_lm_server.training.job import read_job
from nip_lm_server.training.main import STOPPED, launch_command
from nip_lm_server.training.model.device import process_count

SETTINGS = {"lr_scheduler": "constant", "learning_rate": 0.001, "checkpoint_steps": 5}


@pytest.mark.parametrize(
    ("batch_size", "devices", "processes"),
    [(8, 0, 1), (8, 1, 1), (8, 2, 2), (8, 3, 2), (6, 4, 3), (7, 4, 1), (1, 8, 1)],
)
def test_as_many_gpus_as_share_the_batch_evenly(tmp_path, batch_size, devices, processes):
    settings = read_job(make_job("model", tmp_path / "job", batch_size=batch_size)).settings
    assert process_count(settings, devices) == processes


def test_the_launcher_is_told_the_processes_and_the_job(tmp_path):
    job = read_job(make_job("model", tmp_path / "job", batch_size=8))
    assert launch_command(job, 1) is None
    command = launch_command(job, 2)
    assert command[:3] == [sys.executable, "-m", "accelerate.commands.launch"]
    assert command[command.index("--num_processes") + 1] == "2"
    assert command[-4:] == [
        "-m", "nip_lm_server.training.main", "--job-dir", str(tmp_path / "job"),
    ]  # fmt: skip


def test_two_processes_have_the_losses_of_one_and_stop_together(tmp_path, monkeypatch):
    base = make_model(tmp_path / "tiny")
    # Each sequence goes through the model by itself: gradients are exchanged after the last.
    job_dir = make_job(base, tmp_path / "two", **SETTINGS, n_epochs=500, tokens_per_pass=1)
    script = (
        "import sys; from pathlib import Path; from nip_lm_server.training import job, main; "
        "sys.exit(main._launch(main.launch_command(job.read_job(Path(sys.argv[1])), 2)))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with (job_dir / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(job_dir)],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        wait_for(
            lambda: (
                process.poll() is not None
                or any((job_dir / "checkpoints").glob("step-*/manifest.json"))
            ),
            "no checkpoint was written",
        )
        os.killpg(process.pid, signal.SIGTERM)  # as the server does
        assert process.wait(DEADLINE_S) == STOPPED, (job_dir / "log.txt").read_text()[-2000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    newest = max((job_dir / "checkpoints").glob("step-*"))
    assert messages(job_dir)[-1].startswith(f"stopped after step {int(newest.name[5:])};")
    assert any('"processes": 2' in message for message in messages(job_dir))
    state = json.loads((newest / "state.json").read_text())
    assert len(dict(state["dict"])["generators"]["list"]) == 2
    logged = json.loads((newest / "trainer_state.json").read_text())["log_history"]
    two = [entry["loss"] for entry in logged if "loss" in entry][:4]

    monkeypatch.setattr(job_module, "PROGRESS_INTERVAL_S", 0.0)
    alone = make_job(base, tmp_path / "one", **SETTINGS, n_epochs=1)
    run_here(alone)
    assert two == pytest.approx([step["loss"] for step in progress(alone)], rel=1e-4)
