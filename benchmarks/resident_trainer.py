"""Several adapters of one model in training: hooks on its layers beside PEFT's switching.

    python benchmarks/resident_trainer.py [--model NAME_OR_PATH] [--adapters N] [--rounds N]

Each round takes every adapter's turn once, with the same sequences: its forward pass, its loss over
all tokens and its gradient. Both ways take rounds in turns within one process, on one thread.
What counts is processor time per call, the median of the rounds, since others may use the machine.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model

from nip_core.models import resolve_model
from nip_lm_server.chats.chat_template import load_model
from nip_lm_server.training.resident.trainer import ResidentTrainer
from nip_lm_server.training.resident.types import Datum, LoraConfig

RANK, SEQUENCES, LENGTH = 32, 8, 64


def make_resident(model: str, adapters: int, ids: Any) -> Callable[[int], None]:
    """A call of the resident trainer."""
    trainer = ResidentTrainer(resolve_model(model), device="cpu", dtype="float32", threads=1)
    for number in range(adapters):
        trainer.create_model(str(number), LoraConfig(RANK, seed=number, train_unembed=False))
    weights = np.ones(LENGTH)
    data = [Datum(row[:-1], {"target_tokens": row[1:], "weights": weights}) for row in ids]

    def call(number: int) -> None:
        trainer.forward_backward(str(number), data, "cross_entropy", {}, forward_only=False)

    return call


def make_peft(model: str, adapters: int, ids: Any) -> Callable[[int], None]:
    """The same by PEFT's layers and its way to switch adapters."""
    base = load_model(resolve_model(model), torch.float32)
    config = PeftConfig(r=RANK, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    peft = get_peft_model(base, config, adapter_name="0")
    for number in range(1, adapters):
        peft.add_adapter(str(number), config)
    tokens = torch.from_numpy(ids)
    peft.eval()

    def call(number: int) -> None:
        peft.set_adapter(str(number))
        logits = peft(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="sum"
        )
        loss.backward()

    return call


def main() -> None:
    """Print milliseconds of processor time per call."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ids = np.random.default_rng(0).integers(0, 320, (SEQUENCES, LENGTH + 1))
    ways = {
        name: make(options.model, options.adapters, ids)
        for name, make in (("resident", make_resident), ("peft", make_peft))
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(options.rounds + 1):
        for name, call in ways.items():
            began_s = time.process_time()
            for number in range(options.adapters):
                call(number)
            if round_number:  # the first one warms up
                taken[name].append((time.process_time() - began_s) / options.adapters * 1000)
    figures = {name: round(statistics.median(times), 2) for name, times in taken.items()}
    print(json.dumps({"adapters": options.adapters, "cpu_ms_per_call": figures}))


if __name__ == "__main__":
    main()
