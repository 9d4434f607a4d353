"""OpenAI's grader files: what its package writes, nip reads. Run with its versions 2 and 3.

The package has their types and no code that grades: its service does that, and can't be asked here.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from both_ways import open_judge, shown
from grader_stub import Answer, Stub
from openai.types import graders
from pydantic import BaseModel

from nip_core.errors import SettingsError
from nip_judges.judges.grader_settings import REFUSED, TYPES

THEIRS: dict[str, type[BaseModel]] = {
    "label_model": graders.LabelModelGrader,
    "score_model": graders.ScoreModelGrader,
    "string_check": graders.StringCheckGrader,
    "python": graders.PythonGrader,
    "text_similarity": graders.TextSimilarityGrader,
    "multi": graders.MultiGrader,
}
ASKED = [
    {"role": "developer", "content": "Reference: {{item.reference}}"},
    {"role": "user", "content": {"type": "input_text", "text": "{{ sample.output_text }}"}},
]
NAMED = {"name": "it", "model": "gpt-6-luna", "input": ASKED}
LABELS = {"labels": ["right", "wrong"], "passing_labels": ["right"]}


def write(folder: Path, grader: BaseModel, **judge: object) -> Path:
    """Write the grader as OpenAI's package does, and the judge.yaml of it."""
    (folder / "grader.json").write_text(json.dumps(grader.to_dict(mode="json")))
    settings = {
        "judge": {"grader": "grader.json", **judge},
        "data": {"file": "graded.jsonl", "reference": "reference"},
    }
    (folder / "judge.yaml").write_text(yaml.safe_dump(settings))
    return folder / "judge.yaml"


async def ask(path: Path, *responses: str, **settings: str) -> list[str]:
    overrides = [f"judge.{name}={value}" for name, value in settings.items()]
    async with open_judge(path, overrides) as judge:
        answers = await asyncio.gather(*(judge.ask(shown(text), 1) for text in responses))
    return [answer.verdict for answer in answers]


def test_every_type_of_grader_is_read_or_refused_by_name() -> None:
    kinds = {get_args(theirs.model_fields["type"].annotation)[0] for theirs in THEIRS.values()}
    assert kinds == {*THEIRS} == {*TYPES, *REFUSED}
    for kind, ours in TYPES.items():
        assert {*THEIRS[kind].model_fields} <= {*ours.model_fields}


async def test_a_label_model_asks_and_accepts_by_its_passing_labels(
    folder: Path, grade: Callable[[Answer], Stub]
) -> None:
    def answer(chat: str) -> str:
        return json.dumps(
            {"label": "right" if "Paris!" in chat else "wrong" if "Rome" in chat else "?"}
        )

    stub = grade(answer)
    path = write(folder, graders.LabelModelGrader(type="label_model", **NAMED, **LABELS))
    said = await ask(path, "Paris!", "Rome", "Oslo", base_url=stub.url)
    assert said == ["accept", "reject", "none"]
    assert all("Reference: Paris" in chat for chat in stub.chats)


async def test_a_score_model_accepts_from_its_threshold(
    folder: Path, grade: Callable[[Answer], Stub]
) -> None:
    def answer(chat: str) -> str:
        return json.dumps({"result": 4 if "Paris!" in chat else 1 if "Rome" in chat else 9})

    stub = grade(answer)
    grader = graders.ScoreModelGrader(type="score_model", **NAMED, range=[0, 5])
    said = await ask(
        write(folder, grader, threshold=3), "Paris!", "Rome", "Oslo", base_url=stub.url
    )
    assert said == ["accept", "reject", "none"]


@pytest.mark.parametrize(
    ("operation", "verdicts"),
    [("eq", "ar r r"), ("ne", "ra a a"), ("like", "ar a r"), ("ilike", "ar a a")],
)
async def test_a_string_check_compares(folder: Path, operation: Any, verdicts: str) -> None:
    fields = {"input": "{{sample.output_text}}", "reference": "{{item.reference}}"}
    grader = graders.StringCheckGrader(
        type="string_check", name="it", operation=operation, **fields
    )
    said = await ask(write(folder, grader), "Paris", "Rome", "It is Paris.", "paris")
    assert [verdict[0] for verdict in said] == [*verdicts.replace(" ", "")]


async def test_what_does_not_run_here_says_why(folder: Path) -> None:
    metric = graders.TextSimilarityGrader(
        type="text_similarity", name="it", input="x", reference="y", evaluation_metric="bleu"
    )
    with pytest.raises(SettingsError, match="text_similarity does not run here"):
        await ask(write(folder, metric, threshold=1), "Paris")
