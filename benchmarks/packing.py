"""Tokens per second of supervised training, with packing and without.

    python benchmarks/packing.py [--model NAME_OR_PATH] [--examples N] [--batch-size N] ...

Trains one epoch of LoRA on conversations of very different lengths twice, in processes of their
own: with sequences padded to the longest of their batch, and with the sequences of a batch in one
row. Both learn from the same batches. What counts is tokens of the data, not padding, per second
between the first and the last step; loading is left out.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nip_core.models import resolve_model

WORDS = ("the", "list", "is", "sorted", "by", "key", "and", "then", "returned", "wrong", "case")
DEADLINE_S = 3600
SETTINGS = {
    "n_epochs": 1,
    "learning_rate_multiplier": 1.0,
    "learning_rate": 2e-4,
    "lora_rank": 16,
    "lora_alpha": 32.0,
    "lora_dropout": 0.0,
    "lora_target_modules": "all-linear",
    "max_length": 2**20,
    "start_from": "base",
}


def write_data(path: Path, examples: int, longest: int, seed: int = 0) -> None:
    """Conversations of 1 to `longest` words; most are short, some are long."""
    generator = random.Random(seed)
    with path.open("w") as file:
        for _ in range(examples):
            words = min(longest, 1 + int(generator.lognormvariate(3, 1)))
            text = " ".join(generator.choice(WORDS) for _ in range(words))
            messages = [
                {"role": "user", "content": text},
                {"role": "assistant", "content": text[: len(text) // 2 + 1]},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")


def train(
    model: str, directory: Path, data: Path, batch_size: int, packing: bool
) -> dict[str, Any]:
    """One training; its figures, with `tokens_per_s` added. Raises RuntimeError if it fails."""
    directory.mkdir(parents=True)
    job = {
        "method": "supervised",
        "base_model_path": model,
        "training_file": str(data),
        "seed": 0,
        "output_dir": str(directory / "out"),
        "hyperparameters": {**SETTINGS, "batch_size": batch_size, "packing": packing},
    }
    (directory / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [sys.executable, "-m", "nip_lm_server.training.main", "--job-dir", str(directory)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the training ended with {done.returncode}:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads((directory / "out" / "training_result.json").read_text())
    return {**figures, "tokens_per_s": round(figures["tokens"] / figures["train_s"], 1)}


def measure(
    model: str, directory: Path, *, examples: int, batch_size: int, longest: int = 60
) -> dict[str, dict[str, Any]]:
    """Both trainings, under the names ``padded`` and ``packed``."""
    directory.mkdir(parents=True, exist_ok=True)
    data = directory / "train.jsonl"
    write_data(data, examples, longest)
    return {
        name: train(model, directory / name, data, batch_size, packing)
        for name, packing in (("padded", False), ("packed", True))
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="tiny", help="a bundled model, a path, a hub name")
    parser.add_argument("--examples", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--longest", type=int, default=60, help="words of the longest message")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(
            resolve_model(options.model),
            Path(scratch),
            examples=options.examples,
            batch_size=options.batch_size,
            longest=options.longest,
        )
    print(f"{'':8} {'tokens/s':>10} {'seconds':>8} {'tokens':>9} {'final loss':>10}")
    for name, found in figures.items():
        print(
            f"{name:8} {found['tokens_per_s']:>10} {found['train_s']:>8} {found['tokens']:>9} "
            f"{found['final_loss']:>10.4f}"
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
