"""Training jobs: their data, their settings, and what they took.

rows_for        rows of a method, of a transcript's length
small_rows      a few short ones
train           one job in a process of its own, with its figures
measure         the piece: tokens per second and memory of each method
"""

import json
import random
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from beside.runs import Failed
from packing import SETTINGS

from gpu_pieces import models
from gpu_pieces.models import words
from gpu_pieces.results import Piece, Row
from gpu_pieces.sizes import FLEX, Session
from nip_base.formats import to_jsonl

JOB = Path(__file__).with_name("training_job.py")
TURNS = 9
PROMPT_SHARE = 0.5
"""Of a transcript that is the first prompt; the rest is said in turns."""
METHOD_SETTINGS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "dpo": {"beta": 0.1},
    "trajectories": {"clip_low": 0.2, "clip_high": 0.2, "kl_penalty": 0.0},
}


def lengths(count: int, tokens: int, *, uneven: bool) -> list[int]:
    """Tokens of each transcript: all nearly as long, or most of them short and a few long."""
    drawn = random.Random(count)
    if not uneven:
        return [round(tokens * drawn.uniform(0.85, 1.15)) for _ in range(count)]
    return [max(20, round(tokens * min(1.15, drawn.lognormvariate(-1.5, 1)))) for _ in range(count)]


def transcript(tokens: int, seed: int) -> list[dict[str, str]]:
    """The messages of one side of a game: a long prompt, then turns of two speakers."""
    prompt, said = round(tokens * PROMPT_SHARE), round(tokens * (1 - PROMPT_SHARE) / TURNS)
    messages = [{"role": "user", "content": words(prompt, seed)}]
    for turn in range(TURNS):
        role = "user" if turn % 2 else "assistant"
        messages.append({"role": role, "content": words(max(1, said), seed * 100 + turn)})
    return messages


def rows_for(method: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """One row of a method for each of these lengths in tokens."""
    talks = [transcript(size, number) for number, size in enumerate(sizes)]
    if method == "supervised":
        return [{"messages": talk} for talk in talks]
    if method == "dpo":
        return [
            {
                "input": {"messages": talk[:-1]},
                "preferred_output": [talk[-1]],
                "non_preferred_output": [
                    {"role": "assistant", "content": words(len(talk[-1]["content"]) // 5, -number)}
                ],
            }
            for number, talk in enumerate(talks)
        ]
    return [
        {"messages": talk, "group_id": str(number // 2), "reward": float(number % 2)}
        for number, talk in enumerate(talks)
    ]


def small_rows(session: Session, seed: int) -> list[dict[str, Any]]:
    """As many short examples as `Sizes.jobs_steps` steps of five take."""
    return [
        {
            "messages": [
                {"role": "user", "content": words(30, seed)},
                {"role": "assistant", "content": words(20, 1000 * seed + number % 5)},
            ]
        }
        for number in range(5 * session.sizes.jobs_steps)
    ]


def train(
    session: Session,
    model: Path,
    place: Path,
    *,
    method: str,
    rows: list[dict[str, Any]],
    seed: int = 0,
    **settings: Any,
) -> Row:
    """Train one epoch; what it took. Raises Failed with the training's own reason."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "train.jsonl").write_bytes(to_jsonl(rows))
    rank = session.sizes.lora_rank
    hyperparameters = {
        **{**SETTINGS, "lora_rank": rank, "lora_alpha": 2.0 * rank, "batch_size": 5},
        **METHOD_SETTINGS[method],
        **settings,
    }
    job = {
        "method": method,
        "base_model_path": str(model),
        "training_file": str(place / "train.jsonl"),
        "seed": seed,
        "output_dir": str(place / "out"),
        "device": "cpu" if session.rehearsal else "cuda",
        "hyperparameters": hyperparameters,
    }
    (place / "job.json").write_text(json.dumps(job))
    try:
        models.run([sys.executable, str(JOB), str(place)], session.seconds)
    except Failed as error:
        raise Failed(_reason(place) or str(error)) from None
    return json.loads((place / "took.json").read_text()) | {
        "result": json.loads((place / "out" / "training_result.json").read_text()),
        "effective": _effective(place),
    }


def _events(place: Path) -> list[dict[str, Any]]:
    path = place / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _reason(place: Path) -> str:
    return next(
        (f"{e['code']}: {e['message']}" for e in _events(place) if e["type"] == "error"), ""
    )


def _effective(place: Path) -> dict[str, Any]:
    begin = "effective arguments "
    texts = (e["message"] for e in _events(place) if e["type"] == "message")
    text = next((t for t in texts if t.startswith(begin)), begin + "{}")
    effective: dict[str, Any] = json.loads(text.removeprefix(begin))
    return effective


CASES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    # name: method, whether lengths are uneven, settings
    "sft": ("supervised", False, {"gradient_checkpointing": False}),
    "sft, checkpointing": ("supervised", False, {"gradient_checkpointing": True}),
    "dpo": ("dpo", False, {"gradient_checkpointing": False}),
    "dpo, checkpointing": ("dpo", False, {"gradient_checkpointing": True}),
    "trajectories": ("trajectories", False, {"gradient_checkpointing": False}),
    "trajectories, checkpointing": ("trajectories", False, {"gradient_checkpointing": True}),
    "sft by default": ("supervised", False, {}),
    "sft, packed (sdpa)": ("supervised", False, {"packing": True}),
    "sft, uneven": ("supervised", True, {"packing": False}),
    "sft, uneven, packed (sdpa)": ("supervised", True, {"packing": True}),
    FLEX: (
        "supervised", True, {"packing": True, "attention": "flex_attention"}
    ),
}  # fmt: skip


def speed(session: Session, model: Path, case: str) -> Row:
    """Tokens per second and memory of one case. Raises Failed."""
    method, uneven, settings = CASES[case]
    sizes = session.sizes
    tokens = lengths(sizes.steps * sizes.batch_size, sizes.conversation_tokens, uneven=uneven)
    place = session.scratch / "training"
    took = train(
        session,
        model,
        place,
        method=method,
        rows=rows_for(method, tokens),
        batch_size=sizes.batch_size,
        **settings,
    )
    shutil.rmtree(place, ignore_errors=True)
    result, effective = took.pop("result"), took.pop("effective")
    steps = took.pop("steps_s")
    # Steps hold nearly as many tokens each; those that compile and warm up are left out.
    counted = len(steps) - sizes.counted_after
    per_step_s = (steps[-1] - steps[sizes.counted_after - 1]) / counted
    tokens_per_step = result["tokens"] / len(steps)
    names = ("tokens_per_pass", "gradient_checkpointing", "packing", "attention", "model_dtype")
    return {
        "tokens_per_s": round(tokens_per_step / per_step_s, 1),
        "step_s": round(per_step_s, 4),
        "tokens_per_step": round(tokens_per_step),
        **{name: result[name] for name in ("startup_s", "train_s", "wall_s", "final_loss")},
        **took,
        "effective": {name: effective.get(name) for name in (*names, "device", "optimizer")},
    }


def measure(session: Session, piece: Piece, shape_name: str) -> None:
    """Every case over one shape."""
    shape, cases = session.shape(shape_name), session.sizes.cases or tuple(CASES)
    made = piece.row("model", lambda: {"directory": str(models.model(session, shape))})
    if made is None:
        piece.without("there is no model", *cases)
    for case in cases:
        piece.row(case, partial(speed, session, models.model(session, shape), case))
    piece.finish()
