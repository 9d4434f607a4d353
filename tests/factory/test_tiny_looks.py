"""What the model that may look learns from, and that it reads what it is shown."""

import json
import random
import re
from dataclasses import asdict

from factory.looks.evaluation import card, measure_looks
from factory.looks.lesson import PAIRS, LooksLesson, looks
from factory.tiny.arithmetic import split_cases
from factory.tiny.build import fingerprint, load
from factory.tiny.recipes import RECIPES
from nip_core.models import BUNDLED

MODEL = BUNDLED["tiny-arithmetic-looks"]


def test_a_turn_looks_at_other_steps_and_ends_with_the_first_wrong_one():
    draw, cases, lengths = random.Random(0), split_cases("train", 60, **PAIRS), set()
    for _ in range(200):
        chat = looks(draw.choice(cases), draw)
        answers = [message["content"] for message in chat if message["role"] == "assistant"]
        steps = [re.match(r"Step (\d): ", answer)[1] for answer in answers]
        assert len({*steps}) == len(steps)
        results = [m["content"] for m in chat if m["content"].startswith("Result: ")]
        assert len(results) == len(answers) - 1
        for before, result, after in zip(answers, results, answers[1:], strict=False):
            assert before.endswith(f"right.\nCheck: {after[5]}")
            number, true = re.fullmatch(r"Result: (\d): .* = (\d+)", result).groups()
            assert number == after[5] and f"? {true}, " in after
        last = answers[-1].split("\n")
        assert last[1] == f"Decision: {'accept' if last[0].endswith('right.') else 'reject'}"
        lengths.add(len(answers))
    assert lengths == {1, 2, 3, 4}


def test_its_conversations_are_those_of_the_first_model_as_well():
    draw, lesson = random.Random(0), LooksLesson()
    chats = [lesson.conversation(draw, 0.35, "middle") for _ in range(60)]
    with_tool = [chat for chat in chats if "shows this step of the task" in chat[0]["content"]]
    assert 10 < len(with_tool) < 50
    assert all(chat[-1]["role"] == "assistant" for chat in chats)


def test_the_card_says_what_was_recorded():
    training, evaluation = (
        json.loads((MODEL / file).read_text()) for file in ("training.json", "evaluation.json")
    )
    assert (MODEL / "README.md").read_text() == card(training, evaluation)
    assert evaluation["made_for"] == fingerprint("arithmetic-looks"), "prompts have changed"
    assert training["recipe"] == asdict(RECIPES["arithmetic-looks"])


def test_the_bundled_model_looks_and_reads_the_result():
    import torch

    model, tokenizer = load(MODEL)
    torch.manual_seed(0)
    cases = split_cases("test", 80, **PAIRS)
    alone, often = (
        measure_looks(model, tokenizer, cases, "solo_verifier", calls) for calls in (0, 3)
    )
    assert alone["calls"] == 0 < 0.15 < often["calls"]
    assert often["read_rightly"] > 0.85 and often["completeness"] > 0.9
