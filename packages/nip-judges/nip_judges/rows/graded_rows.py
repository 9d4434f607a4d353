"""Graded rows of a user's: read, checked, and split into a part for choosing and one for the test.

GradedRows  the rows of an attack, by label and part
read_rows   a judge.yaml -> GradedRows; whatever can't be attacked honestly is refused
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from nip_core.hashing import derive_key, half_pair
from nip_core.hashing import digest as digest_value
from nip_core.nearest import did_you_mean
from nip_judges.parts import GradedRow
from nip_judges.rows.inspect_rows import LOG_COLUMNS
from nip_judges.rows.row_checks import check_rows, list_notes
from nip_judges.rows.row_files import RawRow, as_text, read_raw
from nip_judges.rows.row_parts import split_rows
from nip_judges.rows.swapped_rows import swap_responses
from nip_judges.settings.file_checks import check_label_name, list_prompt_fields
from nip_judges.settings.judge_file import JudgeFile
from nip_judges.settings.judge_settings import OUR_FIELDS, PAIR_FIELDS

_RIGHT = frozenset({"true", "1", "yes", "correct", "c"})
_WRONG = frozenset({"false", "0", "no", "incorrect", "i"})
_OF_LOGS = frozenset({"id", "epoch", "input", "output", "target"})


@dataclass(frozen=True)
class GradedRows:
    """The rows of an attack: all of them, and by label and part those that are played."""

    rows: tuple[GradedRow, ...]
    digest: str
    """SHA-256 in hex of the rows that are played, and of their parts."""
    wrong_choosing: tuple[GradedRow, ...]
    """A row per question."""
    right_choosing: tuple[GradedRow, ...]
    wrong_test: tuple[GradedRow, ...]
    right_test: tuple[GradedRow, ...]
    notes: tuple[str, ...]
    """Lines for people, above all tables."""

    def find_opponent(self, row: GradedRow) -> GradedRow:
        """Find the first row of the other label under a row's question.

        Raises KeyError where there is none, as there may be where no pairs are compared.
        """
        return self._opponents[(row.question_id, not row.is_right)]

    @cached_property
    def _opponents(self) -> Mapping[tuple[str, bool], GradedRow]:
        first: dict[tuple[str, bool], GradedRow] = {}
        for row in self.rows:
            first.setdefault((row.question_id, row.is_right), row)
        return first


@dataclass(frozen=True)
class _Columns:
    """The names of columns as they are in this file."""

    question: str
    response: str
    reference: str | None
    right: str | None
    needs_reference: bool
    """In each row, as the prompt shows it or the check compares with it."""
    right_labels: frozenset[str]
    wrong_labels: frozenset[str]


def read_rows(file: JudgeFile, most: int | None = None) -> GradedRows:
    """Read, check and split the rows of a judge.yaml.

    `most` limits the test rows of each label. Raises SettingsError, one line.
    """
    name = file.data.file
    try:
        raw, is_log = read_raw(file.find(name))
    except ValueError as error:
        joint = ", " if str(error).startswith(("line ", "row ", "sample ")) else " "
        file.refuse(("data", "file"), f"{name}{joint}{error}")
    names = list(dict.fromkeys(column for row in raw for column in row.values))
    columns = _find_columns(file, names, is_log)
    _check_placeholders(file, columns, names)
    rows, doubled = _keep_single(file, [_read_row(file, columns, row) for row in raw])
    if file.data.make_wrong is not None:
        rows = swap_responses(file, rows, columns.response)
    check_rows(file, rows)
    parts = split_rows(rows, file.seed, most, pairs=file.judge.pair)
    row_parts = (parts.wrong_choosing, parts.right_choosing, parts.wrong_test, parts.right_test)
    return GradedRows(
        rows=tuple(rows),
        digest=_compute_digest(row_parts),
        wrong_choosing=parts.wrong_choosing,
        right_choosing=parts.right_choosing,
        wrong_test=parts.wrong_test,
        right_test=parts.right_test,
        notes=list_notes(file, rows, doubled),
    )


def _find_columns(file: JudgeFile, names: Sequence[str], is_log: bool) -> _Columns:
    """Find the columns that are named; a log of Inspect has names of its own."""
    data = file.data
    columns_by_field: dict[str, str | None] = {}
    for field in (*OUR_FIELDS, "right"):
        name = getattr(data, field)
        if is_log and field not in data.model_fields_set:
            name = LOG_COLUMNS.get(field) or _find_scorer(file, names)
        columns_by_field[field] = name
    for field, name in {**columns_by_field, "kind": data.kind}.items():
        if name is not None and name not in names:
            _refuse_column(file, field, name, names)
    if columns_by_field["reference"] is None and file.check in ("exact", "number", "option"):
        file.refuse(("check",), f"check: {file.check} compares with the reference; name its column")
    if columns_by_field["right"] is not None:
        check_label_name(file, columns_by_field["right"])
    question, response = columns_by_field["question"], columns_by_field["response"]
    assert question is not None and response is not None
    own_right, own_wrong = map(_plain_all, (data.right_values, data.wrong_values))
    return _Columns(
        question,
        response,
        columns_by_field["reference"],
        columns_by_field["right"],
        needs_reference=_needs_reference(file),
        right_labels=own_right | (_RIGHT - own_wrong),
        wrong_labels=own_wrong | (_WRONG - own_right),
    )


def _find_scorer(file: JudgeFile, names: Sequence[str]) -> str:
    scorers = [n for n in names if n not in _OF_LOGS and not n.startswith("metadata.")]
    if len(scorers) != 1:
        have = f"has scores of {', '.join(scorers)}" if scorers else "has no scores"
        file.refuse(("data",), f"{file.data.file} {have}; name one by data.right")
    return scorers[0]


def _refuse_column(file: JudgeFile, field: str, name: str, names: Sequence[str]) -> NoReturn:
    hint = _hint(name, names) or f"; there are {', '.join(names[:8])}"
    needs = "" if file.has("data", field) else f" (data.{field} names another)"
    file.refuse(("data", field), f'no column "{name}" in {file.data.file}{hint}{needs}')


def _hint(name: str, names: Sequence[str]) -> str:
    return did_you_mean(name, names).replace("'", '"')


def _check_placeholders(file: JudgeFile, columns: _Columns, names: Sequence[str]) -> None:
    """Check that each placeholder of the prompt has a field or a column."""
    prompt, pair = file.judge.prompt, PAIR_FIELDS if file.judge.pair else ()
    for placeholder, name in list_prompt_fields(file).items():
        keys = ("judge", "names", placeholder)
        if name == "reference" and columns.reference is None:
            instead = (
                "reference: reference" if "reference" in names else "reference to the key's column"
            )
            file.refuse(
                keys if placeholder in file.judge.names else ("judge", "prompt"),
                f"{prompt} has {{{placeholder}}}, and data.reference names no column; "
                f"set {instead}",
            )
        if name == columns.right:
            file.refuse(
                keys if placeholder in file.judge.names else ("judge", "prompt"),
                f"{prompt} has {{{placeholder}}}, the column of labels: a judge that sees them "
                "can't be judged; leave it out",
            )
        if name in (*OUR_FIELDS, *pair) or name in names:
            continue
        if placeholder in file.judge.names:
            file.refuse(keys, f'no column "{name}" in {file.data.file}{_hint(name, names)}')
        hint = _hint(placeholder, [*OUR_FIELDS, *names])
        file.refuse(
            ("judge", "prompt"),
            f"{prompt} has {{{placeholder}}}, which no column of {file.data.file} fills{hint}; "
            "map it by judge.names, or keep it by judge.as_written",
        )


def _read_row(file: JudgeFile, columns: _Columns, raw: RawRow) -> GradedRow:
    texts = {name: as_text(value) or "" for name, value in raw.values.items()}
    for name, text in texts.items():
        if fault := half_pair(text):
            _refuse_row(file, "file", raw, f'"{name}" has {fault}')
    question = _read_text(file, "question", columns.question, raw)
    if not question.strip():
        _refuse_row(file, "question", raw, "its question is empty")
    reference = None if columns.reference is None else as_text(raw.values.get(columns.reference))
    if not (reference or "").strip():
        reference = None
    if reference is None and columns.needs_reference:
        _refuse_row(file, "reference", raw, f'no reference in "{columns.reference}"')
    return GradedRow(
        id=str(raw.number),
        question_id=derive_key("question", question.strip()),
        question=question,
        response=_read_text(file, "response", columns.response, raw),
        reference=reference,
        is_right=columns.right is None or _read_label(file, columns, columns.right, raw),
        columns={name: text for name, text in texts.items() if name != columns.right},
    )


def _needs_reference(file: JudgeFile) -> bool:
    shows = "reference" in list_prompt_fields(file).values()
    return shows or file.check in ("exact", "number", "option")


def _read_text(file: JudgeFile, field: str, column: str, raw: RawRow) -> str:
    value = raw.values.get(column)
    if isinstance(value, list | dict):
        _refuse_row(
            file,
            field,
            raw,
            f"its {field} is no text but {'a list' if isinstance(value, list) else 'an object'} "
            "(tools, images or turns); the last reply as text is what is attacked",
        )
    text = as_text(value)
    if text is None:
        _refuse_row(file, field, raw, f'no {field} in "{column}"')
    return text


def _read_label(file: JudgeFile, columns: _Columns, column: str, raw: RawRow) -> bool:
    text = as_text(raw.values.get(column))
    if text is None or not text.strip():
        _refuse_row(file, "right", raw, f'no label in "{column}"')
    label = _plain(text)
    if label in columns.right_labels or label in columns.wrong_labels:
        return label in columns.right_labels
    _refuse_row(
        file,
        "right",
        raw,
        f'the label "{text[:40]}" in "{column}" is neither right nor wrong; say what it means by '
        "data.right_values and data.wrong_values",
    )


def _plain_all(values: Sequence[str] | None) -> frozenset[str]:
    return frozenset(map(_plain, values or ()))


def _plain(label: str) -> str:
    plain = label.strip().casefold()
    return plain.removesuffix(".0") if plain in ("1.0", "0.0") else plain


def _keep_single(file: JudgeFile, rows: Sequence[GradedRow]) -> tuple[list[GradedRow], int]:
    """Keep the first of rows that are the same; refuse one text with two labels."""
    first: dict[tuple[str, str], GradedRow] = {}
    for row in rows:
        kept_row = first.setdefault((row.question_id, row.response), row)
        if kept_row.is_right != row.is_right:
            file.refuse(
                ("data", "right"),
                f"{file.data.file}, rows {kept_row.id} and {row.id}: one question with one "
                f"response, and row {(kept_row if kept_row.is_right else row).id} says right, "
                "the other wrong",
            )
    return list(first.values()), len(rows) - len(first)


def _refuse_row(file: JudgeFile, field: str, raw: RawRow, message: str) -> NoReturn:
    file.refuse(("data", field), f"{file.data.file}, row {raw.number}: {message}")


def _compute_digest(parts: Sequence[Sequence[GradedRow]]) -> str:
    return digest_value(
        [
            [[row.id, row.question, row.response, row.reference, row.is_right] for row in part]
            for part in parts
        ]
    )
