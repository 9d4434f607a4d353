"""The problems that are played: bundled, from files, or from Hugging Face.

    Problem          a question, a solution to it, and the true label
    load_problems    the problems of one split of a dataset, checked, filtered, reduced
    check_splits     refuses splits that share a question

A dataset has the columns `question`, `solution` and `y` (1 correct, 0 buggy), and may have `id`,
`question_id`, `difficulty` and `mutation`. The nested columns of lrhammond/buggy-apps
(`solutions`, `buggy_solutions`) are understood as well, from Hugging Face or from a local copy.

What is left out, and in which split a question stands where the source doesn't say, follows from
stable hashes of texts and ids, never from the position in a file:

- a source with `train` and `test` only: a tenth of the questions of `train` are its `validation`;
- a single file: by its column `split`, if it has one; else, by question, about 70 in 100 are
  `train`, 10 `validation` and 20 `test`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nip_core.errors import DatasetError
from nip_core.hashing import derive_key, derive_seed
from nip_core.scenarios.code_validation.dataset_files import SPLITS, Table, read_tables

BUNDLED = ("problems", "families")
BUNDLED_DATA = Path(__file__).with_name("data")
_REQUIRED = ("question", "solution", "y")
_NESTED = ("question", "solutions", "buggy_solutions")


@dataclass(frozen=True)
class Problem:
    """A question, a solution to it, and whether the solution is right."""

    id: str
    question_id: str
    """Equal for all problems with the same question."""
    question: str
    solution: str
    y: int
    """1 correct, 0 buggy."""
    difficulty: str | None = None
    mutation: str | None = None
    """The kind of bug, where it is known."""


def load_problems(
    dataset: str,
    split: str,
    *,
    difficulty: str | None = None,
    exclude_flagged: bool = True,
    max_size: int | None = None,
    shuffle_seed: int = 42,
    make_balanced: bool = True,
) -> list[Problem]:
    """The problems of one split, in the order of the source.

    Args:
        dataset: "problems" or "families"; a Parquet or JSONL file; a directory with a file for
            each split, or one made by `save_to_disk`; or the name of a Hugging Face dataset.
        split: "train", "validation" or "test".
        difficulty: keep only problems of this difficulty.
        exclude_flagged: leave out problems whose column `flags` is not empty.
        max_size: keep at most this many, half of each label if balanced.
        shuffle_seed: of the stable shuffle that decides what is left out.
        make_balanced: leave out problems of the more frequent label until both are equal.

    Raises:
        DatasetError: the dataset is not there or can't be read, a row breaks a rule, or nothing
            is left. The message names file and row.
    """
    if split not in SPLITS:
        raise DatasetError(f"unknown split {split!r}; expected one of {', '.join(SPLITS)}")
    if max_size is not None and max_size < 1:
        raise DatasetError(f"max_size must be at least 1 (got {max_size})")
    # 1. Read the split and filter its rows.
    source = str(BUNDLED_DATA / dataset) if dataset in BUNDLED else dataset
    problems: list[tuple[Problem, str]] = []
    for row, row_name in _rows_of_split(read_tables(source), split, dataset):
        if difficulty is not None and row.get("difficulty") != difficulty:
            continue
        if exclude_flagged and row.get("flags"):
            continue
        problems.extend(_problems_of(row, row_name))
    # 2. Check the whole, then leave out what is too many.
    _check_unique(problems)
    selected = _reduced([p for p, _ in problems], max_size, shuffle_seed, make_balanced)
    if not selected:
        raise DatasetError(_why_empty(dataset, split, [p for p, _ in problems], difficulty))
    return selected


def check_splits(problems_by_split: Mapping[str, Sequence[Problem]]) -> None:
    """Make sure that no question stands in two splits; white space counts as one space.

    Raises:
        DatasetError: one does; the message names it and both places.
    """
    seen: dict[str, tuple[str, Problem]] = {}
    for split, problems in problems_by_split.items():
        for problem in problems:
            for key in ("text " + " ".join(problem.question.split()), "id " + problem.question_id):
                other, first = seen.setdefault(key, (split, problem))
                if other != split:
                    raise DatasetError(
                        f"the question {problem.question[:80]!r} stands in two splits: {first.id} "
                        f"in {other} and {problem.id} in {split}; what is tested would have been "
                        "trained on: remove it from one of them"
                    )


def _rows_of_split(
    tables: Mapping[str, Table], split: str, dataset: str
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The rows of `split` with their names; derives splits that the source doesn't have."""
    whole = tables.get("")
    if whole is not None:
        has_split = "split" in whole.columns
        for row, name in _rows(whole):
            if (row.get("split") if has_split else _split_of(row, name)) == split:
                yield row, name
        return
    derived = "validation" not in tables and {"train", "test"} <= set(tables)
    if split == "test" or not derived:
        if split not in tables:
            raise DatasetError(
                f"dataset {dataset!r} has no split {split!r}, only {', '.join(tables)}; add a "
                "file for it, or give all rows in a single file"
            )
        yield from _rows(tables[split])
        return
    for row, name in _rows(tables["train"]):
        held_out = derive_seed("validation from train", _text(row, "question", name)) % 10 == 0
        if held_out == (split == "validation"):
            yield row, name


def _rows(table: Table) -> Iterator[tuple[Mapping[str, Any], str]]:
    for columns in (_NESTED, _REQUIRED):
        if table.columns.issuperset(columns):
            yield from zip(table.rows, table.row_names, strict=True)
            return
    if not table.rows:
        raise DatasetError(f"{table.name}: has no rows; put problems in it")
    missing = [name for name in _REQUIRED if name not in table.columns]
    raise DatasetError(
        f"{table.name}: no column {' and no column '.join(missing)} (it has "
        f"{', '.join(sorted(table.columns))}); a dataset needs question, solution and y, which is "
        "1 for a correct and 0 for a buggy one"
    )


