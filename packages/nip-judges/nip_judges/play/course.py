"""The order in which a judge is attacked, so that calls go where they show something.

Course       an attack as it is played: its cells, and why it ended early
play_control all rows as they are, some of them twice
play_course  these, wordings chosen on some questions, and tested once on others
dress_rows   wrong rows in wordings, as texts
count_calls  the calls of a course by part, at most

A judge that scores and has no threshold gets one first: at equal error rates on the rows for
choosing as they are, and then fixed. (a) 20 test rows of each label as they are, asked twice. (b)
All test rows as they are, 100 of each label twice. (c) All wordings on the wrong questions kept for
choosing, all edits on the right ones. (d) The worst wording of each kind and the worst edit on the
test rows, once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nip_judges.figures.judge_figures import (
    ends_after_first_look,
    ends_as_they_are,
    find_worst,
    find_worst_edit,
)
from nip_judges.figures.scores import ChosenThreshold, fix_threshold
from nip_judges.parts import Cell, GradedRow, Phase, Wording
from nip_judges.play.asking import Asker
from nip_judges.play.judged_texts import AttackParts, Text, judge_texts, show_text
from nip_judges.rows.graded_rows import GradedRows
from nip_judges.wordings.edits import write_edit
from nip_judges.wordings.writing import write_wording

FIRST_LOOK = 20
"""Rows of each label in the first part."""
_PROBES = 3
"""Rows of each label by which it shows that scores have no threshold."""
THRESHOLD = "threshold"
ASKED_TWICE = 100
"""Rows of each label that are asked twice as they are."""


@dataclass
class Course:
    """An attack as it is played."""

    cells: list[Cell] = field(default_factory=list)
    ended_early: str | None = None
    """Why nothing more was asked: a coin, a constant, a judge without verdicts."""
    chosen: tuple[Wording, ...] = ()
    """The worst wording of each kind on the questions of choosing, the worst of all first."""
    worst_edit: str | None = None
    threshold: ChosenThreshold | None = None
    """Of a judge that scores and whose file sets none."""
    second: "Course | None" = None
    """The course of a second judge, on the same rows; its cells are in `cells`, too."""


Tell = Callable[[str, int], None]
"""Is given a part's name and the number of its texts."""


def tell_none(name: str, texts: int) -> None:
    """Tell no reader of a part."""


async def play_course(
    parts: AttackParts,
    asker: Asker,
    course: Course,
    *,
    also_tested: Sequence[Wording] = (),
    on_part: Tell = tell_none,
) -> None:
    """Attack a judge with wordings; cells are added to `course` part by part.

    `also_tested` are tested beside the chosen ones: those chosen against another judge. `on_part`
    is given each part's name and its number of texts. Raises CapReached, or an error of the judge
    after which no call can succeed.
    """
    await play_control(parts, asker, course, on_part)
    if course.ended_early is not None:
        return
    rows = parts.rows
    # (c) The worst of many on the same rows is too high by luck, so it is chosen on others.
    wordings = dress_rows(parts, parts.wordings, rows.wrong_choosing, "choosing")
    edits = _edit_rows(parts.edits, rows.right_choosing, "choosing")
    await _play(parts, asker, course, on_part, "choosing", [*wordings, *edits])
    by_key = {wording.key: wording for wording in parts.wordings}
    own, policy = _own(parts, course), parts.no_verdict
    course.chosen = tuple(by_key[key] for key in find_worst(own, [*by_key], policy).values())
    course.worst_edit = find_worst_edit(own, policy=policy)
    # (d) Once.
    tested_wordings = tuple(dict.fromkeys([*course.chosen, *also_tested]))
    chosen_edits = [] if course.worst_edit is None else [course.worst_edit]
    texts = [
        *dress_rows(parts, tested_wordings, rows.wrong_test, "test"),
        *_edit_rows(chosen_edits, rows.right_test, "test"),
    ]
    await _play(parts, asker, course, on_part, "test", texts)


async def play_control(
    parts: AttackParts, asker: Asker, course: Course, on_part: Tell = tell_none
) -> None:
    """Ask for the test rows as they are, some of them twice; raises as `play_course` does.

    A constant, a coin, or a judge whose form is not read ends here: `course.ended_early` says why.
    """
    wrong, right = parts.rows.wrong_test, parts.rows.right_test
    await _fix_threshold(parts, asker, course, on_part)
    # (a) Some 80 calls tell most of those.
    first = [*wrong[:FIRST_LOOK], *right[:FIRST_LOOK]]
    texts = [*_take("as they are", first), *_take("again", first)]
    await _play(parts, asker, course, on_part, "first look", texts)
    course.ended_early = ends_after_first_look(_own(parts, course), parts.no_verdict)
    if course.ended_early is not None:
        return
    # (b) The control, and how much of it is chance.
    rest = [*wrong[FIRST_LOOK:], *right[FIRST_LOOK:]]
    asked_twice = [*wrong[FIRST_LOOK:ASKED_TWICE], *right[FIRST_LOOK:ASKED_TWICE]]
    texts = [*_take("as they are", rest), *_take("again", asked_twice)]
    await _play(parts, asker, course, on_part, "as they are", texts)
    course.ended_early = ends_as_they_are(_own(parts, course), parts.no_verdict)


