"""Job directories for tests of the training process, and ways to run them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SETTINGS = {
    "n_epochs": 2,
    "batch_size": 4,
    "learning_rate_multiplier": 1.0,
    "learning_rate": 0.01,
    "lora_rank": 4,
    "lora_alpha": 8.0,
    "lora_dropout": 0.0,
    "lora_target_modules": "all-linear",
    "max_length": 2**20,
    "start_from": "base",
    "beta": 0.1,
    "clip_low": 0.2,
    "clip_high": 0.2,
    "kl_penalty": 0.0,
}
"""Everything that a server fills in."""
DEADLINE_S = 120.0


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_examples(path: Path, count: int = 16, text: str = "yes") -> Path:
    return write_lines(
        path,
        [
            {
                "messages": [
                    {"role": "user", "content": f"is {i} right"},
                    {"role": "assistant", "content": f"{text} {i}"},
                ]
            }
            for i in range(count)
        ],
    )


def write_pairs(path: Path, count: int = 16) -> Path:
    return write_lines(
        path,
        [
            {
                "input": {"messages": [{"role": "user", "content": f"is {i} right"}]},
                "preferred_output": [{"role": "assistant", "content": f"yes {i}"}],
                "non_preferred_output": [{"role": "assistant", "content": "no" * (i % 3 + 1)}],
            }
            for i in range(count)
        ],
    )


def make_job(
    base: Path, directory: Path, *, data: Path | None = None, seed: int = 3, **changes: Any
) -> Path:
    """Write a job directory; `changes` are settings, or fields of the job where it has them."""
    directory.mkdir(parents=True)
    method = changes.get("method", "supervised")
    write = write_pairs if method == "dpo" else write_examples
    fields = {
        "method": method,
        "base_model_path": str(base),
        "parent_adapter_path": None,
        "training_file": str(data or write(directory / "train.jsonl")),
        "validation_file": None,
        "seed": seed,
        "output_dir": str(directory / "out"),
    }
    fields.update({k: str(changes.pop(k)) for k in list(changes) if k in fields})
    job = {**fields, "hyperparameters": {**SETTINGS, **changes}}
    (directory / "job.json").write_text(json.dumps(job))
    return directory


def run_here(job_dir: Path) -> list[dict[str, Any]]:
    """Train in this process, which spares the start of another; returns the events.

    Raises AssertionError with the error event if the training fails.
    """
    import torch

    from nip_lm_server.training.main import main

    torch.set_num_threads(1)
    status = main(["--job-dir", str(job_dir)])
    events = read_events(job_dir)
    assert status == 0, events[-1]
    return events


def command(job_dir: Path) -> list[str]:
    return [sys.executable, "-m", "nip_lm_server.training.main", "--job-dir", str(job_dir)]


def start_process(job_dir: Path) -> subprocess.Popen[bytes]:
    with (job_dir / "log.txt").open("ab") as log:
        return subprocess.Popen(
            command(job_dir), stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )


def run_process(job_dir: Path) -> int:
    process = start_process(job_dir)
    try:
        return process.wait(DEADLINE_S)
    finally:
        process.kill()


def wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def read_events(job_dir: Path) -> list[dict[str, Any]]:
    lines = (job_dir / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def progress(job_dir: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(job_dir) if event["type"] == "progress"]


def messages(job_dir: Path) -> list[str]:
    return [e["message"] for e in read_events(job_dir) if e["type"] == "message"]


def result(job_dir: Path) -> dict[str, Any]:
    return json.loads((job_dir / "out" / "training_result.json").read_text())


def weights(job_dir: Path) -> bytes:
    return (job_dir / "out" / "adapter_model.safetensors").read_bytes()
