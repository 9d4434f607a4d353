"""A whole run that trains at a service, by `nip train`: killed in its trainings, and gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driven_jobs import read_record

from nip_core.jobs.job import JobRecord
from nip_core.models import BUNDLED
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_lm_server.testing import ServerDouble, serve_double
from nip_tinker.record.notes import Notes
from nip_tinker.record.run_files import RunFiles

MINE = f"""
from nip_core.parameters.services.providers import Tinker

class Mine(Tinker):
    options = {{"tokenizer": {str(BUNDLED["tiny"])!r}, "first_steps": 3, "most_steps": 3}}
"""
SETTINGS = """
run_name: there
run_store: runs
dataset: families
interaction_protocol: nip
trainer: TRAINER
agents:
  _default: {model_provider: "mine.py:Mine", model_name: tiny, max_tokens_per_message: 64,
    lora_rank: 8, lora_alpha: 32, lora_dropout: 0.0, per_device_train_batch_size: 4, fine_tune_from_scratch: false}
  verifier: {model_name: other, num_epochs: 2}
rl: {num_iterations: 2, rollouts_per_iteration: 40, lr: 0.002, num_epochs: 1}
code_validation: {system_prompt_version: short}
protocol_common: {shared_reward: true}
nip_protocol: {max_message_rounds: 3}
dataset_options: {max_test_size: 10}
fine_tuning: {poll_interval_s: 0.2}
prices:
  tiny: {prompt_usd: 1.0, completion_usd: 1.0, training_usd: 1.0}
  other: {prompt_usd: 1.0, completion_usd: 1.0, training_usd: 1.0}
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerDouble]:
    """Two base models, one for each group."""
    folder = tmp_path_factory.mktemp("service")
    with serve_double(folder, ("tiny", "other"), has_weights=True) as double:
        yield double


class Run:
    """A run in a folder, by the command."""

    def __init__(self, folder: Path, service: ServerDouble, trainer: str) -> None:
        self.folder = folder
        (folder / "mine.py").write_text(MINE)
        (folder / "there.yaml").write_text(SETTINGS.replace("TRAINER", trainer))
        self.environment = {**os.environ, **service.environment}
        self.tree = RunStore(open_store(str(folder / "runs")), "there")

    def start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "nip_cli", "train", "there.yaml"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def finish(self) -> str:
        process = self.start()
        output = process.communicate(timeout=600)[0].decode()
        assert process.returncode == 0, output[-3000:]
        return output

    def kill_after(self, jobs: int, steps: int) -> None:
        """Kill the command when so many jobs have begun, and one of them has taken so many steps."""
        process, end_s = self.start(), time.monotonic() + 300
        while time.monotonic() < end_s and process.poll() is None:
            figures = [len(block["figures"]) for block in self.list_blocks() if not block["state"]]
            if len(self.list_jobs()) >= jobs and max(figures, default=0) >= steps:
                break
            time.sleep(0.01)
        assert process.poll() is None, process.communicate()[0].decode()[-3000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def ask(self, *arguments: str) -> str:
        """The output of a command."""
        return subprocess.run(
            [sys.executable, "-m", "nip_cli", *arguments],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    def list_jobs(self) -> list[Path]:
        return sorted((self.folder / "runs/there/training").glob("*/job.json"))

    def list_blocks(self) -> list[dict[str, Any]]:
        found = (self.folder / "runs/there/training").glob("*/block-*.json")
        return [json.loads(path.read_text()) for path in found]


@pytest.mark.parametrize("trainer", ["pure_text_ei", "pure_text_grpo", "pure_text_malt"])
def test_a_killed_run_pays_no_step_twice(
    service: ServerDouble, tmp_path: Path, trainer: str
) -> None:
    run = Run(tmp_path, service, trainer)
    kills = ((1, 1), (2, 2), (3, 1)) if trainer == "pure_text_ei" else ((2, 1),)
    for jobs, steps in kills:
        run.kill_after(jobs, steps)
    run.finish()
    files = RunFiles(run.tree.store, f"{run.tree.root}/training")
    # Trees give few pairs here, and a group with fewer than ten has no job.
    assert len(run.list_jobs()) == 4 or trainer == "pure_text_malt"
    for path in run.list_jobs():
        notes = Notes(files, path.parent.name)
        job = notes.read_job()
        assert job is not None and (job.status, job.level) == ("succeeded", 2)
        record = read_record(service._state, job)
        assert record.counts["optim_step"] == job.steps
        assert record.paths == sorted([str(job.state), str(job.model)])
    # The lineage: each model by its job, over the one before.
    for iteration in range(2):
        for group in ("prover", "verifier"):
            document = run.tree.read_json(run.tree.job(iteration, group))
            record_of_job = JobRecord.model_validate(document)
            assert record_of_job.outcome in ("succeeded", "skipped")
            earlier = run.tree.read_json(run.tree.job(0, group))["model"]
            if iteration and earlier is not None:
                assert record_of_job.parent_model == earlier
    shown = run.ask("train", "there.yaml", "--dry-run") + run.ask("states", "there")
    assert "prover is trained by steps" in shown and "0 not needed" in shown
    checked = subprocess.run(
        [sys.executable, "-m", "nip_cli", "verify", "there"],
        cwd=tmp_path, env=run.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0 and "0 unknown" in checked.stdout, checked.stdout
    # States cost by the month, so whoever is done with a run deletes them.
    last = read_record(service._state, job)
    assert "deleted" in run.ask("states", "there", "--delete", "--all", "--yes")
    assert last.paths and read_record(service._state, job).paths == []
