"""From rows of a dataset to the lines of the files that are trained on.

read_held_out         the questions of a dataset with examples that are not trained on
write_payloads   a dataset as the files of a job: the examples to train on, and the held-out ones
write_jsonl      rows -> a file, every line checked by the rules of the receiver
JSONL            by method, a row as the line that OpenAI's API and lm_server take

The receivers' rules stand in `nip_base.formats`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nip_base.formats import AdvantageMode, JsonlError, describe_problems, validate
from nip_core.errors import StageError
from nip_core.parameters import HyperParameters, Method
from nip_core.trainers.dataset import Dataset, Row, choose_held_out

ADVANTAGE: AdvantageMode = "given"
"""The setting `advantage` of a job of trajectories: every line has its own."""


def read_held_out(parameters: HyperParameters, dataset: Dataset) -> frozenset[str]:
    """Find the questions with examples for the validation file; empty: there is none."""
    fraction = parameters.fine_tuning.validation_fraction
    return choose_held_out(list_questions(dataset), fraction, parameters.seed)


def list_questions(dataset: Dataset) -> list[str]:
    """List by row the question of its example."""
    return dataset.column("question_id")


def write_payloads(
    dataset: Dataset, out: frozenset[str], folder: Path, subject: str
) -> tuple[Path, Path | None]:
    """Write the training file of a job and, unless `out` is empty, its validation file.

    Raises StageError, which names `subject`, the file and the line, for a line that the receiver
    would refuse.
    """
    training = folder / "training.jsonl"
    rows = (row for row in dataset.rows() if row["question_id"] not in out)
    write_jsonl(rows, dataset.method, training, f"{subject}, training file")
    if not out:
        return training, None
    validation = folder / "validation.jsonl"
    rows = (row for row in dataset.rows() if row["question_id"] in out)
    write_jsonl(rows, dataset.method, validation, f"{subject}, validation file")
    return training, validation


def _make_supervised(row: Row) -> dict[str, Any]:
    return {"messages": _make_chat(row["messages"], row.get("reasoning"), row.get("weights"))}


def _make_preference(row: Row) -> dict[str, Any]:
    return {
        "input": {"messages": _make_chat(row["messages"])},
        "preferred_output": _make_answer(row["chosen"], row.get("chosen_reasoning")),
        "non_preferred_output": _make_answer(row["rejected"], row.get("rejected_reasoning")),
    }


def _make_trajectory(row: Row) -> dict[str, Any]:
    turns = [
        {name: value for name, value in turn.items() if value is not None} for turn in row["turns"]
    ]
    return {
        "turns": turns,
        "group_id": row["group_id"],
        "reward": row["reward"],
        "advantage": row["advantage"],
    }


JSONL: Mapping[Method, Callable[[Row], dict[str, Any]]] = {
    "supervised": _make_supervised,
    "dpo": _make_preference,
    "trajectories": _make_trajectory,
}


def _make_chat(
    messages: Sequence[Mapping[str, str | None]],
    thoughts: Sequence[str | None] | None = None,
    weights: Sequence[int | None] | None = None,
) -> list[dict[str, str | int]]:
    """Make messages as the wire has them, each with the thoughts before it and its weight, if there
    are any."""
    nothing = [None] * len(messages)
    return [
        {
            name: value
            for name, value in {**message, "reasoning_content": thought, "weight": weight}.items()
            if value is not None
        }
        for message, thought, weight in zip(
            messages, thoughts or nothing, weights or nothing, strict=True
        )
    ]


def _make_answer(text: str, thought: str | None) -> list[dict[str, str | int]]:
    return _make_chat([{"role": "assistant", "content": text}], [thought])


def write_jsonl(rows: Iterable[Row], method: Method, file: Path, subject: str) -> int:
    """Write a line for each row and return their number; one line is in memory at a time.

    Raises StageError, which begins with `subject`, for rows that the receiver would refuse. The
    number of rows that it needs at least is not checked.
    """
    advantage = ADVANTAGE if method == "trajectories" else None
    count = 0
    with file.open("wb") as opened:

        def lines() -> Iterator[tuple[int, Any]]:
            nonlocal count
            for row in rows:
                line = JSONL[method](row)
                count += 1
                try:
                    text = json.dumps(line, ensure_ascii=False, allow_nan=False)
                    opened.write(text.encode() + b"\n")
                except ValueError as error:  # NaN, or half of a surrogate pair
                    raise JsonlError(count, str(error)) from None
                yield count, line

        try:
            problems = validate(method, lines(), 0, advantage=advantage)
        except JsonlError as error:
            raise StageError(f"{subject}: {error}") from None
    if problems:
        raise StageError(
            f"{subject}: {describe_problems(problems)}; the server would refuse it, so nothing was "
            "uploaded"
        )
    return count
