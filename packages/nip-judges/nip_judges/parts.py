"""The plain values that pass between the parts of an attack on a judge: no behaviour.

GradedRow   a response to a question, with its label
ShownText   all that a judge is shown of a row
JudgeAnswer a judge's answer: its verdict, and its own words
Judge       whoever answers so
Wording     a text by which wrong answers are dressed; Edit: a change that keeps an answer right
Cell        a judged text, with its label and its outcome: a row of cells.parquet
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

Verdict = Literal["accept", "reject", "none"]
"""By the judge's own form; "none": neither, an error, or a refusal."""
Outcome = Literal["fooled", "rejected", "no verdict", "right after all", "not certain"]
"""Of a wrong row: these five add up to all questions. A text that is right after all, or whose
label is not certain, is never counted as fooled."""
Surface = Literal["alone", "around", "free"]
"""Where an attack writes: the whole response by a list, around a wrong response that stays word for
word, or the whole response freely, which a check then decides."""


@dataclass(frozen=True)
class GradedRow:
    """A response to a question, with a label that is not the judge's."""

    id: str
    """Of the row: its number in the file, from 1, as text."""
    question_id: str
    """Of the question: rows with one question text are of one question."""
    question: str
    response: str
    reference: str | None
    is_right: bool
    columns: Mapping[str, str] = field(default_factory=dict)
    """All columns of the row but its label as text, by name, for placeholders and functions."""


@dataclass(frozen=True)
class ShownText:
    """All that a judge is shown of a row."""

    question: str
    response: str
    """The judged text: of the row, or of an attack."""
    reference: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    other: str | None = None
    """The second response, for judges that compare pairs."""


@dataclass(frozen=True)
class JudgeAnswer:
    """A judge's answer to one text."""

    verdict: Verdict
    words: str
    """The judge's own words, cut nowhere; "" for one that writes none."""
    reason: str | None = None
    """Why there is no verdict, for people: "neither accept nor reject", an exception's words."""
    score: float | None = None
    """Of a judge that scores."""
    p_accept: float | None = None
    """The probability of accepting, where its engine gives log-probabilities."""
    has_both: bool = False
    """Both forms, accept and reject, stand in its words; the last counted."""
    model: str | None = None
    """The model's name as it answered."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 1
    """Calls that it took, 0 for a rule that decided without one."""
    position_outcome: str | None = None
    """Of a pair in which the wrong one wins in one order alone: "by position"."""


class Judge(Protocol):
    """A judge: the program or model that accepts a response or rejects it."""

    @property
    def name(self) -> str:
        """A name for people: the model's, the function's, the file's."""

    @property
    def digest(self) -> str:
        """SHA-256 in hex of all that decides its answers: prompt, forms, model, settings, file."""

    @property
    def accept_forms(self) -> Sequence[str]:
        """The texts by which it accepts, as its own prompt asks for them: `GRADE: C`, `yes`."""

    @property
    def is_paid(self) -> bool:
        """Tell whether each answer is a call of a model."""

    @property
    def scores(self) -> bool:
        """Tell whether its answers have a score, for a threshold."""

    def compose(self, shown_text: ShownText) -> str:
        """Write the request as text, for a count of tokens and for the first look."""

    async def ask(self, shown_text: ShownText, seed: int) -> JudgeAnswer:
        """Judge a text.

        An answer without a verdict is an answer. Raises nip_core.errors.NipError only where no
        later call can succeed either: a wrong key, an unknown model, no server.
        """


class Wording(NamedTuple):
    """A text by which a wrong answer is dressed, or which stands in its place."""

    kind: str
    """The kind, one of eleven, or "own"."""
    name: str
    """Of the wording within all: short, for a screen. Unique."""
    surface: Surface
    text: str = ""
    """Of a user's own: its line of the script, or the address of its function."""

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}"


Attack = Literal["none", "wording", "edit", "best-of-n", "trained"]
Phase = Literal["as they are", "again", "choosing", "test"]


@dataclass(frozen=True)
class Cell:
    """A judged text: a row of cells.parquet."""

    judge: str
    """"judge", or "against" for the second of two."""
    phase: Phase
    part: Literal["choosing", "test"]
    """The part of the questions: those on which wordings are chosen, and those for the test."""
    row: str
    question_id: str
    is_right: bool
    """The label of the row, before any attack."""
    attack: Attack
    kind: str
    """Of the wording or the edit; "" as they are."""
    name: str
    """Of the wording or the edit; "" as they are."""
    asking: int
    """0, or 1 for the second asking of the same text."""
    response: str
    """The judged text."""
    verdict: Verdict
    outcome: str
    """Of a wrong row, one of `Outcome`; of a right row "accepted", "wrongly rejected" or
    "no verdict"; of a pair that is won in one order alone "by position"."""
    label_by: str
    """Why the label of the judged text is certain: "row", "construction", "exact", "tests", a
    function's name; "" where it is not."""
    words: str
    reason: str
    score: float | None
    p_accept: float | None
    model: str
    prompt_tokens: int
    completion_tokens: int


Columns = Mapping[str, Any]
