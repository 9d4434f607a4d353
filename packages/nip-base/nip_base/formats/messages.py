"""One message of a conversation, as it stands in the lines of every method.

Message             role, content, and for assistant messages whether it is learned
MessageLine         the same as it stands in a line, once its rules hold
join_text             the text of a message's content
find_message_problems    its rules
parse_message       a checked message
find_conversation_problems, find_learned_problems    the rules of the object that has `messages`
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from nip_base.formats.jsonl import MISSING, Broken, Example, describe_wrong, find_unknown_keys

ROLES = ("system", "user", "assistant")
_ACCEPTED_ROLES = (*ROLES, "developer")
"""`developer` is OpenAI's new word for `system`, and is read as that."""
_KEYS = ("role", "content", "name", "reasoning_content")
_EMPTY_IN_ANSWERS = ("refusal", "tool_calls", "function_call", "audio", "annotations")
"""More keys of a chat answer's message; null or [] means the same as being absent."""
_CONVERSATION_KEYS = ("messages", "tools", "parallel_tool_calls")


@dataclass(frozen=True)
class Message(Example):
    """One turn. `weight` is 0 or 1 and only assistant messages have one: 1 is learned."""

    role: str
    content: str
    weight: int = 1
    name: str | None = None
    token_ids: tuple[int, ...] | None = None
    """The tokens that the model generated, stop token included; in trajectories only."""
    logprobs: tuple[float, ...] | None = None
    """Log-probability (nats) of each generated token; in trajectories only."""
    reasoning_content: str | None = None
    """What the assistant thought before `content`. It is learned with it, and stands in no prompt
    of a later message, as models are served."""

    def to_dict(self) -> dict[str, Any]:
        """The message as it stands in a JSONL line; weight 1 is left out, being the default."""
        data = super().to_dict()
        if self.role != "assistant" or self.weight == 1:
            del data["weight"]
        return data


class TextPart(TypedDict):
    """A part of a content."""

    type: str
    text: str


class MessageLine(TypedDict):
    """A message as it stands in a line, once `find_message_problems` found none."""

    role: str
    content: str | list[TextPart]
    weight: NotRequired[int]
    name: NotRequired[str | None]
    token_ids: NotRequired[list[int] | None]
    logprobs: NotRequired[list[float] | None]
    reasoning_content: NotRequired[str | None]


class Conversation(TypedDict):
    """An object with messages."""

    messages: list[MessageLine]


def parse_message(message: MessageLine) -> Message:
    """A Message from a checked object."""
    token_ids, logprobs = message.get("token_ids"), message.get("logprobs")
    # Chat templates know the old word alone.
    role = message["role"]
    return Message(
        role="system" if role == "developer" else role,
        content=join_text(message["content"]) or "",
        weight=int(message.get("weight", 1)),
        name=message.get("name"),
        token_ids=None if token_ids is None else tuple(token_ids),
        logprobs=None if logprobs is None else tuple(map(float, logprobs)),
        reasoning_content=message.get("reasoning_content") or None,
    )


def join_text(content: Any) -> str | None:
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


