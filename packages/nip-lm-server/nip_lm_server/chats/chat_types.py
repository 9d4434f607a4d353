"""Types of the parts of a chat request, once they were checked.

ChatMessage   a message, its content as one text
MessageCall   a call of a tool in it
Tool          a function that a model may call
"""

from typing import Any, NotRequired, TypedDict


class CalledFunction(TypedDict):
    """A called function; its arguments are JSON in the model's own words, and may be wrong."""

    name: str
    arguments: str


class MessageCall(TypedDict):
    """A call of a tool, as clients send it back."""

    function: CalledFunction
    type: NotRequired[str]
    id: NotRequired[str | None]
    index: NotRequired[int | None]


class CallParts(TypedDict, total=False):
    """The keys of a message that calls tools, or answers a call."""

    tool_call_id: str
    tool_calls: list[MessageCall]


class ChatMessage(CallParts):
    """A message, as engines see it."""

    role: str
    content: str
    name: NotRequired[str]


class ToolFunction(TypedDict):
    """A function; `parameters` is the JSON schema of its arguments."""

    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[dict[str, Any] | None]
    strict: NotRequired[bool | None]


class Tool(TypedDict):
    """A tool, as on the wire."""

    type: str
    function: ToolFunction
