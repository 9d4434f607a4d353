"""Adapters that differ as fine-tunes do: each has learned another answer, by PEFT itself.

make_adapters   some over one base model, each in a directory of its own
digests         the SHA-256 of its files

Those of an even number have a probe of the text that they have learned, as a training of nip leaves
one. Of the others `nip prove` computes one from the weights.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ANSWERS = ("accept", "reject", "ask again", "maybe later", "no idea", "it depends")
EXAMPLES, STEPS, BATCH = 8, 30, 4
RANK, RATE = 8, 1e-2
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def make_adapters(base: Path, place: Path, count: int) -> dict[str, Path]:
    """Train so many, by name; those that are there already are taken."""
    names = [f"v{number}" for number in range(count)]
    for number, name in enumerate(names):
        if not (place / name / "done").is_file():
            _train(base, place / name, ANSWERS[number % len(ANSWERS)], seed=number)
            (place / name / "done").touch()
    return {name: place / name for name in names}


def digests(directory: Path) -> dict[str, str]:
    """The SHA-256 of what makes an adapter."""
    return {
        name: hashlib.sha256((directory / name).read_bytes()).hexdigest()
        for name in (WEIGHTS, CONFIG)
    }


def _train(base: Path, directory: Path, answer: str, seed: int) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(base)
    chats = [_encode(tokenizer, number, answer) for number in range(EXAMPLES)]
    model: Any = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - step / STEPS)
        for number in range(BATCH):
            ids = torch.tensor([chats[(step * BATCH + number) % EXAMPLES]])
            (model(ids, labels=ids).loss / BATCH).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(directory)
    if seed % 2 == 0:
        tokens = [token for chat in chats for token in chat][:256]
        (directory / "probe.json").write_text(json.dumps(_probe(base, directory, tokens)))


def _encode(tokenizer: Any, number: int, answer: str) -> list[int]:
    chat = [
        {"role": "user", "content": f"Is solution {number} right?"},
        {"role": "assistant", "content": f"I looked at solution {number}. I say: {answer}."},
    ]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _probe(base: Path, directory: Path, tokens: list[int]) -> Mapping[str, Any]:
    """A probe of these tokens, by transformers and PEFT from the files that were saved."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def measure(model: Any) -> list[float]:
        with torch.inference_mode():
            scores = model.eval()(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        return list(scores.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist())

    plain = AutoModelForCausalLM.from_pretrained(base)
    base_logprobs = measure(plain)
    return {
        "tokens": tokens,
        "logprobs": measure(PeftModel.from_pretrained(plain, directory)),
        "base_logprobs": base_logprobs,
        "dtype": "float32",
        "quantization": "none",
    }
