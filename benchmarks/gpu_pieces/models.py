"""Models of real shapes with random weights, adapters over them, and what is said to them.

    python benchmarks/gpu_pieces/models.py '{"directory": ..., "shape": {...}, ...}'

make_tokenizer    as many ids as a real one, each of which can be decoded
model             the directory of a shape's model, made where it is missing
adapter           the directory of an adapter that a small job has trained, with its probe
words             a text of so many tokens

Nothing is downloaded. The output layer is scaled so that logits have a standard deviation of about
4, as those of trained models: else every log-probability is near that of a uniform choice, and the
noise of a proof is smaller than it will be.
"""

import json
import random
import subprocess
import sys
from dataclasses import asdict
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from beside.runs import Failed

from gpu_pieces.sizes import Session, Shape

LOGITS_DEVIATION = 4.0
ROOT = Path(__file__).parents[2]
WORDS = (
    *("the", "list", "is", "sorted", "by", "key", "and", "then", "returned", "wrong", "case"),
    *("loop", "adds", "each", "number", "twice", "before", "it", "was", "seen", "by", "any"),
)
"""Each with the space before it is one token of `make_tokenizer`'s."""


def words(tokens: int, seed: int) -> str:
    """A text of so many tokens, in which no two begin alike."""
    drawn = random.Random(seed)
    return "".join(f" {drawn.choice(WORDS)}" for _ in range(tokens))


def make_tokenizer(size: int, context: int) -> Any:
    """A tokenizer of exactly `size` ids: bytes, the words above, and words that nobody says."""
    from factory.tiny.tokenizer import build_tokenizer

    common = " " + " ".join(WORDS)
    fillers = ("".join(letters) for letters in product(ascii_lowercase, repeat=5))
    texts = [common, common, " " + " ".join(islice(fillers, size))]
    tokenizer = build_tokenizer(texts, size, context)
    if len(tokenizer) != size:
        raise AssertionError(f"the tokenizer has {len(tokenizer)} ids, expected {size}")
    return tokenizer


def write(directory: Path, shape: Shape, vocabulary: int, context: int) -> None:
    """Write a model and its tokenizer, built on the GPU where there is one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from factory.tiny.tokenizer import save_tokenizer

    tokenizer = make_tokenizer(vocabulary, context)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config)
        with torch.no_grad():
            torch.nn.init.normal_(model.lm_head.weight, std=LOGITS_DEVIATION / shape.hidden**0.5)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(directory)
    save_tokenizer(tokenizer, directory)


def model(session: Session, shape: Shape) -> Path:
    """The directory of a shape's model, made in a process of its own. Raises Failed."""
    sizes = session.sizes
    request = {
        "directory": str(session.scratch / "models" / shape.name),
        "shape": asdict(shape),
        "vocabulary": sizes.vocabulary,
        "context": sizes.context,
    }
    directory = Path(request["directory"])
    made = directory / "made.json"
    if made.exists() and json.loads(made.read_text()) == request:
        return directory
    run([sys.executable, __file__, json.dumps(request)], session.seconds)
    made.write_text(json.dumps(request))
    return directory


def adapter(session: Session, shape: Shape, seed: int) -> Path:
    """The directory of an adapter with its probe, by a small training job. Raises Failed."""
    from gpu_pieces.jobs import small_rows, train

    place = session.scratch / "adapters" / f"{shape.name}-{seed}"
    if not (place / "out" / "training_result.json").exists():
        train(
            session,
            model(session, shape),
            place,
            method="supervised",
            rows=small_rows(session, seed),
            seed=seed,
            learning_rate=1e-3,
        )
    return place / "out"


def run(command: list[str], most_s: float) -> str:
    """Run a command; returns its output. Raises Failed with the end of its errors."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=most_s, cwd=ROOT, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command)[:200]} took more than {most_s:g} s") from None
    if done.returncode != 0:
        raise Failed(f"it ended with {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    write(Path(asked["directory"]), Shape(**asked["shape"]), asked["vocabulary"], asked["context"])
