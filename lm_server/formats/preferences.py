"""Method `dpo`, as at OpenAI: a conversation, an answer to prefer, and one to avoid.

``{"input": {"messages": [...], "tools"?: [], "parallel_tool_calls"?: bool},
"preferred_output": [{"role": "assistant", "content"}], "non_preferred_output": [...]}``

The conversation ends with a message that is not the assistant's, who answers it; a system message
will do, as in chat completions. Each output is exactly one assistant message, and the two differ,
because nothing can be learned from a pair of equals. There are no weights: the
outputs are what is learned. Tools are not supported, so `tools` may only be empty and
`parallel_tool_calls` decides nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nip_lm_server.formats.jsonl import Problem, kind, unknown_keys
from nip_lm_server.formats.messages import (
    Message,
    conversation_problems,
    message_problems,
    parse_message,
    text_of,
)

_OUTPUTS = ("preferred_output", "non_preferred_output")


@dataclass(frozen=True)
class PreferenceExample:
    """What was said so far, and two answers of the assistant to it."""

    input: tuple[Message, ...]
    preferred: Message
    rejected: Message

    def to_dict(self) -> dict[str, Any]:
        """The example as it stands in a JSONL line."""
        return {
            "input": {"messages": [message.to_dict() for message in self.input]},
            "preferred_output": [self.preferred.to_dict()],
            "non_preferred_output": [self.rejected.to_dict()],
        }


def parse(value: Mapping[str, Any]) -> PreferenceExample:
    """An example from a checked line."""
    return PreferenceExample(
        input=tuple(map(parse_message, value["input"]["messages"])),
        preferred=parse_message(value["preferred_output"][0]),
        rejected=parse_message(value["non_preferred_output"][0]),
    )


def problems(line: int, value: Any) -> Iterator[Problem]:
    """The rules of one line."""
    if not isinstance(value, dict):
        yield Problem(line, "invalid_example", f"expected an object, got {kind(value)}")
        return
    found = [
        *_input_problems(line, value),
        *(problem for key in _OUTPUTS for problem in _output_problems(line, key, value)),
        *unknown_keys(line, "the example", value, ("input", *_OUTPUTS)),
    ]
    yield from found
    if not found:
        preferred, rejected = (text_of(value[key][0]["content"]) for key in _OUTPUTS)
        if preferred == rejected:
            yield Problem(
                line,
                "equal_outputs",
                "'preferred_output' and 'non_preferred_output' are equal, so there is nothing to "
                "learn",
            )
        elif not preferred:
            yield Problem(
                line,
                "empty_answer",
                "preferred_output[0].content is empty, so there is nothing to learn",
            )


def _input_problems(line: int, value: Mapping[str, Any]) -> Iterator[Problem]:
    if "input" not in value:
        yield Problem(line, "missing_input", "the key 'input' is missing")
        return
    given = value["input"]
    if not isinstance(given, dict):
        yield Problem(line, "invalid_input", f"'input' must be an object, got {kind(given)}")
        return
    found = [*conversation_problems(line, given, inside="input")]
    yield from found
    if not found and given["messages"][-1]["role"] == "assistant":
        yield Problem(
            line,
            "last_message_is_assistant",
            "the last message of the input is the assistant's, so there is nothing to answer",
        )


def _output_problems(line: int, key: str, value: Mapping[str, Any]) -> Iterator[Problem]:
    if key not in value:
        yield Problem(line, f"missing_{key}", f"the key '{key}' is missing")
        return
    output = value[key]
    if not isinstance(output, list) or len(output) != 1:
        got = f"{len(output)} messages" if isinstance(output, list) else kind(output)
        yield Problem(
            line,
            f"invalid_{key}",
            f"'{key}' must be a list of exactly one assistant message, got {got}",
        )
        return
    found = [*message_problems(line, f"{key}[0]", output[0])]
    yield from found
    if not found and (role := output[0]["role"]) != "assistant":
        yield Problem(line, "invalid_role", f"{key}[0].role is {role!r}; it must be 'assistant'")
