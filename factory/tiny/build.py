"""Trains the bundled tiny model from scratch, and measures how it plays.

    python -m factory.tiny.build --out DIRECTORY              train, then measure
    python -m factory.tiny.build --out DIRECTORY --evaluate   measure what is there

A Llama of about a million parameters learns from generated conversations over the training
questions of `families` (see `conversations` and `cases`); only what the model itself says counts
in the loss. The validation split is looked at while training, the test split once at the end.

Seeded: the same seed, machine, number of threads and package versions give the same weights.
Other processors or versions add numbers in another order, so the weights differ slightly and
the measurements by chance.
"""

import argparse
import hashlib
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from factory.tiny.card import card, machine
from factory.tiny.cases import TrainingCases, split_cases
from factory.tiny.conversations import (
    Message,
    prover_conversation,
    template_text,
    verifier_conversation,
)
from factory.tiny.evaluation import evaluate
from factory.tiny.tokenizer import END, build_tokenizer, save_tokenizer

CONTEXT = 1024


@dataclass(frozen=True)
class Recipe:
    """What shapes the model and its training."""

    seed: int = 6198
    threads: int = 1
    steps: int = 2200
    batch_size: int = 40
    verifier_share: float = 0.22  # of the conversations; the rest is seen by the prover
    conclusion_weight: float = 4.0  # of the token that says match or differ, in the loss
    matrix_lr: float = 1e-2  # Muon, for the matrices inside the layers
    other_lr: float = 4e-3  # AdamW, for embeddings and norms
    weight_decay: float = 0.05
    warmup_steps: int = 100
    final_lr_share: float = 0.02
    vocabulary: int = 1024
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    feed_forward: int = 384


class Conversations:
    """An endless, seeded supply of training conversations."""

    def __init__(self, recipe: Recipe):
        self._cases = TrainingCases()
        self._draw = random.Random(f"tiny {recipe.seed}")
        self._recipe = recipe

    def one(self) -> list[Message]:
        """The next conversation."""
        case = self._cases.draw(self._draw)
        verifier = self._draw.random() < self._recipe.verifier_share
        return (verifier_conversation if verifier else prover_conversation)(case, self._draw)

    def batches(self, encode: Any) -> Iterator[list[tuple[list[int], list[bool]]]]:
        """Batches of encoded conversations of similar length, so that little is padding."""
        size = self._recipe.batch_size
        while True:
            encoded = sorted(
                (encode(self.one()) for _ in range(16 * size)), key=lambda e: len(e[0])
            )
            batches = [encoded[start : start + size] for start in range(0, len(encoded), size)]
            self._draw.shuffle(batches)
            yield from batches


def _as_text(message: Message) -> str:
    return f"{message['name']}\n{message['content']}" if "name" in message else message["content"]


def encoder(tokenizer: Any) -> Any:
    """Encodes a conversation to token ids, and which of them the model itself says.

    The same ids and mask as the chat template gives (a test holds that), ten times as fast.
    """

    def encode(messages: list[Message]) -> tuple[list[int], list[bool]]:
        ids: list[int] = []
        spoken: list[bool] = []
        for message in messages:
            text = f"<|{message['role']}|>{_as_text(message)}{END}"
            piece = tokenizer(text, add_special_tokens=False)["input_ids"]
            ids += piece
            spoken += [False] + [message["role"] == "assistant"] * (len(piece) - 1)
        return ids, spoken

    return encode


def make_tokenizer(recipe: Recipe) -> Any:
    """The tokenizer, with the words of a sample of the training conversations."""
    source = Conversations(recipe)
    texts = [_as_text(message) for _ in range(8000) for message in source.one()]
    return build_tokenizer(texts, recipe.vocabulary, CONTEXT)


