"""The result of an attack, from its cells: the first word, judge.json, the exit code.

make_result    of a course as far as it came
AttackResult   the document, with the error that stopped the attack, if one did
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nip_core.errors import BudgetError, NipError
from nip_judges.documents.gallery import list_gallery
from nip_judges.documents.judge_document import (
    AsTheyAre,
    Cost,
    JudgeDocument,
    make_document,
    rate_words,
)
from nip_judges.figures.against_figures import AgainstFigures, compare_judges
from nip_judges.figures.bars import BarResult, check_bar
from nip_judges.figures.form_hints import hint_at_form
from nip_judges.figures.judge_figures import measure
from nip_judges.figures.rates import Rate, count_rate
from nip_judges.figures.scores import measure_scores
from nip_judges.figures.verdict_words import FirstWord, choose_word
from nip_judges.parts import Cell, GradedRow
from nip_judges.play.asking import Asker, Spending
from nip_judges.play.course import Course
from nip_judges.play.judged_texts import AGAINST, JUDGE, AttackParts
from nip_judges.wordings.writing import KINDS

if TYPE_CHECKING:
    from nip_judges.play.attack import PreparedAttack

COMPARISONS = ("exact", "number", "option")
"""The checks that compare with the reference."""
_STOPPED, _CAPPED = 3, 7
_MANY_UNDECIDED = 0.2


@dataclass(frozen=True)
class AttackResult:
    """An attack that was played, as far as it came."""

    document: JudgeDocument
    cells: Sequence[Cell]
    folder: Path
    stopped: NipError | None
    """The error by which it was stopped."""

    @property
    def exit_status(self) -> int:
        return self.document["exit_code"]


def make_result(
    prepared: "PreparedAttack",
    course: Course,
    asker: Asker,
    stopped: NipError | None,
    seconds: float,
) -> AttackResult:
    """Make the documents of an attack."""
    spending = asker.spending
    parts, options, file = prepared.parts, prepared.options, prepared.file
    order = [wording.key for wording in parts.wordings]
    suspicious = [row.id for row in parts.rows.wrong_test if _is_right(parts, row)]
    figures = measure(
        course.cells, no_verdict=file.no_verdict, order=order, checked_right=suspicious
    )
    bar = None if options.max_fooled is None else options.max_fooled / 100
    not_tried = _list_not_tried(prepared)
    questions = {row.question_id: row.question for row in parts.rows.rows}
    word = choose_word(
        figures,
        stopped=None if stopped is None else str(stopped),
        ended_early=course.ended_early,
        bar=bar,
        not_tried=not_tried,
    )
    met: BarResult | None = None if bar is None else check_bar(figures, bar)
    code = None
    if stopped is not None:
        code = _CAPPED if isinstance(stopped, BudgetError) else _STOPPED
    document = make_document(
        figures,
        word,
        judge=parts.judge.name,
        cost=Cost(
            calls=spending.calls,
            prompt_tokens=spending.prompt_tokens,
            completion_tokens=spending.completion_tokens,
            usd=spending.price(prepared.caps),
            seconds=seconds,
        ),
        bar=met,
        labels_by=file.labels_by,
        digests=_list_digests(prepared),
        models=sorted({cell.model for cell in course.cells if cell.model}),
        not_tried=not_tried,
        held_out=prepared.held_out,
        notes=[
            *prepared.notes,
            *_note_second_threshold(course),
            *_list_notes(parts, course, asker.written),
        ],
        gallery=list_gallery(course.cells, questions),
        baseline=_measure_baseline(parts),
        scores=measure_scores([cell for cell in course.cells if cell.judge == JUDGE]),
        threshold=course.threshold,
        against=_compare(prepared, course),
        against_name=prepared.options.against or "",
        against_word=_choose_second_word(prepared, course, not_tried),
        stopped_exit_code=code,
    )
    return AttackResult(document, course.cells, prepared.folder, stopped)


def _is_right(parts: AttackParts, row: GradedRow) -> bool:
    """Tell whether the check calls a row's own response right."""
    return parts.check is not None and parts.check.decide(row.response, row) is True


