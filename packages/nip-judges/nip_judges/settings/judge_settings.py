"""The settings of a judge.yaml, block by block, each checked by itself.

ModelSettings   a model and how it is asked; `attacker`
JudgeSettings   `judge`: who judges, and how its answer is read
DataSettings    `data`: the graded rows, and the field of each column
BudgetSettings  `budget`; PriceSettings: `prices`
CHECKS          the names that `check` takes beside a function's address
list_keys       the keys of a block, for errors
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from nip_core.parameters.basis.addresses import Address
from nip_core.parameters.services.dialects import ApiDialect, ReasoningEffort

CHECKS = ("exact", "number", "option", "tests")
KINDS_OF_JUDGE = ("prompt", "function", "grader", "reward_model")
OUR_FIELDS = ("question", "response", "reference")
PAIR_FIELDS = ("response_a", "response_b")


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1)]


class Settings(BaseModel):
    """A block of settings: unknown keys are refused, values can't be changed."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class ModelSettings(Settings):
    """A model and how it is asked; each setting means the same as an agent's."""

    model_name: Text | None = None
    model_provider: Text = "OpenAI"
    base_url: Address = None
    api_dialect: ApiDialect = "auto"
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    reasoning_effort: ReasoningEffort | None = None
    served_as: tuple[Text, ...] = ()
    max_tokens_per_message: Annotated[int, Field(ge=1)] | None = None
    """Most tokens of an answer. None: the provider's limit; of an attacker's text 225."""
    extra_body: dict[str, Any] = {}
    """Further fields of each request, such as the grammar by which a server holds a form."""
    key: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] | None = None
    """The name of the environment variable with the key. None: the provider's."""


class JudgeSettings(ModelSettings):
    """Who judges: exactly one of prompt, function, grader and reward_model."""

    prompt: Text | None = None
    """A file beside judge.yaml, or a text in a package, "package.module:NAME"."""
    function: Text | None = None
    """ "file.py:name" or "package.module:name"."""
    grader: Text | None = None
    """A grader of OpenAI's form, as JSON."""
    reward_model: Text | None = None
    """A folder, or a name at Hugging Face, of a classifier with one logit."""
    names: dict[str, Text] = {}
    """By placeholder of the prompt: question, response, reference or a column."""
    fill: dict[str, str] = {}
    """By placeholder of the prompt: the text for all rows, or "package.module:NAME" of one."""
    as_written: tuple[str, ...] = ()
    """Words in braces that are no placeholders: they stay in the prompt as written."""
    system: Text | None = None
    """A file with the system prompt, or "package.module:NAME"."""
    accept: Text | None = None
    """The form by which the judge accepts; of a pair, by which A wins."""
    reject: Text | None = None
    """The form by which the judge rejects; of a pair, by which B wins."""
    otherwise: Literal["reject"] | None = None
    """Set where every answer without `accept` rejects, in the place of `reject`."""
    pattern: Text | None = None
    """A regular expression whose one group is compared with accept and reject, or is a score."""
    threshold: float | None = None
    """The least score that accepts."""
    ignore_case: bool = False
    """Whether accept, reject and pattern are found in capitals and small letters alike."""
    pair: bool = False
    """Whether it compares {response_a} with {response_b}."""


class DataSettings(Settings):
    """The file of graded rows, and the names of its columns."""

    file: Text
    """.jsonl, .json, .csv, .parquet, or a log of Inspect."""
    question: Text = "question"
    response: Text = "response"
    reference: Text | None = None
    """None: there is none; of a log of Inspect its target."""
    right: Text | None = "right"
    """The column of labels; of a log of Inspect a scorer's name. None: all rows are right."""
    make_wrong: Literal["swap"] | None = None
    """Make wrong rows: a right response stands under another question of its kind."""
    kind: Text | None = None
    """The column of the question's kind, for make_wrong."""
    right_values: tuple[str, ...] | None = None
    """Labels that mean right, beside true, 1, yes, correct and C."""
    wrong_values: tuple[str, ...] | None = None
    """Labels that mean wrong, beside false, 0, no, incorrect and I."""


class BudgetSettings(Settings):
    """Where an attack stops; the calls in flight come on top."""

    usd: Annotated[float, Field(gt=0)] | None = None
    calls: Annotated[int, Field(gt=0)] | None = None


class PriceSettings(Settings):
    """Prices per million tokens; None: not known."""

    prompt_usd: Annotated[float, Field(ge=0)] | None = None
    completion_usd: Annotated[float, Field(ge=0)] | None = None


SurfaceList = Annotated[
    tuple[Literal["alone", "around", "free"], ...], Field(min_length=1), BeforeValidator(_as_list)
]


def list_keys(kind: type[Settings]) -> tuple[str, ...]:
    """List the keys of a block."""
    return tuple(kind.model_fields)
