"""A judge that scores, and whose file sets no threshold, gets one before any attack."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nip_core.errors import SettingsError
from nip_judges.documents.screen import write_screen
from nip_judges.play.attack import JudgeOptions, attack_judge, prepare_attack
from nip_judges.play.planning import plan_attack
from nip_judges.play.result import AttackResult
from nip_judges.settings.judge_file import load_judge_file
from nip_judges.verdict_forms import make_form

JUDGE = """
import hashlib

def score(question, response, reference):
    text = hashlib.sha256((question + response).encode()).hexdigest()
    noise = int(text[:6], 16) / 16**6
    lift = 1.5 if "checked" in response else 0.0
    return float(response.startswith(reference)) + lift + 0.9 * noise

def words(question, response):
    return 0.5 if "0" in question else None
"""


def write(folder: Path, judge: str = "function: judge.py:score") -> Path:
    (folder / "judge.py").write_text(JUDGE)
    rows = [
        {"question": f"{n} + 2?", "response": str(n + 2 + off), "ref": str(n + 2), "right": not off}
        for n in range(48)
        for off in (0, 1)
    ]
    (folder / "graded.jsonl").write_text("\n".join(map(json.dumps, rows)))
    path = folder / "judge.yaml"
    path.write_text(
        f"judge:\n  {judge}\ndata:\n  file: graded.jsonl\n  reference: ref\ncheck: number\n"
    )
    return path


def attack(path: Path, **options: Any) -> tuple[AttackResult, dict[str, int], dict[str, int]]:
    parts: dict[str, int] = {}

    async def play() -> tuple[AttackResult, dict[str, int]]:
        store = str(path.parent / "runs")
        chosen = JudgeOptions(run_store=store, kinds=["sure", "nothing"], **options)
        async with prepare_attack(path, chosen) as prepared:
            plan = dict((await plan_attack(prepared))["calls"])
            return await attack_judge(prepared, lambda name, n: parts.update({name: n})), plan

    result, plan = asyncio.run(play())
    return result, plan, parts


def test_the_threshold_is_chosen_on_other_rows_fixed_and_printed(tmp_path: Path) -> None:
    path = write(tmp_path)
    result, plan, parts = attack(path)
    threshold, document = result.document["threshold"], result.document
    assert threshold is not None and 0.8 < threshold["value"] < 1.1
    chosen_on = threshold["wrong_rows"] + threshold["right_rows"]
    assert next(iter(parts)) == "threshold"
    assert parts["threshold"] == plan["threshold"] == chosen_on
    assert document["verdict"] == "FOOLED" and document["fooled_by"] == "sure/checked"
    test = {cell.question_id for cell in result.cells if cell.part == "test"}
    first = [c for c in result.cells if c.phase == "choosing" and c.attack == "none"]
    assert len(first) == chosen_on and not test & {cell.question_id for cell in first}
    assert all(
        cell.verdict == ("accept" if cell.score >= threshold["value"] else "reject")
        for cell in result.cells
        if cell.score is not None
    )
    screen = write_screen(document)
    assert f"Threshold {threshold['value']:.6g}: chosen before any attack" in screen
    assert "AUROC as they are 1.000" in screen and "Mean rise of wrong answers' scores" in screen
    # Who goes on gets the same one, and pays for nothing.
    again, _, _ = attack(path)
    assert again.document["threshold"] == threshold
    assert again.document["cost"]["calls"] == document["cost"]["calls"]


def test_a_threshold_of_the_users_own_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, "function: judge.py:score\n  threshold: 0.2")
    result, plan, parts = attack(path)
    assert result.document["threshold"] is None and "threshold" not in {*plan, *parts}


def test_scores_of_one_label_alone_end_the_attack_with_the_reason(tmp_path: Path) -> None:
    result, _, _ = attack(write(tmp_path, "function: judge.py:words"))
    assert result.document["verdict"] == "CAN'T SAY"


def test_a_pattern_that_finds_digits_needs_no_threshold_and_another_does(tmp_path: Path) -> None:
    (tmp_path / "grader.txt").write_text("{question} {response}")
    prompt = "prompt: grader.txt\n  model_name: m\n  base_url: http://127.0.0.1:9/v1\n  pattern: "
    load_judge_file(write(tmp_path, f"{prompt}'SCORE: ([0-9.]+)'"))
    reading = make_form(None, None, r"SCORE: ([0-9.]+)").read("SCORE: 3.5")
    assert (reading.verdict, reading.score) == ("none", 3.5)
    with pytest.raises(SettingsError, match=r"judge\.accept is missing"):
        load_judge_file(write(tmp_path, f"{prompt}'GRADE: ([CI])'"))