def _split_of(row: Mapping[str, Any], name: str) -> str:
    place = derive_seed("split of a single file", _text(row, "question", name)) % 100
    return "train" if place < 70 else "validation" if place < 80 else "test"


def _text(row: Mapping[str, Any], column: str, name: str) -> str:
    value = row.get(column)
    if not isinstance(value, str) or not value.strip():
        raise DatasetError(f"{name}: {column} must be a text that is not empty (got {value!r:.80})")
    return value


def _optional(row: Mapping[str, Any], column: str) -> str | None:
    value = row.get(column)
    return None if value is None else str(value)


def _problems_of(row: Mapping[str, Any], name: str) -> Iterator[tuple[Problem, str]]:
    """The problems of one row with its name; several if the row has the nested columns."""
    question = _text(row, "question", name)
    if "solutions" in row and "buggy_solutions" in row:
        for problem in _nested_problems(row, question, name):
            yield problem, name
        return
    solution = _text(row, "solution", name)
    y = row.get("y")
    if not isinstance(y, bool | int | float) or y not in (0, 1):
        raise DatasetError(f"{name}: y must be 1 (correct) or 0 (buggy) (got {y!r:.80})")
    problem = Problem(
        id=_optional(row, "id") or derive_key("problem", question, solution),
        question_id=_optional(row, "question_id") or derive_key("question", question),
        question=question,
        solution=solution,
        y=int(y),
        difficulty=_optional(row, "difficulty"),
        mutation=_optional(row, "mutation"),
    )
    yield problem, name


def _nested_problems(row: Mapping[str, Any], question: str, name: str) -> Iterator[Problem]:
    """As many correct as buggy solutions of one row of lrhammond/buggy-apps.

    The two lists need not be equally long. A buggy solution is paired with the one of the same
    `original_solution_number`, if there is one, else with the next that is left. Texts that occur
    twice are taken once; texts in both lists, whose label is unclear, not at all.
    """
    # 1. Solutions with one clear label.
    correct = _nested(row, "solutions", name)
    buggy = _nested(row, "buggy_solutions", name)
    unclear = correct.keys() & buggy.keys()
    left = {text: number for text, number in correct.items() if text not in unclear}
    # 2. Pair each buggy one with the correct one it was made from, else with any.
    pairs: list[tuple[str, str]] = []
    alone: list[str] = []
    for text, number in buggy.items():
        if text in unclear:
            continue
        twin = next((t for t, n in left.items() if n is not None and n == number), None)
        if twin is None:
            alone.append(text)
        else:
            del left[twin]
            pairs.append((twin, text))
    pairs.extend(zip(left, alone, strict=False))
    for pair in pairs:
        for text, y in zip(pair, (1, 0), strict=True):
            yield Problem(
                id=derive_key("problem", question, text),
                question_id=derive_key("question", question),
                question=question,
                solution=text,
                y=y,
                difficulty=_optional(row, "difficulty"),
                mutation=None if y else "language_model",
            )


def _nested(row: Mapping[str, Any], column: str, name: str) -> dict[str, Any]:
    """Solutions of a list of structs, or of a struct of lists, with their original numbers."""
    value = row[column] or []
    if isinstance(value, dict):
        numbers = value.get("original_solution_number") or [None] * len(value.get("solution", []))
        entries = [
            {"solution": text, "original_solution_number": number}
            for text, number in zip(value.get("solution", []), numbers, strict=False)
        ]
    elif isinstance(value, list):
        entries = value
    else:
        raise DatasetError(f"{name}: {column} must be a list of structs (got {value!r:.80})")
    solutions: dict[str, Any] = {}
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise DatasetError(f"{name}: {column}[{place}] must be a struct (got {entry!r:.80})")
        text = _text(entry, "solution", f"{name}: {column}[{place}]")
        solutions.setdefault(text, entry.get("original_solution_number"))
    return solutions


def _check_unique(problems: Sequence[tuple[Problem, str]]) -> None:
    seen: dict[str, str] = {}
    for problem, name in problems:
        if problem.id in seen:
            raise DatasetError(
                f"{name}: the id {problem.id!r} already stands in {seen[problem.id]}; ids must "
                "differ (without a column `id`, question and solution together must)"
            )
        seen[problem.id] = name


def _reduced(
    problems: Sequence[Problem], max_size: int | None, seed: int, balanced: bool
) -> list[Problem]:
    """Leave out what comes last in a stable shuffle; the order of the rest stays."""
    ranked = sorted(problems, key=lambda p: derive_key("reduce", seed, p.id))
    if balanced:
        by_label = [[p for p in ranked if p.y == y] for y in (0, 1)]
        size = min(map(len, by_label))
        if max_size is not None and size > 0:
            size = min(size, max_size // 2)
        # Half of one is none: a single problem then, whatever its label.
        ranked = [p for group in by_label for p in group[:size]] if size or not ranked else ranked
        if size == 0 and len({p.y for p in problems}) < 2:
            return []
    selected = {p.id for p in ranked[:max_size]}
    return [p for p in problems if p.id in selected]


def _why_empty(
    dataset: str, split: str, problems: Sequence[Problem], difficulty: str | None
) -> str:
    place = f"dataset {dataset!r}, split {split!r}"
    if problems:
        return (
            f"{place}: all {len(problems)} problems have y = {problems[0].y}, so none are left "
            "when both labels must be equally frequent; add others, or set make_balanced to false"
        )
    hint = f" with difficulty {difficulty!r}" if difficulty is not None else ""
    return f"{place}: there are no problems{hint}; check the filters, or add rows"
