"""Graded rows of exact tasks, as data for attacks on judges.

list_rows   the rows: question, response, reference, right, kind
write_rows  writes them as JSON Lines
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from nip_core.errors import SettingsError
from nip_games.reasoning_gym.answers import answer_questions
from nip_games.reasoning_gym.tasks import TASKS, TaskName


def list_rows(
    size: int, seed: int = 0, tasks: Sequence[TaskName] = tuple(TASKS), split: str = "test"
) -> Iterator[dict[str, str | bool]]:
    """List `size` rows, a multiple of 4, with one response to each question, half of them right.

    `right` is true or false, and `kind` the task. They are problems of the scenario's `split` under
    this seed. Raises SettingsError for another size, DatasetError without the library.
    """
    if size < 4 or size % 4:
        raise SettingsError(f"n must be a multiple of 4, 4 at least (got {size})")
    for row in answer_questions(tasks, seed, split, size):
        yield {
            "question": row.item.question,
            "response": row.response,
            "reference": row.item.answer,
            "right": row.is_right,
            "kind": row.item.task,
        }


def write_rows(
    path: Path, size: int, seed: int = 0, tasks: Sequence[TaskName] = tuple(TASKS)
) -> None:
    """Write rows to a file, one a line. Raises as `list_rows` does, before the file is touched."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in list_rows(size, seed, tasks)]
    path.write_text("".join(lines), encoding="utf-8")
