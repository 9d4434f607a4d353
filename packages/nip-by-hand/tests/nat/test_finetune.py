"""`nat finetune`, NeMo Agent Toolkit's own command, trains through the plug-in.

Its configuration is that of docs/examples/nemo, with the toolkit's own trajectory builder and
trainer for ART. Every epoch plays the workflow over the data set, and submits what was said.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from served import ROOT, Server

from nip_by_hand.fine_tuning.art.art_jobs import AdapterJob

CONFIG = ROOT / "docs" / "examples" / "nemo" / "config.yml"


def finetune(server: Server, directory: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run the command on the example's configuration with some of its lines changed."""
    text = CONFIG.read_text()
    for name, value in changes.items():
        before = [line for line in text.splitlines() if line.strip().startswith(f"{name}:")]
        assert before, name
        for line in before:
            text = text.replace(line, f"{line.split(name)[0]}{name}: {value}")
    config = directory / "config.yml"
    config.write_text(text)
    return subprocess.run(
        [str(Path(sys.executable).with_name("nat")), "finetune", "--config_file", str(config)],
        cwd=ROOT,
        env={
            **os.environ,
            "NIP_API_KEY": server.api_key,
            "NIP_PORT": server.url.rpartition(":")[2],
            "NIP_STATE": str(directory),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "HF_HUB_OFFLINE": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def adapter_jobs(directory: Path) -> list[AdapterJob]:
    paths = sorted(directory.glob("art-jobs/*/*.json"))
    return [AdapterJob.model_validate_json(path.read_bytes()) for path in paths]


def played(directory: Path) -> list[dict[str, Any]]:
    """The answers of the last epoch, each with the step that the toolkit traced."""
    rows: list[dict[str, Any]] = json.loads((directory / "eval/workflow_output.json").read_text())
    return rows


@pytest.mark.timeout(1200)
def test_the_toolkits_command_trains_and_plays_each_epoch_with_the_newest_model(
    tiny_server: Server, tmp_path: Path
) -> None:
    tiny_server.forget()
    done = finetune(tiny_server, tmp_path, num_epochs="2")
    assert done.returncode == 0, done.stdout
    first, second = adapter_jobs(tmp_path)
    assert (first.state, second.state) == ("completed", "completed"), done.stdout
    assert (first.run_id, first.step, second.step) == (second.run_id, 1, 2)
    # One job for each epoch, the second from what the first made.
    newest, oldest = tiny_server.jobs()
    assert [job.id for job in (oldest, newest)] == [first.job_id, second.job_id]
    assert (oldest.model, newest.model) == ("tiny", first.model)
    # What answered in the second epoch is what the first had trained.
    assert first.model is not None
    assert all(first.model in json.dumps(row["intermediate_steps"]) for row in played(tmp_path))
    for job in (first, second):
        assert job.metrics["data/step_num_trajectories"] == 64
        assert job.metrics["data/step_num_choices_without_token_ids"] == 0
    assert oldest.model_extra["nip"]["learning_rate"] == 5e-4
    assert "Finetuning completed successfully!" in done.stdout
    assert tiny_server.api_key not in done.stdout


@pytest.mark.timeout(600)
def test_an_epoch_that_teaches_nothing_is_no_success(tiny_server: Server, tmp_path: Path) -> None:
    tiny_server.forget()
    done = finetune(tiny_server, tmp_path, num_epochs="1", max_tokens="1")  # nobody decides
    assert done.returncode == 0, done.stdout
    assert "completed with status: canceled" in done.stdout
    assert "Nothing was trained: in every group all rewards are equal" in done.stdout
    assert "Finetuning was canceled. 1 job(s) were canceled out of 1 total." in done.stdout
    assert tiny_server.jobs() == []


@pytest.mark.timeout(600)
def test_the_command_ends_with_the_reason_why_nothing_can_be_trained(
    tiny_server: Server, tmp_path: Path
) -> None:
    done = finetune(tiny_server, tmp_path, base_model="absent")
    assert done.returncode == 1
    assert "Failed to connect to ART backend. " in done.stdout
    assert "has no model 'absent'" in done.stdout
    done = finetune(tiny_server, tmp_path, learning_rate="fast")
    assert done.returncode == 1
    assert "learning_rate" in done.stdout
