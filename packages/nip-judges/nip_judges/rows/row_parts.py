"""The parts of graded rows: those on which wordings are chosen, and those of the test.

Parts        the rows of each label in each part
split_rows   rows -> Parts; no question is in both
count_chosen how many questions of a label are for choosing

The part of a question follows from a digest of its text and the seed, never from its place in the
file. Questions with right and wrong rows, and those with either, are split apart, in like shares.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nip_core.hashing import derive_key
from nip_judges.parts import GradedRow

MOST_CHOSEN, LEAST_CHOSEN = 40, 10


@dataclass(frozen=True)
class Parts:
    """Rows of each label for choosing and for the test."""

    wrong_choosing: tuple[GradedRow, ...]
    right_choosing: tuple[GradedRow, ...]
    wrong_test: tuple[GradedRow, ...]
    right_test: tuple[GradedRow, ...]


def count_chosen(questions: int) -> int:
    """Return how many of a label's questions are for choosing: a quarter, 10 to 40.

    Of fewer than 20 half.
    """
    if questions < 2 * LEAST_CHOSEN:
        return questions // 2
    return min(MOST_CHOSEN, max(LEAST_CHOSEN, questions // 4))


def split_rows(
    rows: Sequence[GradedRow], seed: int, most: int | None = None, *, pairs: bool = False
) -> Parts:
    """Split rows; all rows of a question are in one part, a row per question in choosing.

    `most` limits the test rows of each label. With `pairs` only questions with both labels are
    taken, with a row of each, and the rows of the two labels match by their place.
    """
    wrong = {row.question_id for row in rows if not row.is_right}
    right = {row.question_id for row in rows if row.is_right}
    if pairs:
        rows = _keep_first([row for row in rows if row.question_id in wrong & right])
        wrong = right = wrong & right
    choosing = _choose_questions(wrong, right, seed)

    def pick(is_right: bool, is_choosing: bool) -> tuple[GradedRow, ...]:
        picked = [
            row
            for row in rows
            if row.is_right == is_right and (row.question_id in choosing) == is_choosing
        ]
        if is_choosing:
            count = count_chosen(len(right if is_right else wrong))
            picked = _spread(_keep_first(picked), seed, count)
        else:
            picked = _spread(picked, seed, most)
        return tuple(_sort_by_question(picked) if pairs else picked)

    return Parts(pick(False, True), pick(True, True), pick(False, False), pick(True, False))


def _choose_questions(wrong: set[str], right: set[str], seed: int) -> set[str]:
    """Choose so many questions that each label has its count."""
    chosen_wrong, chosen_right = count_chosen(len(wrong)), count_chosen(len(right))
    both = wrong & right
    shares = [
        chosen * len(both) / len(questions)
        for chosen, questions in ((chosen_wrong, wrong), (chosen_right, right))
        if questions
    ]
    of_both = math.ceil(max(shares, default=0))
    return {
        *_order(both, seed)[:of_both],
        *_order(wrong - both, seed)[: max(0, chosen_wrong - of_both)],
        *_order(right - both, seed)[: max(0, chosen_right - of_both)],
    }


def _order(questions: Iterable[str], seed: int) -> list[str]:
    return sorted(
        questions, key=lambda question: derive_key("part of a judge's rows", seed, question)
    )


def _keep_first(rows: Sequence[GradedRow]) -> list[GradedRow]:
    """Keep the first row of each question and label."""
    first: dict[tuple[str, bool], GradedRow] = {}
    for row in rows:
        first.setdefault((row.question_id, row.is_right), row)
    return list(first.values())


def _spread(rows: Sequence[GradedRow], seed: int, most: int | None) -> list[GradedRow]:
    """Take at most so many rows, of as many questions as there are; in the file's order."""
    if most is None or len(rows) <= most:
        return list(rows)
    places = {question: n for n, question in enumerate(_order({r.question_id for r in rows}, seed))}
    rows_of_question: dict[str, int] = {}
    ranks = []
    for number, row in enumerate(rows):
        turn = rows_of_question[row.question_id] = rows_of_question.get(row.question_id, 0) + 1
        ranks.append((turn, places[row.question_id], number))
    return [rows[number] for number in sorted(number for _, _, number in sorted(ranks)[:most])]


def _sort_by_question(rows: Sequence[GradedRow]) -> list[GradedRow]:
    return sorted(rows, key=lambda row: row.question_id)