def make_model(recipe: Recipe, tokenizer: Any) -> Any:
    """The untrained model, on the CPU, in float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.feed_forward,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        # Torch's fused attention is three times slower than this one for short texts on a CPU.
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config)


def _optimizers(model: Any, recipe: Recipe) -> list[Any]:
    import torch

    matrices: list[Any] = []
    vectors: list[Any] = []
    for name, parameter in model.named_parameters():
        inside = parameter.ndim == 2 and "embed" not in name
        (matrices if inside else vectors).append(parameter)
    muon = torch.optim.Muon(
        matrices,
        lr=recipe.matrix_lr,
        weight_decay=recipe.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    adam = torch.optim.AdamW(vectors, lr=recipe.other_lr, betas=(0.9, 0.98), weight_decay=0.0)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
    return [muon, adam]


def _lr_share(step: int, recipe: Recipe) -> float:
    """Share of the full learning rate in `step` (from 1): up, then linearly down."""
    if step <= recipe.warmup_steps:
        return step / recipe.warmup_steps
    left = 1 - (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return recipe.final_lr_share + (1 - recipe.final_lr_share) * left


def _to_tensors(batch: list[tuple[list[int], list[bool]]], pad: int) -> tuple[Any, Any]:
    import torch

    # Few different widths: each new shape costs memory that stays with the process.
    width = -(-max(len(ids) for ids, _ in batch) // 8) * 8
    ids = torch.full((len(batch), width), pad)
    spoken = torch.zeros((len(batch), width), dtype=torch.bool)
    for row, (row_ids, row_spoken) in enumerate(batch):
        ids[row, : len(row_ids)] = torch.tensor(row_ids)
        spoken[row, : len(row_ids)] = torch.tensor(row_spoken)
    return ids, spoken


def train(model: Any, tokenizer: Any, recipe: Recipe, report_every: int = 250) -> None:
    """Train `model` in place and print progress. Sets torch's number of threads."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(recipe.threads)
    conclusions = torch.tensor(tokenizer.convert_tokens_to_ids(["Ġmatch", "Ġdiffer"]))
    optimizers = _optimizers(model, recipe)
    batches = Conversations(recipe).batches(encoder(tokenizer))
    started, recent = time.monotonic(), []
    model.train()
    for step in range(1, recipe.steps + 1):
        ids, spoken = _to_tensors(next(batches), tokenizer.pad_token_id)
        targets = ids[:, 1:][spoken[:, 1:]]
        # Padding stands at the end, where no causal model can see it: no mask is needed.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = model.model(ids[:, :-1]).last_hidden_state[spoken[:, 1:]]
            scores = model.lm_head(hidden)
        weights = torch.where(torch.isin(targets, conclusions), recipe.conclusion_weight, 1.0)
        losses = cross_entropy(scores.float(), targets, reduction="none")
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full_lr"] * _lr_share(step, recipe)
            optimizer.step()
            optimizer.zero_grad()
        recent.append(loss.item())
        if step % report_every == 0:
            mean, elapsed = sum(recent) / len(recent), time.monotonic() - started
            print(f"step {step}: loss {mean:.4f}, {elapsed:.0f} s", flush=True)
            recent.clear()
    model.eval()


def save(model: Any, tokenizer: Any, directory: Path) -> None:
    """Write weights (safetensors, float32), configuration, tokenizer and chat template."""
    from transformers import GenerationConfig

    directory.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(directory)
    save_tokenizer(tokenizer, directory)
    for path in directory.iterdir():
        path.chmod(0o644)


def load(directory: Path) -> tuple[Any, Any]:
    """The saved model, in evaluation mode, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(directory, use_safetensors=True)
    return model.eval(), AutoTokenizer.from_pretrained(directory)


def fingerprint() -> str:
    """SHA-256 over what the model was made for: the short templates and the problem set."""
    families = files("nip_core.scenarios.code_validation") / "data" / "families"
    parts = [
        template_text(protocol, role).encode()
        for protocol, role in (
            ("nip", "prover"),
            ("nip", "verifier"),
            ("adp", "prover"),
            ("adp", "verifier"),
            ("solo_verifier", "verifier"),
        )
    ]
    parts += [(families / f"{s}.parquet").read_bytes() for s in ("train", "validation", "test")]
    seen = hashlib.sha256()
    for part in parts:
        seen.update(hashlib.sha256(part).digest())
    return seen.hexdigest()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train and measure the bundled tiny model.")
    parser.add_argument("--out", type=Path, required=True, help="directory of the model")
    parser.add_argument("--evaluate", action="store_true", help="only measure the model in --out")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--threads", type=int, default=Recipe.threads)
    options = parser.parse_args()
    record = options.out / "training.json"
    if not options.evaluate:
        recipe = Recipe(seed=options.seed, steps=options.steps, threads=options.threads)
        tokenizer = make_tokenizer(recipe)
        model = make_model(recipe, tokenizer)
        started = time.monotonic()
        train(model, tokenizer, recipe)
        took = round(time.monotonic() - started)
        save(model, tokenizer, options.out)
        facts = {
            "made_for": fingerprint(),
            "recipe": asdict(recipe),
            "parameters": sum(p.numel() for p in model.parameters()),
            "questions": len(TrainingCases().questions),
            "training_s": took,
            "machine": machine(),
        }
        record.write_text(json.dumps(facts, indent=2) + "\n")
    model, tokenizer = load(options.out)
    splits = ("validation", "test")
    measured = {split: evaluate(model, tokenizer, split_cases(split)) for split in splits}
    evaluation = {"made_for": fingerprint(), **measured}
    text = json.dumps(evaluation, indent=2)
    (options.out / "evaluation.json").write_text(text + "\n")
    (options.out / "README.md").write_text(card(json.loads(record.read_text()), evaluation))
    print(text)


if __name__ == "__main__":
    main()
