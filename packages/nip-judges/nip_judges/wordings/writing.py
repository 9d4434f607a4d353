"""Wordings: texts by which wrong answers are dressed, or which stand in their place.

KINDS              the eleven kinds, in the order of a table
list_wordings      the wordings for a judge: all kinds, some of them, or a user's own
write_wording      the text of a wording for a row; None where its label would not be certain
describe_wordings  all bundled ones with their sources, as rows of a table
split_kinds        the kinds in two halves, one of which is held out

No text adds an answer: `write_wording` leaves a row out where the added text holds the reference,
in digits, words or LaTeX. That a user's own text doesn't turn a wrong answer into a right one in
another way, by a sentence that corrects it, is up to the user.
"""

import difflib
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nip_base.importing import find_file, find_line
from nip_core.errors import SettingsError
from nip_core.importing import import_function
from nip_core.nearest import did_you_mean
from nip_judges.checks.answer_texts import holds_reference, plain, read_numbers
from nip_judges.checks.stated_answers import last_line, list_statements
from nip_judges.parts import GradedRow, Judge, Surface, Wording
from nip_judges.wordings.bundled_wordings import BUNDLED, KINDS, Bundled

if TYPE_CHECKING:
    from nip_judges.rows.graded_rows import GradedRows

__all__ = ["KINDS", "describe_wordings", "list_wordings", "split_kinds", "write_wording"]

OWN = "own"
"""The kind of a user's own wordings."""
_COMMON_FORMS = ("GRADE: C", "yes", '{"result": 1}')
_MOST_FORMS = 3
_SHORT_ANSWER = 3  # words of a last line that is an answer by itself
_PLACE = "{response}"
_BY_KEY = {f"{bundled.kind}/{bundled.name}": bundled for bundled in BUNDLED}


class WordingLine(NamedTuple):
    """A bundled wording, described for a table."""

    kind: str
    name: str
    surface: str
    source: str
    """The number of a paper at arxiv.org, or "ours"."""
    text: str
    """Its template, or a description of how its text is made."""


def describe_wordings() -> list[WordingLine]:
    """List all bundled wordings, with source and text."""
    return [WordingLine(b.kind, b.name, b.surface, b.source, b.text or b.recipe) for b in BUNDLED]


def list_wordings(
    judge: Judge, kinds: Sequence[str] | None = None, script: str | None = None
) -> tuple[Wording, ...]:
    """List the wordings for a judge: those of `kinds`, or of a script alone.

    A judge with several accept forms has each wording made of them once a form, for at most three.
    A script is a text file, a wording a line, or `file.py:function`.

    Raises SettingsError for an unknown kind, and for a script that can't be read.
    """
    if script is not None:
        return _list_own(script)
    for kind in kinds or ():
        if kind not in KINDS:
            hint = did_you_mean(kind, KINDS)
            raise SettingsError(f"--kinds {kind}: no such kind{hint}; there are {', '.join(KINDS)}")
    return tuple(
        Wording(bundled.kind, bundled.name + (f" {number + 1}" if number else ""), bundled.surface)
        for bundled in BUNDLED
        if not kinds or bundled.kind in kinds
        for number in range(len(_list_forms(judge)) if bundled.kind == "forged" else 1)
    )


