"""The JSONL data formats of fine-tuning, and every rule about them. Imports nothing heavy.

read_jsonl            bytes or a file -> (line number, value), one line at a time
check_jsonl           what an upload must satisfy: UTF-8, not empty, an object on every line
validate_supervised   the content rules of method `supervised` -> problems, each with its line
read_supervised       checked lines -> `SupervisedExample`s
to_jsonl              the other direction: examples or plain objects -> bytes

A line of the supervised format is ``{"messages": [{"role", "content", "weight"?, "name"?}, ...]}``.
The model learns the assistant messages whose weight is not 0. Nothing here counts tokens: that
needs a tokenizer, so the trainer does it.
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIN_EXAMPLES = 10
"""Fewest training examples a job accepts, as at OpenAI."""

ROLES = ("system", "user", "assistant")
MAX_PROBLEMS = 20
"""`validate_supervised` stops after this many problems; one broken writer breaks every line."""

_EXAMPLE_KEYS = frozenset({"messages"})
_MESSAGE_KEYS = frozenset({"role", "content", "weight", "name"})


class JsonlError(ValueError):
    """A line is not JSON, or the file has no lines. `line` counts from 1; 0 is the whole file."""

    def __init__(self, line: int, message: str):
        super().__init__(line, message)
        self.line, self.message = line, message

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


class FormatError(ValueError):
    """The content breaks the rules of its method; `problems` has the first ones."""

    def __init__(self, problems: Sequence["Problem"]):
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return describe_problems(self.problems)


@dataclass(frozen=True)
class Problem:
    """One broken rule. `line` counts from 1; 0 means the file as a whole."""

    line: int
    code: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


@dataclass(frozen=True)
class Message:
    """One turn. `weight` is 0 or 1 and only assistant messages have one: 1 is learned."""

    role: str
    content: str
    weight: int = 1
    name: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The message as it stands in a JSONL line; weight 1 is left out, being the default."""
        data: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.role == "assistant" and self.weight != 1:
            data["weight"] = self.weight
        if self.name is not None:
            data["name"] = self.name
        return data


@dataclass(frozen=True)
class SupervisedExample:
    """One conversation to learn from."""

    messages: tuple[Message, ...]

    def to_dict(self) -> dict[str, Any]:
        """The example as it stands in a JSONL line."""
        return {"messages": [message.to_dict() for message in self.messages]}


def to_jsonl(rows: Iterable[SupervisedExample | Mapping[str, Any]]) -> bytes:
    """Encode one object per line as UTF-8 with sorted keys, so that equal rows give equal bytes."""
    lines = [
        json.dumps(
            row.to_dict() if isinstance(row, SupervisedExample) else dict(row),
            ensure_ascii=False,
            sort_keys=True,
            separators=(",", ":"),
            allow_nan=False,
        )
        for row in rows
    ]
    return "".join(line + "\n" for line in lines).encode()


def read_jsonl(source: bytes | str | Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number from 1, parsed value) of every line that is not blank.

    `source` is the content itself when bytes, otherwise the path of a file, which is read line
    by line. Raises JsonlError at the first line that is not UTF-8 or not JSON.
    """
    if isinstance(source, bytes):
        yield from _parse_lines(io.BytesIO(source))
    else:
        with Path(source).open("rb") as file:
            yield from _parse_lines(file)


def _parse_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise JsonlError(number, f"not UTF-8 at byte {error.start}") from None
        except (json.JSONDecodeError, RecursionError) as error:
            shown = line[:60].decode("utf-8", "replace").strip()
            raise JsonlError(number, f"not JSON ({error}): got {shown!r}") from None


def check_jsonl(source: bytes | str | Path) -> int:
    """Check what an upload must satisfy and return the number of objects in it.

    Raises JsonlError if the file has no line or a line is not a JSON object.
    """
    count = 0
    for number, value in read_jsonl(source):
        if not isinstance(value, dict):
            raise JsonlError(number, f"expected a JSON object, got {_kind(value)}")
        count += 1
    if count == 0:
        raise JsonlError(0, "the file is empty: expected at least one JSON object per line")
    return count


def validate_supervised(
    lines: Iterable[tuple[int, Any]], min_examples: int = MIN_EXAMPLES
) -> list[Problem]:
    """Check the content rules of method `supervised` and return what is broken, in line order.

    `lines` is what `read_jsonl` yields. An empty list means that `read_supervised` will accept
    them. At most MAX_PROBLEMS are returned. Raises JsonlError where `read_jsonl` does.
    """
    problems: list[Problem] = []
    count = 0
    for number, value in lines:
        count += 1
        problems.extend(_example_problems(number, value))
        if len(problems) >= MAX_PROBLEMS:
            return problems[:MAX_PROBLEMS]
    if count < min_examples:
        problems.append(
            Problem(
                0,
                "too_few_examples",
                f"the file has {count} example(s), but at least {min_examples} are needed",
            )
        )
    return problems


def read_supervised(
    source: bytes | str | Path, min_examples: int = 1
) -> tuple[SupervisedExample, ...]:
    """Read and check a whole supervised file. Raises JsonlError or FormatError."""
    lines = list(read_jsonl(source))
    problems = validate_supervised(lines, min_examples)
    if problems:
        raise FormatError(problems)
    return tuple(_to_example(value) for _, value in lines)


def describe_problems(problems: Sequence[Problem], shown: int = 5) -> str:
    """One sentence for people: the first problems with their lines, and how many more."""
    more = len(problems) - shown
    text = "; ".join(str(problem) for problem in problems[:shown])
    return f"{text}; and {more} more" if more > 0 else text


def text_of(content: Any) -> str | None:
    """The text of a message's content: a string, or a list of parts of type ``text``.

    None if it is anything else (an image, an empty list, null).
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        return None
    parts: list[str] = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            return None
        text = part.get("text")
        if not isinstance(text, str):
            return None
        parts.append(text)
    return "".join(parts)


