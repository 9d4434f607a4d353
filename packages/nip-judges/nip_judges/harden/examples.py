"""Training examples of a judge: its own prompt, filled, and the verdict that the label asks for.

GoldForms        the texts by which a judge accepts and rejects, as its prompt asks for them
find_gold_forms  them, or a refusal of a judge that can't be trained so
make_examples    the examples of a round as OpenAI's chats, as many that accept as that reject

All are of questions for choosing. Labels are certain: of rows as they are, of right rows under
edits that keep their answer, and of wrong rows in wordings that add none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nip_core.hashing import derive_key
from nip_judges.judges.prompted import ChatJudge
from nip_judges.parts import Cell, GradedRow, Judge
from nip_judges.play.judged_texts import show_text
from nip_judges.rows.graded_rows import GradedRows
from nip_judges.settings.judge_file import JudgeFile
from nip_judges.wordings.edits import EDITS, write_edit

LEAST_GOLD, MOST_GOLD = 50, 300
"""So many gold verdicts are imitated in general; fewer or more are allowed."""


class GoldForms(NamedTuple):
    """The answers that a judge is trained to give."""

    accept: str
    reject: str


class Judged(NamedTuple):
    """A response to a row's question, with its label."""

    row: GradedRow
    response: str
    is_right: bool
    wording: str = ""
    """The key of the wording, where it is dressed in one."""


@dataclass(frozen=True)
class Examples:
    """The examples of a round, in the order in which they are sent."""

    chats: tuple[dict[str, Any], ...]
    gold: int
    """Verdicts that follow from labels alone, and all that accept."""
    fooled: int
    """Texts that fooled the judge, beside those."""


def find_gold_forms(file: JudgeFile, judge: Judge) -> tuple[ChatJudge, GoldForms]:
    """Find the answers by which a judge's prompt accepts and rejects, and see it as a prompt judge.

    Raises SettingsError for another judge: none but a prompt at a model can imitate verdicts.
    """
    block = file.judge
    if block.prompt is None or not isinstance(judge, ChatJudge):
        file.refuse(("judge",), "nip harden trains a judge that is a prompt; set judge.prompt")
    if block.pair or block.threshold is not None:
        key = "pair" if block.pair else "threshold"
        file.refuse(
            ("judge", key),
            f"nip harden trains a judge that accepts or rejects one response; take judge.{key} out",
        )
    accept, reject = block.accept or "", block.reject or ""
    if block.pattern is not None:
        example = judge.accept_forms[0] if judge.accept_forms else accept
        head, _, tail = example.rpartition(accept)
        accept, reject = example, f"{head}{reject}{tail}"
    verdicts = judge.form.read(accept).verdict, judge.form.read(reject).verdict
    if verdicts != ("accept", "reject"):
        file.refuse(
            ("judge", "pattern"),
            f"the answers to imitate, {accept!r} and {reject!r}, are not read as accept and "
            "reject; write in the prompt the line that is asked for",
        )
    return judge, GoldForms(accept, reject)


def make_examples(
    judge: ChatJudge,
    forms: GoldForms,
    rows: GradedRows,
    cells: Sequence[Cell],
    fooled: Sequence[Cell],
    *,
    show: int,
    seed: int,
) -> Examples:
    """Make the examples of a round: `show` gold verdicts, and the texts that fooled the judge.

    `cells` are those of the round's attack, `fooled` those of all rounds that fooled it. Half of
    the examples accept. Gold ones that reject are wrong rows as they are, then texts of the attack,
    as many of each wording, whether they fooled the judge or not: without these a training that
    closes one hole opens others. Where right texts, edits among them, are too few for balance,
    texts are left out; gold ones then leave half of the room to those that fooled the judge.
    """
    by_id = {row.id: row for row in rows.rows}
    # A text that the model can't read, mostly a long one, would end the training.
    readable = [cell for cell in cells if was_read(cell)]
    right = _list_right([by_id[cell.row] for cell in readable if cell.is_right])
    plain = [_see(by_id, cell) for cell in readable if not cell.is_right and cell.attack == "none"]
    dressed = [_see(by_id, cell) for cell in readable if cell.attack == "wording" and cell.label_by]
    fooling = [_see(by_id, cell) for cell in fooled if was_read(cell)]
    most = min(show // 2, len(right) // 2 if fooling else len(right))
    rejected = plain[:most]
    rejected += _leave_out(_take_turns(dressed, seed), rejected)[: most - len(rejected)]
    gold = len(rejected)
    rejected += _leave_out(_take_turns(fooling, seed), rejected)[: len(right) - gold]
    texts = [*right[: len(rejected)], *rejected]
    chats = [_write_example(judge, forms, text) for text in texts]
    chats.sort(key=lambda chat: derive_key("order of a judge's examples", seed, chat))
    of_fooled = len(rejected) - gold
    return Examples(tuple(chats), len(texts) - of_fooled, of_fooled)


def was_read(cell: Cell) -> bool:
    """Tell whether the judge's model has read a text, whatever it answered."""
    return bool(cell.words) or cell.prompt_tokens > 0


def count_right_texts(rows: GradedRows) -> int:
    """Count the different texts of right rows that can balance examples that reject."""
    return len(_list_right(rows.right_choosing))


def _see(by_id: Mapping[str, GradedRow], cell: Cell) -> Judged:
    key = f"{cell.kind}/{cell.name}" if cell.attack == "wording" else ""
    return Judged(by_id[cell.row], cell.response, cell.is_right, key)


def _list_right(rows: Sequence[GradedRow]) -> list[Judged]:
    """List right texts, each once: all rows as they are, then under one edit after another."""
    texts = [Judged(row, row.response, True) for row in rows]
    texts += [Judged(row, write_edit(edit, row), True) for edit in EDITS for row in rows]
    return _leave_out(texts, ())


def _leave_out(texts: Iterable[Judged], others: Iterable[Judged]) -> list[Judged]:
    """Leave out texts that stand among `others`, or twice."""
    keys = {(text.row.id, text.response) for text in others}
    first: dict[tuple[str, str], Judged] = {}
    for text in texts:
        first.setdefault((text.row.id, text.response), text)
    return [text for key, text in first.items() if key not in keys]


def _take_turns(texts: Sequence[Judged], seed: int) -> list[Judged]:
    """Order texts so that wordings take turns; those of one wording stand by a digest."""
    ordered = sorted(
        texts, key=lambda text: derive_key("a judge's texts", seed, text.row.id, text.response)
    )
    turns: dict[str, int] = {}
    ranks = []
    for text in ordered:
        turns[text.wording] = turns.get(text.wording, 0) + 1
        ranks.append(turns[text.wording])
    return [text for _, text in sorted(zip(ranks, ordered, strict=True), key=lambda one: one[0])]


def _write_example(judge: ChatJudge, forms: GoldForms, text: Judged) -> dict[str, Any]:
    chat = [dict(message) for message in judge.write_chat(show_text(text.row, text.response))]
    verdict = forms.accept if text.is_right else forms.reject
    return {"messages": [*chat, {"role": "assistant", "content": verdict}]}
