"""The promises of the bundled tiny model."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factory.tiny.build import (
    Conversations,
    encoder,
    load,
    make_model,
    make_tokenizer,
    save,
    train,
)
from factory.tiny.card import card
from factory.tiny.cases import TrainingCases, split_cases
from factory.tiny.conversations import LAST_TURN, Case, own, says, system
from factory.tiny.evaluation import measure_game, measure_prover, measure_single_decision
from factory.tiny.recipes import Recipe
from nip_core.models import BUNDLED

TINY = BUNDLED["tiny"]

SHAPES = {
    "prover asked": [system, says("Verifier", "Question: Do they match?")],
    "prover unasked": [system],
    "verifier opens": [system],
    "verifier decides": [
        system,
        own("Question: Do they match?"),
        says("Expert", "Answer: asked plus 3 code 3 ok, they match"),
        {"role": "system", "content": LAST_TURN},
    ],
    "no name": [system, {"role": "user", "content": "Hello."}],
    "user first": [{"role": "user", "content": "Hello."}],
}


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, Any]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load(TINY)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer(tiny: tuple[Any, Any]) -> Any:
    return tiny[1]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    chosen = split_cases("test")
    random.Random(3).shuffle(chosen)
    return chosen[:60]


def test_the_card_says_what_was_recorded() -> None:
    training, evaluation = (
        json.loads((TINY / name).read_text()) for name in ("training.json", "evaluation.json")
    )
    assert (TINY / "README.md").read_text() == card(training, evaluation)


@settings(deadline=None, max_examples=200)
@given(text=st.text())
def test_any_text_comes_back_from_the_tokenizer(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert len(ids) <= len(text.encode())


def test_numbers_are_one_token_and_the_same_wherever_they_stand(tokenizer: Any) -> None:
    twelve = tokenizer.convert_tokens_to_ids("12")
    assert twelve != tokenizer.unk_token_id
    for text in ("x * 12", "xs[:12]", "times 12 plus", "range(12, x)"):
        assert tokenizer(text, add_special_tokens=False)["input_ids"].count(twelve) == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_the_chat_template_accepts_every_shape(tokenizer: Any, shape: str) -> None:
    opening = {"role": "system", "content": "You are the expert."}
    messages = [opening if message is system else message for message in SHAPES[shape]]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|end|><|assistant|>")
    assert text.count("<|end|>") == len(messages)
    for message in messages:
        name = f"{message['name']}\n" if "name" in message else ""
        assert f"<|{message['role']}|>{name}{message['content']}<|end|>" in text


def test_the_chat_template_refuses_an_unknown_role(tokenizer: Any) -> None:
    with pytest.raises(Exception, match="unknown role: tool"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


def test_training_reads_conversations_as_the_chat_template_writes_them(tokenizer: Any) -> None:
    source, encode = Conversations(Recipe(verifier_share=0.5)), encoder(tokenizer)
    for _ in range(40):
        messages = source.one()
        ids, spoken = encode(messages)
        rendered = tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        assert rendered["input_ids"] == ids
        assert [bool(m) for m in rendered["assistant_masks"]] == spoken


def test_training_cases_come_from_training_questions_only() -> None:
    supply, draw = TrainingCases(), random.Random(0)
    held_out = {case.question for split in ("validation", "test") for case in split_cases(split)}
    held_out_code = {c.solution for split in ("validation", "test") for c in split_cases(split)}
    drawn = [supply.draw(draw) for _ in range(2000)]
    assert not held_out & {case.question for case in drawn}
    assert not held_out_code & {case.solution for case in drawn}
    correct = sum(case.conclusion == "match" for case in drawn)
    assert 900 < correct < 1100


def test_the_prover_is_mostly_right_about_unseen_problems(
    tiny: tuple[Any, Any], cases: list[Case]
) -> None:
    import torch

    torch.manual_seed(0)
    measured = measure_prover(*tiny, cases, temperature=1.0)
    assert measured["conclusion_right"] > 0.8
    assert measured["valid_form"] > 0.97


def test_the_verifier_asks_and_decides_in_the_right_form_at_chance(
    tiny: tuple[Any, Any], cases: list[Case]
) -> None:
    import torch

    torch.manual_seed(0)
    game = measure_game(*tiny, cases, rounds=3, temperature=1.0)
    assert game["valid_question"] == game["valid_decision"] == 1.0
    assert 0.25 < game["accuracy"] < 0.75  # 60 tosses of a coin
    longer = measure_game(*tiny, cases[:30], rounds=9, temperature=1.0)
    assert min(longer["valid_question"], longer["valid_decision"]) > 0.9
    for protocol in ("adp", "solo_verifier"):
        single = measure_single_decision(*tiny, cases, protocol, temperature=1.0)
        assert single["valid_decision"] == 1.0
        assert 0.25 < single["accuracy"] < 0.75


@pytest.mark.learning
def test_training_again_gives_the_same_files(tmp_path: Path) -> None:
    recipe = Recipe(steps=3, batch_size=4, layers=1, warmup_steps=1)
    for name in ("one", "two"):
        tokenizer = make_tokenizer(recipe)
        model = make_model(recipe, tokenizer)
        train(model, tokenizer, recipe)
        save(model, tokenizer, tmp_path / name)
    for path in sorted((tmp_path / "one").iterdir()):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name
