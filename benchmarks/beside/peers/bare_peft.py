"""A loop of torch and PEFT alone, with the batches and the adapter of tinker_loop.py.

    python bare_peft.py MODEL

It takes one order per line of standard input, JSON with `count`, `length`, `steps` and `rank`, and
answers each by a line of JSON: the losses, and the processor seconds of the steps.
"""

import json
import sys
import time
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tinker_batches import RATE, draw_batch
from transformers import AutoModelForCausalLM


def train(base: str, count: int, length: int, steps: int, rank: int) -> dict[str, Any]:
    """Take steps on one batch, padded, with a new adapter on every linear layer."""
    batch = draw_batch(count, length)
    width = max(map(len, batch)) - 1
    ids, labels, mask = (torch.full((count, width), value) for value in (0, -100, 0))
    for row, tokens in enumerate(batch):
        size = len(tokens) - 1
        ids[row, :size] = torch.tensor(tokens[:-1])
        labels[row, :size] = torch.tensor(tokens[1:])
        mask[row, :size] = 1
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    shape = LoraConfig(r=rank, lora_alpha=32, target_modules=[*layers, "lm_head"])
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = get_peft_model(model, shape)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, RATE, (0.9, 0.95), 1e-12, 0.0)
    losses = []
    for step in range(steps + 1):
        if step == 1:  # the first one doesn't count
            began_s = time.process_time()
        logits = model(input_ids=ids, attention_mask=mask).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="sum"
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item() / int(mask.sum()))
    return {"processor_s": time.process_time() - began_s, "losses": losses}


def main() -> None:
    """Take orders until standard input ends."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(train(sys.argv[1], **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
