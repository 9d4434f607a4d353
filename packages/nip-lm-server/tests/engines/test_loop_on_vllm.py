"""The whole loop, `nip train`, with vLLM as the engine of the run's own server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import yaml

from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

QUICKSTART = Path(__file__).parents[4] / "deployments" / "configs" / "quickstart.yaml"


def test_two_groups_train_and_play_on_vllm(tmp_path, vllm_options):
    options = {k: v for k, v in vllm_options.items() if isinstance(v, bool | int | str)}
    settings = yaml.safe_load(QUICKSTART.read_text())
    settings["run_name"], settings["run_store"] = "on-vllm", str(tmp_path / "runs")
    settings["lm_server"] = {"engine": "vllm", "options": options}
    settings["rl"] |= {"num_iterations": 1, "rollouts_per_iteration": 60}
    settings["dataset_options"] = {"max_test_size": 20, "max_train_size": 200}
    settings["agents"]["verifier"]["num_epochs"] = 1
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(settings))
    environment = {
        **os.environ,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "nip_cli.cli", "train", str(config)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1100,
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    run = RunStore(open_store(tmp_path / "runs"), "on-vllm")
    swapped = json.loads((tmp_path / "runs/on-vllm/iterations/0000/models.json").read_text())
    text = json.dumps(swapped)
    assert text.count('"matches": true') >= 2, text[:2000]
    assert run.open().parameters["lm_server"]["engine"] == "vllm"
    left = [
        process.cmdline()
        for process in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(process.info["cmdline"] or ())
        and process.status() != psutil.STATUS_ZOMBIE
    ]
    assert left == []