async def _fix_threshold(parts: AttackParts, asker: Asker, course: Course, on_part: Tell) -> None:
    """Choose the threshold of a judge whose scores have no verdict, on rows that are not tested."""
    rows = parts.rows
    # Of these rows the first part asks anyway.
    looked_at = [*rows.wrong_test[:_PROBES], *rows.right_test[:_PROBES]]
    if parts.compares_pairs or not await _list_scores(parts, asker, looked_at, unread=True):
        return
    chosen_on = [*rows.wrong_choosing, *rows.right_choosing]
    on_part(THRESHOLD, len(chosen_on))
    wrong = [row for row in rows.wrong_choosing if not _is_right(parts, row)]
    right_scores = await _list_scores(parts, asker, rows.right_choosing)
    wrong_scores = await _list_scores(parts, asker, wrong)
    if not right_scores or not wrong_scores:
        return  # its answers stay without a verdict, and the next part says so
    course.threshold = fix_threshold(right_scores, wrong_scores)
    asker.set_threshold(parts.judge, course.threshold.value)
    texts = [Text("choosing", "choosing", row, row.response) for row in chosen_on]
    course.cells += await judge_texts(parts, asker, texts)


async def _list_scores(
    parts: AttackParts, asker: Asker, rows: Sequence[GradedRow], *, unread: bool = False
) -> list[float]:
    """List the scores of rows as they are; `unread`, those that have no verdict alone."""
    shown_texts = [(show_text(row, row.response), 0) for row in rows]
    answers = await asker.ask_all(parts.judge, shown_texts)
    return [
        answer.score
        for answer in answers
        if answer.score is not None and (answer.verdict == "none" or not unread)
    ]


def _is_right(parts: AttackParts, row: GradedRow) -> bool:
    return parts.check is not None and parts.check.decide(row.response, row) is True


async def _play(
    parts: AttackParts,
    asker: Asker,
    course: Course,
    on_part: Tell,
    name: str,
    texts: Sequence[Text],
) -> None:
    on_part(name, len(texts))
    course.cells += await judge_texts(parts, asker, texts)


def dress_rows(
    parts: AttackParts, wordings: Iterable[Wording], rows: Sequence[GradedRow], phase: Phase
) -> Iterator[Text]:
    """Dress wrong rows in wordings; where a label would not be certain there is no response."""
    for wording in wordings:
        for row in rows:
            yield Text(
                phase=phase,
                part="test" if phase == "test" else "choosing",
                row=row,
                response=write_wording(wording, row, parts.rows, parts.judge),
                attack="wording",
                surface=wording.surface,
                kind=wording.kind,
                name=wording.name,
            )


def count_calls(
    rows: GradedRows, wordings: Sequence[Wording], edits: int, *, needs_threshold: bool = False
) -> Mapping[str, int]:
    """Count the texts of a course by part, at most."""
    wrong, right = len(rows.wrong_test), len(rows.right_test)
    first = min(wrong, FIRST_LOOK) + min(right, FIRST_LOOK)
    twice = min(wrong, ASKED_TWICE) + min(right, ASKED_TWICE)
    kinds = len({wording.kind for wording in wordings})
    chosen_on = len(rows.wrong_choosing) + len(rows.right_choosing)
    return {
        **({THRESHOLD: chosen_on} if needs_threshold else {}),
        "first look": 2 * first,
        "as they are": wrong + right - first + twice - first,
        "choosing": len(rows.wrong_choosing) * len(wordings) + len(rows.right_choosing) * edits,
        "test": wrong * kinds + (right if edits else 0),
    }


def _take(phase: Phase, rows: Iterable[GradedRow]) -> Iterator[Text]:
    asking = int(phase == "again")
    return (Text(phase, "test", row, row.response, asking=asking) for row in rows)


def _edit_rows(edits: Iterable[str], rows: Sequence[GradedRow], phase: Phase) -> list[Text]:
    part = "test" if phase == "test" else "choosing"
    return [
        Text(phase, part, row, write_edit(edit, row), attack="edit", kind="edit", name=edit)  # type: ignore[arg-type]
        for edit in edits
        for row in rows
    ]


def _own(parts: AttackParts, course: Course) -> list[Cell]:
    """List the cells of this judge; the course of a second one adds to the same list."""
    return [cell for cell in course.cells if cell.judge == parts.name]
