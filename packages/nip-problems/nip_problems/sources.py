"""Problems with tests, read from the files that people have them in.

    read_source   a file of HumanEval's, MBPP's or APPS' form, or a directory of Python files
    Source        the problems that it holds, and the rows that are none

Nothing is run here: solutions that fail their own tests are found later. Columns that no form names
are left alone, but for `difficulty` and `split`.
"""

import ast
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from nip_base.formats.bounds import parse_json
from nip_core.errors import DatasetError
from nip_core.hashing import half_pair
from nip_core.scenarios.dataset_files import SUFFIXES, find_path, read_table_file
from nip_core.scenarios.rows import SPLITS
from nip_problems.programs import CALL, PRELUDE, RUN, same_call, same_run
from nip_problems.source_directory import read_directory
from nip_problems.tested import LeftOut, Tested

_SUFFIXES = (*SUFFIXES, ".json")
_COLUMNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "HumanEval": (("prompt",), ("canonical_solution",), ("test",), ("entry_point",)),
    "MBPP": (("text", "prompt"), ("code",), ("test_list",)),
    "APPS": (("question",), ("solutions",), ("input_output",)),
}
"""By form the columns that a row needs: one of each."""
_NAMES = ("task_id", "problem_id", "id")
_FURTHER = ("test_imports", "test_setup_code", "difficulty", "split")

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """The problems of a source, and the rows that were left out."""

    name: str
    """Of the file or directory, without its ending."""
    form: str
    sha256: str
    problems: tuple[Tested, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...] = ()
    """Points that its author may have meant otherwise."""


class _Unusable(Exception):
    """A row that is no problem with tests, and why."""


def read_source(path: Path) -> Source:
    """Read the problems of a file, or of a directory of Python files.

    Raises:
        DatasetError: it is not there, can't be read, or has the columns of no form.
    """
    if find_path(str(path), str(path)) is None:
        raise DatasetError(f"{path}: there is no such file or directory")
    if path.is_dir():
        files = sorted(file for file in path.rglob("*.py") if file.is_file())
        problems, left_out = read_directory(path, files)
        return _source(
            path.resolve().name, "Python files", _digest(path, files), problems, left_out
        )
    suffix = next((suffix for suffix in _SUFFIXES if path.name.endswith(suffix)), None)
    if suffix is None:
        raise DatasetError(
            f"{path}: expected a directory, or a name that ends in one of {', '.join(_SUFFIXES)}"
        )
    rows = _rows(path, suffix)
    if not rows:
        raise DatasetError(f"{path}: has no rows; put problems in it")
    form = _form_of(path, frozenset().union(*rows))
    problems, left_out = [], []
    for number, row in enumerate(rows):
        name = _name(row, number)
        try:
            _check_texts(row, form)
            problems.append(_with_place(_READERS[form](name, row), row))
        except _Unusable as error:
            left_out.append(LeftOut(name, "row is no problem", str(error)))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            detail = f"can't be read as Python: {error}"
            left_out.append(LeftOut(name, "row is no problem", detail))
    stem = path.name.removesuffix(suffix)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    source = _source(stem, form, digest, problems, left_out)
    return replace(source, notes=_unknown_splits(rows))


def _check_texts(row: Record, form: str) -> None:
    """Refuse a row with half a surrogate pair in a column of its form: no file can hold it."""
    field_names = {*chain.from_iterable(_COLUMNS[form]), *_NAMES, *_FURTHER}
    for column in sorted(field_names & row.keys()):
        value = row[column]
        if not isinstance(value, str):
            value = json.dumps(value, ensure_ascii=False, default=str)
        if half := half_pair(value):
            raise _Unusable(f"{column} has {half}")


