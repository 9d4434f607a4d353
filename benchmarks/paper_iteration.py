"""One iteration of the paper's size on a GPU, with the seconds of each stage.

    NIP_VLLM=/path/to/vllm python benchmarks/paper_iteration.py --model Qwen/Qwen2.5-3B-Instruct \\
        --out docs/results/paper_iteration.json

200 training rollouts of nip over 9 rounds, a dataset, one LoRA fine-tune job per group, the swap
with its proof, all by `nip train` on deployments/configs/ei-paper-local.yaml: engine vllm, which
sleeps while a job trains. `--model` is a name or a path; one of a few billion parameters is meant.
`--trainer` runs MALT or policy gradient instead. Needs CUDA. Not verified: it was never run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CONFIG = "deployments/configs/ei-paper-local.yaml"
TRAINERS = ("pure_text_ei", "pure_text_malt", "pure_text_grpo")


def run(options: argparse.Namespace, store: Path) -> dict[str, Any]:
    """The run and its figures. Raises SystemExit if it fails."""
    settings = [
        "run_name=paper-iteration",
        f"run_store={store}",
        f"trainer={options.trainer}",
        f"agents._default.model_name={options.model}",
        "rl.num_iterations=1",
        f"rl.rollouts_per_iteration={options.rollouts}",
        "text_rl.test_scheme=none",
        "nip_protocol.max_message_rounds=9",
    ]
    if vllm := os.environ.get("NIP_VLLM"):
        settings.append(f"lm_server.options.executable={vllm}")
    command = [sys.executable, "-m", "nip_cli.cli", "train", CONFIG, "--json"]
    for setting in settings:
        command += ["--set", setting]
    started_s = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"exit code {done.returncode}\n{done.stderr[-5000:]}")
    iteration = store / "paper-iteration" / "iterations" / "0000"
    metrics = json.loads((iteration / "metrics-train.json").read_text())
    jobs = {path.stem: json.loads(path.read_text()) for path in iteration.glob("jobs/*.json")}
    return {
        "settings": settings,
        "whole_s": round(time.monotonic() - started_s, 1),
        "phase_s": {
            phase: seconds
            for phase, seconds in json.loads((iteration / "times.json").read_text()).items()
            if phase != "sha256"
        },
        "episodes": metrics["episodes"],
        "generations": metrics["generations"],
        "completion_tokens": metrics["completion_tokens"],
        "retry_rate": metrics["retry_rate"],
        "jobs": {
            group: {key: job[key] for key in ("outcome", "reason", "trained_tokens", "effective")}
            for group, job in jobs.items()
        },
    }


def device() -> str:
    """The GPU, by name. Raises SystemExit without one."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: this measures a GPU")
    return torch.cuda.get_device_name()


def main() -> None:
    """Run it and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="Qwen/Qwen2.5-3B-Instruct")
    parser.add_argument("--trainer", choices=TRAINERS, default=TRAINERS[0])
    parser.add_argument("--rollouts", type=int, default=200)
    options = parser.parse_args()
    name = device()
    with tempfile.TemporaryDirectory() as directory:
        results = {"device": name, **run(options, Path(directory))}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    for phase, seconds in results["phase_s"].items():
        print(f"{phase:12} {seconds:8.1f} s")
    print(f"{'whole run':12} {results['whole_s']:8.1f} s")


if __name__ == "__main__":
    main()
