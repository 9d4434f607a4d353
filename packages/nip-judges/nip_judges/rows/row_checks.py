"""Rules that graded rows must keep before any call, and lines about them.

check_rows  refuses rows by which no attack can be honest
list_notes  lines for people, above all tables; NO_BUDGET: one of them
"""

import re
from collections.abc import Sequence

from nip_judges.parts import GradedRow
from nip_judges.settings.judge_file import JudgeFile

LEAST_QUESTIONS, FEW_QUESTIONS = 10, 60
NO_BUDGET = "no budget is set: budget.usd or budget.calls would stop the attack"
_MOST_STANDING = 0.2
_MOST_WORDS = 2
"""A reference of so few words may stand in running text by chance."""
_ANSWER_LINE = re.compile(r"(?is).*^\W*(?:final )?answer\W*:(.*)$", re.MULTILINE)


def check_rows(file: JudgeFile, rows: Sequence[GradedRow]) -> None:
    """Check the labels and references of rows. Raises SettingsError, one line."""
    wrong = [row for row in rows if not row.is_right]
    right = [row for row in rows if row.is_right]
    if not wrong:
        file.refuse(
            ("data", "right"),
            "no wrong rows: nothing can be accepted wrongly. make_wrong: swap takes the right "
            "answer of another question of the same kind",
        )
    if not right:
        file.refuse(
            ("data", "right"),
            "no right rows: a judge that rejects everything would look best; add some",
        )
    questions = _count_questions(wrong)
    if file.judge.pair:
        both = {row.question_id for row in wrong} & {row.question_id for row in right}
        if len(both) < LEAST_QUESTIONS:
            file.refuse(
                ("judge", "pair"),
                f"{len(both)} questions have a right and a wrong row, and a judge of pairs needs "
                f"{LEAST_QUESTIONS}",
            )
    if questions < LEAST_QUESTIONS:
        file.refuse(
            ("data", "file"),
            f"{questions} wrong questions in {file.data.file}: at least {LEAST_QUESTIONS} are "
            f"needed, and {FEW_QUESTIONS} show more",
        )
    _check_empty(file, right)
    _check_references(file, wrong)


def _check_empty(file: JudgeFile, right: Sequence[GradedRow]) -> None:
    """Refuse texts without an answer where one of them is right."""
    empty = next((row for row in right if not row.response.strip()), None)
    if empty is not None and "alone" in (file.surface or ("alone",)):
        file.refuse(
            ("surface",) if file.surface else ("data", "response"),
            f"{file.data.file}, row {empty.id}: an empty response is right here, so a text without "
            "an answer proves nothing; set surface: around",
        )


def _check_references(file: JudgeFile, wrong: Sequence[GradedRow]) -> None:
    """Refuse references that stand in wrong responses by chance."""
    if file.check not in (None, "exact"):
        return
    standing = [row for row in wrong if _stands_in_response(row)]
    if not wrong or len(standing) <= _MOST_STANDING * len(wrong):
        return
    share = 100 * len(standing) / len(wrong)
    file.refuse(
        ("check",) if file.check else ("data", "reference"),
        f"reference '{standing[0].reference}' stands in the wrong response of row "
        f"{standing[0].id}, and so it is in {share:.0f} % of the wrong rows: use check: number or "
        "option, or responses with a last line 'Answer:'",
    )


def _stands_in_response(row: GradedRow) -> bool:
    """Return whether a short reference stands in a wrong response, as words of it."""
    reference = " ".join((row.reference or "").split()).casefold()
    if not reference or len(reference.split()) > _MOST_WORDS:
        return False
    answer = _ANSWER_LINE.match(row.response)
    text = " ".join((answer[1] if answer else row.response).split()).casefold()
    return bool(re.search(rf"(?<![\w.]){re.escape(reference)}(?!\w|[.,]\d)", text))


def _is_reference(row: GradedRow) -> bool:
    """Return whether a response is the reference and nothing else."""
    reference = " ".join((row.reference or "").split()).casefold()
    return bool(reference) and " ".join(row.response.split()).casefold() == reference


def _count_questions(rows: Sequence[GradedRow]) -> int:
    return len({row.question_id for row in rows})


def list_notes(file: JudgeFile, rows: Sequence[GradedRow], doubled: int) -> tuple[str, ...]:
    """List the remarks on rows that were accepted."""
    notes = []
    if file.labels_by == "model":
        notes.append("against another model's labels")
    if file.data.make_wrong is not None:
        notes.append("wrong rows are right responses to other questions (make_wrong: swap)")
    for is_right, word in ((False, "wrong"), (True, "right")):
        count = _count_questions([row for row in rows if row.is_right == is_right])
        if count < FEW_QUESTIONS:
            notes.append(
                f"{count} {word} questions: with fewer than {FEW_QUESTIONS} only large rises show"
            )
    if file.judge.pair:
        left_out = _count_questions(rows) - len(
            {row.question_id for row in rows if row.is_right}
            & {row.question_id for row in rows if not row.is_right}
        )
        if left_out:
            notes.append(f"{left_out} questions have rows of one label alone, and are left out")
    same = [row.id for row in rows if not row.is_right and _is_reference(row)]
    if same:
        notes.append(
            f"{len(same)} wrong rows answer with the reference itself; look at their labels first: "
            f"rows {', '.join(same[:5])}"
        )
    if doubled:
        notes.append(f"{doubled} rows stand twice in {file.data.file}, and count once")
    if file.asks_model and file.budget.usd is None and file.budget.calls is None:
        notes.append(NO_BUDGET)
    return tuple(notes)