def _unknown_splits(rows: Sequence[Record]) -> tuple[str, ...]:
    splits = [row["split"] for row in rows if row.get("split") is not None]
    counts = Counter(f"{split!r:.60}" for split in splits if split not in SPLITS)
    return tuple(
        f"split {split} (rows: {count}) is none of {', '.join(SPLITS)}, so that of the problem "
        "follows from its name; rename it in the source to keep it"
        for split, count in sorted(counts.items())
    )


def _source(
    name: str, form: str, sha256: str, problems: Sequence[Tested], left_out: Sequence[LeftOut]
) -> Source:
    """Leave out the repetition of a question: it must not stand in two splits."""
    if not problems:
        first = f"{left_out[0].problem}, {left_out[0].reason}: {left_out[0].detail}"
        raise DatasetError(f"{name}: holds no problem with tests; the first: {first}")
    out = list(left_out)
    by_question: dict[str, str] = {}
    by_name: set[str] = set()
    single: list[Tested] = []
    for problem in problems:
        question = " ".join(problem.question.split())
        first = by_question.setdefault(question, problem.name)
        if first != problem.name or problem.name in by_name:
            same = "name" if problem.name in by_name else "question"
            out.append(LeftOut(problem.name, f"same {same} twice", f"the {same} of {first}"))
            continue
        by_name.add(problem.name)
        single.append(problem)
    return Source(name, form, sha256, tuple(single), tuple(out))


def _digest(root: Path, files: Sequence[Path]) -> str:
    whole = hashlib.sha256()
    for file in files:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        whole.update(f"{file.relative_to(root).as_posix()} {content}\n".encode())
    return whole.hexdigest()


def _rows(path: Path, suffix: str) -> Sequence[Record]:
    if suffix != ".json":
        return read_table_file(path).rows
    try:
        whole = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DatasetError(f"{path}: can't be read ({reason}); restore the file") from error
    if not isinstance(whole, list) or not all(isinstance(row, dict) for row in whole):
        raise DatasetError(f"{path}: expected rows, each an object with a problem's columns")
    return whole


def _form_of(path: Path, columns: frozenset[str]) -> str:
    lacking = {
        form: [" or ".join(names) for names in needed if not columns & set(names)]
        for form, needed in _COLUMNS.items()
    }
    nearest = min(lacking, key=lambda form: len(lacking[form]) - len(_COLUMNS[form]))
    if not lacking[nearest]:
        return nearest
    forms = "; ".join(
        f"{form}: {', '.join(' or '.join(names) for names in needed)}"
        for form, needed in _COLUMNS.items()
    )
    raise DatasetError(
        f"{path}: no column {' and no column '.join(lacking[nearest])} (it has "
        f"{', '.join(sorted(columns))}); a source has the columns of one of these: {forms}"
    )


def _name(row: Record, number: int) -> str:
    for column in _NAMES:
        if row.get(column) is not None:
            return str(row[column]).encode("utf-8", "backslashreplace").decode()
    return str(number)


def _with_place(problem: Tested, row: Record) -> Tested:
    """Give the problem the difficulty and the split of its row, if it has any."""
    difficulty, split = row.get("difficulty"), row.get("split")
    return replace(
        problem,
        difficulty=None if difficulty is None else str(difficulty),
        split=split if split in SPLITS else None,
    )


def _text(row: Record, *columns: str) -> str:
    for column in columns:
        value = row.get(column)
        if isinstance(value, str) and value.strip():
            return value
    raise _Unusable(f"{' or '.join(columns)} must be a text that is not empty")


def _texts(row: Record, column: str) -> list[str]:
    value = row.get(column) or []
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise _Unusable(f"{column} must be a list of texts")
    return [text for text in value if text.strip()]


def _human_eval(name: str, row: Record) -> Tested:
    prompt, function = _text(row, "prompt"), _text(row, "entry_point")
    if not function.isidentifier():
        raise _Unusable(f"entry_point must be the name of a function (got {function!r:.60})")
    return Tested(
        name,
        question=prompt.strip("\n"),
        solutions=(prompt + _text(row, "canonical_solution"),),
        tests=_single_checks(_text(row, "test"), function),
        names=(function,),
    )


