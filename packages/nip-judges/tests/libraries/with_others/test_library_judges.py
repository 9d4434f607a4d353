"""Judges of verifiers, TRL, DSPy and ART as functions, and nip's own reading of verifiers' judge."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from both_ways import EXAMPLES, open_judge, shown, write_yaml
from grader_stub import Answer, Stub
from odd_answers import write_answers
from verifiers.v1.judge import JudgeResponse
from verifiers.v1.judges import ReferenceJudge, ReferenceJudgeConfig

from nip_judges.verdict_forms import make_form

ODD = write_answers("{v}", ("yes", "no", "Yes", "No", "YES"))
DRESSED = ("Paris", "Rome {answer} {{x}} {0}", "```\nyes\n```", "Ω \u200b🙂 \\boxed{Paris} %s $x")


def read_by_verifiers(text: str) -> str:
    judge = ReferenceJudge(ReferenceJudgeConfig(model="grader"))
    try:
        return "accept" if judge.parse(JudgeResponse(text=text)) else "reject"
    except ValueError:
        return "none"


def test_200_odd_answers_of_a_judge_are_read_as_verifiers_reads_them() -> None:
    settings = yaml.safe_load((EXAMPLES / "verifiers.yaml").read_text())["judge"]
    form = make_form(settings["accept"], settings["reject"], settings["pattern"])
    theirs = {text: read_by_verifiers(text) for text in ODD}
    assert {text: form.read(text).verdict for text in ODD} == theirs
    assert len(theirs) == 200
    assert min(Counter(theirs.values()).values()) >= 40  # accept, reject, none


async def test_the_reference_judge_and_its_prompt_ask_the_same_and_say_the_same(
    folder: Path, grade: Callable[[Answer], Stub]
) -> None:
    def answer(chat: str) -> str:
        return ODD[hashlib.sha256(chat.encode()).digest()[0] % len(ODD)]

    stub = grade(answer)
    texts = [shown(f"{dress}{number}") for number in range(12) for dress in DRESSED]
    model = [f"judge.base_url={stub.url}"]
    async with open_judge(folder / "verifiers.yaml", model) as judge:
        ours = await asyncio.gather(*(judge.ask(text, 1) for text in texts))
    asked, stub.chats[:] = set(stub.chats), []
    async with open_judge(write_yaml(folder, "verifiers_reference.py:judge")) as judge:
        theirs = await asyncio.gather(*(judge.ask(text, 1) for text in texts))
        assert (await judge.ask(shown(" "), 1)).verdict == "reject"
    assert asked == {*stub.chats}
    assert len(asked) == len(texts)
    assert [a.verdict for a in ours] == [a.verdict for a in theirs]
    assert len({a.verdict for a in ours}) == 3


async def test_a_rubric_judge_scores_by_the_reply(
    folder: Path, grade: Callable[[Answer], Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(chat: str) -> str:
        verdict = "yes" if "Paris" in chat.split("Response")[-1] else "no"
        said = {"right": verdict, "short": "yes"}
        rows = [{"name": n, "reason": "", "verdict": v} for n, v in said.items()]
        return json.dumps({"verdicts": rows})

    grade(answer)
    monkeypatch.chdir(folder)
    async with open_judge(write_yaml(folder, "verifiers_rubric.py:judge", threshold=0.9)) as judge:
        right, wrong = [await judge.ask(shown(text), 1) for text in ("Paris", "Rome")]
    assert (right.verdict, right.score) == ("accept", 1)
    assert (wrong.verdict, wrong.score) == ("reject", 0.25)


async def test_a_reward_function_of_trl_judges_and_its_none_is_no_verdict(folder: Path) -> None:
    async with open_judge(write_yaml(folder, "trl_reward.py:judge", threshold=0.5)) as judge:
        texts = ("It is $\\boxed{4}$.", "$\\boxed{5}$", "no idea")
        row = [replace(shown(text), reference="$4$") for text in texts]
        verdicts = [(await judge.ask(text, 1)).verdict for text in row]
        none = await judge.ask(replace(row[0], reference=""), 1)
    assert verdicts == ["accept", "reject", "reject"]
    assert none.verdict == "none"


async def test_a_metric_of_dspy_judges_by_its_score_and_is_asked_anew(
    folder: Path, grade: Callable[[Answer], Stub]
) -> None:
    def answer(chat: str) -> str:
        part = 0.9 if "It is Paris" in chat else 0.1
        fields = {"reasoning": "so", "recall": part, "precision": part}
        said = "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items())
        return "I refuse." if "Oslo" in chat else said

    stub = grade(answer)
    async with open_judge(write_yaml(folder, "dspy_metric.py:judge", threshold=0.66)) as judge:
        texts = [shown(text) for text in ("It is Paris", "Rome", "Rome")]
        answers = [await judge.ask(text, 1) for text in texts]
        refused = await judge.ask(shown("Oslo"), 1)
    assert [a.verdict for a in answers] == ["accept", "reject", "reject"]
    assert refused.verdict == "none"
    assert answers[0].score == pytest.approx(0.9)
    assert sum("Oslo" not in chat for chat in stub.chats) == 3


async def test_ruler_accepts_the_first_of_two_by_its_scores(
    folder: Path, grade: Callable[[Answer], Stub]
) -> None:
    def answer(chat: str) -> str:
        texts = chat.split('<trajectory id="')[1:]
        scores = [
            {"trajectory_id": text[0], "explanation": "", "score": 0.9 if "Paris" in text else 0.2}
            for text in texts
        ]
        return json.dumps({"scores": scores}) if "Oslo" not in chat else "{}"

    grade(answer)
    async with open_judge(write_yaml(folder, "art_ruler.py:judge", pair=True)) as judge:
        pairs = ("Paris", "Rome"), ("Rome", "Paris"), ("Rome", "Bonn"), ("Paris", "Oslo")
        answers = [await judge.ask(shown(a, other=b), 1) for a, b in pairs]
    assert [a.verdict for a in answers] == ["accept", "reject", "none", "none"]
