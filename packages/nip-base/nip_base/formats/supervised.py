"""Method `supervised`: ``{"messages": [{"role", "content", "weight"?, "name"?,
"reasoning_content"?}, ...], "tools"?: [], "parallel_tool_calls"?: bool}``.

The model learns the assistant messages whose weight is not 0; each has a content and answers
something. The assistant's thoughts, `reasoning_content`, are learned before the content, in the
way the model's chat template writes it. The last message is one of the assistant's. Tools are not
supported, so `tools` may only be empty and `parallel_tool_calls` decides nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nip_base.formats.jsonl import Broken, Example
from nip_base.formats.messages import (
    Conversation,
    Message,
    find_conversation_problems,
    find_learned_problems,
    join_text,
    parse_message,
)


@dataclass(frozen=True)
class SupervisedExample(Example):
    """One conversation to learn from."""

    messages: tuple[Message, ...]


def parse(value: Conversation) -> SupervisedExample:
    """An example from a checked line."""
    return SupervisedExample(tuple(map(parse_message, value["messages"])))


def find_problems(value: Mapping[str, Any]) -> Iterator[Broken]:
    """The rules of one line."""
    # 1. The conversation.
    broken = list(find_conversation_problems(value, extra_keys=("weight",)))
    yield from broken
    if broken:
        return
    # 2. The messages to learn.
    yield from find_learned_problems(value["messages"])
    for index, message in enumerate(value["messages"]):
        is_learned = message["role"] == "assistant" and message.get("weight", 1) != 0
        if is_learned and not join_text(message["content"]):
            reason = f"messages[{index}].content is empty, so there is nothing to learn"
            yield "empty_answer", f"{reason}: leave the message out, or give it weight 0"