def _single_checks(test: str, function: str) -> tuple[str, ...]:
    """Return all of `check`, and before it each of its assertions alone, where it can be divided.

    So a solution that is wrong about one of them is told from one that is wrong about all.
    """
    whole = f"{test}\ncheck({function})\n"
    try:
        tree = ast.parse(test)
    except SyntaxError as error:
        raise _Unusable(f"test is not Python: {error}") from None
    check = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "check"), 0)
    if not isinstance(check, ast.FunctionDef):
        raise _Unusable("test must define check(candidate)")
    other_statements = [node for node in tree.body if node is not check]
    earlier_statements: list[ast.stmt] = []
    single: list[str] = []
    for statement in check.body:
        asserted = [n for n in ast.walk(statement) if isinstance(n, ast.Assert)]
        if not asserted:  # the assertions behind it may need its effect
            earlier_statements.append(statement)
        elif not all(isinstance(n.test, ast.Constant) for n in asserted):  # it may print for help
            lone_function = ast.FunctionDef(
                "check", check.args, [*earlier_statements, statement], [], None
            )
            module = ast.Module([*other_statements, ast.fix_missing_locations(lone_function)], [])
            single.append(f"{ast.unparse(module)}\ncheck({function})\n")
    return (*dict.fromkeys(single), whole) if len(single) > 1 else (whole,)


def _mbpp(name: str, row: Record) -> Tested:
    code = _text(row, "code")
    setup = [*_texts(row, "test_imports"), *_texts(row, "test_setup_code")]
    tests = tuple(_texts(row, "test_list"))
    if not tests:
        raise _Unusable("test_list is empty")
    return Tested(
        name,
        question=_text(row, "text", "prompt").strip(),
        solutions=(code,),
        tests=tests,
        prelude="\n".join(setup),
        names=_names_in(code, " ".join(tests)),
    )


def _names_in(code: str, text: str) -> tuple[str, ...]:
    """List the names defined in `code` and mentioned in `text`."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return ()  # it is left out when it is looked at
    kinds = ast.FunctionDef | ast.ClassDef
    defined = [node.name for node in tree.body if isinstance(node, kinds)]
    return tuple(name for name in defined if name in text)


def _apps(name: str, row: Record) -> Tested:
    solutions = _loaded(row, "solutions")
    cases = _loaded(row, "input_output")
    if isinstance(solutions, str):
        solutions = [solutions]
    if not isinstance(solutions, list) or not all(isinstance(s, str) for s in solutions):
        raise _Unusable("solutions must be a list of texts")
    if not isinstance(cases, dict):
        raise _Unusable("input_output must be an object with inputs and outputs")
    inputs, outputs = cases.get("inputs"), cases.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise _Unusable("input_output must have lists of inputs and outputs")
    if not inputs or len(inputs) != len(outputs):
        raise _Unusable(f"input_output has {len(inputs)} inputs and {len(outputs)} outputs")
    if not solutions:
        raise _Unusable("solutions is empty")
    function = cases.get("fn_name")
    question, pairs = _text(row, "question").strip(), list(zip(inputs, outputs, strict=True))
    if function is None:
        tests = tuple(same_run(argument, expected) for argument, expected in pairs)
        return Tested(name, question, tuple(solutions), tests, PRELUDE, RUN, is_program=True)
    tests = tuple(same_call(str(function), argument, expected) for argument, expected in pairs)
    return Tested(name, question, tuple(solutions), tests, PRELUDE, CALL)


def _loaded(row: Record, column: str) -> Any:
    """Return a value of the row; a text is read as JSON."""
    value = row.get(column)
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError:
        raise _Unusable(f"{column} is not JSON") from None


_READERS: dict[str, Callable[[str, Record], Tested]] = {
    "HumanEval": _human_eval,
    "MBPP": _mbpp,
    "APPS": _apps,
}
