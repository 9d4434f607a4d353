"""Options of an attack on a judge: what can't be followed is refused in a line, before any call."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from judge_endpoint import answering, say

from nip_cli.printing.options import Shown
from nip_core.errors import RunConflictError, SettingsError, StageError, StoreError
from nip_judges.command import run_judge_attack
from nip_judges.play.attack import (
    JudgeOptions,
    PreparedAttack,
    attack_judge,
    prepare_attack,
)
from nip_judges.play.planning import plan_attack

_FUNCTION = """
CALLS = []


def decide(question, response, reference=None):
    CALLS.append(response)
    return reference in response
"""


@pytest.fixture
def judge(tmp_path: Path) -> Path:
    """Write a judge that is a function, with 24 questions of both labels."""
    (tmp_path / "decide.py").write_text(_FUNCTION, encoding="utf-8")
    rows = [
        {"question": f"{i} + 70?", "response": text, "reference": str(i + 70), "right": right}
        for i in range(24)
        for text, right in ((f"Answer: {i + 70}", True), (f"Answer: {i + 60}", False))
    ]
    text = "\n".join(map(json.dumps, rows))
    (tmp_path / "graded.jsonl").write_text(text, encoding="utf-8")
    path = tmp_path / "My_Judge of March.yaml"
    path.write_text(
        "judge: {function: decide.py:decide}\n"
        "data: {file: graded.jsonl, reference: reference}\n"
        "check: number\n",
        encoding="utf-8",
    )
    return path


def prepare(path: Path, **options: object) -> PreparedAttack:
    """Prepare an attack with its folder beside the judge's file."""

    async def run() -> PreparedAttack:
        settings = JudgeOptions(**{"run_store": str(path.parent / "runs"), **options})
        async with prepare_attack(path, settings) as prepared:
            return prepared

    return asyncio.run(run())


def test_a_file_of_any_name_gives_a_name_that_a_run_may_have(judge: Path) -> None:
    assert prepare(judge).folder.name.startswith("my-judge-of-march-")


def test_surfaces_of_the_file_alone_are_attacked(judge: Path) -> None:
    prepared = prepare(judge, overrides=["surface=around"])
    assert {wording.surface for wording in prepared.parts.wordings} == {"around"}
    with pytest.raises(
        SettingsError, match="no wording that was asked for is around: all are alone"
    ):
        prepare(judge, overrides=["surface=around"], kinds=["opener"])


