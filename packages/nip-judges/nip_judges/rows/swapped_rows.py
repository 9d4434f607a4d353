"""Wrong rows by construction: a right response under another question of the same kind.

swap_responses  right rows -> right rows and as many wrong ones
"""

from collections.abc import Sequence
from dataclasses import replace

from nip_core.hashing import derive_key
from nip_judges.parts import GradedRow
from nip_judges.settings.judge_file import JudgeFile


def swap_responses(file: JudgeFile, rows: Sequence[GradedRow], column: str) -> list[GradedRow]:
    """Add to each right row a wrong one: the response of another question of its kind.

    `column` is the responses'. Responses and references of the two differ beyond capitals, spaces
    and signs at their ends. A row for which there is no such other has none. Raises SettingsError
    where there are wrong rows already, or where none can be made.
    """
    keys = ("data", "make_wrong")
    if wrong := [row for row in rows if not row.is_right]:
        file.refuse(
            keys,
            f"make_wrong: {len(wrong)} rows are wrong already; leave it out, or drop those rows",
        )
    kinds: dict[str, list[GradedRow]] = {}
    for row in sorted(rows, key=lambda row: derive_key("swap", file.seed, row.question, row.id)):
        kinds.setdefault(row.columns[file.data.kind] if file.data.kind else "", []).append(row)
    right_texts: dict[str, set[str]] = {}
    for row in rows:
        right_texts.setdefault(row.question_id, set()).add(_plain(row.response))
    wrong_rows = {}
    for group in kinds.values():
        for place, row in enumerate(group):
            candidates = (group[(place + step) % len(group)] for step in range(1, len(group)))
            wrong_row = next((o for o in candidates if _is_wrong(row, o, right_texts)), None)
            if wrong_row is not None:
                wrong_rows[row.id] = replace(
                    row,
                    id=f"{row.id}-{wrong_row.id}",
                    response=wrong_row.response,
                    is_right=False,
                    columns={**row.columns, column: wrong_row.response},
                )
    if not wrong_rows:
        file.refuse(keys, "make_wrong: swap finds no question of the same kind with another answer")
    return [*rows, *(wrong_rows[row.id] for row in rows if row.id in wrong_rows)]


def _is_wrong(row: GradedRow, candidate: GradedRow, right_texts: dict[str, set[str]]) -> bool:
    if candidate.question_id == row.question_id:
        return False
    if _plain(candidate.response) in right_texts[row.question_id]:
        return False
    return row.reference is None or _plain(row.reference) != _plain(candidate.reference or "")


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .,;:!?\"'`*$")