def find_message_problems(
    place: str, message: Any, extra_keys: tuple[str, ...] = ()
) -> Iterator[Broken]:
    """The rules of one message. `place` names it; `extra_keys` are allowed besides the usual,
    and, except for `weight`, not looked at here."""
    if not isinstance(message, dict):
        yield describe_wrong("invalid_message", place, "an object", message)
        return
    # 1. Its keys; an answer of chat has more, with nothing in them.
    keys = {k: v for k, v in message.items() if k not in _EMPTY_IN_ANSWERS or v not in (None, [])}
    yield from find_unknown_keys(place, keys, (*_KEYS, *extra_keys))
    role = message.get("role")
    if role not in _ACCEPTED_ROLES:
        expected = ", ".join(_ACCEPTED_ROLES)
        yield "invalid_role", f"{place}.role is {role!r}; expected one of {expected}"
    # 2. Its text.
    text = join_text(message.get("content"))
    if text is None:
        yield describe_wrong(
            "invalid_content", f"{place}.content", "text", message.get("content", MISSING)
        )
    elif not _is_unicode(text):
        yield "invalid_content", f"{place}.content has half of a surrogate pair: it is no text"
    # 3. The keys that may stand beside it.
    if "weight" in message and "weight" in extra_keys:
        weight = message["weight"]
        if role != "assistant":
            reason = f"only assistant messages may (role is {role!r})"
            yield "invalid_weight", f"{place} has a weight, but {reason}"
        elif isinstance(weight, bool) or weight not in (0, 1):
            yield "invalid_weight", f"{place}.weight must be 0 or 1, got {weight!r}"
    name = message.get("name")
    if name is not None and not (isinstance(name, str) and _is_unicode(name)):
        yield describe_wrong("invalid_name", f"{place}.name", "a string", name)
    thoughts = message.get("reasoning_content")
    if thoughts is not None and not (isinstance(thoughts, str) and _is_unicode(thoughts)):
        yield describe_wrong(
            "invalid_reasoning_content", f"{place}.reasoning_content", "a text", thoughts
        )
    elif thoughts and role != "assistant":
        reason = f"only assistant messages think (role is {role!r})"
        yield "invalid_reasoning_content", f"{place} has reasoning_content, but {reason}"


def find_conversation_problems(
    value: Mapping[str, Any], *, inside: str = "", extra_keys: tuple[str, ...] = ()
) -> Iterator[Broken]:
    """Check an object in the form of a chat request: `messages`, and tools, of which none may be
    given.

    `inside` is the key under which it stands in the line, if not the line itself.
    """
    prefix = f"{inside}." if inside else ""
    yield from find_messages_problems(f"{prefix}messages", value, extra_keys)
    owner = f"'{inside}'" if inside else "the example"
    yield from find_unknown_keys(owner, value, _CONVERSATION_KEYS)
    if value.get("tools") not in (None, []):
        code, message = describe_wrong(
            "tools_unsupported", f"'{prefix}tools'", "empty", value["tools"]
        )
        yield code, f"{message}: tools are not supported"
    parallel = value.get("parallel_tool_calls")
    if parallel is not None and not isinstance(parallel, bool):
        place = f"'{prefix}parallel_tool_calls'"
        yield describe_wrong("invalid_parallel_tool_calls", place, "a boolean", parallel)


def find_messages_problems(
    place: str, value: Mapping[str, Any], extra_keys: tuple[str, ...] = ()
) -> Iterator[Broken]:
    """The rules of ``value["messages"]`` and of each message in it."""
    if "messages" not in value:
        yield "missing_messages", f"the key '{place}' is missing"
        return
    messages = value["messages"]
    if not isinstance(messages, list) or not messages:
        yield describe_wrong(
            "invalid_messages", f"'{place}'", "a list with at least one message", messages
        )
        return
    for index, message in enumerate(messages):
        yield from find_message_problems(f"{place}[{index}]", message, extra_keys)


def find_learned_problems(messages: list[MessageLine]) -> Iterator[Broken]:
    """Check what a conversation to learn from needs beyond well-formed messages."""
    answers = [message for message in messages if message["role"] == "assistant"]
    if not answers:
        reason = "there is no assistant message, so there is nothing to learn"
        yield "missing_assistant_message", reason
        return
    if (role := messages[-1]["role"]) != "assistant":
        reason = f"the last message has role {role!r}; it must be 'assistant'"
        yield "last_message_not_assistant", reason
    if all(message.get("weight", 1) == 0 for message in answers):
        reason = "every assistant message has weight 0; at least one needs weight 1"
        yield "nothing_to_learn", reason
    if messages[0]["role"] == "assistant" and messages[0].get("weight", 1) != 0:
        reason = "messages[0] is an assistant message to be learned, and nothing is before it"
        yield "nothing_before_answer", f"{reason}: begin with what it answers, or give it weight 0"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