def _to_example(value: Mapping[str, Any]) -> SupervisedExample:
    return SupervisedExample(
        tuple(
            Message(
                role=message["role"],
                content=text_of(message["content"]) or "",
                weight=message.get("weight", 1),
                name=message.get("name"),
            )
            for message in value["messages"]
        )
    )


def _example_problems(line: int, value: Any) -> list[Problem]:
    if not isinstance(value, dict):
        return [Problem(line, "invalid_example", f"expected an object, got {_kind(value)}")]
    if "messages" not in value:
        return [Problem(line, "missing_messages", "the key 'messages' is missing")]
    problems = [
        Problem(line, "unknown_key", f"unknown key {key!r}; known: 'messages'")
        for key in value
        if key not in _EXAMPLE_KEYS
    ]
    messages = value["messages"]
    if not isinstance(messages, list) or not messages:
        problems.append(
            Problem(
                line,
                "invalid_messages",
                f"'messages' must be a list with at least one message, got {_kind(messages)}",
            )
        )
        return problems
    for index, message in enumerate(messages):
        problems.extend(_message_problems(line, index, message))
    if not problems:
        problems.extend(_conversation_problems(line, messages))
    return problems


def _message_problems(line: int, index: int, message: Any) -> list[Problem]:
    at = f"messages[{index}]"
    if not isinstance(message, dict):
        return [Problem(line, "invalid_message", f"{at} must be an object, got {_kind(message)}")]
    problems = [
        Problem(line, "unknown_key", f"{at} has the unknown key {key!r}")
        for key in message
        if key not in _MESSAGE_KEYS
    ]
    role = message.get("role")
    if role not in ROLES:
        problems.append(
            Problem(
                line,
                "invalid_role",
                f"{at}.role is {role!r}; expected one of {', '.join(ROLES)}",
            )
        )
    if text_of(message.get("content")) is None:
        got = _kind(message["content"]) if "content" in message else "nothing"
        problems.append(Problem(line, "invalid_content", f"{at}.content must be text, got {got}"))
    if "weight" in message:
        weight = message["weight"]
        if role != "assistant":
            problems.append(
                Problem(
                    line,
                    "invalid_weight",
                    f"{at} has a weight, but only assistant messages may (role is {role!r})",
                )
            )
        elif isinstance(weight, bool) or weight not in (0, 1):
            problems.append(
                Problem(line, "invalid_weight", f"{at}.weight must be 0 or 1, got {weight!r}")
            )
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        problems.append(
            Problem(line, "invalid_name", f"{at}.name must be a string, got {_kind(name)}")
        )
    return problems


def _conversation_problems(line: int, messages: list[dict[str, Any]]) -> list[Problem]:
    assistants = [message for message in messages if message["role"] == "assistant"]
    if not assistants:
        return [
            Problem(
                line,
                "missing_assistant_message",
                "there is no assistant message, so there is nothing to learn",
            )
        ]
    problems = []
    if messages[-1]["role"] != "assistant":
        problems.append(
            Problem(
                line,
                "last_message_not_assistant",
                f"the last message has role {messages[-1]['role']!r}; it must be 'assistant'",
            )
        )
    if all(message.get("weight", 1) == 0 for message in assistants):
        problems.append(
            Problem(
                line,
                "nothing_to_learn",
                "every assistant message has weight 0; at least one needs weight 1",
            )
        )
    return problems


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    if isinstance(value, list) and not value:
        return "an empty list"
    return names.get(type(value), f"{value!r}"[:60])