def test_surfaces_hold_for_the_second_judge(judge: Path) -> None:
    other = judge.with_name("other.yaml")
    other.write_bytes(judge.read_bytes())
    prepared = prepare(judge, overrides=["surface=around"], against=str(other))
    assert prepared.against is not None
    assert {wording.surface for wording in prepared.against.wordings} == {"around"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "../x"}, "small letters, digits and dashes"),
        ({"name": "A_b"}, "small letters, digits and dashes"),
        ({"problems": 0}, "--problems 0: at least 10 rows"),
        ({"problems": -3}, "--problems -3: at least 10 rows"),
        ({"kinds": []}, "--kinds names none; there are nothing, opener"),
        ({"max_usd": 2.0, "overrides": ["prices.prompt_usd=1"]}, "nothing here says .*max-calls"),
        ({"by": "sneaky", "attacker": "tiny", "name": "a" * 40}, "has at most 29 letters"),
        ({"by": "best-of-n", "attacker": "tiny", "overrides": ["surface=alone"]}, "add around or"),
    ],
)
def test_an_option_that_cannot_be_followed_is_refused(
    judge: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        prepare(judge, **options)


def test_a_store_that_is_no_folder_is_refused_before_any_call(judge: Path) -> None:
    prepared = prepare(judge, run_store="s3://user:word@bucket/runs")
    with pytest.raises(SettingsError, match="kept in a folder of this machine") as caught:
        asyncio.run(plan_attack(prepared))
    assert "word" not in str(caught.value)


def test_a_damaged_record_of_settings_and_the_name_of_a_run_are_refused(judge: Path) -> None:
    damaged = prepare(judge, name="torn")
    damaged.folder.mkdir(parents=True)
    (damaged.folder / "settings.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunConflictError, match=r"settings\.json is damaged; name this attack"):
        asyncio.run(plan_attack(damaged))
    taken = prepare(judge, name="taken")
    (judge.parent / "runs" / "taken").mkdir()
    with pytest.raises(RunConflictError, match="has a run of this name"):
        asyncio.run(plan_attack(taken))


def test_a_folder_that_cannot_be_written_is_an_error_in_a_line(judge: Path) -> None:
    (judge.parent / "a-file").write_text("", encoding="utf-8")
    options = {"kinds": "opener", "run_store": str(judge.parent / "a-file")}
    with pytest.raises(StoreError, match=r"a-file/judges/.*: Not a directory; answers on record"):
        run_judge_attack(judge, options, dry_run=True, as_json=True, shown=Shown.none)


def _grade(request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    question, _, response = request["messages"][-1]["content"].partition("::")
    first = question.split()[0]  # a request to write begins with a word
    is_right = first.isdigit() and str(int(first) + 70) in response
    return say("GRADE: C" if is_right else "GRADE: I")(request)


def test_texts_of_the_judges_own_model_count_for_the_cap(judge: Path) -> None:
    (judge.parent / "prompt.txt").write_text("{question}::{response}", encoding="utf-8")
    options = JudgeOptions(
        run_store=str(judge.parent / "runs"),
        by="best-of-n",
        attacker="judge",
        n=(1, 4),
        problems=10,
        max_calls=60,
    )

    async def attack() -> str:
        async with prepare_attack(judge, options) as prepared:
            return (await attack_judge(prepared)).document["verdict"]

    with answering(_grade) as endpoint:
        judge.write_text(
            "judge: {prompt: prompt.txt, model_name: m, accept: 'GRADE: C', reject: 'GRADE: I', "
            f"base_url: '{endpoint.url}'}}\ndata: {{file: graded.jsonl}}\n",
            encoding="utf-8",
        )
        assert asyncio.run(attack()) == "NOT FINISHED"
        assert len(endpoint.requests) == 60


def test_the_column_of_labels_reaches_no_judge(judge: Path) -> None:
    prepared = prepare(judge)
    assert all(
        row.columns.keys() == {"question", "response", "reference"} for row in prepared.rows.rows
    )
    (judge.parent / "grader.txt").write_text("{response} {right}", encoding="utf-8")
    text = judge.read_text(encoding="utf-8")
    forms = 'accept: "yes", reject: "no", model_name: m, base_url: "http://127.0.0.1:9/v1"'
    text = text.replace("function: decide.py:decide", f"prompt: grader.txt, {forms}")
    judge.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=r"grader.txt has \{right\}, the column of labels"):
        prepare(judge)


def test_a_function_that_writes_texts_needs_a_check(judge: Path) -> None:
    script = judge.parent / "mine.py"
    script.write_text("def write(question, response):\n    return 'yes'\n", encoding="utf-8")
    text = judge.read_text(encoding="utf-8").replace("check: number\n", "")
    judge.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match="no check proves that they are wrong"):
        prepare(judge, script=f"{script}:write")


def test_a_model_that_a_server_lacks_is_named_with_those_that_it_has(judge: Path) -> None:
    (judge.parent / "grader.txt").write_text("{response}", encoding="utf-8")
    unknown = {"error": {"message": "no such model", "code": "model_not_found"}}
    with answering(lambda request: (404, unknown), models=["gpt-6-luna", "other"]) as endpoint:
        forms = f'accept: "yes", reject: "no", model_name: gpt-6-lun, base_url: "{endpoint.url}"'
        text = judge.read_text(encoding="utf-8")
        text = text.replace("function: decide.py:decide", f"prompt: grader.txt, {forms}")
        judge.write_text(text, encoding="utf-8")

        async def attack() -> None:
            options = JudgeOptions(run_store=str(judge.parent / "runs"))
            async with prepare_attack(judge, options) as prepared:
                await attack_judge(prepared)

        with pytest.raises(StageError, match="the server has gpt-6-luna, other; did you mean"):
            asyncio.run(attack())
    assert len(endpoint.requests) == 1
