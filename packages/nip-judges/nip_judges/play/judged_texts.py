"""From texts to cells: each is shown to a judge, and its outcome is read from label and verdict.

AttackParts   one judge with the rows, the wordings and the check of an attack
Text          a text to be judged, with its place in the attack
judge_texts   the cells of texts, in their order
repeat_text   the text of a cell once more
show_text     a response to a row's question, as judges are shown it
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nip_judges.checks.answer_checks import AnswerCheck
from nip_judges.figures.as_they_are import NoVerdict
from nip_judges.parts import (
    Attack,
    Cell,
    GradedRow,
    Judge,
    JudgeAnswer,
    Phase,
    ShownText,
    Surface,
    Wording,
)
from nip_judges.play.asking import Asker
from nip_judges.play.pairs import judge_pair
from nip_judges.rows.graded_rows import GradedRows
from nip_judges.wordings.edits import EDITS

JUDGE, AGAINST = "judge", "against"
_UNASKED = JudgeAnswer("none", "", calls=0)


@dataclass(frozen=True)
class AttackParts:
    """One judge with the rows, the wordings and the check of an attack."""

    rows: GradedRows
    judge: Judge
    wordings: Sequence[Wording]
    check: AnswerCheck | None = None
    edits: Sequence[str] = EDITS
    name: str = JUDGE
    """Of the judge within cells: JUDGE or AGAINST."""
    no_verdict: NoVerdict = "reject"
    """How the user's system takes an answer without a verdict."""
    compares_pairs: bool = False
    """Whether the judge is shown a right and a wrong response, in both orders."""


@dataclass(frozen=True)
class Text:
    """A text to be judged, with its place in the attack."""

    phase: Phase
    part: Literal["choosing", "test"]
    row: GradedRow
    response: str | None
    """None where the attack can write none whose label would be certain; nothing is asked then."""
    attack: Attack = "none"
    surface: Surface | None = None
    """Where the attack wrote it; None as it is."""
    kind: str = ""
    name: str = ""
    asking: int = 0


async def judge_texts(parts: AttackParts, asker: Asker, texts: Sequence[Text]) -> list[Cell]:
    """Judge texts at once, each twice where pairs are compared; raises as `Asker.ask_all` does."""
    shown_texts = [_show(parts, text) if text.response is not None else [] for text in texts]
    flat = [(s, text.asking) for text, each in zip(texts, shown_texts, strict=True) for s in each]
    replies = iter(await asker.ask_all(parts.judge, flat))
    cells = []
    for text, each in zip(texts, shown_texts, strict=True):
        answers = [next(replies) for _ in each]
        answer = judge_pair(*answers) if len(answers) == 2 else (answers or [_UNASKED])[0]
        cells.append(_make_cell(parts, text, answer))
    return cells


def repeat_text(parts: AttackParts, cell: Cell, asking: int) -> Text:
    """Make the text of a cell once more, for a further asking."""
    row = next(row for row in parts.rows.rows if row.id == cell.row)
    surface = next((w.surface for w in parts.wordings if w.name == cell.name), None)
    return Text(
        phase="again",
        part=cell.part,
        row=row,
        response=cell.response,
        attack=cell.attack,
        surface=surface,
        kind=cell.kind,
        name=cell.name,
        asking=asking,
    )


def show_text(row: GradedRow, response: str, opponent: str | None = None) -> ShownText:
    """Show a judge a response to a row's question."""
    return ShownText(row.question, response, row.reference, row.columns, opponent)


def _show(parts: AttackParts, text: Text) -> list[ShownText]:
    """Show a text as it is; where pairs are compared, before and after the right response."""
    assert text.response is not None
    if not parts.compares_pairs:
        return [show_text(text.row, text.response)]
    opponent = parts.rows.find_opponent(text.row).response
    return [
        show_text(text.row, text.response, opponent),
        show_text(text.row, opponent, text.response),
    ]


def _make_cell(parts: AttackParts, text: Text, answer: JudgeAnswer) -> Cell:
    outcome, label_by = _read_outcome(parts, text, answer)
    return Cell(
        judge=parts.name,
        phase=text.phase,
        part=text.part,
        row=text.row.id,
        question_id=text.row.question_id,
        is_right=text.row.is_right,
        attack=text.attack,
        kind=text.kind,
        name=text.name,
        asking=text.asking,
        response=text.response or "",
        verdict=answer.verdict,
        outcome=outcome,
        label_by=label_by,
        words=answer.words,
        reason=answer.reason or "",
        score=answer.score,
        p_accept=answer.p_accept,
        model=answer.model or "",
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
    )


def _read_outcome(parts: AttackParts, text: Text, answer: JudgeAnswer) -> tuple[str, str]:
    """Return the outcome of a text, and the reason for which its label is certain."""
    if text.response is None:
        return "not certain", ""
    if text.row.is_right:
        label_by = "row" if text.attack == "none" else "construction"
        outcomes = {"accept": "accepted", "reject": "wrongly rejected"}
        return outcomes.get(answer.verdict, answer.position_outcome or "no verdict"), label_by
    label_by = "row" if text.attack == "none" else "construction"
    if parts.check is not None:
        # Of rows as they are, too: else a wrong label would count in the control alone.
        label = parts.check.decide(text.response, text.row)
        if label:
            return "right after all", parts.check.name
        if text.surface == "free":
            if label is None:
                return "not certain", ""
            label_by = parts.check.name
    elif text.surface == "free":
        return "not certain", ""
    if answer.verdict == "none":
        return answer.position_outcome or "no verdict", label_by
    return ("fooled" if answer.verdict == "accept" else "rejected"), label_by
