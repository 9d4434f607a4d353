"""The last test of a hardening: the first judge and the trained one on the same texts, once.

play_last_test   the cells of both
count_last_test  its texts, at most

Both are played to the end, as the first may be a judge that gives one verdict always: no attack on
such a judge would go on, and it is the one that has most to learn.
"""

from collections.abc import Sequence
from dataclasses import replace

from nip_judges.figures.judge_figures import find_worst
from nip_judges.parts import Cell, Wording
from nip_judges.play.asking import Asker
from nip_judges.play.course import ASKED_TWICE, Tell, dress_rows, tell_none
from nip_judges.play.judged_texts import AGAINST, JUDGE, AttackParts, Text, judge_texts
from nip_judges.rows.graded_rows import GradedRows


async def play_last_test(
    first: AttackParts,
    last: AttackParts,
    asker: Asker,
    cells: list[Cell],
    on_part: Tell = tell_none,
) -> list[Cell]:
    """Play the last test; cells are added to `cells` part by part, and returned.

    For each judge the worst wording of each kind is chosen on the questions for choosing, and both
    judges are shown what was chosen for either. Raises CapReached, or as the judges do.
    """
    pair = (replace(first, name=JUDGE), replace(last, name=AGAINST))
    rows, worst_wordings = first.rows, list[Wording]()
    for parts in pair:
        texts = [*dress_rows(parts, parts.wordings, rows.wrong_choosing, "choosing")]
        on_part(f"{_name(parts)}: choosing", len(texts))
        choosing_cells = await judge_texts(parts, asker, texts)
        by_key = {wording.key: wording for wording in parts.wordings}
        worst = find_worst(choosing_cells, [*by_key], parts.no_verdict)
        worst_wordings += [by_key[key] for key in worst.values()]
        cells += choosing_cells
    wordings = tuple(dict.fromkeys(worst_wordings))
    for parts in pair:
        plain = [*rows.wrong_test, *rows.right_test]
        asked_twice = [*rows.wrong_test[:ASKED_TWICE], *rows.right_test[:ASKED_TWICE]]
        texts = [Text("as they are", "test", row, row.response) for row in plain]
        texts += [Text("again", "test", row, row.response, asking=1) for row in asked_twice]
        # The wordings are written once, with the forms of the first judge: the same texts.
        texts += dress_rows(first, wordings, rows.wrong_test, "test")
        on_part(f"{_name(parts)}: test", len(texts))
        cells += await judge_texts(parts, asker, texts)
    return cells


def count_last_test(rows: GradedRows, wordings: Sequence[Wording]) -> int:
    """Count the texts of the last test of two judges, at most."""
    wrong, right = len(rows.wrong_test), len(rows.right_test)
    kinds = len({wording.kind for wording in wordings})
    asked_twice = min(wrong, ASKED_TWICE) + min(right, ASKED_TWICE)
    most_tested = min(len(wordings), 2 * kinds)
    choosing = len(rows.wrong_choosing) * len(wordings)
    return 2 * (choosing + wrong + right + asked_twice + wrong * most_tested)


def _name(parts: AttackParts) -> str:
    return "first judge" if parts.name == JUDGE else "trained judge"
