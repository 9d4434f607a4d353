"""Method `dpo`, as at OpenAI: a conversation, an answer to prefer, and one to avoid.

``{"input": {"messages": [...], "tools"?: [], "parallel_tool_calls"?: bool},
"preferred_output": [{"role": "assistant", "content", "reasoning_content"?}],
"non_preferred_output": [...]}``

The conversation ends with a message that is not the assistant's, who answers it; a system message
will do, as in chat completions. Each output is exactly one assistant message, and the two differ,
because nothing can be learned from a pair of equals. There are no weights: the
outputs are what is learned. Tools are not supported, so `tools` may only be empty and
`parallel_tool_calls` decides nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from nip_base.formats.jsonl import (
    Broken,
    Example,
    describe_wrong,
    find_unknown_keys,
    name_kind,
)
from nip_base.formats.messages import (
    Conversation,
    Message,
    MessageLine,
    find_conversation_problems,
    find_message_problems,
    join_text,
    parse_message,
)

_OUTPUTS = ("preferred_output", "non_preferred_output")


@dataclass(frozen=True)
class PreferenceExample(Example):
    """A conversation so far, and two answers of the assistant to it."""

    input: tuple[Message, ...]
    preferred: Message
    rejected: Message

    def to_dict(self) -> dict[str, Any]:
        """The example as it stands in a JSONL line."""
        return {
            "input": {"messages": self.input},
            "preferred_output": [self.preferred],
            "non_preferred_output": [self.rejected],
        }


class PreferenceLine(TypedDict):
    """A line, once its rules hold; each output is one message."""

    input: Conversation
    preferred_output: list[MessageLine]
    non_preferred_output: list[MessageLine]


def parse(value: PreferenceLine) -> PreferenceExample:
    """An example from a checked line."""
    return PreferenceExample(
        input=tuple(map(parse_message, value["input"]["messages"])),
        preferred=parse_message(value["preferred_output"][0]),
        rejected=parse_message(value["non_preferred_output"][0]),
    )


def find_problems(value: Mapping[str, Any]) -> Iterator[Broken]:
    """The rules of one line."""
    # 1. The parts by themselves.
    broken = [
        *_input_problems(value),
        *(problem for key in _OUTPUTS for problem in _output_problems(key, value)),
        *find_unknown_keys("the example", value, ("input", *_OUTPUTS)),
    ]
    yield from broken
    if broken:
        return
    # 2. The two answers beside each other.
    outputs = [value[key][0] for key in _OUTPUTS]
    preferred, rejected = (join_text(output["content"]) for output in outputs)
    thoughts = [output.get("reasoning_content") or None for output in outputs]
    if preferred == rejected and thoughts[0] == thoughts[1]:
        reason = "'preferred_output' and 'non_preferred_output' are equal"
        yield "equal_outputs", f"{reason}, so there is nothing to learn"
    elif not preferred:
        reason = "preferred_output[0].content is empty, so there is nothing to learn"
        yield "empty_answer", reason


def _input_problems(value: Mapping[str, Any]) -> Iterator[Broken]:
    if "input" not in value:
        yield "missing_input", "the key 'input' is missing"
        return
    conversation = value["input"]
    if not isinstance(conversation, dict):
        yield describe_wrong("invalid_input", "'input'", "an object", conversation)
        return
    broken = [*find_conversation_problems(conversation, inside="input")]
    yield from broken
    if not broken and conversation["messages"][-1]["role"] == "assistant":
        reason = "the last message of the input is the assistant's, so there is nothing to answer"
        yield "last_message_is_assistant", reason


def _output_problems(key: str, value: Mapping[str, Any]) -> Iterator[Broken]:
    if key not in value:
        yield f"missing_{key}", f"the key '{key}' is missing"
        return
    output = value[key]
    if not isinstance(output, list) or len(output) != 1:
        output_kind = f"{len(output)} messages" if isinstance(output, list) else name_kind(output)
        reason = f"'{key}' must be a list of exactly one assistant message, got {output_kind}"
        yield f"invalid_{key}", reason
        return
    broken = [*find_message_problems(f"{key}[0]", output[0])]
    yield from broken
    if not broken and (role := output[0]["role"]) != "assistant":
        yield "invalid_role", f"{key}[0].role is {role!r}; it must be 'assistant'"
