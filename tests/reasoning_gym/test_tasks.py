"""The tasks of reasoning-gym with the library itself: answers calculated again, labels without a tell."""

import json
import math
import re
import sys
from collections import Counter, defaultdict
from datetime import datetime, timedelta

from thorough import THOROUGH

from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.scenarios.datasets import check_splits, load_problems
from nip_games.reasoning_gym.__main__ import main
from nip_games.reasoning_gym.answers import STYLES, answer_questions
from nip_games.reasoning_gym.rows import list_rows
from nip_games.reasoning_gym.tasks import TASKS, make_generators
from nip_judges.checks.exact_answers import decide_exact

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


def calculate(task, question):
    """The answer to a question, by other code than the library's."""
    numbers = [int(number) for number in re.findall(r"\d+", question)]
    if task in ("gcd", "lcm"):
        return str(getattr(math, task)(*numbers))
    if task in ("chain_sum", "products"):
        return str(eval(re.search(r"\d[\d +*-]*\d|\d", question)[0]))
    if task == "count_bits":
        return str(numbers[-1].bit_count())
    if task == "count_primes":
        return str(sum(IS_PRIME[numbers[0] : numbers[1] + 1]))
    if task == "spell_backward":
        return question.split(": ")[-1][::-1]
    return globals()[f"calculate_{task}"](question)


def calculate_base_conversion(question):
    source, number, target = re.search(r"the (\S+) number (\w+) to (\S+)$", question).groups()
    source, target = (
        BASES.get(base) or int(base.removeprefix("base-")) for base in (source, target)
    )
    value, digits = int(number, source), ""
    while value:
        value, digit = divmod(value, target)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def calculate_calendar_arithmetic(question):
    date = datetime.strptime(re.search(r"\w+ \d+, \d{4}", question)[0], "%B %d, %Y")
    days = int(re.search(r"(\d+)[ -]day", question)[1])
    is_back = re.search(r"\b(ago|before|backward|prior|earlier|back)\b", question)
    return (date + timedelta(days=-days if is_back else days)).strftime("%A")


def calculate_course_schedule(question):
    left = {*range(int(re.search(r"total of (\d+)", question)[1]))}
    needed = [(int(a), int(b)) for a, b in re.findall(r"\((\d+), (\d+)\)", question)]
    while ready := {c for c in left if not any(a == c and b in left for a, b in needed)}:
        left -= ready
    return str(not left)


def calculate_simple_equations(question):
    left, right = re.search(r"([\w *+-]*\w) = (-?\d+)", question.split(": ")[-1]).groups()
    [unknown] = {*re.findall(r"\b[a-z]\b", left)}
    at = [eval(left, {unknown: value}) for value in (0, 1)]
    return str((int(right) - at[0]) // (at[1] - at[0]))


def test_right_answers_are_calculated_and_the_library_scores_right_and_wrong_so():
    generators = make_generators(TASKS, 0)
    rows = [*answer_questions(tuple(TASKS), 0, "test", ROWS)]
    for row in rows:
        item = row.item
        assert calculate(item.task, item.question) == item.answer, item
        score = generators[item.task].score_answer
        entry = generators[item.task][item.number]
        assert score(item.answer, entry) == 1
        assert (score(row.answer, entry) == 1) == row.is_right, row
        assert row.response in [style.format(answer=row.answer) for style in STYLES]
        verdict = decide_exact(row.response, item.question, item.answer)
        assert verdict is row.is_right or (verdict is None and not row.is_right), row
    counts = Counter((row.item.task, row.is_right) for row in rows)
    assert {*counts.values()} == {ROWS // len(TASKS) // 2}


def test_neither_length_nor_words_nor_the_answer_tell_a_right_response():
    rows = [*list_rows(ROWS)]
    lengths = {y: [len(r["response"]) for r in rows if r["right"] is y] for y in (True, False)}
    longer = sum((a > b) + (a == b) / 2 for a in lengths[True] for b in lengths[False])
    assert abs(longer / (ROWS / 2) ** 2 - 0.5) < 0.06
    # A table of what is seen, made of one half, tells the other half's labels as a coin does.
    seen = defaultdict(Counter)
    for row in rows[::2]:
        seen[_describe(row)][row["right"]] += 1
    told = [seen[_describe(r)].most_common(1)[0][0] is r["right"] for r in rows[1::2]
            if seen[_describe(r)]]  # fmt: skip
    assert len(told) > ROWS / 4 and abs(sum(told) / len(told) - 0.5) < 0.1
    options = Counter((r["response"].split()[-1].strip("."), r["right"]) for r in rows
                      if r["kind"] == "course_schedule")  # fmt: skip
    assert len(options) == 4 and len({*options.values()}) == 1


def _describe(row):
    words = re.sub(r"\S+$", "", row["response"])
    return row["kind"], words, min(len(row["response"]) - len(words), 6)


def test_problems_are_balanced_in_one_split_each_and_the_same_again():
    splits = {split: problems(split) for split in SPLITS}
    check_splits(splits)
    assert [len(splits[split]) for split in SPLITS] == [88, 60, 100]
    for found in splits.values():
        assert sum(p.y for p in found) * 2 == len(found) == len({p.question for p in found})
    assert problems("test") == splits["test"] != problems("test", seed=1)
    [told] = {p.difficulty for p in problems("test", tasks=["gcd"])}
    assert told == "gcd"
    texts = [p.texts for p in splits["train"]]
    assert all("reference" in t for t in texts)
    shown = [
        Game(settings()).scenario.show(t, role) for t in texts for role in ("prover", "verifier")
    ]
    assert not any("Right answer" in text for text in shown)


def test_the_command_writes_graded_rows(tmp_path, monkeypatch, capsys):
    out = tmp_path / "graded.jsonl"
    monkeypatch.setattr(
        sys, "argv", ["rows", "--out", str(out), "--n", "24", "--tasks", "gcd", "lcm"]
    )
    assert main() == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows == [*list_rows(24, tasks=("gcd", "lcm"))] and len(rows) == 24
    assert [*rows[0]] == ["question", "response", "reference", "right", "kind"]
    assert Counter((r["kind"], r["right"]) for r in rows) == {
        (kind, right): 6 for kind in ("gcd", "lcm") for right in (True, False)
    }
    monkeypatch.setattr(sys, "argv", ["rows", "--out", str(out), "--n", "10"])
    assert main() == 2 and "multiple of 4" in capsys.readouterr().err
