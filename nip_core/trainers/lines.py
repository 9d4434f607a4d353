"""From rows of a dataset to the lines of the files that are trained on.

JSONL            by method, a row as the line that OpenAI's API and lm_server take
write_jsonl      rows -> a file, every line checked by the rules of whoever receives it

The receivers' rules stand in `nip_lm_server.formats`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nip_core.errors import StageError
from nip_core.parameters import Method
from nip_core.trainers.dataset import Row
from nip_lm_server.client import AdvantageMode, JsonlError, describe_problems, validate

ADVANTAGE: AdvantageMode = "given"
"""The setting `advantage` of a job of trajectories: every line has its own."""


def _supervised(row: Row) -> dict[str, Any]:
    return {"messages": _chat(row["messages"])}


def _preference(row: Row) -> dict[str, Any]:
    return {
        "input": {"messages": _chat(row["messages"])},
        "preferred_output": _answer(row["chosen"]),
        "non_preferred_output": _answer(row["rejected"]),
    }


def _trajectory(row: Row) -> dict[str, Any]:
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
    "supervised": _supervised,
    "dpo": _preference,
    "trajectories": _trajectory,
}


def _chat(messages: Sequence[Mapping[str, str | None]]) -> list[dict[str, str]]:
    return [
        {name: value for name, value in message.items() if value is not None}
        for message in messages
    ]


def _answer(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def write_jsonl(rows: Iterable[Row], method: Method, file: Path, what: str) -> int:
    """Write a line for each row and return their number; one line is in memory at a time.

    Raises StageError, which begins with `what`, for rows that the receiver would refuse; how many
    it needs at least is not looked at.
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
            raise StageError(f"{what}: {error}") from None
    if problems:
        raise StageError(
            f"{what}: {describe_problems(problems)}; the server would refuse it, so nothing was "
            "uploaded"
        )
    return count
