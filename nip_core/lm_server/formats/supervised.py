"""Method `supervised`: ``{"messages": [{"role", "content", "weight"?, "name"?}, ...]}``.

The model learns the assistant messages whose weight is not 0. The last message is one of the
assistant's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nip_core.lm_server.formats.jsonl import Problem, kind, unknown_keys
from nip_core.lm_server.formats.messages import (
    Message,
    learned_problems,
    messages_problems,
    parse_message,
)


@dataclass(frozen=True)
class SupervisedExample:
    """One conversation to learn from."""

    messages: tuple[Message, ...]

    def to_dict(self) -> dict[str, Any]:
        """The example as it stands in a JSONL line."""
        return {"messages": [message.to_dict() for message in self.messages]}


def parse(value: Mapping[str, Any]) -> SupervisedExample:
    """An example from a checked line."""
    return SupervisedExample(tuple(map(parse_message, value["messages"])))


def problems(line: int, value: Any) -> Iterator[Problem]:
    """The rules of one line."""
    if not isinstance(value, dict):
        yield Problem(line, "invalid_example", f"expected an object, got {kind(value)}")
        return
    found = [
        *messages_problems(line, "messages", value, ("weight",)),
        *unknown_keys(line, "the example", value, ("messages",)),
    ]
    yield from found or learned_problems(line, value["messages"])
