"""OpenAI's graders as JSON: the keys of each type, and their checks.

Grader          one of the types that run here
read_grader     a grader's JSON -> its settings; unknown keys and types are refused by name
list_contents   the texts of a message

The fields are those of `openai.types.graders` and of `testing_criteria` in
`openai.types.eval_create_params`, of openai 2 and 3.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nip_core.nearest import did_you_mean

if TYPE_CHECKING:
    from nip_judges.settings.judge_file import JudgeFile

_FORBID = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class _Settings(BaseModel):
    model_config = _FORBID


class TextPart(_Settings):
    """A text of a message."""

    type: Literal["input_text", "output_text"]
    text: str


Content = str | TextPart | tuple[str | TextPart, ...]


class GraderMessage(_Settings):
    """A message to the model; its content may hold templates."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    type: Literal["message"] | None = None


Messages = Annotated[tuple[GraderMessage, ...], Field(min_length=1)]


class SamplingParams(_Settings):
    """How the model answers."""

    max_completions_tokens: Annotated[int, Field(ge=1)] | None = None
    reasoning_effort: str | None = None
    seed: int | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None


class LabelModel(_Settings):
    """A model gives one of the labels."""

    type: Literal["label_model"]
    name: str
    model: str
    input: Messages
    labels: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=2)]
    passing_labels: Annotated[tuple[str, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> "LabelModel":
        strange = [label for label in self.passing_labels if label not in self.labels]
        if strange:
            raise ValueError(f"passing_labels: {strange[0]!r} is none of the labels")
        if set(self.passing_labels) == set(self.labels):
            raise ValueError("passing_labels are all of the labels: nothing could be rejected")
        return self


class ScoreModel(_Settings):
    """A model gives a number."""

    type: Literal["score_model"]
    name: str
    model: str
    input: Messages
    range: tuple[float, float] | None = None
    sampling_params: SamplingParams | None = None
    pass_threshold: float | None = None

    @model_validator(mode="after")
    def _check(self) -> "ScoreModel":
        low, high = self.limits
        if low >= high:
            raise ValueError(f"range: the first number is to be the lower one (got {low}, {high})")
        return self

    @property
    def limits(self) -> tuple[float, float]:
        return self.range or (0.0, 1.0)


class StringCheck(_Settings):
    """A comparison of two texts."""

    type: Literal["string_check"]
    name: str
    input: str
    reference: str
    operation: Literal["eq", "ne", "like", "ilike"]


class PythonGrader(_Settings):
    """A program with ``grade(sample, item)``, which returns a number."""

    type: Literal["python"]
    name: str
    source: str
    image_tag: str | None = None
    pass_threshold: float | None = None


Grader = LabelModel | ScoreModel | StringCheck | PythonGrader
TYPES: dict[str, type[Grader]] = {
    "label_model": LabelModel,
    "score_model": ScoreModel,
    "string_check": StringCheck,
    "python": PythonGrader,
}
REFUSED = {
    "text_similarity": "its metrics are a library's; write it as a function (judge.function) that "
    "returns the similarity, with judge.threshold",
    "multi": "it joins graders by a formula; attack its graders one by one, each in a file of its "
    "own, or write it as a function (judge.function)",
}


def read_grader(file: "JudgeFile") -> Grader:
    """Read the grader of a judge's file. Raises SettingsError, naming the key."""
    value, name = file.grader_json, file.judge.grader
    assert value is not None
    kind = value["type"]

    def refuse(words: str) -> str:
        file.refuse(("judge", "grader"), f"{name}: {words}")

    if kind in REFUSED:
        refuse(f"a grader of type {kind} does not run here: {REFUSED[kind]}")
    if kind not in TYPES:
        refuse(f"no type {kind!r}; there are {', '.join(TYPES)}{did_you_mean(kind, TYPES)}")
    fields = TYPES[kind].model_fields
    for key in value:
        if key not in fields:
            refuse(f"a {kind} has no key {key!r}{did_you_mean(key, fields)}")
    _refuse_media(value.get("input"), refuse)
    try:
        return TYPES[kind].model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if not _is_branch(part))
        words = str(first.get("ctx", {}).get("error", first["msg"]))
        refuse(f"{place}: {words}" if place else words)
        raise AssertionError from None  # refuse has raised


def _is_branch(part: str | int) -> bool:
    """Say whether a part of a place is pydantic's name for one of several forms."""
    return isinstance(part, str) and (part == "str" or "[" in part or part[:1].isupper())


def _refuse_media(messages: object, refuse: Any) -> None:
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else [content]:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in ("input_image", "input_audio"):
                refuse(f"{kind}: a judge of images or sound is not asked here, texts alone are")


def list_contents(message: GraderMessage) -> list[str]:
    """List the texts of a message."""
    parts = message.content if isinstance(message.content, tuple) else (message.content,)
    return [part if isinstance(part, str) else part.text for part in parts]
