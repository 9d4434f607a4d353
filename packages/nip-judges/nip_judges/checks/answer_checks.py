"""Checks that prove a response right or wrong, without a model.

AnswerCheck      decides a response: True right, False wrong, None not certain
make_check       the check that a judge.yaml names; None where it names none
holds_reference  whether a text holds a reference, in digits, words or LaTeX

`exact`, `number` and `option` compare the final answer with the reference (`exact_answers`).
`tests` runs code in the sandbox: column `tests` as rows of `nip grade` have it, `test` with
`entry_point` as HumanEval, or `test_list` as MBPP. A function is the user's own code.
"""

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nip_base.importing import find_line
from nip_core.errors import SettingsError
from nip_core.importing import import_function
from nip_core.nearest import did_you_mean
from nip_judges.checks.answer_texts import holds_reference
from nip_judges.checks.exact_answers import decide_exact, decide_number, decide_option
from nip_judges.parts import GradedRow

if TYPE_CHECKING:
    from nip_judges.settings.judge_file import JudgeFile

__all__ = ["AnswerCheck", "holds_reference", "make_check"]

_BY_REFERENCE: dict[str, Callable[[str, str, str], bool | None]] = {
    "exact": decide_exact,
    "number": decide_number,
    "option": decide_option,
}
_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)


class AnswerCheck(Protocol):
    """A check that decides a response without a model."""

    @property
    def name(self) -> str:
        """Its name in tables: "exact", "tests", a function's address."""

    def decide(self, response: str, row: GradedRow) -> bool | None:
        """Decide whether a response to the row's question is right; None: not certain."""


def make_check(file: "JudgeFile") -> AnswerCheck | None:
    """Make the check of a judge.yaml.

    Raises SettingsError for an unknown name, and a function that can't be imported.
    """
    name = file.check
    if name is None:
        return None
    if name in _BY_REFERENCE:
        return _ReferenceCheck(name)
    if name == "tests":
        return _TestsCheck()
    if ":" not in name:
        names = [*_BY_REFERENCE, "tests"]
        raise SettingsError(
            f"{file.path.name}: check: there is no check {name!r}{did_you_mean(name, names)}; "
            f"there are {', '.join(names)}, and path/to/file.py:function"
        )
    place, _, function = name.rpartition(":")
    is_file = place.endswith(".py") and not place.startswith(("/", "~"))
    address = f"{file.path.parent / place}:{function}" if is_file else name
    try:
        call = import_function("check", address, "is called as f(response, question, **columns)")
    except ValueError as error:
        raise SettingsError(f"{file.path.name}: {error}") from None
    return _FunctionCheck(name, address, call)


@dataclass(frozen=True)
class _ReferenceCheck:
    """Compares the final answer with the reference."""

    name: str

    def decide(self, response: str, row: GradedRow) -> bool | None:
        if row.reference is None or not row.reference.strip():
            return None
        return _BY_REFERENCE[self.name](response, row.question, row.reference)


@dataclass(frozen=True)
class _FunctionCheck:
    """Calls a user's function as f(response, question, reference=…, **columns)."""

    name: str
    address: str
    call: Callable[..., Any]

    def decide(self, response: str, row: GradedRow) -> bool | None:
        field_names = ("response", "question", "reference")
        columns = {k: v for k, v in row.columns.items() if k not in field_names}
        try:
            verdict = self.call(response, row.question, reference=row.reference, **columns)
        except Exception as error:  # whatever a user's function raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            line = find_line(error, self.address.rpartition(":")[0])
            raise SettingsError(f"check {self.name}, row {row.id}{line}: {reason}") from None
        if verdict is not None and not isinstance(verdict, bool):
            raise SettingsError(
                f"check {self.name}, row {row.id}: it gave {verdict!r:.60}; return True (right), "
                "False (wrong) or None (not certain)"
            )
        return verdict


@dataclass(frozen=True)
class _TestsCheck:
    """Runs a response's code with the row's tests, in the sandbox."""

    name: str = "tests"

    def decide(self, response: str, row: GradedRow) -> bool | None:
        tests, entry = _read_tests(row)
        blocks = [match.group(1) for match in _FENCED.finditer(response)]
        if not blocks:
            code = _find_code(response)
            if code is None:
                return None if re.search(r"\bdef |\bprint\(|\breturn\b", response) else False
            return _run(code, tests, entry, row)
        verdicts = {_run(code, tests, entry, row) for code in {blocks[-1], "\n".join(blocks)}}
        return verdicts.pop() if len(verdicts) == 1 else None


def _read_tests(row: GradedRow) -> tuple[list[Any], str | None]:
    """Read a row's tests as `nip grade` takes them, and the function that they call."""
    columns = row.columns
    entry = columns.get("entry_point", "").strip() or None
    try:
        if columns.get("tests", "").strip():
            return _as_tests(columns["tests"], entry), entry
        if columns.get("test", "").strip() and entry:
            return [{"assert": columns["test"], "call": entry}], entry
        if columns.get("test_list", "").strip():
            source = "\n".join(json.loads(columns["test_list"]))
            entry = entry or _find_call(source)
            return [{"assert": source, "call": entry}], entry
    except (ValueError, TypeError) as error:
        raise SettingsError(
            f"check tests, row {row.id}: its tests can't be read ({error}); see docs/grade.md"
        ) from None
    raise SettingsError(
        f"check tests, row {row.id}: no tests; give a column tests, test with entry_point, or "
        "test_list"
    )


def _as_tests(text: str, entry: str | None) -> list[Any]:
    if text.lstrip().startswith("["):
        values = json.loads(text)
        if all(isinstance(value, dict) for value in values):
            return list(values)
        text = "\n".join(values)
    call = entry or _find_call(text)
    return [{"assert": text, "call": call}]


def _find_call(source: str) -> str:
    """Find the one function that assertions call and do not define."""
    tree = ast.parse(source)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    called = [
        node.func.id
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Assert)
        for node in ast.walk(statement.test)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    builtin = set(dir(__builtins__)) | set(__builtins__ if isinstance(__builtins__, dict) else ())
    names = list(dict.fromkeys(n for n in called if n not in defined and n not in builtin))
    if len(names) != 1:
        raise ValueError(f"they call {', '.join(names) or 'no function'}; set entry_point")
    return names[0]


def _find_code(response: str) -> str | None:
    """Find the code of a text without fences: the text, less lines of prose at its ends."""
    lines = response.splitlines()
    for start in range(min(len(lines), 6)):
        for end in range(len(lines), max(start, len(lines) - 6), -1):
            code = "\n".join(lines[start:end])
            if _is_code(code):
                return code
    return None


def _is_code(code: str) -> bool:
    for text in (code, f"def body():\n{code}"):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if any(not isinstance(node, ast.Expr) for node in tree.body):
            return True
    return False


def _run(code: str, tests: list[Any], entry: str | None, row: GradedRow) -> bool | None:
    from nip_sandbox.grading.grade import grade
    from nip_sandbox.grading.rows import RowError, make_row

    if entry is not None and re.search(
        rf"^\s*def {re.escape(entry)}\b", row.question, re.MULTILINE
    ):
        code = f"{row.question}\n{code}"  # HumanEval: the question begins the function
    try:
        graded = make_row({"id": row.id, "code": code, "tests": tests}, f"row {row.id}")
        return next(iter(grade([graded]))).passed
    except RowError as error:
        raise SettingsError(f"check tests, {error}") from None
