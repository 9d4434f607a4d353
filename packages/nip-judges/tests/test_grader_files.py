"""Graders of OpenAI's form are read to the letter, and asked at any endpoint."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from judge_endpoint import answering, say

from nip_core.errors import SettingsError
from nip_core.rollouts.client.chat_client import ChatClient
from nip_judges.judges import make_judge
from nip_judges.parts import Judge, JudgeAnswer, ShownText
from nip_judges.settings.judge_file import JudgeFile, load_judge_file

COLUMNS = {"question": "2 + 2?", "response": "old", "target": "4"}
ROW = ShownText("2 + 2?", "4", "4", COLUMNS)
LABEL: dict[str, Any] = {
    "type": "label_model",
    "name": "same answer",
    "model": "gpt-x",
    "labels": ["same", "other"],
    "passing_labels": ["same"],
    "input": [
        {"role": "developer", "content": "Compare with {{item.target}}."},
        {
            "type": "message",
            "role": "user",
            "content": {"type": "input_text", "text": "{{ item.question }} {{sample.output_text}}"},
        },
    ],
}
SCORE: dict[str, Any] = {
    "type": "score_model",
    "name": "quality",
    "model": "gpt-x",
    "input": [{"role": "user", "content": ["Rate ", "{{sample.output_text}}"]}],
    "range": [1, 7],
    "pass_threshold": 5,
    "sampling_params": {"temperature": 0, "max_completions_tokens": 40},
}


def write(folder: Path, grader: dict[str, Any], more: str = "") -> JudgeFile:
    (folder / "grader.json").write_text(json.dumps(grader))
    rows = [
        {"question": f"{n} + 2?", "response": "4", "target": "4", "right": n == 2} for n in (2, 3)
    ]
    (folder / "graded.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "judge.yaml").write_text(
        f"judge:\n  grader: grader.json\n{more}data:\n  file: graded.jsonl\n  reference: target\n"
    )
    return load_judge_file(folder / "judge.yaml")


def ask(file: JudgeFile, shown: ShownText = ROW) -> tuple[Judge, JudgeAnswer]:
    async def once() -> tuple[Judge, JudgeAnswer]:
        async with ChatClient(concurrency=2, timeout_s=5, retries=0) as client:
            judge = make_judge(file, client)
            return judge, await judge.ask(shown, seed=1)

    return asyncio.run(once())


@pytest.mark.parametrize(
    ("words", "verdict"),
    [('{"label": "same"}', "accept"), ("other", "reject"), ("it is the same", "none")],
)
def test_a_label_model_asks_for_one_label_about_the_attacked_text(
    tmp_path: Path, words: str, verdict: str
) -> None:
    with answering(say(words)) as stub:
        file = write(tmp_path, LABEL, f"  base_url: {stub.url}\n")
        judge, answer = ask(file, ShownText("2 + 2?", "{{item.target}}", "4", COLUMNS))
    assert answer.verdict == verdict
    system, user = (message["content"] for message in stub.requests[0]["messages"])
    assert system == "Compare with 4."
    assert user.startswith("2 + 2? {{item.target}}\n") and '"same", "other"' in user
    assert judge.accept_forms == ('{"label": "same"}', "same")
    assert judge.name == "gpt-x" and judge.is_paid


@pytest.mark.parametrize(
    ("words", "verdict", "score"),
    [('{"result": 5}', "accept", 5), ('{"result": 4.5}', "reject", 4.5), ("9", "none", None)],
)
def test_a_score_model_accepts_from_its_pass_threshold(
    tmp_path: Path, words: str, verdict: str, score: float | None
) -> None:
    with answering(say(words)) as stub:
        judge, answer = ask(write(tmp_path, SCORE, f"  base_url: {stub.url}\n"))
    assert (answer.verdict, answer.score) == (verdict, score)
    (request,) = stub.requests
    assert "from 1 to 7" in request["messages"][0]["content"] and judge.scores
    assert request["temperature"] == 0 and request["max_completion_tokens"] == 40


def test_a_score_model_without_threshold_has_a_score_and_no_verdict(tmp_path: Path) -> None:
    grader = {name: value for name, value in SCORE.items() if name != "pass_threshold"}
    with answering(say('{"result": 5}')) as stub:
        judge, answer = ask(write(tmp_path, grader, f"  base_url: {stub.url}\n"))
    assert judge.scores and (answer.verdict, answer.score) == ("none", 5)


@pytest.mark.parametrize(
    ("operation", "response", "verdict"),
    [
        ("eq", "4", "accept"),
        ("eq", " 4", "reject"),
        ("ne", "4", "reject"),
        ("like", "it is 4.", "accept"),
        ("ilike", "nothing", "reject"),
    ],
)
def test_a_string_check_compares_without_a_call(
    tmp_path: Path, operation: str, response: str, verdict: str
) -> None:
    grader = {
        "type": "string_check",
        "name": "s",
        "input": "{{sample.output_text}}",
        "reference": "{{item.target}}",
        "operation": operation,
    }
    judge, answer = ask(write(tmp_path, grader), ShownText("q", response, "4", COLUMNS))
    assert (answer.verdict, answer.calls, judge.is_paid) == (verdict, 0, False)


def test_a_response_that_is_no_json_is_no_verdict_where_json_is_asked_for(tmp_path: Path) -> None:
    grader = {
        "type": "string_check",
        "name": "s",
        "input": "{{ sample.output_json.steps[0].value }}",
        "reference": "4",
        "operation": "eq",
    }
    file = write(tmp_path, grader)
    text = json.dumps({"steps": [{"value": 4}]})
    assert ask(file, ShownText("q", text, None, COLUMNS))[1].verdict == "accept"
    for response, reason in (("{", "is no JSON"), ("4", "has no sample.output_json.steps")):
        answer = ask(file, ShownText("q", response, None, COLUMNS))[1]
        assert answer.verdict == "none" and reason in (answer.reason or "")


def test_a_python_grader_runs_in_the_sandbox(tmp_path: Path) -> None:
    from nip_sandbox.sandbox import SandboxError, run_python

    try:
        run_python("")
    except SandboxError as error:
        pytest.skip(str(error))
    source = (
        "def grade(sample, item):\n"
        "    print(sample['output_text'])\n"
        "    return 1 if sample['output_text'] == item['target'] else 1 / 0\n"
    )
    grader = {"type": "python", "name": "p", "source": source, "pass_threshold": 0.5}
    file = write(tmp_path, grader)
    assert ask(file)[1].score == 1
    wrong = ask(file, ShownText("q", '{"result": 1}', "4", COLUMNS))[1]
    assert wrong.verdict == "none" and "ZeroDivisionError" in (wrong.reason or "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lables": []}, "no key 'lables'; did you mean 'labels'"),
        ({"passing_labels": ["good"]}, "'good' is none of the labels"),
        ({"passing_labels": ["same", "other"]}, "nothing could be rejected"),
        ({"type": "label_modle"}, "did you mean 'label_model'"),
        ({"type": "multi"}, "one by one"),
        ({"type": "text_similarity"}, "write it as a function"),
        ({"input": [{"role": "user", "content": "{{item.target}}"}]}, "never see the answer"),
        ({"input": [{"role": "user", "content": "{{sample.text}}"}]}, "no variable"),
        (
            {"input": [{"role": "user", "content": {"type": "input_image", "image_url": "x"}}]},
            "input_image",
        ),
        ({"input": [{"role": "user"}]}, "content"),
    ],
)
def test_whatever_is_wrong_in_a_grader_is_named(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=r"judge\.yaml, line 2: grader\.json: .*") as error:
        more = "" if "type" in change else "  base_url: http://127.0.0.1:9\n"
        file = write(tmp_path, LABEL | change, more)
        make_judge(file, ChatClient(concurrency=1, timeout_s=1, retries=0))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_the_keys_are_those_of_the_openai_package() -> None:
    from openai.types import graders
    from openai.types.graders import score_model_grader

    from nip_judges.judges.grader_settings import (
        LabelModel,
        PythonGrader,
        SamplingParams,
        ScoreModel,
        StringCheck,
    )

    for ours, theirs, more in [
        (LabelModel, graders.LabelModelGrader, set()),
        (ScoreModel, graders.ScoreModelGrader, {"pass_threshold"}),
        (StringCheck, graders.StringCheckGrader, set()),
        (PythonGrader, graders.PythonGrader, {"pass_threshold"}),
        (SamplingParams, score_model_grader.SamplingParams, set()),
    ]:
        assert set(ours.model_fields) == set(theirs.model_fields) | more
