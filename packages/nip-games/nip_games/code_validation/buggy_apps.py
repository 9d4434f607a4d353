"""The rows of lrhammond/buggy-apps: one for each problem, with lists of its solutions."""

from collections.abc import Iterator

from nip_core.errors import DatasetError
from nip_core.scenarios.base import Row
from nip_core.scenarios.row_texts import require_text

NESTED = {"question", "solutions", "buggy_solutions"}


def pair_solutions(row: Row, name: str) -> Iterator[Row]:
    """Make as many rows of correct as of buggy solutions from one row of lrhammond/buggy-apps.

    The two lists need not be equally long. A buggy solution is paired with the one of the same
    `original_solution_number`, if there is one, else with the next that is left. Texts that occur
    twice are taken once; texts in both lists, with an unclear label, not at all.
    """
    # 1. Solutions with one clear label.
    question = require_text(row, "question", name)
    correct = _nested(row, "solutions", name)
    buggy = _nested(row, "buggy_solutions", name)
    unclear = correct.keys() & buggy.keys()
    unpaired = {text: number for text, number in correct.items() if text not in unclear}
    # 2. Pair each buggy one with the correct one it was made from, else with any.
    pairs: list[tuple[str, str]] = []
    single_texts: list[str] = []
    for text, number in buggy.items():
        if text in unclear:
            continue
        twin = next((t for t, n in unpaired.items() if n is not None and n == number), None)
        if twin is None:
            single_texts.append(text)
        else:
            del unpaired[twin]
            pairs.append((twin, text))
    pairs.extend(zip(unpaired, single_texts, strict=False))
    for pair in pairs:
        for text, y in zip(pair, (1, 0), strict=True):
            yield {
                "question": question,
                "solution": text,
                "y": y,
                "difficulty": row.get("difficulty"),
                "mutation": None if y else "language_model",
            }


def _nested(row: Row, column: str, name: str) -> dict[str, int | None]:
    """Read the solutions of a list of structs, or of a struct of lists, with their numbers."""
    value = row[column] or []
    if isinstance(value, dict):
        texts = value.get("solution", [])
        numbers = value.get("original_solution_number") or [None] * len(texts)
        entries = [
            {"solution": text, "original_solution_number": number}
            for text, number in zip(texts, numbers, strict=False)
        ]
    elif isinstance(value, list):
        entries = value
    else:
        raise DatasetError(f"{name}: {column} must be a list of structs (got {value!r:.80})")
    solutions: dict[str, int | None] = {}
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise DatasetError(f"{name}: {column}[{place}] must be a struct (got {entry!r:.80})")
        text = require_text(entry, "solution", f"{name}: {column}[{place}]")
        solutions.setdefault(text, entry.get("original_solution_number"))
    return solutions
