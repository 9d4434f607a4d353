"""Recipes of the cookbook that compare, distil and prefer, as they are published, without a network.

Their data are made up, in the form of the data sets that the recipes load.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from recipes import MODEL, Place

QUESTIONS = [f"What is {a} + {b}?" for a in range(10) for b in range(10)]
COMMON = {"renderer_name": "role_colon", "behavior_if_log_dir_exists": "delete"}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def answer(question: str) -> str:
    first, _, second = question.removeprefix("What is ").removesuffix("?").split()
    return str(int(first) + int(second))


@pytest.fixture(scope="session")
def data(place: Place) -> Path:
    """Write pairs, questions and conversations under the names that the recipes load them by."""
    drawn = random.Random(1)
    pairs = []
    for _ in range(1100):  # of the test set 1,024 are taken, whatever it has
        question = drawn.choice(QUESTIONS)
        talk = f"\n\nHuman: {question}\n\nAssistant: "
        pairs.append({"chosen": talk + answer(question), "rejected": talk + "I don't know"})
    for split in ("train", "test"):
        write_rows(place.directory / "Anthropic/hh-rlhf" / f"{split}.jsonl", pairs)
    rows = [{"question": question} for question in QUESTIONS]
    write_rows(place.directory / "zwhe99/DeepMath-103K/train.jsonl", rows)
    talks = [
        [{"role": "user", "content": one}, {"role": "assistant", "content": answer(one)}]
        for one in QUESTIONS
    ]
    path = place.directory / "distilled.jsonl"
    write_rows(path, [{"messages": talk} for talk in talks])
    return path


def test_dpo_prefers_what_was_chosen(place: Place, data: Path) -> None:
    rows = place.run(
        "preference.dpo.train", batch_size=16, max_steps=6, learning_rate=1e-3, **COMMON
    )
    losses = [row["dpo_loss"] for row in rows if "dpo_loss" in row]
    assert losses[0] == pytest.approx(0.6931, abs=1e-3) and losses[-1] < 0.9 * losses[0]


def test_a_prompt_is_distilled_into_the_weights(place: Place, data: Path) -> None:
    rows = place.run(
        "prompt_distillation.train", file_path=data, model_name=MODEL, batch_size=16, max_steps=6,
        learning_rate=1e-3, **COMMON,
    )  # fmt: skip
    losses = [row["train_mean_nll"] for row in rows if "train_mean_nll" in row]
    assert len(losses) == 6 and losses[-1] < 0.9 * losses[0]


def test_a_student_comes_nearer_to_its_teacher(place: Place, data: Path) -> None:
    """The teacher is what the recipe before has made, so it is another model than the student."""
    place.run(
        "prompt_distillation.train", file_path=data, model_name=MODEL, batch_size=16, max_steps=8,
        learning_rate=3e-3, **COMMON,
    )  # fmt: skip
    (*_, taught) = sorted(place.directory.glob("logs/prompt_distillation.train-*"))
    saved = [json.loads(line) for line in (taught / "checkpoints.jsonl").read_text().splitlines()]
    rows = place.run(
        "distillation.on_policy_distillation", teacher_model=MODEL,
        teacher_checkpoint=saved[-1]["sampler_path"], groups_per_batch=8, group_size=4,
        max_tokens=6, max_steps=6, learning_rate=1e-3, lora_rank=16, eval_every=0, **COMMON,
    )  # fmt: skip
    distances = [row["teacher_kl"] for row in rows if "teacher_kl" in row]
    assert len(distances) == 6 and distances[-1] < distances[0]


def test_shorter_answers_are_preferred(place: Place) -> None:
    rows = place.run(
        "preference.shorter.train", model_name=MODEL, batch_size=2, group_size=4, max_tokens=16,
        max_steps=2, eval_every=0, learning_rate=1e-3, **COMMON,
    )  # fmt: skip
    assert len([row for row in rows if "optim/lr" in row or "time/train" in row]) == 2
