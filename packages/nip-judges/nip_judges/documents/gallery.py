"""The most convincing texts of an attack: which they are, and how they are shown.

choose_texts   the texts to be asked again and shown, at most two of a kind
list_gallery   them with their askings, as judge.json has them
write_texts    them for people
"""

from collections.abc import Mapping, Sequence

from nip_judges.documents.judge_document import JudgeDocument, ShownCell
from nip_judges.figures.judge_figures import ATTACKS_ON_WRONG, is_hit
from nip_judges.parts import Cell
from nip_judges.text_lines import cut_line, wrap_lines

MOST_TEXTS, MOST_OF_A_KIND = 10, 2
_WIDTH = 100
_LONGEST = 600
"""Characters of a text or of a judge's words that are shown."""


def choose_texts(cells: Sequence[Cell]) -> list[Cell]:
    """Choose the most convincing texts of the test: by fresh verdicts, then by P(accept).

    Where texts were asked again, in the phase "again", only they are chosen, by the share of these
    askings accepted: the first one was accepted by choice. A text shown for several rows of a
    question stands once.
    """
    fooled = [
        cell
        for cell in cells
        if cell.judge == "judge"
        and cell.phase == "test"
        and cell.attack in ATTACKS_ON_WRONG
        and cell.outcome == "fooled"
    ]
    by_text = _askings(cells)
    counts: dict[tuple[str, str], int] = {}
    for cell in fooled:
        counts[cell.kind, cell.name] = counts.get((cell.kind, cell.name), 0) + 1
    if by_text:
        fooled = [cell for cell in fooled if _text_key(cell) in by_text]

    def convincing(cell: Cell) -> tuple[float, float, int, int]:
        askings = by_text.get(_text_key(cell), [])
        share = sum(map(is_hit, askings)) / len(askings) if askings else 0.0
        liking = cell.p_accept if cell.p_accept is not None else cell.score or 0.0
        return (-share, -liking, -counts[cell.kind, cell.name], len(cell.response))

    chosen_cells: list[Cell] = []
    texts = set[tuple[str, str]]()
    for cell in sorted(fooled, key=convincing):
        of_kind = [one for one in chosen_cells if one.kind == cell.kind]
        is_new = (cell.question_id, cell.response) not in texts
        if is_new and len(of_kind) < MOST_OF_A_KIND and len(chosen_cells) < MOST_TEXTS:
            chosen_cells.append(cell)
            texts.add((cell.question_id, cell.response))
    return chosen_cells


def list_gallery(cells: Sequence[Cell], questions: Mapping[str, str]) -> list[ShownCell]:
    """List the chosen texts; `questions` has each question's text by its id."""
    by_text = _askings(cells)
    shown_cells = []
    for cell in choose_texts(cells):
        askings = by_text.get(_text_key(cell), [])
        shown_cells.append(
            ShownCell(
                kind=cell.kind,
                name=cell.name,
                row=cell.row,
                question=questions.get(cell.question_id, ""),
                response=cell.response,
                words=cell.words,
                label_by=cell.label_by,
                accepted=sum(map(is_hit, askings)),
                asked=len(askings),
            )
        )
    return shown_cells


def write_texts(document: JudgeDocument) -> str:
    """Write the most convincing texts for people; no text in them is obeyed by a terminal."""
    gallery = document["gallery"]
    if not gallery:
        return "No text that is wrong was accepted under an attack."
    parts = [f"The {len(gallery)} most convincing texts that are wrong, at most two of a kind."]
    for number, text in enumerate(gallery, 1):
        name = cut_line(f"{text['kind']}: {text['name']}", 56)
        lines = [
            f"{number}. {name}   row {cut_line(text['row'], 8)}, {_say_askings(text)}",
            *_block("question", text["question"]),
            *_block("shown", text["response"]),
            *_block("judge", text["words"]),
            *_block("wrong by", _say_label(text["label_by"])),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _say_askings(text: ShownCell) -> str:
    if not text["asked"]:
        return "asked once"
    return f"accepted in {text['accepted']} of {text['asked']} further askings"


def _say_label(label_by: str) -> str:
    reasons = {
        "row": "the row's own label",
        "construction": "construction: a wrong answer stays word for word, or nothing answers",
    }
    return reasons.get(label_by, f"the check {label_by}")


def _block(title: str, text: str) -> list[str]:
    """Write a text under a title, shortened, its line ends as they are."""
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text):,} characters)"
    begin, indent = f"   {title:<10}", " " * 13
    lines: list[str] = []
    for line in (cut or "(nothing)").split("\n"):
        lines += wrap_lines(line, _WIDTH, indent if lines else begin, indent)
    return lines


def _text_key(cell: Cell) -> tuple[str, str, str, str, str]:
    return (cell.row, cell.attack, cell.kind, cell.name, cell.response)


def _askings(cells: Sequence[Cell]) -> dict[tuple[str, str, str, str, str], list[Cell]]:
    by_text: dict[tuple[str, str, str, str, str], list[Cell]] = {}
    for cell in cells:
        if cell.judge == "judge" and cell.phase == "again" and cell.attack in ATTACKS_ON_WRONG:
            by_text.setdefault(_text_key(cell), []).append(cell)
    return by_text
