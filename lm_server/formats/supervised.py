"""Method `supervised`: ``{"messages": [{"role", "content", "weight"?, "name"?}, ...],
"tools"?: [], "parallel_tool_calls"?: bool}``.

The model learns the assistant messages whose weight is not 0; each has a content and answers
something. The last message is one of the assistant's. Tools are not supported, so `tools` may only
be empty and `parallel_tool_calls` decides nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nip_lm_server.formats.jsonl import Problem, kind
from nip_lm_server.formats.messages import (
    Message,
    conversation_problems,
    learned_problems,
    parse_message,
    text_of,
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
    found = list(conversation_problems(line, value, extra_keys=("weight",)))
    yield from found
    if found:
        return
    yield from learned_problems(line, value["messages"])
    for index, message in enumerate(value["messages"]):
        learned = message["role"] == "assistant" and message.get("weight", 1) != 0
        if learned and not text_of(message["content"]):
            yield Problem(
                line,
                "empty_answer",
                f"messages[{index}].content is empty, so there is nothing to learn: leave the "
                "message out, or give it weight 0",
            )
