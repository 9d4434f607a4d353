"""`reasoning_gym`: right answers are right, wrong ones are wrong, and their words tell neither."""

import json
import math
import sys

import pytest
from thorough import THOROUGH

from nip_core.errors import DatasetError, SettingsError
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.scenarios.datasets import load_problems
from nip_games.reasoning_gym.__main__ import main
from nip_games.reasoning_gym.tasks import draw_pairs, is_apart

SPLITS = ("train", "validation", "test")
ROWS = 1012 if THOROUGH else 440
BASES = {"binary": 2, "hexadecimal": 16}
IS_PRIME = [n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(10_001)]


def settings(**own):
    return load_parameters(
        {
            "run_name": "a",
            "scenario": "reasoning_gym",
            "dataset": "answers",
            "interaction_protocol": "nip",
            "scenario_settings": {"train_size": 88, **own},
            "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "m"}},
        }
    )


def problems(split="train", path="answers", **own):
    return load_problems(Game(settings(**own)).scenario, path, split)


def test_without_the_library_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(
        DatasetError, match=r"need the library reasoning-gym .*install.*reasoning-gym"
    ):
        problems(seed=9)
    monkeypatch.setattr(sys, "argv", ["rows", "--out", str(tmp_path / "graded.jsonl")])
    assert main() == 2 and not [*tmp_path.iterdir()]
    assert capsys.readouterr().err.count("\n") == 1


class Digits:
    """A generator of few questions."""

    def __getitem__(self, number):
        return {"question": f" {number % 40} squared?", "answer": str((number % 40) ** 2)}


def test_pairs_have_answers_apart_and_end_where_no_question_is_new():
    found = []
    with pytest.raises(
        DatasetError, match=r"gcd has no more questions for train; lower train_size"
    ):
        for pair in draw_pairs("gcd", Digits(), "train"):
            found.append(pair)
    questions = [item.question for pair in found for item in pair]
    assert 8 < len(questions) == len({*questions}) < 40
    assert all(is_apart(first.answer, second.answer) for first, second in found)


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        ("12", "21", True),
        ("-4", "4", False),
        ("100", "1e2", False),
        ("Yes", " yes", False),
        ("abc", "abcd", True),
        ("True", "False", True),
    ],
)
def test_answers_that_a_reader_could_take_for_each_other_make_no_pair(first, second, apart):
    assert is_apart(first, second) is apart


def test_answers_of_ones_own_are_labelled_by_the_exact_rule_or_the_row_named(tmp_path):
    path = tmp_path / "own.jsonl"
    texts = [("2 + 2?", "It is even. The answer is 4.", "4"), ("3 + 3?", "Answer: 7", "6"),
             ("4 + 4?", "Perhaps 8, perhaps 9", "8")]  # fmt: skip
    rows = [
        {"question": q, "solution": s, "reference": r, "split": "train"} for q, s, r in texts[:2]
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [p.y for p in problems(path=str(path))] == [1, 0]
    question, solution, reference = texts[2]
    row = {"question": question, "solution": solution, "reference": reference, "split": "train"}
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DatasetError, match=r"line 1.*give the row a y"):
        problems(path=str(path))


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"train_size": 10}, "scenario_settings.train_size"),
        ({"tasks": ["syllogism"]}, "scenario_settings.tasks"),
        ({"tasks": ["gcd", "gcd"]}, "names a task twice"),
    ],
)
def test_settings_that_make_no_game_are_refused(own, words):
    with pytest.raises(SettingsError) as refused:
        settings(**own)
    assert words in str(refused.value), refused.value
