"""Memory of a training's pass on the processors: what is planned for it, and what it takes.

    python benchmarks/pass_memory.py [--model NAME_OR_PATH] [--method NAME ...] [--tokens N]
                                     [--words N] [--out FILE]

One step of each method, with LoRA, of `--tokens` tokens in one pass, in a process of its own. The
plan is `training.memory`'s: what it measures of the model for each token, times the tokens, the
gradients and the optimizer's state, and a piece of the output layer. The peak is what the process
has in memory at most during the step, less what it had before.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from head_memory import GB, Peak
from measured_commit import describe_commit
from packing import SETTINGS, WORDS

from nip_core.models import resolve_model

METHODS = {"supervised": "sft", "dpo": "dpo", "trajectories": "rl"}


def write_data(path: Path, method: str, examples: int, words: int) -> None:
    """Examples of the same length: a prompt of `words` words, an answer of a quarter of them."""
    drawn = random.Random(0)

    def text(count: int) -> str:
        return " ".join(drawn.choice(WORDS) for _ in range(count))

    with path.open("w") as file:
        for number in range(examples):
            asked = {"role": "user", "content": text(words)}
            answers = [{"role": "assistant", "content": text(words // 4)} for _ in range(2)]
            row: dict[str, Any] = {"messages": [asked, answers[0]]}
            if method == "dpo":
                row = {
                    "input": {"messages": [asked]},
                    "preferred_output": [answers[0]],
                    "non_preferred_output": [answers[1]],
                }
            if method == "trajectories":
                row |= {"group_id": "one", "reward": number % 2}
            file.write(json.dumps(row) + "\n")


def measure(model: str, method: str, tokens: int, words: int, place: Path) -> dict[str, Any]:
    """One step in this process."""
    import importlib

    from nip_lm_server.training.job import Events, read_job
    from nip_lm_server.training.model import loading, memory

    rows = 2 if method == "dpo" else 1
    examples = max(2, round(tokens / (1.4 * words * rows)))
    write_data(place / "data.jsonl", method, examples, words)
    settings = {**SETTINGS, "batch_size": examples, "tokens_per_pass": 2**20}
    settings |= {"beta": 0.1, "clip_low": 0.2, "clip_high": 0.2, "kl_penalty": 0.0}
    job = {
        "method": method,
        "base_model_path": model,
        "training_file": str(place / "data.jsonl"),
        "seed": 0,
        "device": "cpu",
        "output_dir": str(place / "out"),
        "hyperparameters": {**settings, "gradient_checkpointing": False},
    }
    (place / "job.json").write_text(json.dumps(job))
    told = read_job(place)
    made = importlib.import_module(f"nip_lm_server.training.methods.{METHODS[method]}")
    trainer = made.prepare(told, loading.load_text(told), Events(place / "events")).trainer
    per_token = memory.measure_kept_bytes(trainer.model, memory._autocast(told, "cpu"))
    state = memory.training_bytes(told, trainer.model)
    head = memory.head_bytes(trainer.model)
    batch = next(iter(trainer.get_train_dataloader()))
    padded = int(batch["attention_mask"].numel())
    with Peak() as peak:
        trainer.train()
    return {
        "method": method,
        "tokens_in_the_pass": padded,
        "kept_bytes_per_token": round(per_token),
        "planned_gb": round((padded * per_token + state + head) / GB, 3),
        "peak_gb": round(peak.bytes / GB, 3),
        "planned_over_peak": round((padded * per_token + state + head) / peak.bytes, 2),
        "default_tokens_per_pass": memory.plan_passes(
            told.model_copy(
                update={"settings": told.settings.model_copy(update={"tokens_per_pass": None})}
            ),
            trainer.model,
            [padded // examples // rows] * 10_000,
            rows_per_example=rows,
        ).tokens_per_pass,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="tiny", help="a bundled model, a path, a hub name")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--words", type=int, default=200, help="words of a prompt")
    parser.add_argument("--out", type=Path, help="write the figures here too")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    model = resolve_model(options.model)
    if options.here:
        (method,) = options.method
        with tempfile.TemporaryDirectory() as place:
            row = measure(model, method, options.tokens, options.words, Path(place))
            print(json.dumps(row))
        return
    rows = []
    for method in options.method:
        command = [sys.executable, __file__, "--here", "--model", model, "--method", method]
        command += ["--tokens", str(options.tokens), "--words", str(options.words)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        result = {"commit": describe_commit(), "model": options.model, "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
