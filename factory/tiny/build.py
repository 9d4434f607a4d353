"""Trains a bundled tiny model from scratch, and measures how it plays.

    python -m factory.tiny.build --out DIRECTORY              train, then measure
    python -m factory.tiny.build --out DIRECTORY --evaluate   measure the model that is there
    python -m factory.tiny.build --recipe arithmetic ...      another model: one of `RECIPES`
    python -m factory.tiny.build --parameters 64M --device cuda ...    the same recipe, larger

A Llama of a million parameters or less, or of as many as `--parameters` says, learns from generated
conversations over the training split of a scenario (see `lessons`). The model's own messages count
in the loss, messages of others less or not at all (`Recipe.others_weight`). Recipes were chosen on
the validation split.

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
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

from factory.tiny.card import machine
from factory.tiny.conversations import Message
from factory.tiny.lessons import Part, find_lesson
from factory.tiny.recipes import RECIPES, Recipe
from factory.tiny.sizes import parse_parameters, resize
from factory.tiny.tokenizer import END, build_tokenizer, save_tokenizer
from nip_core.models import BUNDLED

CONTEXT = 1024


class Conversations:
    """An endless, seeded supply of training conversations."""

    def __init__(self, recipe: Recipe, seed: str | None = None, part: Part = "middle"):
        self.lesson = find_lesson(recipe.scenario)
        self._draw = random.Random(seed or f"tiny {recipe.seed}")
        self._recipe = recipe
        self._part = part

    def one(self, first: bool = False) -> list[Message]:
        """The next conversation, one of the first steps or of those behind."""
        part: Part = "first" if first else self._part
        return self.lesson.conversation(self._draw, self._recipe.verifier_share, part)

    def batches(self, encode: Any) -> Iterator[list[tuple[list[int], list[bool]]]]:
        """Make batches of encoded conversations of similar length, with little padding."""
        size = self._recipe.batch_size
        for batch_number in count(step=16):
            first = batch_number < self._recipe.first_steps
            encoded = sorted(
                (encode(self.one(first)) for _ in range(16 * size)), key=lambda e: len(e[0])
            )
            batches = [encoded[start : start + size] for start in range(0, len(encoded), size)]
            self._draw.shuffle(batches)
            yield from batches


def _as_text(message: Message) -> str:
    return f"{message['name']}\n{message['content']}" if "name" in message else message["content"]


def encoder(tokenizer: Any) -> Any:
    """Encode a conversation to token ids, and mark the model's own tokens.

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
    return build_tokenizer(texts, recipe.vocabulary, CONTEXT, source.lesson.labels)


def make_model(recipe: Recipe, tokenizer: Any, device: str = "cpu") -> Any:
    """The untrained model, in float32. Its weights are drawn on the CPU: the same on any device."""
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
        attn_implementation="eager" if device == "cpu" else "sdpa",
        attention_bias=recipe.look_back > 0,
    )
    model = LlamaForCausalLM(config)
    for head in range(recipe.look_back):
        _look_back(model, head, head + 1)
    if recipe.token_spread != config.initializer_range:
        torch.nn.init.normal_(model.model.embed_tokens.weight, std=recipe.token_spread)
    if recipe.find_again:
        _find_again(model, recipe)
    return model.to(device)


def begin(recipe: Recipe, device: str = "cpu") -> tuple[Any, Any]:
    """Return the model before its first step, and its tokenizer."""
    if recipe.start_from:
        model, tokenizer = load(BUNDLED[recipe.start_from], device)
        if device == "cpu":
            model.set_attn_implementation("eager")
        return model, tokenizer
    tokenizer = make_tokenizer(recipe)
    return make_model(recipe, tokenizer, device), tokenizer