def split_kinds(kinds: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split kinds in halves by a digest of their names: those shown, and those held out.

    Each kind's half depends on no order; the shown half has one more where they are odd.
    """
    names = sorted(set(kinds), key=lambda kind: hashlib.sha256(kind.encode()).hexdigest())
    shown_kinds = set(names[: (len(names) + 1) // 2])
    ordered = list(dict.fromkeys(kinds))
    return tuple(k for k in ordered if k in shown_kinds), tuple(
        k for k in ordered if k not in shown_kinds
    )


def write_wording(wording: Wording, row: GradedRow, rows: "GradedRows", judge: Judge) -> str | None:
    """Write the text of a wording for a wrong row.

    None where it can't be made for the row, and where its addition, or all of it, holds the
    reference. Without a reference the final answers of right responses to the question count.
    """
    keys = _list_keys(row, rows.rows)
    if wording.kind == OWN:
        return _write_own(wording, row, keys)
    bundled, form = _find_bundled(wording, judge)
    if bundled.make is not None and bundled.surface == "alone":
        text = _MAKERS[bundled.make](row, rows.rows, keys)
        return None if text is None or _hold(text, keys) else text
    template = bundled.text.replace("{accept}", form)
    if bundled.surface == "alone":
        return None if _hold(template, keys) else template
    if bundled.make is not None:
        filling = _MAKERS[bundled.make](row, rows.rows, keys)
        if filling is None:
            return None
        return _surround(template, row.response, keys, filling)
    return _surround(template, row.response, keys)


def _find_bundled(wording: Wording, judge: Judge) -> tuple[Bundled, str]:
    """Find a bundled wording, and the accept form that it is written with."""
    forms = _list_forms(judge)
    bundled = _BY_KEY.get(wording.key)
    if bundled is not None:
        return bundled, forms[0]
    name, _, number = wording.name.rpartition(" ")
    bundled = _BY_KEY.get(f"{wording.kind}/{name}")
    if bundled is None or not number.isdigit() or not 1 <= int(number) <= len(forms):
        raise ValueError(f"{wording.key} is no wording for {judge.name}")
    return bundled, forms[int(number) - 1]


def _list_forms(judge: Judge) -> tuple[str, ...]:
    """List a judge's accept forms; the common ones for a judge that shows none."""
    forms = tuple(dict.fromkeys(form for form in judge.accept_forms if form.strip()))
    return (forms or _COMMON_FORMS)[:_MOST_FORMS]


def _hold(text: str, keys: Sequence[str]) -> bool:
    return any(holds_reference(text, key) for key in keys)


def _list_keys(row: GradedRow, rows: Sequence[GradedRow]) -> list[str]:
    """List the texts that a wording must not hold for its label to stay certain."""
    if row.reference is not None and row.reference.strip():
        return [row.reference]
    keys = []
    for candidate in rows:
        if candidate.is_right and candidate.question_id == row.question_id:
            stated = [statement.chunk for statement in list_statements(candidate.response)]
            line = last_line(candidate.response)
            if not stated and not 0 < len(line.split()) <= _SHORT_ANSWER:
                return []  # its answer stands somewhere in its text
            keys += stated or [line]
    return list(dict.fromkeys(key for key in keys if key.strip()))


def _surround(
    template: str, response: str, keys: Sequence[str], filling: str | None = None
) -> str | None:
    """Write a template around a response; its first place is the response, others repeat it."""
    head, _, tail = template.partition(_PLACE)
    if filling is not None:
        fill = {_PLACE: response, "{made}": filling}
        tail = "".join(fill.get(part, part) for part in re.split(r"(\{response\}|\{made\})", tail))
    else:
        tail = tail.replace(_PLACE, response)
    return None if _adds_answer(head, response, tail, keys) else head + response + tail


def _adds_answer(head: str, response: str, tail: str, keys: Sequence[str]) -> bool:
    """Tell whether text around a response holds a key, or makes one together with it."""
    if _hold(f"{head}\n{tail}", keys):
        return True
    text = head + response + tail
    return any(holds_reference(text, k) and not holds_reference(response, k) for k in keys)


def _order_by_digest(row: GradedRow, candidates: Sequence[GradedRow]) -> list[GradedRow]:
    def place(candidate: GradedRow) -> str:
        return hashlib.sha256(
            f"{row.id}\0{candidate.id}\0{candidate.response}".encode()
        ).hexdigest()

    return sorted(candidates, key=place)


def _first_sentence(text: str) -> tuple[str, str]:
    """Split a text into its first sentence and its other sentences."""
    match = re.match(r"\s*(\S.*?(?:[.!?:](?=\s|$)|\n|$))", text, re.DOTALL)
    if match is None:
        return "", ""
    return match.group(1).strip(), text[match.end() :].strip()


def _make_other_sentence(
    row: GradedRow, rows: Sequence[GradedRow], keys: Sequence[str]
) -> str | None:
    """Take the first sentence of a right response to another question, by digest."""
    candidates = [r for r in rows if r.is_right and r.question_id != row.question_id]
    for candidate in _order_by_digest(row, candidates) if keys else []:
        sentence, _ = _first_sentence(candidate.response)
        if sentence and not _hold(sentence, keys):
            return sentence
    return None


def _make_own_sentence(
    row: GradedRow, rows: Sequence[GradedRow], keys: Sequence[str]
) -> str | None:
    """Take the first sentence of a right response to this question, which answers behind it.

    Its numbers must all stand in the question, and it has no sign of a calculation: so it is not
    the answer in another form.
    """
    right = [r for r in rows if r.is_right and r.question_id == row.question_id]
    question_values = {abs(number.value) for number in read_numbers(plain(row.question))}
    for candidate in _order_by_digest(row, right) if keys else []:
        sentence, remainder = _first_sentence(candidate.response)
        numbers = {abs(number.value) for number in read_numbers(plain(sentence))}
        is_short_of_it = bool(sentence) and all(holds_reference(remainder, key) for key in keys)
        if (
            is_short_of_it
            and numbers <= question_values
            and not re.search(r"[=+*/^×÷\\]", sentence)
        ):
            return sentence
    return None


def _make_question(row: GradedRow, rows: Sequence[GradedRow], keys: Sequence[str]) -> str | None:
    return row.question.strip() if keys and row.question.strip() else None


def _make_nouns(row: GradedRow, rows: Sequence[GradedRow], keys: Sequence[str]) -> str | None:
    """List the question's longer words, in their order."""
    return _list_words(row.question) if keys else None


def _make_criterion(row: GradedRow, rows: Sequence[GradedRow], keys: Sequence[str]) -> str | None:
    """List the longer words of a criterion, where the row has a column of that name."""
    names = ("criterion", "criteria", "rubric")
    texts = [row.columns[name] for name in names if row.columns.get(name, "").strip()]
    if not texts or not keys or any(texts[0].strip() == key.strip() for key in keys):
        return None
    return _list_words(texts[0])


def _list_words(text: str) -> str | None:
    words = dict.fromkeys(word.lower() for word in re.findall(r"[^\W\d_]{5,}", text))
    return ", ".join(words) or None


def _make_last_line(row: GradedRow, rows: Sequence[GradedRow], keys: Sequence[str]) -> str | None:
    """Take the final answer that the wrong response states, else its last line."""
    stated = list_statements(row.response)
    text = stated[-1].chunk if stated else last_line(row.response)
    return text.strip() or None


def _make_bullets(row: GradedRow, rows: Sequence[GradedRow], keys: Sequence[str]) -> str | None:
    """Write each line of the wrong response as an item of a list."""
    lines = [line.strip() for line in row.response.splitlines() if line.strip()]
    return "\n".join(f"- {line}" for line in lines) or None


Maker = Callable[[GradedRow, Sequence[GradedRow], Sequence[str]], str | None]
_MAKERS: dict[str, Maker] = {
    "other sentence": _make_other_sentence,
    "own sentence": _make_own_sentence,
    "question": _make_question,
    "nouns": _make_nouns,
    "criterion": _make_criterion,
    "last line": _make_last_line,
    "bullets": _make_bullets,
}


def _list_own(script: str) -> tuple[Wording, ...]:
    """List a script's wordings: a line each, or its function."""
    file = find_file(script)
    if file is not None:
        _load_function(script)
        return (Wording(OWN, f"{file.name}:{script.rpartition(':')[2]}", "free", script),)
    path = Path(script).expanduser()
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise SettingsError(
            f"--script {script}: {reason}; name a file with a text a line, or file.py:function"
        ) from None
    wordings: list[Wording] = []
    for number, line in enumerate(lines, start=1):
        if line.count(_PLACE) > 1:
            raise SettingsError(
                f"--script {script}, line {number}: {_PLACE} stands there {line.count(_PLACE)} "
                "times; a wrong response is shown once"
            )
        closest = difflib.get_close_matches(_PLACE, re.findall(r"\{\w+\}", line), 1, 0.7)
        if closest and _PLACE not in line:
            raise SettingsError(
                f"--script {script}, line {number}: {closest[0]} is no placeholder; "
                f"did you mean {_PLACE!r}?"
            )
        if line.strip():
            surface: Surface = "around" if _PLACE in line else "alone"
            wordings.append(Wording(OWN, f"{path.name}:{number}", surface, line))
    if not wordings:
        raise SettingsError(f"--script {script}: no line has a text; write a text a line")
    return tuple(wordings)


def _load_function(address: str) -> Callable[..., Any]:
    try:
        return import_function(
            "--script", address, "is called as f(question, response, **columns) -> str"
        )
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _write_own(wording: Wording, row: GradedRow, keys: Sequence[str]) -> str | None:
    """Write a user's own wording; a function's text may hold the response, or stand alone."""
    if wording.surface == "alone":
        return None if _hold(wording.text, keys) else wording.text
    if wording.surface == "around":
        return _surround(wording.text, row.response, keys)
    text = _call_function(wording.text, row, keys)
    head, middle, tail = text.partition(row.response) if row.response else (text, "", "")
    if middle:
        return None if _adds_answer(head, row.response, tail, keys) else text
    return None if _hold(text, keys) else text


def _call_function(address: str, row: GradedRow, keys: Sequence[str]) -> str:
    """Call a user's function with question, response and the columns that hold no reference."""
    columns = {
        name: value
        for name, value in row.columns.items()
        if name not in ("question", "response") and not _hold(value, keys)
    }
    try:
        text = _load_function(address)(row.question, row.response, **columns)
    except SettingsError:
        raise
    except Exception as error:  # whatever a user's function raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        line = find_line(error, address.rpartition(":")[0])
        raise SettingsError(f"--script {address}, row {row.id}{line}: {reason}") from None
    if not isinstance(text, str):
        raise SettingsError(
            f"--script {address}, row {row.id}: it gave {text!r:.60}; return a text"
        )
    return text