def _measure_baseline(parts: AttackParts) -> AsTheyAre | None:
    """Measure a program that compares with the reference, on the test rows as they are."""
    wrong, right = parts.rows.wrong_test, parts.rows.right_test
    if (
        parts.check is None
        or parts.check.name not in COMPARISONS
        or any(row.reference is None for row in (*wrong, *right))
    ):
        return None

    def share(rows: Sequence[GradedRow], hits: Sequence[bool]) -> Rate | None:
        return count_rate(hits, [row.question_id for row in rows])

    labels = {row.id: parts.check.decide(row.response, row) for row in (*wrong, *right)}
    accepted = share(wrong, [labels[row.id] is True for row in wrong])
    rejected = share(right, [labels[row.id] is False for row in right])
    undecided = sum(label is None for label in labels.values()) / max(1, len(labels))
    return AsTheyAre(
        wrong_accepted=rate_words(accepted),
        right_rejected=rate_words(rejected),
        no_verdict=undecided,
    )


def _note_second_threshold(course: Course) -> list[str]:
    threshold = None if course.second is None else course.second.threshold
    if threshold is None:
        return []
    return [
        f"the second judge's threshold is {threshold.value:g}, chosen on "
        f"{threshold.wrong_rows} wrong and {threshold.right_rows} right other answers"
    ]


def _list_notes(parts: AttackParts, course: Course, written: Spending) -> list[str]:
    """List lines for people on forms that were not read, undecided rows, and another's calls."""
    notes = hint_at_form(course.cells) if course.ended_early else []
    if parts.check is not None and parts.check.name in COMPARISONS:
        rows = (*parts.rows.wrong_test, *parts.rows.right_test)
        undecided = sum(parts.check.decide(row.response, row) is None for row in rows)
        if undecided > _MANY_UNDECIDED * len(rows):
            notes.append(
                f"check: {parts.check.name} can't decide {undecided} of {len(rows)} rows as they "
                'are; it reads a last line "Answer: …"'
            )
    if written.calls:
        tokens = written.prompt_tokens + written.completion_tokens
        notes.append(f"the model that wrote was called {written.calls:,} times, {tokens:,} tokens")
    return notes


def _list_not_tried(prepared: "PreparedAttack") -> list[str]:
    by = prepared.options.by
    tried = {wording.kind for wording in prepared.parts.wordings}
    kinds = [kind for kind in KINDS if kind not in tried] if by is None else ["wordings"]
    models = [] if by is not None else ["texts that a model writes"]
    return [*kinds, *models]


def _list_digests(prepared: "PreparedAttack") -> dict[str, str]:
    digests = {"judge": prepared.parts.judge.digest, "rows": prepared.rows.digest}
    if prepared.against is not None:
        digests["against"] = prepared.against.judge.digest
    return {**digests, "file": prepared.file.digest}


def _choose_second_word(
    prepared: "PreparedAttack", course: Course, not_tried: Sequence[str]
) -> FirstWord | None:
    """Choose the first word about the second judge, by the wordings chosen against it."""
    if course.second is None:
        return None
    chosen_keys = {wording.key for wording in course.second.chosen}
    cells = [
        cell
        for cell in course.cells
        if cell.judge == AGAINST
        and (
            cell.phase != "test"
            or cell.attack != "wording"
            or f"{cell.kind}/{cell.name}" in chosen_keys
        )
    ]
    figures = measure(cells, no_verdict=prepared.file.no_verdict, judge=AGAINST)
    return choose_word(figures, ended_early=course.second.ended_early, not_tried=not_tried)


def _compare(prepared: "PreparedAttack", course: Course) -> AgainstFigures | None:
    if prepared.against is None or course.second is None:
        return None
    return compare_judges(
        course.cells, held_out=prepared.held_out, no_verdict=prepared.file.no_verdict
    )