def _look_back(model: Any, head: int, tokens: int) -> None:
    """Let a head of the first layer begin by looking `tokens` back, at any content.

    To find an earlier text and read on there, a model has to know each token's predecessor. A model
    that begins with this learns to do so in a few hundred steps instead of thousands. Biases of
    queries and keys do it: rotated by their positions, they fit best at that distance.
    """
    import torch

    attention = model.model.layers[0].self_attn
    width = attention.head_dim
    speeds = model.model.rotary_emb.inv_freq
    size = torch.zeros(width // 2)
    size[:4] = (12 * width**0.5) ** 0.5  # of the fastest: the others hardly tell neighbours apart
    angles = tokens * speeds
    place = slice(head * width, (head + 1) * width)
    with torch.no_grad():
        attention.q_proj.bias[place] = torch.cat([size, torch.zeros_like(size)])
        attention.k_proj.bias[place] = torch.cat([size * angles.cos(), size * angles.sin()])


def _find_again(model: Any, recipe: Recipe) -> None:
    """Let heads of the second layer begin by finding where the last token stood before.

    Head k begins to look at the token that stood k places behind it there, and to say the same. For
    that the heads of the first layer that look back write down their tokens. Each of these texts
    has directions of its own in the residual stream. Only directions that rotate slowly with the
    position are compared.
    """
    import torch

    first, second = (layer.self_attn for layer in model.model.layers[:2])
    width = first.head_dim
    hidden = first.q_proj.in_features
    basis = torch.linalg.qr(torch.randn(hidden, hidden))[0]
    word, *earlier_texts = (basis[start : start + width] for start in range(0, hidden, width))
    slow = torch.arange(width) % (width // 2) >= width // 4
    with torch.no_grad():
        for head, earlier_text in enumerate(earlier_texts[: recipe.look_back]):
            place = slice(head * width, (head + 1) * width)
            first.v_proj.weight[place] = word
            first.o_proj.weight[:, place] = 3 * recipe.token_spread * earlier_text.T
            second.q_proj.weight[place] = 2.8 * word * slow[:, None]
            second.k_proj.weight[place] = 2.8 * earlier_text * slow[:, None]
            second.v_proj.weight[place] = word
            second.o_proj.weight[:, place] = 0.15 * word.T


def _optimizers(model: Any, recipe: Recipe) -> list[Any]:
    import torch

    matrices: list[Any] = []
    vectors: list[Any] = []
    for name, parameter in model.named_parameters():
        inside = parameter.ndim == 2 and "embed" not in name
        (matrices if inside else vectors).append(parameter)
    muon: Any
    if recipe.precision == "float32":
        from factory.tiny.muon import Muon

        muon = Muon(matrices, lr=recipe.matrix_lr, weight_decay=recipe.weight_decay)
    else:
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
    """Share of the full learning rate in `step` (from 1): up, then linearly down.

    The first steps (`Recipe.first_steps`) go up and down by themselves.
    """
    first = step <= recipe.first_steps
    steps = recipe.first_steps if first else recipe.steps - recipe.first_steps
    step = step if first else step - recipe.first_steps
    if step <= recipe.warmup_steps:
        return step / recipe.warmup_steps
    remaining = 1 - (step - recipe.warmup_steps) / max(1, steps - recipe.warmup_steps)
    return recipe.final_lr_share + (1 - recipe.final_lr_share) * remaining


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


def train(model: Any, tokenizer: Any, recipe: Recipe) -> None:
    """Train `model` in place and print progress. Sets torch's number of threads."""
    _train(model, tokenizer, recipe, f"tiny {recipe.seed}")
    if recipe.last_steps:
        _train(model, tokenizer, last_part(recipe), f"tiny {recipe.seed} last", "last")
    parts: tuple[Literal["end", "turns"], ...] = ("end", "turns")
    for part in parts:
        train_part(model, tokenizer, recipe, part)


def last_part(recipe: Recipe) -> Recipe:
    """The recipe of the last steps, as if they were all."""
    share = recipe.last_lr_share
    return replace(
        recipe,
        steps=recipe.last_steps,
        first_steps=0,
        matrix_lr=recipe.matrix_lr * share,
        other_lr=recipe.other_lr * share,
    )


def train_part(model: Any, tokenizer: Any, recipe: Recipe, part: Literal["end", "turns"]) -> None:
    """Train on a lesson's own conversations of a part, if the part has steps."""
    steps = recipe.end_steps if part == "end" else recipe.turns_steps
    if steps:
        only = replace(recipe, steps=steps, first_steps=0)
        _train(model, tokenizer, only, f"tiny {recipe.seed} {part}", part)


def _train(model: Any, tokenizer: Any, recipe: Recipe, seed: str, part: Part = "middle") -> None:
    import torch
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(recipe.threads)
    device = model.device
    source = Conversations(recipe, seed, part)
    conclusions = torch.tensor(
        tokenizer.convert_tokens_to_ids([*source.lesson.conclusions]), device=device
    )
    lower = recipe.precision != "float32"
    optimizers = _optimizers(model, recipe)
    batches = source.batches(encoder(tokenizer))
    started, recent = time.monotonic(), []
    model.train()
    for step in range(1, recipe.steps + 1):
        ids, spoken = _to_tensors(next(batches), tokenizer.pad_token_id)
        ids, spoken = ids.to(device), spoken.to(device)
        self_said = spoken[:, 1:]
        real = ids[:, 1:] != tokenizer.pad_token_id
        is_target = real if recipe.others_weight else self_said
        targets, self_said = ids[:, 1:][is_target], self_said[is_target]
        # Padding stands at the end, where no causal model can see it: no mask is needed.
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=lower):
            hidden = model.model(ids[:, :-1]).last_hidden_state[is_target]
            scores = model.lm_head(hidden)
        weights = torch.where(torch.isin(targets, conclusions), recipe.conclusion_weight, 1.0)
        weights = torch.where(self_said, weights, recipe.others_weight)
        losses = cross_entropy(scores.float(), targets, reduction="none")
        loss = (losses * weights).sum() / weights[self_said].sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full_lr"] * _lr_share(step, recipe)
            optimizer.step()
            optimizer.zero_grad()
        recent.append(losses[self_said].detach().mean())  # read later: a GPU is not waited for
        if step % 100 == 0:
            mean = float(torch.stack(recent).mean())
            elapsed = time.monotonic() - started
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


def load(directory: Path, device: str = "cpu") -> tuple[Any, Any]:
    """The saved model, in evaluation mode, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(directory, use_safetensors=True)
    return model.eval().to(device), AutoTokenizer.from_pretrained(directory)


def fingerprint(recipe: str = "code_validation") -> str:
    """SHA-256 over the data that the model was made for: the short templates and the problems."""
    digest = hashlib.sha256()
    for part in find_lesson(recipe).made_for():
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def _shortened(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with `steps` in place of its own, its parts in proportion."""
    parts = ("first_steps", "last_steps", "end_steps", "turns_steps")
    scaled = {part: getattr(recipe, part) * steps // recipe.steps for part in parts}
    return replace(recipe, steps=steps, **scaled)


def _parameters(text: str) -> int:
    try:
        return parse_parameters(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _check_device(parser: argparse.ArgumentParser, device: str) -> None:
    """Refuse a device before anything is made for it."""
    import torch

    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        parser.error(f"--device {device}: torch {torch.__version__} finds no such device here")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train and measure a bundled tiny model.")
    parser.add_argument("--out", type=Path, required=True, help="directory of the model")
    parser.add_argument("--evaluate", action="store_true", help="only measure the model in --out")
    parser.add_argument("--recipe", "--scenario", choices=RECIPES, default="code_validation")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--steps", type=int, help="instead of the recipe's; its parts as well")
    parser.add_argument("--batch-size", type=int, help="conversations in a step")
    parser.add_argument("--threads", type=int, default=Recipe.threads)
    parser.add_argument(
        "--parameters", type=_parameters, metavar="N", help="1M, 64M, 250M: width and depth"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    options = parser.parse_args()
    _check_device(parser, options.device)
    record = options.out / "training.json"
    lesson, made_for = find_lesson(options.recipe), fingerprint(options.recipe)
    if not options.evaluate:
        recipe = replace(RECIPES[options.recipe], seed=options.seed, threads=options.threads)
        recipe = _shortened(recipe, options.steps or recipe.steps)
        recipe = replace(recipe, batch_size=options.batch_size or recipe.batch_size)
        if options.parameters and recipe.start_from:
            parser.error(
                f"--parameters: {options.recipe} goes on from {recipe.start_from}'s weights"
            )
        if options.parameters:
            recipe = resize(recipe, options.parameters)
        model, tokenizer = begin(recipe, options.device)
        started = time.monotonic()
        train(model, tokenizer, recipe)
        took = round(time.monotonic() - started)
        save(model, tokenizer, options.out)
        facts = {
            "made_for": made_for,
            "recipe": asdict(recipe),
            "parameters": sum(p.numel() for p in model.parameters()),
            **lesson.facts(),
            "training_s": took,
            "machine": machine(options.device),
        }
        record.write_text(json.dumps(facts, indent=2) + "\n")
    model, tokenizer = load(options.out, options.device)
    splits = ("validation", "test")
    figures = {split: lesson.measured(model, tokenizer, split) for split in splits}
    evaluation = {"made_for": made_for, **figures}
    text = json.dumps(evaluation, indent=2, allow_nan=False)
    (options.out / "evaluation.json").write_text(text + "\n")
    (options.out / "README.md").write_text(lesson.card(json.loads(record.read_text()), evaluation))
    print(text)


if __name__ == "__main__":
    main()
