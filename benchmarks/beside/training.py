"""Part b: tokens per second of LoRA training, our job against plain TRL and SkyRL.

All learn the same answers to the same prompts from one model, one after the other in
each round: our job over the fine-tuning API of a running server, TRL as a script with the same
settings, SkyRL by the Tinker SDK on a running server, with those settings that it has: it pads
lengths to few sizes, clips no gradients, and its loss is the mean over answers of their means.
What counts is tokens of the data over the seconds of the training itself, as each says them, or as
who asks SkyRL waits for them; beside it stands the time of the whole, from the request or the
start of the script to the saved adapter.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beside import skyrl
from beside.models import SERVED, Model, tokenizer
from beside.players import GAMES, Nip
from beside.runs import Failed, ratio
from beside.serving import directory_of, server

WORDS = ("the", "list", "is", "sorted", "by", "key", "and", "then", "returned", "wrong", "case")
OURS, TRL = "nip job", "TRL"
POLL_S = 0.5
"""How often a job is looked at; each look takes time from the training on the same two cores."""
ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
"""AdamW's settings, as torch has them."""


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    examples: int = 512
    batch_size: int = 8
    longest: int = 80
    """Words of a prompt, at most; the answer has half of them."""
    most_s: float = 600.0

    @classmethod
    def of(cls, model: Model) -> "Size":
        """The size for a model: a large one learns some hundred tokens a second."""
        return cls(examples=48, longest=40) if model.is_large else cls()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of both, all of them said, so that no default differs."""
        return {
            "n_epochs": 1,
            "batch_size": self.batch_size,
            "learning_rate": 2e-4,
            "lr_scheduler": "linear",
            "warmup_ratio": 0.0,
            "weight_decay": 0.0,
            "max_grad_norm": 1.0,
            "lora_rank": 16,
            "lora_alpha": 32,
            "lora_dropout": 0.0,
            "lora_target_modules": "all-linear",
        }


def conversations(size: Size) -> list[tuple[str, str]]:
    """Prompts and answers of very different lengths: most are short, some are long."""
    drawn = random.Random(0)
    texts = []
    for _ in range(size.examples):
        words = min(size.longest, 1 + int(drawn.lognormvariate(3, 1)))
        text = " ".join(drawn.choice(WORDS) for _ in range(words))
        texts.append((text, text[: len(text) // 2 + 1]))
    return texts


def by_job(handle: Any, size: Size) -> dict[str, Any]:
    """One fine-tuning job. Raises Failed."""
    import openai

    messages = [
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        for prompt, answer in conversations(size)
    ]
    text = "".join(json.dumps({"messages": row}) + "\n" for row in messages).encode()
    settings = size.settings
    common = {name: settings.pop(name) for name in ("n_epochs", "batch_size")}
    began = time.monotonic()
    with openai.OpenAI(base_url=f"{handle.url}/v1", api_key=handle.api_key) as client:
        file = client.files.create(file=("train.jsonl", text), purpose="fine-tune")
        job = client.fine_tuning.jobs.create(
            model=SERVED,
            training_file=file.id,
            seed=0,
            hyperparameters=common,  # type: ignore[arg-type]
            extra_body={"nip": {**settings, "packing": False}},
        )
        while job.status not in ("succeeded", "failed", "cancelled"):
            if time.monotonic() > began + size.most_s:
                raise Failed(f"the job took more than {size.most_s:g} s")
            time.sleep(POLL_S)
            job = client.fine_tuning.jobs.retrieve(job.id)
    whole_s = time.monotonic() - began
    if job.status != "succeeded" or job.fine_tuned_model is None:
        raise Failed(f"the job failed: {job.error}")
    place = directory_of(handle.state_dir, job.fine_tuned_model)
    result = json.loads((place / "training_result.json").read_text())
    return {**_figures(result), "whole_s": round(whole_s, 2)}


def by_trl(place: Path, model: Path, size: Size) -> dict[str, Any]:
    """One run of the script. Raises Failed."""
    data = place / "train.jsonl"
    rows = [
        {
            "prompt": [{"role": "user", "content": prompt}],
            "completion": [{"role": "assistant", "content": answer}],
        }
        for prompt, answer in conversations(size)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = {
        "model": str(model),
        "data": str(data),
        "output": str(place / "out"),
        "settings": size.settings,
    }
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(GAMES / "trl_job.py"), json.dumps(request)],
        capture_output=True,
        text=True,
        timeout=size.most_s,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(place / "hub")},
        check=False,
    )
    whole_s = time.monotonic() - began
    if done.returncode != 0:
        raise Failed(" ".join(done.stderr[-600:].split()))
    result = json.loads(done.stdout.splitlines()[-1])
    return {**_figures(result), "whole_s": round(whole_s, 2)}


def by_skyrl(asker: skyrl.Asker, model: Path, size: Size, number: int) -> dict[str, Any]:
    """One adapter, from its making to its weights on the disk. Raises Failed."""
    data = skyrl.examples(tokenizer(model), conversations(size))
    count = size.batch_size
    batches = [data[first : first + count] for first in range(0, len(data), count)]
    settings = size.settings
    rate, steps = settings["learning_rate"], len(batches)
    rates = [rate * (1 - step / steps) for step in range(steps)]  # linear, as of both others
    name, rank = f"round-{number}", settings["lora_rank"]
    began = time.monotonic()
    result = asker("train", name=name, rank=rank, batches=batches, rates=rates, adam=ADAM)
    asker("save", name=name)
    whole_s = time.monotonic() - began
    tokens = sum(len(example["tokens"]) + 1 for example in data)
    figures = {**result, "tokens": tokens, "steps": steps, "whole_s": round(whole_s, 2)}
    return figures | {"tokens_per_s": round(tokens / result["train_s"], 1)}


def _figures(result: dict[str, Any]) -> dict[str, Any]:
    names = ("tokens", "train_s", "steps", "final_loss", "trainable_parameters")
    return {name: result[name] for name in names} | {
        "tokens_per_s": round(result["tokens"] / result["train_s"], 1)
    }


def measure(model: Model, rounds: int, size: Size, say: Any) -> dict[str, Any]:
    """All in turn, another one first in each round; one round before that does not count.

    SkyRL, which takes longest, trains in that round and the first.
    """
    from importlib.metadata import version

    rows: dict[str, list[dict[str, Any]]] = {}
    absent: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        place = Path(folder)
        handle = stack.enter_context(server("embedded", place / "state", None, model.path))
        ways: list[tuple[str, Callable[[int], dict[str, Any]]]] = [
            (OURS, lambda number: by_job(handle, size)),
            (TRL, lambda number: by_trl(place, model.path, size)),
        ]
        rank = size.settings["lora_rank"]
        try:
            skyrl.refuse_large(model)
            serves = skyrl.asker(place / "skyrl", model.path, rank, rounds + 1)
            asker = stack.enter_context(serves)
            ways.append((skyrl.NAME, lambda number: by_skyrl(asker, model.path, size, number)))
        except Failed as error:
            absent[skyrl.NAME] = {"reason": str(error)}
        for number in range(rounds + 1):
            turn = number % len(ways)
            for name, train in [*ways, *ways][turn : turn + len(ways)]:
                if name in absent or (name == skyrl.NAME and number > 1):
                    continue  # it takes three times as long as both others
                try:
                    figures = train(number)
                except Failed as error:
                    if name != skyrl.NAME:
                        raise
                    absent[name] = {"reason": str(error)}
                    say(f"b {name}: {error}")
                    continue
                say(f"b {name} {number}: {figures}")
                if number > 0:
                    rows.setdefault(name, []).append(figures)
    names = ("torch", "transformers", "trl", "peft")
    versions = Nip().versions() | {name: version(name) for name in names} | skyrl.versions()
    return {
        "settings": {**size.settings, "examples": size.examples, "longest_words": size.longest},
        "rows": rows,
        "absent": absent,
        "ratios": _ratios(rows),
        "versions": versions,
    }


def _ratios(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Our tokens per second, and the time of the whole, over those of each other one, by the
    rounds in which both trained."""
    return [
        {"to": name, "of": key}
        | ratio([f[key] for f in rows[OURS][: len(row)]], [f[key] for f in row])
        for name, row in rows.items()
        for key in ("tokens_per_s", "whole_s")
        if name != OURS
    ]
